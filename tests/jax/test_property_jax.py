"""Random problems through jitted JAX, against float64: one compilation for many cases each."""

import jax
import numpy as np
import pytest
from attention_oracle import update_kv_cache as update_oracle
from compare import check_attention, check_cache
from problems import paged_attention_case, random_static, update_case
from xla_gpu.jax import paged_attention, update_kv_cache

GROUPS = 24
CASES_A_GROUP = 16


def call_attention(static, args):
    """paged_attention of a case's arguments by name; (out, lse or None)."""
    args = dict(args)
    cache = args.pop("kv_cache")
    if "v_cache" in args:
        cache = (cache, args.pop("v_cache"))
    result = paged_attention(
        args.pop("query"),
        cache,
        args.pop("context_lens"),
        args.pop("block_tables"),
        args.pop("query_start_loc"),
        args.pop("num_seqs"),
        static.scale,
        static.sliding_window or None,
        static.soft_cap or None,
        causal=static.causal,
        return_lse=static.return_lse,
        out_dtype=static.out_dtype or None,
        **args,
    )
    return result if static.return_lse else (result, None)


@pytest.mark.parametrize("group", range(GROUPS))
def test_paged_attention(group, histogram):
    rng = np.random.default_rng([7, group])
    static = random_static(rng)
    call = jax.jit(lambda args: call_attention(static, args))
    for number in range(CASES_A_GROUP):
        case = paged_attention_case(static, rng)
        try:
            check_attention(case, *call(case.args), histogram)
        except Exception as e:
            raise AssertionError(f"group {group}, case {number}: {e}") from e
    assert call._cache_size() == 1


@pytest.mark.parametrize("group", range(12))
def test_update_kv_cache(group):
    rng = np.random.default_rng([8, group])
    static = random_static(rng)

    @jax.jit
    def call(args):
        args = dict(args)
        cache = args.pop("kv_cache")
        if "v_cache" in args:
            cache = (cache, args.pop("v_cache"))
        return update_kv_cache(
            args.pop("key"), args.pop("value"), cache, args.pop("slot_mapping"), **args
        )

    for _ in range(CASES_A_GROUP):
        case = update_case(static, rng)
        want = update_oracle(**case.args)
        got = call(case.args)
        if not isinstance(want, tuple):
            got, want = (got,), (want,)
        for one, expected in zip(got, want, strict=True):
            check_cache(one, expected)
