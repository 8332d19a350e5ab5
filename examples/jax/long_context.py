"""One long sequence over several devices: each holds every n-th page of it and attends to those.

What the devices find is joined by xla_gpu.jax.merge_attention_states: all-reduces the size of a
step's output, however long the context is. XLA_FLAGS below makes CPU devices; a machine with GPUs
needs no change.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from xla_gpu.jax import merge_attention_states, paged_attention, update_kv_cache

try:
    from jax import shard_map
except ImportError:  # before jax 0.6
    from jax.experimental.shard_map import shard_map

Q_HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, CHUNK = 8, 2, 64, 16, 128
TOKENS = 1003

mesh = Mesh(np.array(jax.devices()), ("pages",))
devices = mesh.size
pages = -(-TOKENS // (PAGE_SIZE * devices))  # on each device
tables = jnp.arange(pages, dtype=jnp.int32)[None]  # its own numbers; page i is on i % devices


def local_tokens(tokens):
    """How many of the sequence's first tokens are on this device."""
    me, full, rest = lax.axis_index("pages"), tokens // PAGE_SIZE, tokens % PAGE_SIZE
    mine = (full + devices - 1 - me) // devices * PAGE_SIZE
    return mine + jnp.where(full % devices == me, rest, 0)


def write(cache, key, value, start):
    """Tokens from position start on; those of other devices get slot -1, which is skipped."""
    position = start + jnp.arange(len(key))
    page, offset = position // PAGE_SIZE, position % PAGE_SIZE
    mine = page % devices == lax.axis_index("pages")
    slots = jnp.where(mine, tables[0, page // devices] * PAGE_SIZE + offset, -1)
    return update_kv_cache(key, value, cache, slots.astype(jnp.int32))


def attend(query, cache, tables, tokens, *, causal):
    starts = jnp.array([0, len(query)], jnp.int32)
    lens = jnp.reshape(tokens, 1).astype(jnp.int32)
    # f32, so that the parts are rounded once, when they have been joined.
    return paged_attention(
        query, cache, lens, tables, starts, causal=causal, return_lse=True, out_dtype=jnp.float32
    )


def prefill(cache, query, key, value, start):
    """A chunk: the keys before it are all visible, its own causally and on one device only."""
    outs, lses = attend(query, cache, tables, local_tokens(start), causal=False)
    own, own_lse = attend(  # the chunk is a page of its own
        query, (key[None], value[None]), jnp.zeros((1, 1), jnp.int32), len(query), causal=True
    )
    own_lse = jnp.where(lax.axis_index("pages") == 0, own_lse, -jnp.inf)
    out, _ = merge_attention_states([outs, own], [lses, own_lse], "pages")
    return write(cache, key, value, start), out.astype(query.dtype)


def decode(cache, query, key, value, position):
    cache = write(cache, key, value, position)
    out, lse = attend(query, cache, tables, local_tokens(position + 1), causal=False)
    out, _ = merge_attention_states([out], [lse], "pages")
    return cache, out.astype(query.dtype)


def on_devices(step):
    specs = P("pages"), P(), P(), P(), P()
    mapped = shard_map(step, mesh=mesh, in_specs=specs, out_specs=(P("pages"), P()))
    return jax.jit(mapped, donate_argnums=0)


rng = np.random.default_rng(0)
query, key, value = (
    jnp.asarray(rng.normal(size=(TOKENS, heads, HEAD_DIM)), jnp.float32)
    for heads in (Q_HEADS, KV_HEADS, KV_HEADS)
)
cache = jnp.zeros((devices * pages, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM))
cache = jax.device_put(cache, NamedSharding(mesh, P("pages")))
prefill, decode = on_devices(prefill), on_devices(decode)

rows, done = [], 0
while done < TOKENS:
    step, count = (prefill, CHUNK) if done + CHUNK <= TOKENS else (decode, 1)
    part = slice(done, done + count)
    cache, out = step(cache, query[part], key[part], value[part], jnp.int32(done))
    rows.append(out)
    done += count
out = jnp.concatenate(rows)

want, _ = attend(query, (key[None], value[None]), jnp.zeros((1, 1), jnp.int32), TOKENS, causal=True)
print(out.shape, "over", devices, "devices; largest difference", float(abs(out - want).max()))
assert jnp.allclose(out, want, atol=1e-5)
