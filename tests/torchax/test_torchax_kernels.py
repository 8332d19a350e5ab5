"""Kernels of the user's on torchax's tensors."""

import jax
import numpy as np
import pytest

torchax = pytest.importorskip("torchax", exc_type=ImportError)

import torch
import xla_gpu.torchax
from torchax import interop
from user_kernels import add, add_to, pairs, random_case, scale, swap_out


def ramp():
    return torch.arange(1.0, 5.0, device="jax")


def test_values(env):
    x = ramp()
    np.testing.assert_array_equal(scale(x, alpha=3.0).jax(), [3, 6, 9, 12])
    np.testing.assert_array_equal(pairs(x).jax(), [1, -1, 2, -2, 3, -3, 4, -4])
    jitted = interop.jax_jit(lambda x: pairs(scale(x)))(x)
    np.testing.assert_array_equal(jitted.jax(), [2, -2, 4, -4, 6, -6, 8, -8])


def test_an_ffi_handler(env):
    np.testing.assert_array_equal(add(ramp(), ramp()).jax(), [2, 4, 6, 8])
    jitted = interop.jax_jit(lambda x: add(add(x, x), x))
    np.testing.assert_array_equal(jitted(ramp()).jax(), [3, 6, 9, 12])


def test_outside_of_the_environment():
    with torchax.default_env():
        x = ramp()
    np.testing.assert_array_equal(scale(x).jax(), [2, 4, 6, 8])


def test_in_place(env):
    x, y = ramp(), torch.ones(4, device="jax")
    assert add_to(y, x) is y
    np.testing.assert_array_equal(y.jax(), [2, 3, 4, 5])
    before, after = swap_out(y, x)
    assert after is y
    np.testing.assert_array_equal(before.jax(), [2, 3, 4, 5])
    np.testing.assert_array_equal(y.jax(), [1, 2, 3, 4])


def test_gradients_of_torch_and_of_jax(env):
    x = ramp().requires_grad_()
    scale(scale(x, alpha=3.0)).sum().backward()
    np.testing.assert_array_equal(x.grad.jax(), [6, 6, 6, 6])
    loss = interop.jax_view(lambda x: scale(scale(x, alpha=3.0)).sum())
    for gradient in (jax.grad(loss), jax.jit(jax.grad(loss))):
        np.testing.assert_array_equal(gradient(ramp().jax()), [6, 6, 6, 6])
    with pytest.raises(NotImplementedError, match="xla_gpu::pairs has no gradient"):
        pairs(x).sum().backward()


def test_bad_use(env):
    with pytest.raises(ValueError, match="scale: x is i32.*; its dtype must be f32"):
        scale(ramp().int())
    with pytest.raises(ValueError, match="add_to: x f32.* is an ordinary tensor on cpu but others"):
        add_to(ramp(), torch.ones(4, device="cpu"))


@pytest.mark.parametrize("group", range(6))
def test_random_signatures(group, env):
    case = random_case(np.random.default_rng([340, group]), dtypes=("f32", "i8", "i32", "u8"))
    args = {name: tensor.to("jax") for name, tensor in case.args.items()}
    for result, want in zip(case.call(args), case.want(), strict=True):
        np.testing.assert_array_equal(result.jax(), want.numpy())


def test_a_function_on_torch_tensors(env):
    """It gets plain tensors of torch's, also where torchax's modes are on."""
    seen = []

    def f(x, *, alpha: float):
        seen.append((type(x), x.device.type))
        return alpha * x

    kernel = xla_gpu.torch_kernel(f, outputs={"out": "x"})
    np.testing.assert_array_equal(kernel(ramp(), alpha=3.0).jax(), [3, 6, 9, 12])
    jitted = interop.jax_jit(lambda x: kernel(kernel(x, alpha=2.0), alpha=0.5))
    np.testing.assert_array_equal(jitted(ramp()).jax(), [1, 2, 3, 4])
    assert seen == [(torch.Tensor, "cpu")] * 3
