"""Random problems over all features through JAX on CUDA, against float64."""

import jax
import numpy as np
import pytest
from attention_oracle import update_kv_cache as update_oracle
from compare import check_attention, check_cache
from problems import paged_attention_case, random_static, update_case
from xla_gpu.jax import paged_attention, update_kv_cache

GROUPS = 36  # compilations
CASES_A_GROUP = 16
UPDATE_GROUPS = 16


def split_cache(args):
    cache = args.pop("kv_cache")
    return (cache, args.pop("v_cache")) if "v_cache" in args else cache


def attention(static):
    def call(args):
        args = dict(args)
        cache = split_cache(args)
        names = ("query", "context_lens", "block_tables", "query_start_loc", "num_seqs")
        query, *indices = (args.pop(name) for name in names)
        result = paged_attention(
            query,
            cache,
            *indices,
            static.scale,
            static.sliding_window or None,
            static.soft_cap or None,
            causal=static.causal,
            return_lse=static.return_lse,
            out_dtype=static.out_dtype or None,
            **args,
        )
        return result if static.return_lse else (result, None)

    return jax.jit(call)


@pytest.mark.parametrize("group", range(GROUPS))
def test_paged_attention(group, histogram):
    rng = np.random.default_rng([70, group])
    static = random_static(rng)
    call = attention(static)
    failures = []
    for number in range(CASES_A_GROUP):
        case = paged_attention_case(static, rng)
        try:
            check_attention(case, *call(case.args), histogram)
        except AssertionError as e:
            failures.append(f"case {number} ({case.bad or 'good'}): {str(e)[:300]}")
    assert not failures, f"{static}\n" + "\n".join(failures)


@pytest.mark.parametrize("group", range(UPDATE_GROUPS))
def test_update_kv_cache(group):
    rng = np.random.default_rng([80, group])
    static = random_static(rng)

    def call(args):
        args = dict(args)
        cache = split_cache(args)
        key, value, slots = (args.pop(name) for name in ("key", "value", "slot_mapping"))
        return update_kv_cache(key, value, cache, slots, **args)

    for donate in (False, True):
        step = jax.jit(
            lambda cache, rest: call({**cache, **rest}), donate_argnums=0 if donate else ()
        )
        for _ in range(CASES_A_GROUP // 2):
            case = update_case(static, rng)
            want = update_oracle(**case.args)
            cache = {
                n: jax.numpy.asarray(case.args[n])
                for n in ("kv_cache", "v_cache")
                if n in case.args
            }
            rest = {n: a for n, a in case.args.items() if n not in cache}
            pointers = [a.unsafe_buffer_pointer() for a in cache.values()]
            got = step(cache, rest)
            if not isinstance(want, tuple):
                got, want = (got,), (want,)
            for one, expected in zip(got, want, strict=True):
                check_cache(one, expected)
            if donate:
                assert [one.unsafe_buffer_pointer() for one in got] == pointers
