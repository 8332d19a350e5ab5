"""SAXPY in Triton, for the roads that take it."""

import triton
import triton.language as tl


@triton.jit
def saxpy(x, y, out, alpha, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, alpha * tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def saxpy_out_last(x, y, alpha, n, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, alpha * tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)
