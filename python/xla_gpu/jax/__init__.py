"""The ops for JAX 0.4.38 and later, on CPUs and NVIDIA GPUs.

Each is one primitive that lowers to one custom call; they work under jit, scan, remat, shard_map,
jit over sharded arrays and jax.export.
"""

from __future__ import annotations

import jax

from xla_gpu.jax._partition import partition_elementwise
from xla_gpu.jax._primitive import OpPrimitive

__all__ = ["simple_add"]

_simple_add = OpPrimitive(
    "simple_add",
    partitioner=partition_elementwise,
    why_no_batching="it works on any shape, so call it on the whole batch",
    why_no_gradient="use a + b, or wrap the call in jax.lax.stop_gradient",
)


def simple_add(a: jax.Array, b: jax.Array) -> jax.Array:
    """Elementwise a + b, the smallest op of the library.

    Args:
      a: f32, bf16, f16 or i32, any shape.
      b: as a.

    Raises:
      ValueError: for another dtype, or shapes or dtypes that differ.
    """
    return _simple_add((a, b), (), ())[0]
