"""Time of ragged_paged_attention_v3 in a decode step: what a layer of a served model waits for.

    python benchmarks/decode_layer.py [--products N] [SEQUENCES CONTEXT]...

One jitted step of --layers layers, each with a bf16 cache of its own, donated: a call that writes
one new token a sequence and attends over CONTEXT, and an addition; and the same without the call.
Printed: the difference, in us a layer, least and median of 20 runs of 10 steps. 32 query heads, 8
kv heads, head_dim 128, pages in random order. A server's step is padded: --max-seqs 256 --longest
2048 --page 32 --tokens 16 is what vLLM's is by default with --max-model-len 2048. --products 4
multiplies by as many matrices of 32 MB a layer, so that the call finds nothing in L2, as behind a
model's weights.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from xla_gpu.jax import packed_kv_cache_shape, ragged_paged_attention_v3

Q_HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
SHAPES = [(1, 512), (16, 512), (16, 2048), (64, 512), (256, 512), (64, 4096)]


def step_times(sequences: int, context: int, args, attend: bool) -> list[float]:
    """Seconds of a step, each the mean of ten."""
    rng = np.random.default_rng(0)
    tokens = max(sequences, args.tokens)

    def normal(heads: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal((tokens, heads, HEAD_DIM)), jnp.bfloat16)

    queries, keys, values = normal(Q_HEADS), normal(KV_HEADS), normal(KV_HEADS)
    each = -(-context // args.page)
    shape = packed_kv_cache_shape(sequences * each, args.page, KV_HEADS, HEAD_DIM, jnp.bfloat16)
    matrices = [
        [jnp.zeros((Q_HEADS * HEAD_DIM,) * 2, jnp.bfloat16) for _ in range(args.products)]
        for _ in range(args.layers)
    ]
    caches = [jnp.zeros(shape, jnp.bfloat16) for _ in range(args.layers)]
    rows = max(sequences, args.max_seqs)
    tables = np.zeros((rows, max(each, -(-args.longest // args.page))), np.int32)
    tables[:sequences, :each] = rng.permutation(sequences * each).reshape(sequences, each)
    indices = jnp.asarray(tables.reshape(-1))
    lens = jnp.zeros(rows, jnp.int32).at[:sequences].set(context)
    starts = jnp.minimum(jnp.arange(rows + 1, dtype=jnp.int32), sequences)
    distribution = jnp.full((3,), sequences, jnp.int32)

    @functools.partial(jax.jit, donate_argnums=1)
    def step(
        hidden: jax.Array, caches: list[jax.Array], matrices: list[list[jax.Array]]
    ) -> tuple[jax.Array, list[jax.Array]]:
        updated = []
        for cache, of_layer in zip(caches, matrices, strict=True):
            for matrix in of_layer:
                hidden += (hidden.reshape(tokens, -1) @ matrix).reshape(hidden.shape)
            out = hidden * jnp.bfloat16(0.5)
            if attend:
                out, cache = ragged_paged_attention_v3(
                    hidden, keys, values, cache, lens, indices, starts, distribution, sm_scale=0.1
                )
            hidden = hidden + out
            updated.append(cache)
        return hidden, updated

    times = []
    for number in range(21):
        start = time.perf_counter()
        for _ in range(10):
            hidden, caches = step(queries, caches, matrices)
        hidden.block_until_ready()
        if number > 0:  # the first compiles
            times.append((time.perf_counter() - start) / 10)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=int, nargs="*", metavar="SEQUENCES CONTEXT")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--products", type=int, default=0, help="of 32 MB matrices, a layer")
    parser.add_argument("--page", type=int, default=16, help="tokens of a page")
    parser.add_argument("--tokens", type=int, default=0, help="of a step, at least")
    parser.add_argument("--max-seqs", type=int, default=0, help="rows of the tables, at least")
    parser.add_argument(
        "--longest", type=int, default=0, help="tokens a table's row is for, at least"
    )
    args = parser.parse_args()
    shapes = list(zip(args.shape[::2], args.shape[1::2], strict=True)) or SHAPES
    print(f"{jax.devices()[0].device_kind}: us a layer (least, median), GB/s of keys and values")
    for sequences, context in shapes:
        without = step_times(sequences, context, args, attend=False)
        times = step_times(sequences, context, args, attend=True)
        least, median = (
            1e6 * (of(times) - of(without)) / args.layers for of in (min, statistics.median)
        )
        gigabytes = sequences * context * 2 * KV_HEADS * HEAD_DIM * 2 / 1e9
        rate = gigabytes / (median * 1e-6)
        print(f"{sequences:4} x {context:6} {least:8.1f} {median:8.1f} {rate:8.0f}", flush=True)


if __name__ == "__main__":
    main()
