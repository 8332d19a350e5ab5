"""simple_add by API versions 1, 2, 3 and 4 through the stock JAX plugin on CUDA."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_gpu
from xla_gpu import _ops
from xla_gpu.jax import simple_add

_COUNTER = itertools.count()
DTYPES = ["float32", "bfloat16", "float16", "int32"]
SHAPES = [(), (0,), (1,), (7, 3), (1 << 20,), (3, 5, 1001)]


def operands(dtype, shape):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.integers(-99, 99, shape), dtype) for _ in range(2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_jax_op(dtype, shape):
    a, b = operands(dtype, shape)
    np.testing.assert_array_equal(jax.jit(simple_add)(a, b), a + b)


def custom_call(target, version, text, like):
    call = jax.ffi.ffi_call(
        target,
        [jax.ShapeDtypeStruct(like.shape, like.dtype)],
        custom_call_api_version=version,
        legacy_backend_config=None if version == 4 else text,
    )
    return jax.jit(lambda a, b: call(a, b)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_api_version(version, dtype):
    a, b = operands(dtype, (5, 33))
    text = _ops.opaque("simple_add", "CUDA", [_ops.spec_of(a), _ops.spec_of(b)], {})
    target = f"gpu_add_{next(_COUNTER)}"
    address = xla_gpu.handler("simple_add", platform="CUDA", api_version=version)
    xla_gpu.register(target, address, platform="CUDA", api_version=version)
    step = custom_call(target, version, text, a)
    for _ in range(3):  # run, capture, replay
        np.testing.assert_array_equal(step(a, b), a + b)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_api_version_many_times_in_one_program(version):
    """Twenty calls: enough for XLA to make a command buffer of them."""
    a, b = operands("float32", (4097,))
    text = _ops.opaque("simple_add", "CUDA", [_ops.spec_of(a), _ops.spec_of(b)], {})
    target = f"gpu_add_{next(_COUNTER)}"
    address = xla_gpu.handler("simple_add", platform="CUDA", api_version=version)
    xla_gpu.register(target, address, platform="CUDA", api_version=version)
    step = custom_call(target, version, text, a)

    @jax.jit
    def program(a, b):
        for _ in range(20):
            a = step(a, b)
        return a

    for i in range(6):
        np.testing.assert_array_equal(program(a + i, b), a + i + 20 * b)
