"""How far a result is from float64, in units of what its dtypes can express."""

from __future__ import annotations

import collections

import ml_dtypes
import numpy as np
from attention_oracle import paged_attention, split_cache
from problems import Case

# Half the distance from 1 to the next number.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8 / 2}
# Allowed error of an output element, in roundings of the result's dtype at the size of the largest
# value that its row may see. f32 sums over hundreds of terms; 16-bit results round once at the end,
# and GPU kernels round the weights before the second matrix product.
LIMITS = {"float32": 64.0, "float16": 4.0, "bfloat16": 4.0}
LSE_LIMIT = 200.0 * 2.0**-24


class Histogram:
    """Counts of cases by error, in powers of two of the dtype's rounding."""

    def __init__(self) -> None:
        self._counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)

    def add(self, dtype: str, error: float) -> None:
        bucket = "0" if error == 0 else f"<2^{max(-6, int(np.ceil(np.log2(error))))}"
        self._counts[dtype][bucket] += 1

    def __str__(self) -> str:
        lines = []
        for dtype, counts in sorted(self._counts.items()):
            key = lambda b: -99 if b == "0" else int(b[3:])  # noqa: E731
            cells = ", ".join(f"{b}: {counts[b]}" for b in sorted(counts, key=key))
            lines.append(f"{dtype} ({sum(counts.values())} cases; in roundings) {cells}")
        return "\n".join(lines)


def expected(case: Case):
    """float64 (out, lse) of a paged_attention case."""
    s = case.static
    args = dict(case.args)
    positional = [
        args.pop(name)
        for name in (
            "query",
            "kv_cache",
            "context_lens",
            "block_tables",
            "query_start_loc",
            "num_seqs",
        )
    ]
    return paged_attention(
        *positional,
        scale=s.scale,
        sliding_window=s.sliding_window,
        soft_cap=s.soft_cap,
        causal=s.causal,
        **args,
    )


def check_attention(case: Case, out, lse, histogram: Histogram | None = None) -> float:
    """Asserts that a paged_attention result is right; returns its error in roundings."""
    s = case.static
    want, want_lse = expected(case)
    got = np.asarray(out).astype(np.float64)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=f"NaN rows: {case.bad}")
    finite = ~np.isnan(want)
    rounding = ROUNDING[s.result_dtype]
    size = _largest_value(case)
    # The query's rounding too: a kernel may hold the weights in the 16-bit type it multiplies in.
    if s.result_dtype == "float32" and (s.dtype != "float32" or s.cache_dtype != "float32"):
        rounding = max(ROUNDING[s.dtype], rounding)
    error = np.abs(got - want)[finite].max(initial=0.0) / (rounding * size)
    limit = LIMITS["float32" if rounding == ROUNDING["float32"] else "bfloat16"]
    assert error <= limit, f"error is {error:.1f} roundings (allowed {limit}): {s} {case.bad}"
    if histogram is not None:
        histogram.add(s.result_dtype, error)
    if lse is not None:
        got_lse = np.asarray(lse).astype(np.float64)
        np.testing.assert_array_equal(np.isnan(got_lse), np.isnan(want_lse))
        both = np.isfinite(want_lse)
        np.testing.assert_array_equal(np.isneginf(got_lse), np.isneginf(want_lse))
        magnitude = 1.0 + np.abs(want_lse[both])
        lse_error = (np.abs(got_lse[both] - want_lse[both]) / magnitude).max(initial=0.0)
        assert lse_error <= LSE_LIMIT, f"lse error {lse_error:.2e}: {s}"
    return error


def _largest_value(case: Case) -> float:
    _, values = split_cache(case.args["kv_cache"], case.args.get("v_cache"))
    finite = np.nan_to_num(values.astype(np.float32), nan=0.0)
    scale = np.nan_to_num(case.args.get("v_scale", np.ones(1))).max()
    return float(max(np.abs(finite).max(initial=0.0) * scale, 1e-3))


def check_cache(got, want) -> None:
    """Asserts that two caches hold the same numbers; fp8 and 16-bit may differ by one rounding.

    A rounding differs only where key / scale lies on a tie that f32 division cannot tell.
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype and got.shape == want.shape
    a, b = got.astype(np.float32), want.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    different = (a != b) & ~np.isnan(a)
    if not different.any():
        return
    step = float(ml_dtypes.finfo(got.dtype).eps)
    np.testing.assert_allclose(a[different], b[different], rtol=step, atol=1e-7)
    assert different.mean() < 1e-3, "more than ties differ"
