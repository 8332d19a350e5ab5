"""ragged_paged_attention_v3 and its head_dim-64 variant through JAX on CUDA, against float64."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import jax_calls
import numpy as np
import pytest
import ragged_v3
from problems import Static
from xla_gpu.jax import packed_kv_cache_shape

GROUPS = 30  # compilations
CASES_A_GROUP = 12

# A decode step of a served model in small: 16 sequences, each with a cache of 8 pages.
DECODE = ragged_v3.V3Static(
    Static(
        dtype="bfloat16",
        cache_dtype="bfloat16",
        tokens=16,
        q_heads=32,
        kv_heads=8,
        head_dim=128,
        pages=130,
        page_size=16,
        max_seqs=16,
        max_pages=8,
        scale=128**-0.5,
    )
)
DECODE_HD64 = dataclasses.replace(
    DECODE, base=dataclasses.replace(DECODE.base, head_dim=64, sinks=True), hd64=True
)


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_problems(group, histogram):
    rng = np.random.default_rng([170, group])
    static = ragged_v3.random_v3_static(rng)
    step = jax.jit(
        lambda cache, rest: jax_calls.ragged_v3(static, {**rest, "kv_cache": cache}),
        donate_argnums=0,
    )
    failures = []
    for number in range(CASES_A_GROUP):
        case = ragged_v3.v3_case(static, rng)
        rest = {name: value for name, value in case.args.items() if name != "kv_cache"}
        cache = jnp.asarray(case.args["kv_cache"]).copy()
        pointer = cache.unsafe_buffer_pointer()
        try:
            out, updated = step(cache, rest)
            ragged_v3.check(case, out, updated, histogram)
            assert updated.unsafe_buffer_pointer() == pointer
        except AssertionError as e:
            failures.append(f"case {number} ({case.bad or 'good'}): {str(e)[:300]}")
    assert not failures, f"{static}\n" + "\n".join(failures)


@pytest.mark.parametrize("static", [DECODE, DECODE_HD64], ids=["v3", "hd64"])
def test_steps_over_donated_caches_copy_nothing(static):
    """Three layers, forty steps over page boundaries: in place, and equal to float64 at the end."""
    s = static.base
    shape = packed_kv_cache_shape(
        s.pages, s.page_size, s.kv_heads, s.head_dim, jnp.bfloat16, side_by_side=static.hd64
    )
    rng = np.random.default_rng(5)
    pages = rng.permutation(s.pages)[: s.max_seqs * s.max_pages].astype(np.int32)
    tail = {"attention_sink": jnp.zeros(s.q_heads, jnp.float32)} if static.hd64 else {}

    def step(caches, kv_lens, queries, keys):
        args = {
            "keys": keys,
            "values": -keys,
            "kv_lens": kv_lens,
            "page_indices": jnp.asarray(pages),
            "cu_q_lens": jnp.arange(s.max_seqs + 1, dtype=jnp.int32),
            "distribution": jnp.full((3,), s.max_seqs, jnp.int32),
            **tail,
        }
        updated = []
        for cache in caches:
            args |= {"kv_cache": cache, "queries": queries}
            queries, cache = jax_calls.ragged_v3(static, args)
            updated.append(cache)
        return updated, queries

    step = jax.jit(step, donate_argnums=0)
    caches = [jnp.zeros(shape, jnp.bfloat16) for _ in range(3)]
    pointers = [cache.unsafe_buffer_pointer() for cache in caches]

    def inputs(number):
        make = lambda heads: jnp.asarray(  # noqa: E731
            rng.standard_normal((s.tokens, heads, s.head_dim)), jnp.bfloat16
        )
        return jnp.full(s.max_seqs, number + 1, jnp.int32), make(s.q_heads), make(s.kv_heads)

    text = step.lower(caches, *inputs(0)).compile().as_text()
    assert text.count('custom_call_target="xla_gpu_ragged_paged_attention_v3"') == 3
    dims = ",".join(map(str, shape))
    assert not re.findall(rf"\[{dims}\]\S* (?:copy|fusion|copy-start)\(", text)
    for number in range(40):
        kv_lens, queries, keys = inputs(number)
        before = jnp.array(caches[0])  # NumPy would keep the buffer from being donated
        caches, _ = step(caches, kv_lens, queries, keys)
        assert [cache.unsafe_buffer_pointer() for cache in caches] == pointers
    case = ragged_v3.V3Case(
        static,
        {
            "queries": np.asarray(queries),
            "keys": np.asarray(keys),
            "values": np.asarray(-keys),
            "kv_cache": np.asarray(before),
            "kv_lens": np.asarray(kv_lens),
            "page_indices": pages,
            "cu_q_lens": np.arange(s.max_seqs + 1, dtype=np.int32),
            "distribution": np.full(3, s.max_seqs, np.int32),
            **{name: np.asarray(value) for name, value in tail.items()},
        },
        "",
    )
    out, cache = jax.jit(lambda args: jax_calls.ragged_v3(static, args))(case.args)
    ragged_v3.check(case, out, cache)
    np.testing.assert_array_equal(
        np.asarray(caches[0]).view(np.uint16), np.asarray(cache).view(np.uint16)
    )
