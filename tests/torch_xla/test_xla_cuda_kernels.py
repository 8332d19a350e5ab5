"""Kernels of CUDA source on XLA tensors: machine code on a GPU, else their C++ twins."""

import os
import pathlib
import subprocess

import pytest

pytest.importorskip("torch_xla")

import torch
import torch_xla
import xla_gpu
from xla_gpu.torch_xla import platform

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/kernels"
CUDA = """
__global__ void saxpy(const float* x, const float* y, float* out, float alpha, long n) {
  long i = blockIdx.x * long(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = alpha * x[i] + y[i];
}
"""
HOST = """
void saxpy(const float* x, const float* y, float* out, float alpha, long n) {
  for (long i = 0; i < n; ++i) out[i] = alpha * x[i] + y[i];
}
"""
LAUNCH = dict(
    grid=lambda x: xla_gpu.cdiv(x.size, 256),
    block=256,
    outputs={"out": "x"},
    scalars={"alpha": "f32", "n": lambda x: x.size},
)


@pytest.fixture
def device():
    return torch_xla.device()


@pytest.fixture(scope="module")
def saxpy():
    return xla_gpu.cuda_kernel(
        CUDA,
        "saxpy",
        **LAUNCH,
        host=HOST,
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
    )


def test_values_gradient_and_name(saxpy, device):
    for shape in ((0,), (1,), (257,), (3, 1000)):
        x, y = torch.randn(2, *shape)
        got = saxpy(x.to(device), y.to(device), alpha=2.0)
        torch.testing.assert_close(got.cpu(), 2 * x + y)
    leaf = x.to(device).requires_grad_()
    out = saxpy(saxpy(leaf, leaf, alpha=2.0), leaf, alpha=-1.0)  # -3 x + x
    assert 'custom_call_target="saxpy"' in torch_xla._XLAC._get_xla_tensors_hlo([out])
    out.sum().backward()
    torch.testing.assert_close(leaf.grad.cpu(), torch.full_like(x, -2.0))


@pytest.mark.filterwarnings("ignore")
def test_openxla(saxpy, device):
    x, y = torch.randn(2, 1000)
    step = torch.compile(lambda x, y: saxpy(x.exp(), y, alpha=0.5) * 2, backend="openxla")
    for _ in range(3):
        got = step(x.to(device), y.to(device))
        torch.testing.assert_close(got.cpu(), x.exp() + 2 * y)


@pytest.mark.parametrize("name, tolerance", [("f32", 1e-5), ("bf16", 2e-2)])
def test_rms_norm(device, name, tolerance):
    """The example's source: a template, in place, two results."""
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[name]
    element = {"f32": "float", "bf16": "bf16"}[name]
    source = EXAMPLES / "rms_norm.cu"
    norm = xla_gpu.cuda_kernel(
        source,
        f"rms_norm<{element}, 1>",
        grid=lambda x: x.shape[0],
        block=256,
        outputs={"out": "x", "inverse": lambda x: (x.shape[:-1], "f32")},
        in_place=["residual"],
        scalars={
            "rows": lambda x: x.shape[0],
            "cols": lambda weight: weight.size,
            "epsilon": 1e-6,
        },
        host=source,
    )
    x, residual = torch.randn(2, 5, 33, dtype=dtype)
    weight = torch.randn(33, dtype=dtype)
    on_device = residual.to(device)
    out, inverse, kept = norm(x.to(device), on_device, weight.to(device))
    assert kept is on_device
    h = x + residual
    want = torch.nn.functional.rms_norm(h.float(), (33,), weight.float(), 1e-6)
    torch.testing.assert_close(kept.cpu(), h)
    torch.testing.assert_close(out.cpu().float(), want, rtol=tolerance, atol=tolerance)
    want = torch.rsqrt(h.float().square().mean(-1) + 1e-6)
    torch.testing.assert_close(inverse.cpu(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.skipif(
    platform() != "CUDA" or "XLA_GPU_PROGRAM" not in os.environ,
    reason="machine code needs a GPU, and XLA_GPU_PROGRAM names xla-gpu",
)
def test_machine_code(device, tmp_path):
    (tmp_path / "saxpy.cu").write_text('extern "C"' + CUDA)
    command = [os.environ["XLA_GPU_PROGRAM"], "compile", "saxpy.cu", "--cubin"]
    subprocess.run([*command, "--output", "saxpy.cubin"], cwd=tmp_path, check=True)
    kernel = xla_gpu.cubin_kernel(
        tmp_path / "saxpy.cubin",
        "saxpy",
        **{**LAUNCH, "scalars": {"alpha": "f32", "n": ("i64", lambda x: x.size)}},
        arguments=["x", "y"],
        parameters=["x", "y", "out", "alpha", "n"],
    )
    x, y = torch.randn(2, 1000)
    torch.testing.assert_close(kernel(x.to(device), y.to(device), alpha=2.0).cpu(), 2 * x + y)
