"""Random problems through jitted JAX, against float64: one compilation for many cases each."""

import jax
import jax_calls
import numpy as np
import pytest
from attention_oracle import update_kv_cache as update_oracle
from compare import check_attention, check_cache
from problems import paged_attention_case, random_static, update_case

GROUPS = 24
CASES_A_GROUP = 16


@pytest.mark.parametrize("group", range(GROUPS))
def test_paged_attention(group, histogram):
    rng = np.random.default_rng([7, group])
    static = random_static(rng)
    call = jax.jit(lambda args: jax_calls.attention(static, args))
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

    call = jax.jit(jax_calls.update)
    for _ in range(CASES_A_GROUP):
        case = update_case(static, rng)
        want = update_oracle(**case.args)
        want = want if isinstance(want, tuple) else (want,)
        for one, expected in zip(call(case.args), want, strict=True):
            check_cache(one, expected)
