"""Same inputs, same bits; where asked for, whatever else is in the batch."""

import dataclasses

import jax
import jax.numpy as jnp
import jax_calls
import numpy as np
import pytest
from problems import Static, paged_attention_case

BASE = Static(
    dtype="bfloat16",
    cache_dtype="bfloat16",
    tokens=96,
    q_heads=16,
    kv_heads=4,
    head_dim=128,
    pages=300,
    page_size=16,
    max_seqs=6,
    max_pages=256,
    scale=0.09,
)


def call(args):
    return jax_calls.attention(BASE, args)[0]


@pytest.mark.parametrize("tokens", [6, 96, 700])
def test_same_inputs_same_bits(tokens):
    case = paged_attention_case(
        dataclasses.replace(BASE, tokens=tokens), np.random.default_rng(tokens)
    )
    step = jax.jit(call)
    first = np.asarray(step(case.args)).tobytes()
    for _ in range(20):
        assert np.asarray(step(case.args)).tobytes() == first
    assert np.asarray(call({n: jnp.asarray(a) for n, a in case.args.items()})).tobytes() == first


def test_batch_invariance(monkeypatch):
    """One sequence alone and among others, bit for bit, decode and prefill."""
    monkeypatch.setenv("XLA_GPU_BATCH_INVARIANT", "1")
    # Shapes that no other test has: the setting is read when a problem's kernel is chosen.
    static = dataclasses.replace(BASE, tokens=97, max_seqs=5, pages=301)
    rng = np.random.default_rng(2)
    args = dict(paged_attention_case(static, rng).args)
    args["block_tables"] = rng.integers(0, 301, (5, 256)).astype(np.int32)
    step = jax.jit(call)
    for new, context in ((1, 4001), (1, 17), (40, 900), (64, 64)):
        alone = dict(args)
        alone["context_lens"] = np.array([context, 0, 0, 0, 0], np.int32)
        alone["query_start_loc"] = np.array([0, new, new, new, new, new], np.int32)
        alone["num_seqs"] = np.array([1], np.int32)
        among = dict(args)
        among["context_lens"] = np.array([3000, context, 1, 555, 20], np.int32)
        among["query_start_loc"] = np.array([0, 1, 1 + new, 2 + new, 7 + new, 27 + new], np.int32)
        among["query_start_loc"] = np.minimum(among["query_start_loc"], 97)
        among["num_seqs"] = np.array([5], np.int32)
        among["query"] = np.roll(args["query"], 1, axis=0)
        among["block_tables"] = np.roll(args["block_tables"], 1, axis=0)
        got = np.asarray(step(among))[1 : 1 + new]
        want = np.asarray(step(alone))[:new]
        assert got.tobytes() == want.tobytes(), f"new {new}, context {context}"
