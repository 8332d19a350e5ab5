"""A kernel that only reads: what memory gives at most."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

THREADS = 256
PART = THREADS * 4 * 4  # numbers that a block has under way: 4 loads of 16 bytes a thread
WARPS = THREADS // 32

SOURCE = """
__global__ void __launch_bounds__(256) sum_of(const int* data, int* sums, long n) {
  const uint4* from = reinterpret_cast<const uint4*>(data);
  const long end = n / 4, step = gridDim.x * 1024L;
  unsigned sum = 0;
  long at = blockIdx.x * 1024L + threadIdx.x;
  for (; at + 3 * 256 < end; at += step) {
    uint4 part[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) part[i] = __ldcs(from + at + i * 256);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum += part[i].x + part[i].y + part[i].z + part[i].w;
  }
  for (; at < end; at += 256) {  // the rest, less than a part
    const uint4 last = from[at];
    sum += last.x + last.y + last.z + last.w;
  }
  sum = __reduce_add_sync(~0u, sum);
  if (threadIdx.x % 32 == 0) sums[blockIdx.x * 8 + threadIdx.x / 32] = sum;
}"""
HOST = """
void sum_of(const int* data, int* sums, long n) {
  unsigned sum = 0;
  for (long i = 0; i < n; ++i) sum += data[i];
  for (int i = 0; i < 8; ++i) sums[i] = i == 0 ? sum : 0;  // one block
}"""


@functools.cache
def _kernel(most_blocks: int) -> Any:
    """Sums of i32 data, a multiple of 4 numbers, one a warp; with more data blocks go on."""
    import xla_gpu

    def blocks(data) -> int:
        return min(most_blocks, xla_gpu.cdiv(data.size, PART))

    return xla_gpu.cuda_kernel(
        SOURCE,
        "sum_of",
        grid=blocks,
        block=THREADS,
        outputs={"sums": lambda data: ((blocks(data) * WARPS,), "i32")},
        scalars={"n": lambda data: data.size},
        host=HOST,
    )


def reader(parts: Sequence[torch.Tensor], blocks: str) -> Callable[[int], object]:
    """Reads part `i` of i32, a multiple of 4 numbers, once a call.

    By as many blocks as run at a time, each going on to its next part ("wave"), or by a block a
    part ("part"): which is faster hangs on the size. Raises ValueError where the sum is wrong.
    """
    data, most = parts[0], 1 << 30
    if data.device.type == "cpu":
        most = 1
    elif blocks == "wave":
        most = torch.cuda.get_device_properties(data.device).multi_processor_count * 8
    kernel = _kernel(most)
    found, want = int(kernel(data).sum().item()), int(data.sum().item())
    if (found - want) % (1 << 32):
        raise ValueError(f"the sum of {data.numel()} numbers is {found} and not {want}")
    return lambda copy: kernel(parts[copy])
