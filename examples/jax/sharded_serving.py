"""Sequences over devices: each has its own pages and its own block tables (shard_map).

Heads over devices need nothing of the kind: plain jit over sharded arrays splits the call.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from xla_gpu.jax import paged_attention

try:
    from jax import shard_map
except ImportError:  # before jax 0.6
    from jax.experimental.shard_map import shard_map

mesh = Mesh(np.array(jax.devices()), ("data",))
n = mesh.size
query = jnp.ones((4 * n, 8, 64))  # four sequences a device, one new token each
cache = jnp.ones((16 * n, 16, 4, 64))  # sixteen pages a device
lens = jnp.full((4 * n,), 40, jnp.int32)
tables = jnp.tile(jnp.arange(12, dtype=jnp.int32).reshape(4, 3), (n, 1))  # local page numbers
starts = jnp.tile(jnp.arange(5, dtype=jnp.int32), n)  # local rows: 0, 1, 2, 3, 4 on each device
num_seqs = jnp.full((n,), 4, jnp.int32)

args = (query, cache, lens, tables, starts, num_seqs)
by_sequence = [jax.device_put(array, NamedSharding(mesh, P("data"))) for array in args]
step = shard_map(
    lambda *args: paged_attention(*args, scale=0.125),
    mesh=mesh,
    in_specs=(P("data"),) * 6,
    out_specs=P("data"),
)
out = jax.jit(step)(*by_sequence)
print(out.shape, out.sharding.spec, bool(jnp.all(out == 1)))

by_head = [
    jax.device_put(query, NamedSharding(mesh, P(None, "data", None))),
    jax.device_put(cache, NamedSharding(mesh, P(None, None, None, None))),
]
out = jax.jit(lambda *args: paged_attention(*args, scale=0.125))(
    *by_head, lens[:4], tables[:4], jnp.arange(5, dtype=jnp.int32), num_seqs[:1]
)
print(out.shape, out.sharding.spec)
