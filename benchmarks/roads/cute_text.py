"""SAXPY in CuTe DSL."""

import cutlass
from cuda.bindings import driver
from cutlass import cute


@cute.kernel
def saxpy(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    i = block * 256 + thread
    if i < cute.size(x):
        out[i] = cutlass.Float32(2.0) * x[i] + y[i]


@cute.jit
def launch(stream: driver.CUstream, x: cute.Tensor, y: cute.Tensor, out: cute.Tensor):
    blocks = cute.ceil_div(cute.size(x), 256)
    saxpy(x, y, out).launch(grid=[blocks, 1, 1], block=[256, 1, 1], stream=stream)
