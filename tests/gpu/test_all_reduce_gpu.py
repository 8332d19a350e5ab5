"""all_reduce over all GPUs of the machine, in programs that XLA replays as CUDA graphs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from xla_gpu.jax import all_reduce

DEVICES = jax.devices()[:8]
LENGTH = 12


def run(x):
    """Sums that follow one another, each of another size, beside sums that do not."""
    devices = ",".join(str(device.local_hardware_id) for device in DEVICES)
    total = functools.partial(all_reduce, devices=devices)
    own = total(x + lax.axis_index("devices").astype(x.dtype))
    for i in range(LENGTH):
        part = x[:, : x.shape[1] * (i + 1) // LENGTH]
        x = lax.dynamic_update_slice(x, total(part) - part * (len(DEVICES) - 1), (0, 0))
    # With a collective of its own XLA starts the program where it is ready on all devices.
    return x, own - lax.psum(lax.axis_index("devices"), "devices").astype(x.dtype)


@pytest.mark.skipif(len(DEVICES) < 2, reason="there is one device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("elements", [12, 4096, 65541, 500_000])
def test_sums_in_a_graph(elements, dtype):
    mesh, n = Mesh(np.array(DEVICES), ("devices",)), len(DEVICES)
    split = P("devices")
    step = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=split, out_specs=split))
    for seed in range(6):  # the same graph, other arrays
        numbers = np.random.default_rng(seed).integers(-8, 8, (1, elements))
        x = np.broadcast_to(numbers, (n, elements)).astype(jnp.dtype(dtype))
        same, own = step(jax.device_put(x, NamedSharding(mesh, split)))
        np.testing.assert_array_equal(same, x)  # n * x - (n - 1) * x, exactly
        np.testing.assert_array_equal(own, n * x)
