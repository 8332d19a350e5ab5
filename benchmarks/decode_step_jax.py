"""decode_step.py's step in JAX: with our attention, or with others on pages.

--attention cudnn: jax._src.cudnn.fused_attention_stablehlo.paged_attention (not public);
flash-attn3-jax: the package's flash_mha_with_kvcache, of Hopper's FlashAttention-3; both on caches
with K and V apart, which our update_kv_cache writes. pallas: jax.experimental.pallas.ops.gpu's
paged_attention, on caches [kv_heads, pages, page, head_dim], which XLA's scatter writes.

--calls: in place of a step its attention alone, a call a layer, each with the layer's cache and
with the result before it as queries.
"""

from __future__ import annotations

import importlib.metadata
import math
import os

import decode_step
import jax
import jax.numpy as jnp
import numpy as np
import xla_gpu
from xla_gpu.jax import paged_attention, update_kv_cache


def norm(x: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)).astype(x.dtype)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attend_ours(q, cache, index, scale):
    return paged_attention(
        q,
        cache,
        index["context_lens"],
        index["block_tables"],
        index["query_start_loc"],
        index["num_seqs"],
        scale,
    )


def attend_cudnn(q, cache, index, scale):
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    tables = index["block_tables"][:, None, :, None]
    lens = index["context_lens"]
    return cudnn.paged_attention(
        q[:, None],
        *cache,
        jnp.ones_like(lens),
        lens,
        tables,
        tables,
        scale=scale,
        mask_type=cudnn.MaskType.PADDING,
    ).reshape(q.shape)


def attend_flash_attn3(q, cache, index, scale):
    from flash_attn3_jax import flash_mha_with_kvcache

    return flash_mha_with_kvcache(
        q[:, None],
        *cache,
        cache_seqlens=index["context_lens"],
        page_table=index["block_tables"],
        softmax_scale=scale,
    ).reshape(q.shape)


def attend_pallas(q, cache, index, scale):
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

    tables = index["block_tables"]
    parts = math.gcd(16, tables.shape[1])
    return paged_attention(
        q * jnp.asarray(scale, q.dtype),  # it scales nothing
        *cache,
        tables,
        index["context_lens"],
        k_splits=parts,
        pages_per_compute_block=math.gcd(8, tables.shape[1] // parts),
        interpret=jax.default_backend() == "cpu",
    )


ATTENTIONS = {
    "ours": attend_ours,
    "cudnn": attend_cudnn,
    "flash-attn3-jax": attend_flash_attn3,
    "pallas": attend_pallas,
}


# Whose code an attention is, besides JAX's and ours.
PACKAGES = {
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "flash-attn3-jax": ("flash-attn3-jax",),
}


def versions(attention: str) -> dict[str, str]:
    found = {"jax": jax.__version__, "jaxlib": jax.lib.__version__, "xla_gpu": xla_gpu.__version__}
    for name in PACKAGES.get(attention, ()):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def formed(cache: jax.Array, attention: str):
    """The cache, K on even heads, as the attention takes it."""
    if attention == "ours":
        return cache
    apart = cache[:, :, 0::2], cache[:, :, 1::2]
    return tuple(x.transpose(2, 0, 1, 3) for x in apart) if attention == "pallas" else apart


def append(k, v, cache, index, attention: str):
    if attention != "pallas":
        return update_kv_cache(k, v, cache, index["slots"])
    page, token = jnp.divmod(index["slots"], cache[0].shape[2])
    return tuple(
        x.at[:, page, token].set(new.swapaxes(0, 1)) for x, new in zip(cache, (k, v), strict=True)
    )


def main() -> None:
    sizes, steps, attention, calls = decode_step.parse(__doc__, tuple(ATTENTIONS))
    attend = ATTENTIONS[attention]
    bf16 = lambda array: jnp.asarray(array).astype(jnp.bfloat16)  # noqa: E731
    given = decode_step.inputs(sizes)
    x = bf16(given.pop("x"))
    index = {name: jnp.asarray(array) for name, array in given.items()}
    angles = jnp.asarray(decode_step.angles(sizes))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    start = bf16(decode_step.cache(sizes))
    form = formed(start, attention)
    caches = [jax.tree.map(lambda part: part + 0, form) for _ in range(sizes.layers)]
    batch, head_dim = sizes.batch, sizes.head_dim
    w = {} if calls else {n: bf16(array) for n, array in decode_step.weights(sizes).items()}

    def alone(x, w, caches, cos, sin, index):
        q = x.reshape(batch, sizes.q_heads, head_dim)
        for cache in caches:
            q = attend(q, cache, index, head_dim**-0.5)
        return q.reshape(x.shape)

    def step(x, w, caches, cos, sin, index):
        updated = []
        for cache in caches:
            y = norm(x)
            q = rotate((y @ w["q"]).reshape(batch, sizes.q_heads, head_dim), cos, sin)
            k = rotate((y @ w["k"]).reshape(batch, sizes.kv_heads, head_dim), cos, sin)
            v = (y @ w["v"]).reshape(batch, sizes.kv_heads, head_dim)
            cache = append(k, v, cache, index, attention)
            updated.append(cache)
            out = attend(q, cache, index, head_dim**-0.5)
            x = x + out.reshape(batch, sizes.hidden) @ w["o"]
            y = norm(x)
            x = x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return norm(x), updated

    if calls:
        run = jax.jit(alone)
        state = [run(x, w, caches, cos, sin, index)]
    else:
        run = jax.jit(step, donate_argnums=2)
        state = [*run(x, w, caches, cos, sin, index)]
    first = state[0]

    def one() -> None:
        if calls:
            state[0] = run(x, w, caches, cos, sin, index)
        else:
            state[:] = run(state[0], w, state[1], cos, sin, index)

    times = decode_step.time_steps(one, lambda: jax.block_until_ready(state), steps)
    with xla_gpu.profile() as seen:  # what XLA replays from a command buffer it does not call
        one()
        jax.block_until_ready(state)
    more = {
        "attention": attention,
        "calls": calls,
        "device": str(jax.devices()[0]),
        "versions": versions(attention),
        "host_calls": None if attention == "pallas" else sum(k.calls for k in seen.kernels),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }
    decode_step.report("jax", sizes, times, np.asarray(first.astype(jnp.float32)), **more)


if __name__ == "__main__":
    main()
