"""Random problems through torchax, eager and under its jit, against float64."""

import numpy as np
import pytest

pytest.importorskip("torchax", exc_type=ImportError)

import ragged_v3
from attention_oracle import update_kv_cache as update_oracle
from compare import check_attention, check_cache
from problems import paged_attention_case, random_static, update_case
from torch_calls import attention_op, random_v3, update_op, v3_arrays, v3_op
from torchax import interop
from torchax_calls import tensors, to_numpy

GROUPS = 16
CASES_A_GROUP = 16
EAGER_CASES = 3


@pytest.mark.parametrize("group", range(GROUPS))
def test_paged_attention(group, histogram, env):
    rng = np.random.default_rng([27, group])
    static = random_static(rng)

    def eager(args):
        return attention_op(static, args)

    jitted = interop.jax_jit(eager)
    for number in range(CASES_A_GROUP):
        case = paged_attention_case(static, rng)
        call = jitted if number >= EAGER_CASES else eager
        try:
            check_attention(case, *to_numpy(call(tensors(case.args))), histogram)
        except Exception as e:
            raise AssertionError(f"group {group}, case {number}: {e}") from e


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("group", range(8))
def test_update_kv_cache(group, in_place, env):
    rng = np.random.default_rng([28, group])
    static = random_static(rng)

    def eager(args):
        return update_op(args, in_place)

    jitted = interop.jax_jit(eager)
    for number in range(CASES_A_GROUP):
        case = update_case(static, rng)
        want = update_oracle(**case.args)
        call = jitted if number >= EAGER_CASES else eager
        got = to_numpy(call(tensors(case.args)))
        for one, expected in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            check_cache(one, expected)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("group", range(4))
def test_ragged_paged_attention_v3(group, in_place, histogram, env):
    rng = np.random.default_rng([29, group])
    static = random_v3(rng)

    def eager(args):
        return v3_op(static, args, in_place)

    jitted = interop.jax_jit(eager)
    for number in range(8):
        case = ragged_v3.v3_case(static, rng)
        call = jitted if number >= EAGER_CASES else eager
        ragged_v3.check(case, *to_numpy(call(tensors(v3_arrays(case)))), histogram)
