"""Kernels of the user's on XLA tensors, on the compatibility plugin."""

import numpy as np
import pytest

pytest.importorskip("torch_xla")

import torch
import torch_xla
import xla_gpu
from user_kernels import SIZE, SOURCE, add, add_to, pairs, random_case, scale, swap_out
from xla_gpu.torch_xla import platform

pytestmark = pytest.mark.skipif(platform() != "Host", reason="these kernels are for the CPU")


@pytest.fixture
def device():
    return torch_xla.device()


@pytest.fixture
def x(device):
    return torch.arange(1.0, 5.0).to(device)


def test_values(x, device):
    assert scale(x).tolist() == [2, 4, 6, 8] and scale(x, alpha=-0.5).tolist()[3] == -2
    assert scale(x, alpha=3.0).device == x.device
    assert pairs(x).tolist() == [1, -1, 2, -2, 3, -3, 4, -4]
    wide = torch.arange(6.0).reshape(3, 2).to(device)
    assert scale(wide[:, 1]).tolist() == [2, 6, 10]
    hlo = torch_xla._XLAC._get_xla_tensors_hlo([scale(x)])
    assert 'custom_call_target="scale"' in hlo


def test_an_ffi_handler(x):
    assert add(add(x, x), x).tolist() == [3, 6, 9, 12]


def test_in_place(x):
    y = torch.ones_like(x)
    assert add_to(y, x) is y and y.tolist() == [2, 3, 4, 5]
    before, after = swap_out(y, x)
    assert after is y and before.tolist() == [2, 3, 4, 5] and y.tolist() == [1, 2, 3, 4]


def test_two_kernels_of_one_name(device):
    def of(factor):
        source = f"void k(const float* x, float* out) {{ *out = {factor} * *x; }}"
        return xla_gpu.host_kernel(source, "k", outputs={"out": "x"})

    one, two, x = of(2), of(3), torch.tensor(5.0).to(device)
    assert [one(x).item(), two(x).item(), one(x).item()] == [10, 15, 10]
    assert (one(x) + two(x)).item() == 25


def test_a_scalar_of_64_bits(device):
    source = "void wide(const double* x, double a, double* out) { *out = *x * a; }"
    kernel = xla_gpu.host_kernel(source, "wide", outputs={"out": "x"})
    one = torch.ones((), dtype=torch.float64).to(device)
    for value in (0.1, 1e300, -2.5e-308, float("inf"), 0.0, -0.0):
        assert repr(kernel(one, a=value).item()) == repr(value)


def test_gradient(x):
    x.requires_grad_()
    scale(scale(x, alpha=3.0)).sum().backward()
    assert x.grad.tolist() == [6, 6, 6, 6]
    with pytest.raises(NotImplementedError, match="xla_gpu::pairs has no gradient"):
        pairs(x).sum().backward()


def test_bad_use(x):
    with pytest.raises(ValueError, match=r"scale: x is f64\[4\]; its dtype must be f32"):
        scale(x.double())
    with pytest.raises(ValueError, match="x f32.* is on cpu but y is on xla:0"):
        add_to(x, torch.ones(4))


@pytest.mark.filterwarnings("ignore")
def test_openxla(x):
    def program(x, y):
        a = scale(x + 1, alpha=3.0)
        return pairs(a) * 2, add_to(y, a) + 1

    step = torch.compile(program, backend="openxla", fullgraph=True)
    ours, theirs = torch.ones_like(x), torch.ones_like(x)
    for got, want in zip(step(x, ours), program(x, theirs), strict=True):
        assert got.tolist() == want.tolist()
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize("group", range(8))
def test_random_signatures(group, device):
    case = random_case(np.random.default_rng([330, group]))
    args = {name: tensor.to(device) for name, tensor in case.args.items()}
    results = case.call(args)
    for result, want in zip(results, case.want(), strict=True):
        assert torch.equal(result.cpu().to(torch.int64), want)
    for name, tensor in args.items():
        want = case.args[name] + (1 if name in case.in_place else 0)
        assert torch.equal(tensor.cpu(), want), name


def test_kernels_that_differ_in_what_xla_may_do():
    """One name for two handlers: XLA gets a second name."""
    kernels = [
        xla_gpu.Kernel(
            {
                **xla_gpu.host_kernel(
                    SOURCE, "scale", name="both_ways", outputs={"out": "x"}, scalars=SIZE
                )._definition,
                "capture": capture,
            },
            outputs={},
            derived=SIZE,
        )
        for capture in (True, False)
    ]
    x = torch.ones(2).to(torch_xla.device())
    assert [kernel(x, alpha=3.0).tolist() for kernel in kernels] == [[3, 3], [3, 3]]


def test_a_function_on_torch_tensors(x):
    seen = []

    def f(x, out, *, alpha: float):
        seen.append((type(x), x.device.type))
        torch.mul(x, alpha, out=out)

    kernel = xla_gpu.torch_kernel(f, outputs={"out": "x"})
    assert kernel(kernel(x, alpha=2.0) + 1, alpha=0.5).tolist() == [1.5, 2.5, 3.5, 4.5]
    assert seen == [(torch.Tensor, "cpu")] * 2
