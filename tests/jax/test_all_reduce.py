"""all_reduce through JAX on one device of the CPU; on several GPUs: benchmarks/devices.py sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from xla_gpu._schema import schema
from xla_gpu.jax import all_reduce, export_checks

try:
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map


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


def test_a_program_that_lacks_a_device_is_refused():
    """Lowered for CUDA without a GPU. It would wait for two minutes, and end the process's GPUs."""
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    if "CUDA" not in schema("all_reduce").platforms:
        pytest.skip("this library was built without the CUDA kernels")

    def lower(f):
        checks = export_checks()
        return export.export(jax.jit(f), platforms=["cuda"], disabled_checks=checks)(jnp.ones(4))

    mesh, spec = Mesh(np.array(jax.devices()[:1]), "x"), PartitionSpec()
    on_mesh = shard_map(lambda x: all_reduce(x, "0,1"), mesh=mesh, in_specs=spec, out_specs=spec)
    for call in (lambda x: all_reduce(x, "0,1"), on_mesh):
        with pytest.raises(ValueError, match="'devices' is \"0,1\", but the program runs on 1 dev"):
            lower(call)
    lower(lambda x: all_reduce(x, "0"))
