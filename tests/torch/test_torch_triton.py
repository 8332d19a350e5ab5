"""Triton's functions under torch.compile and torch.export, before any eager call of them."""

import kernel_examples
import pytest
import torch
import xla_gpu

triton = pytest.importorskip("triton")
tl = triton.language


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_autotuned_kernel_is_compiled_and_exported(monkeypatch, dynamic):
    """The trace has no arrays to tune with: without a GPU its twin runs."""
    kernel = kernel_examples.module("triton_matmul", monkeypatch).kernel
    a, b = torch.randn(17, 32, dtype=torch.float16), torch.randn(32, 9, dtype=torch.float16)
    want = (a.float() @ b.float()).half()

    class Product(torch.nn.Module):
        def forward(self, a, b):
            return kernel(a, b)

    compiled = torch.compile(Product(), fullgraph=True, dynamic=dynamic)
    exported = torch.export.export(Product(), (a, b)).module()
    for program in (compiled, exported):
        torch.testing.assert_close(program(a, b), want, rtol=2e-3, atol=2e-3)


@triton.jit
def axpy(x, y, alpha, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(y + at, mask=at < n)
    tl.store(y + at, alpha * tl.load(x + at, mask=at < n) + old, mask=at < n)


HOST = """
void axpy(const float* x, float* y, float alpha, int n) {
  for (int i = 0; i < n; ++i) y[i] += alpha * x[i];
}"""


@pytest.mark.parametrize("dynamic", [False, True, None])
def test_in_place_with_numbers(dynamic):
    kernel = xla_gpu.triton_kernel(
        axpy,
        grid=lambda meta: (xla_gpu.cdiv(meta["n"], meta["BLOCK"]),),
        in_place=["y"],
        scalars={"n": lambda x: x.size},
        constexprs={"BLOCK": 128},
        host=HOST,
    )

    def run(x, y, alpha):
        kernel(x, y, alpha)
        return 2 * y

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic)
    for size, alpha in ((5, 2.5), (7, 2.5), (300, -1.0)):
        x, y = torch.randn(size), torch.randn(size)
        want = y + alpha * x
        torch.testing.assert_close(compiled(x, y, alpha), 2 * want)
        torch.testing.assert_close(y, want)
