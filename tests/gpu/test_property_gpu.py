"""Random problems over all features through JAX on CUDA, against float64."""

import dataclasses

import jax
import jax_calls
import numpy as np
import pytest
from attention_oracle import update_kv_cache as update_oracle
from compare import check_attention, check_cache
from problems import FP8, paged_attention_case, random_static, update_case

GROUPS = 36  # compilations
CASES_A_GROUP = 16
UPDATE_GROUPS = 16


@pytest.mark.parametrize("group", range(GROUPS))
def test_paged_attention(group, histogram):
    rng = np.random.default_rng([70, group])
    static = random_static(rng)
    if group % 9 == 0:  # prompts that Hopper reads from a copy of a cache of fp8
        static = dataclasses.replace(
            static,
            dtype=("bfloat16", "float16")[group // 9 % 2],
            out_dtype="",
            cache_dtype=FP8[group // 18 % 2],
            head_dim=128,
            tokens=64,
            q_heads=8 * static.kv_heads,
        )
    call = jax.jit(lambda args: jax_calls.attention(static, args))
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

    for donate in (False, True):
        step = jax.jit(
            lambda cache, rest: jax_calls.update({**cache, **rest}),
            donate_argnums=0 if donate else (),
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
            want = want if isinstance(want, tuple) else (want,)
            for one, expected in zip(got, want, strict=True):
                check_cache(one, expected)
            if donate:
                assert [one.unsafe_buffer_pointer() for one in got] == pointers
