"""Random problems of the ops on XLA tensors, against float64. Plain functions: no pytest needed."""

from __future__ import annotations

import numpy as np
import ragged_v3
import torch
import torch_xla
import xla_gpu.torch_xla
from attention_oracle import update_kv_cache as update_oracle
from compare import Histogram, check_attention, check_cache
from problems import paged_attention_case, random_static, update_case
from torch_calls import (
    attention_op,
    random_v3,
    to_numpy,
    to_torch,
    torch_args,
    update_op,
    v3_arrays,
    v3_op,
)

TARGETS = {
    "attention": 'custom_call_target="xla_gpu_paged_attention"',
    "update": 'custom_call_target="xla_gpu_update_kv_cache"',
}


def hlo(*tensors: torch.Tensor) -> str:
    return torch_xla._XLAC._get_xla_tensors_hlo(list(tensors))


def _compiled(function):
    """By torch.compile, without a break in the graph: it sees the op, XLA compiles it."""
    torch._dynamo.reset()
    return torch.compile(function, backend="openxla", fullgraph=True, dynamic=False)


def attention_group(
    seed: list[int], cases: int, compiled: bool, histogram: Histogram | None = None
) -> str:
    """`cases` problems that share their shapes and attributes; gives the HLO of one."""
    rng = np.random.default_rng(seed)
    static = random_static(rng)
    call = lambda args: attention_op(static, args)  # noqa: E731
    run = _compiled(call) if compiled else call
    text, failures = "", []
    for number in range(cases):
        case = paged_attention_case(static, rng)
        args = torch_args(case, "xla")
        out, lse = run(args)
        if number == 0:
            text = hlo(call(args)[0]) if compiled else hlo(out)
            assert TARGETS["attention"] in text, text
        try:
            check_attention(case, to_numpy(out), None if lse is None else to_numpy(lse), histogram)
        except AssertionError as e:
            failures.append(f"case {number} ({case.bad or 'good'}): {str(e)[:300]}")
    assert not failures, f"{static}\n" + "\n".join(failures)
    return text


def update_group(seed: list[int], cases: int, compiled: bool) -> str:
    """As attention_group for update_kv_cache, functional and in place by turns."""
    rng = np.random.default_rng(seed)
    static = random_static(rng)
    runs = {}
    for in_place in (False, True):
        call = lambda args, in_place=in_place: update_op(args, in_place)  # noqa: E731
        runs[in_place] = _compiled(call) if compiled else call
    text = ""
    for number in range(cases):
        in_place = number % 2 == 1
        case = update_case(static, rng)
        want = update_oracle(**case.args)
        args = torch_args(case, "xla")
        caches = {name: args[name] for name in ("kv_cache", "v_cache") if name in args}
        if number == 0:
            text = hlo(*update_op(args, False))
            assert TARGETS["update"] in text and "output_to_operand_aliasing" in text, text
        got = runs[in_place](args)
        for one, name, expected in zip(
            got, caches, want if isinstance(want, tuple) else (want,), strict=True
        ):
            check_cache(to_numpy(one), expected)
            after = expected if in_place else case.args[name]
            check_cache(to_numpy(caches[name]), after)
    return text


def v3_group(
    seed: list[int], cases: int, compiled: bool, histogram: Histogram | None = None
) -> None:
    """As update_group for ragged_paged_attention_v3."""
    rng = np.random.default_rng(seed)
    static = random_v3(rng)
    runs = {}
    for in_place in (False, True):
        call = lambda args, in_place=in_place: v3_op(static, args, in_place)  # noqa: E731
        runs[in_place] = _compiled(call) if compiled else call
    for number in range(cases):
        case = ragged_v3.v3_case(static, rng)
        args = {name: to_torch(array, "xla") for name, array in v3_arrays(case).items()}
        out, cache = runs[number % 2 == 1](args)
        ragged_v3.check(case, to_numpy(out), to_numpy(cache), histogram)


def platform() -> str:
    return xla_gpu.torch_xla.platform()
