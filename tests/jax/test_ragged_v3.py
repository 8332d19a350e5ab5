"""ragged_paged_attention_v3 and its head_dim-64 variant through JAX on the CPU."""

import jax
import jax_calls
import numpy as np
import pytest
import ragged_v3

GROUPS = 40
CASES_A_GROUP = 12


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_problems_against_float64(group, histogram):
    rng = np.random.default_rng([17, group])
    static = ragged_v3.random_v3_static(rng)
    call = jax.jit(lambda args: jax_calls.ragged_v3(static, args))
    for number in range(CASES_A_GROUP):
        case = ragged_v3.v3_case(static, rng)
        try:
            ragged_v3.check(case, *call(case.args), histogram)
        except Exception as e:
            raise AssertionError(f"group {group}, case {number}: {static}: {e}") from e
    assert call._cache_size() == 1
