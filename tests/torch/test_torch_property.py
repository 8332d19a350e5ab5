"""Random problems over all features through torch on the CPU, against float64."""

import numpy as np
import pytest
import ragged_v3
import torch
from attention_oracle import update_kv_cache as update_oracle
from compare import check_attention, check_cache
from problems import paged_attention_case, random_static, update_case
from torch_calls import (
    attention_function,
    attention_op,
    random_v3,
    shifted,
    to_numpy,
    to_torch,
    torch_args,
    update_op,
    v3_arrays,
    v3_op,
)

GROUPS = 40
CASES_A_GROUP = 12
UPDATE_GROUPS = 10
V3_GROUPS = 20


@pytest.mark.parametrize("group", range(GROUPS))
def test_paged_attention(group, histogram):
    rng = np.random.default_rng([170, group])
    static = random_static(rng)
    for number in range(CASES_A_GROUP):
        case = paged_attention_case(static, rng)
        door = attention_op if number % 2 else attention_function
        out, lse = door(static, torch_args(case))
        check_attention(case, to_numpy(out), None if lse is None else to_numpy(lse), histogram)


@pytest.mark.parametrize("group", range(UPDATE_GROUPS))
def test_update_kv_cache(group):
    rng = np.random.default_rng([180, group])
    static = random_static(rng)
    for number in range(CASES_A_GROUP):
        case = update_case(static, rng)
        want = update_oracle(**case.args)
        want = want if isinstance(want, tuple) else (want,)
        args = torch_args(case)
        in_place = number % 2 == 1
        caches = [args[name] for name in ("kv_cache", "v_cache") if name in args]
        got = update_op(args, in_place)
        for one, cache, expected in zip(got, caches, want, strict=True):
            assert (one.data_ptr() == cache.data_ptr()) == in_place
            check_cache(to_numpy(one), expected)
            if not in_place:  # the argument is as it was
                before = case.args["kv_cache" if cache is caches[0] else "v_cache"]
                np.testing.assert_array_equal(
                    to_numpy(cache).view(np.uint8), np.ascontiguousarray(before).view(np.uint8)
                )


@pytest.mark.parametrize("group", range(6))
def test_views_that_start_anywhere(group, histogram):
    rng = np.random.default_rng([185, group])

    def moved(args):
        return {name: shifted(t, int(rng.integers(0, 20))) for name, t in args.items()}

    static, v3 = random_static(rng), random_v3(rng)
    for number in range(CASES_A_GROUP):
        case = paged_attention_case(static, rng)
        out, lse = attention_op(static, moved(torch_args(case)))
        check_attention(case, to_numpy(out), None if lse is None else to_numpy(lse), histogram)
        case = update_case(static, rng)
        want = update_oracle(**case.args)
        got = update_op(moved(torch_args(case)), number % 2 == 1)
        for one, expected in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
            check_cache(to_numpy(one), expected)
        case = ragged_v3.v3_case(v3, rng)
        args = moved({name: to_torch(array) for name, array in v3_arrays(case).items()})
        out, cache = v3_op(v3, args, number % 2 == 1)
        ragged_v3.check(case, to_numpy(out), to_numpy(cache), histogram)
        lhs, rhs = torch.randn(9, 37, dtype=torch.bfloat16), torch.randn(2, 37, 41).bfloat16()
        sizes = torch.tensor([4, 5], dtype=torch.int32)
        product = torch.ops.xla_gpu.grouped_matmul
        assert torch.equal(product(lhs, rhs, sizes), product(shifted(lhs), shifted(rhs, 3), sizes))


@pytest.mark.parametrize("group", range(V3_GROUPS))
def test_ragged_paged_attention_v3(group, histogram):
    rng = np.random.default_rng([190, group])
    static = random_v3(rng)
    for number in range(CASES_A_GROUP):
        case = ragged_v3.v3_case(static, rng)
        args = {name: to_torch(array) for name, array in v3_arrays(case).items()}
        in_place = number % 2 == 1
        out, cache = v3_op(static, args, in_place)
        assert (cache.data_ptr() == args["kv_cache"].data_ptr()) == in_place
        ragged_v3.check(case, to_numpy(out), to_numpy(cache), histogram)
        if not in_place:  # the argument is as it was
            before, after = case.args["kv_cache"], to_numpy(args["kv_cache"])
            np.testing.assert_array_equal(after.view(np.uint8), before.view(np.uint8))
