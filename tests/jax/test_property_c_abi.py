"""Random problems through the C ABI (ctypes) on the Host, against float64."""

import numpy as np
import pytest
from attention_oracle import update_kv_cache
from compare import check_attention, check_cache
from problems import np_dtype, paged_attention_case, random_static, update_case
from xla_gpu import _ops

OPTIONAL = ("v_cache", "sinks", "k_scale", "v_scale")
CASES_A_CHUNK = 125


def ref(array):
    return _ops.TensorRef(_ops.spec_of(array), array.ctypes.data)


def run_attention(case):
    s = case.static
    optional = case.optional_args(OPTIONAL)
    order = ["query", "kv_cache", "context_lens", "block_tables", "query_start_loc", "num_seqs"]
    args = [ref(case.args[name]) for name in [*order, *optional]]
    attrs = s.attrs()
    if s.out_dtype:
        attrs["out_dtype"] = _ops.NUMPY_DTYPE_NAMES[s.out_dtype]
    if optional:
        attrs["optional_args"] = ",".join(optional)
    out = np.empty((s.tokens, s.q_heads, s.head_dim), np_dtype(s.result_dtype))
    lse = np.empty((s.tokens, s.q_heads), np.float32)
    results = [ref(out), ref(lse)] if s.return_lse else [ref(out)]
    _ops.run("paged_attention", "Host", args, results, attrs)
    return out, lse if s.return_lse else None


@pytest.mark.parametrize("chunk", range(16))
def test_paged_attention(chunk, histogram):
    for seed in range(CASES_A_CHUNK):
        rng = np.random.default_rng([chunk, seed])
        case = paged_attention_case(random_static(rng), rng)
        try:
            check_attention(case, *run_attention(case), histogram)
        except Exception as e:
            raise AssertionError(f"case [{chunk}, {seed}]: {e}") from e


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("chunk", range(4))
def test_update_kv_cache(chunk, in_place):
    for seed in range(CASES_A_CHUNK):
        rng = np.random.default_rng([1000 + chunk, seed])
        case = update_case(random_static(rng), rng)
        want = update_kv_cache(**case.args)
        optional = case.optional_args(("v_cache", "k_scale", "v_scale"))
        args = dict(case.args)
        if rng.random() < 0.5:
            args["slot_mapping"] = args["slot_mapping"].astype(np.int64)
        caches = [name for name in ("kv_cache", "v_cache") if name in args]
        results = [args[name] if in_place else np.empty_like(args[name]) for name in caches]
        before = [args[name].copy() for name in caches]
        names = ["key", "value", "kv_cache", "slot_mapping", *optional]
        attrs = {"optional_args": ",".join(optional)} if optional else {}
        _ops.run(
            "update_kv_cache", "Host", [ref(args[n]) for n in names], list(map(ref, results)), attrs
        )
        wants = want if isinstance(want, tuple) else (want,)
        for got, expected, name, old in zip(results, wants, caches, before, strict=True):
            check_cache(got, expected)
            if not in_place:  # the argument is only read
                assert args[name].tobytes() == old.tobytes()
