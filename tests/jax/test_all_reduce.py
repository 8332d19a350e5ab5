"""all_reduce through JAX on one device of the CPU; on several GPUs: benchmarks/devices.py sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_gpu.jax import all_reduce


def test_of_one_device_is_its_part():
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        x = jnp.arange(12, dtype=dtype).reshape(3, 4)
        for call in (all_reduce, jax.jit(lambda x: all_reduce(x, devices="0"))):
            got = call(x, "0") if call is all_reduce else call(x)
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ("", "attribute 'devices' is \"\"; it must be 1 to 8 CUDA ordinals joined by commas"),
        ("0,0", "attribute 'devices' is \"0,0\"; it must be"),
        ("-1", "attribute 'devices' is \"-1\"; it must be"),
        (0, "attribute 'devices' is int 0; it must be string"),
    ],
)
def test_wrong_devices(devices, says):
    with pytest.raises(ValueError, match=f"all_reduce: {says}"):
        all_reduce(jnp.ones(3), devices=devices)


def test_wrong_calls():
    with pytest.raises(ValueError, match=r"x is f32\[524289\], 2097156 bytes; at most 2097152"):
        all_reduce(jnp.ones(524289), "0")
    with pytest.raises(ValueError, match="all_reduce: x is i32"):
        all_reduce(jnp.arange(3), "0")
    with pytest.raises(Exception, match="attribute 'devices' has 2, and the call runs on the Host"):
        all_reduce(jnp.ones(3), "0,1")
    with pytest.raises(NotImplementedError, match="psum"):
        jax.grad(lambda x: all_reduce(x, devices="0").sum())(jnp.ones(3))
