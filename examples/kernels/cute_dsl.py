"""A CuTe DSL kernel as a custom call, for vectors of any length.

CuTe DSL compiles it, here without tensors; by TVM-FFI it is launched on XLA's buffers and stream.
"""

from _require import require

require("cutlass", "nvidia-cutlass-dsl")
require("tvm_ffi", "apache-tvm-ffi")

import cutlass
import jax
import jax.numpy as jnp
import xla_gpu
from cutlass import cute
from cutlass.cute import runtime


@cute.kernel
def saxpy_kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, alpha: cutlass.Float32):
    block, _, _ = cute.arch.block_idx()
    thread, _, _ = cute.arch.thread_idx()
    i = block * 256 + thread
    if i < cute.size(x):
        out[i] = alpha * x[i] + y[i]


@cute.jit
def saxpy(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, alpha: cutlass.Float32, stream):
    blocks = cute.ceil_div(cute.size(x), 256)
    saxpy_kernel(x, y, out, alpha).launch(grid=(blocks, 1, 1), block=(256, 1, 1), stream=stream)


def compiled(arch=""):
    """The TVM-FFI function (x, y, out, alpha), for this machine's GPU or another."""
    vector = runtime.make_fake_compact_tensor(cutlass.Float32, (cute.sym_int(),))
    stream = runtime.make_fake_stream(use_tvm_ffi_env_stream=True)  # XLA's
    options = "--enable-tvm-ffi" + (f" --gpu-arch {arch}" if arch else "")
    return cute.compile(saxpy, vector, vector, vector, cutlass.Float32(0), stream, options=options)


if __name__ == "__main__":
    if jax.default_backend() != "gpu":
        compiled("sm_90a")
        print("compiled for sm_90a")
    require(gpu=True)

    kernel = xla_gpu.external_kernel(
        compiled(),
        name="cute_saxpy",
        arguments=["x", "y"],
        outputs={"out": "x"},
        scalars={"alpha": "f32"},
        capture=True,  # it only launches
    )
    call = jax.jit(lambda x, y: kernel(x, y, alpha=2.0))
    for n in (1, 1000, 100_003):
        x, y = jax.random.normal(jax.random.key(0), (2, n))
        assert jnp.allclose(call(x, y), 2 * x + y, rtol=1e-6, atol=1e-6)
    print("ok on", jax.default_backend())
