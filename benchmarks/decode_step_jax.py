"""decode_step.py's step in JAX: with our attention, or with JAX's own of cuDNN on pages.

--attention cudnn: jax._src.cudnn.fused_attention_stablehlo.paged_attention (not public), on caches
with K and V apart; the new tokens are written by our update_kv_cache in both.
"""

from __future__ import annotations

import decode_step
import jax
import jax.numpy as jnp
import numpy as np
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


ATTENTIONS = {"ours": attend_ours, "cudnn": attend_cudnn}


def main() -> None:
    sizes, steps, attention = decode_step.parse(__doc__, tuple(ATTENTIONS))
    attend = ATTENTIONS[attention]
    bf16 = lambda array: jnp.asarray(array).astype(jnp.bfloat16)  # noqa: E731
    w = {name: bf16(array) for name, array in decode_step.weights(sizes).items()}
    given = decode_step.inputs(sizes)
    x = bf16(given.pop("x"))
    index = {name: jnp.asarray(array) for name, array in given.items()}
    angles = jnp.asarray(decode_step.angles(sizes))
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    start = bf16(decode_step.cache(sizes))
    form = start if attention == "ours" else (start[:, :, 0::2], start[:, :, 1::2])
    caches = [jax.tree.map(lambda part: part + 0, form) for _ in range(sizes.layers)]
    batch, head_dim = sizes.batch, sizes.head_dim

    def step(x, w, caches, cos, sin, index):
        updated = []
        for cache in caches:
            y = norm(x)
            q = rotate((y @ w["q"]).reshape(batch, sizes.q_heads, head_dim), cos, sin)
            k = rotate((y @ w["k"]).reshape(batch, sizes.kv_heads, head_dim), cos, sin)
            v = (y @ w["v"]).reshape(batch, sizes.kv_heads, head_dim)
            cache = update_kv_cache(k, v, cache, index["slots"])
            updated.append(cache)
            out = attend(q, cache, index, head_dim**-0.5)
            x = x + out.reshape(batch, sizes.hidden) @ w["o"]
            y = norm(x)
            x = x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]
        return norm(x), updated

    step = jax.jit(step, donate_argnums=2)
    first, caches = step(x, w, caches, cos, sin, index)
    state = [first, caches]

    def one() -> None:
        state[:] = step(state[0], w, state[1], cos, sin, index)

    times = decode_step.time_steps(one, lambda: jax.block_until_ready(state), steps)
    shown = np.asarray(first.astype(jnp.float32))
    device = str(jax.devices()[0])
    decode_step.report("jax", sizes, times, shown, attention=attention, device=device)


if __name__ == "__main__":
    main()
