"""simple_add through JAX: the smallest op, through every dtype and transform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_gpu.jax import simple_add


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 3), (70000,)])
def test_equals_xla(dtype, shape):
    rng = np.random.default_rng(0)
    a = jnp.asarray(rng.integers(-9, 9, shape), dtype)
    b = jnp.asarray(rng.integers(-9, 9, shape), dtype)
    c = simple_add(a, b)
    assert c.dtype == a.dtype
    np.testing.assert_array_equal(np.asarray(c), np.asarray(a + b))


def test_lowers_to_one_typed_custom_call():
    a = jnp.ones((4,), jnp.float32)
    text = jax.jit(simple_add).lower(a, a).compile().as_text()
    assert text.count('custom_call_target="XlaGpuSimpleAdd"') == 1
    assert "API_VERSION_TYPED_FFI" in text


def test_scan():
    xs = jnp.arange(6.0).reshape(3, 2)
    total, _ = jax.jit(lambda xs: jax.lax.scan(lambda c, x: (simple_add(c, x), c), xs[0], xs))(xs)
    np.testing.assert_array_equal(total, xs[0] + xs.sum(0))
