"""A kernel that only reads: what memory gives at most. Triton takes kernels from files."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl

BLOCK = 8192


@triton.jit
def _largest(data, out, block: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    values = tl.load(data + program * block + tl.arange(0, block))
    tl.store(out + program, tl.max(values, 0))


def reader(data: torch.Tensor) -> Callable[[int], object]:
    """Reads int64 `data`, a multiple of BLOCK numbers, once a call."""
    blocks = data.numel() // BLOCK
    out = torch.empty(blocks, dtype=data.dtype, device=data.device)
    return lambda _: _largest[(blocks,)](data, out, BLOCK, num_warps=8)
