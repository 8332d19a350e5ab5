"""With XLA_GPU_BATCH_INVARIANT=1 a sequence's bits do not depend on what else is in the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from xla_gpu.jax import paged_attention

PAGES, SIZE, SEQS, TOKENS, HEADS, DIM = 203, 16, 5, 97, 8, 64


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("new", "context"), [(1, 801), (1, 17), (40, 300), (64, 64)])
def test_alone_and_among_others(monkeypatch, dtype, new, context):
    monkeypatch.setenv("XLA_GPU_BATCH_INVARIANT", "1")
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.standard_normal((TOKENS, HEADS, DIM), np.float32), dtype)
    cache = jnp.asarray(rng.standard_normal((PAGES, SIZE, 4, DIM), np.float32), dtype)
    tables = rng.integers(0, PAGES, (SEQS, 60)).astype(np.int32)
    step = jax.jit(lambda *args: paged_attention(*args, 0.125))

    def run(query, tables, lens, starts, num_seqs):
        starts = np.minimum(np.array(starts, np.int32), TOKENS)
        lens, number = np.array(lens, np.int32), np.array([num_seqs], np.int32)
        return np.asarray(step(query, cache, lens, tables, starts, number).astype(jnp.float32))

    alone = run(query, tables, [context, 0, 0, 0, 0], [0, *[new] * 5], 1)[:new]
    starts = [0, 1, 1 + new, 2 + new, 7 + new, 27 + new]
    moved = jnp.roll(query, 1, axis=0), np.roll(tables, 1, axis=0)
    among = run(*moved, [700, context, 1, 555, 20], starts, 5)[1 : 1 + new]
    assert alone.tobytes() == among.tobytes()
