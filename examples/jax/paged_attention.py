"""Fifteen lines of paged attention in JAX: write a step's keys and values, then attend."""

import jax
import jax.numpy as jnp
from xla_gpu.jax import paged_attention, update_kv_cache


def step(cache, query, key, value, slots, lens, tables, starts, num_seqs):
    cache = update_kv_cache(key, value, cache, slots)
    return cache, paged_attention(query, cache, lens, tables, starts, num_seqs, scale=64**-0.5)


cache = jnp.zeros((32, 16, 2 * 2, 64), jnp.bfloat16)  # pages, page size, K and V heads, head_dim
query = jnp.ones((3, 8, 64), jnp.bfloat16)  # two sequences: two new tokens and one
key = jnp.ones((3, 2, 64), jnp.bfloat16)
lens, starts = jnp.array([2, 1], jnp.int32), jnp.array([0, 2, 3], jnp.int32)
tables = jnp.array([[5, 0], [9, 0]], jnp.int32)
slots = jnp.array([5 * 16, 5 * 16 + 1, 9 * 16], jnp.int32)
step = jax.jit(step, donate_argnums=0)  # the cache is updated in place
cache, out = step(cache, query, key, key, slots, lens, tables, starts, jnp.array([2], jnp.int32))
print(out.shape, out.dtype, float(out[0, 0, 0]))
