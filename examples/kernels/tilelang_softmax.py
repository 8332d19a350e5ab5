"""A TileLang kernel as a custom call: softmax over rows, whose result the function allocates.

TileLang compiles it (with nvcc) to a TVM-FFI function; what that allocates is XLA's result buffer.
"""

from _require import require

require("tilelang")

import shutil

import jax
import numpy as np
import tilelang
import tilelang.language as T  # noqa: N812
import xla_gpu


def softmax(rows, cols, block_rows=4):
    """The function of these sizes."""

    @T.prim_func
    def kernel(x: T.Tensor((rows, cols), "float32"), out: T.Tensor((rows, cols), "float32")):
        with T.Kernel(T.ceildiv(rows, block_rows), threads=128) as block:
            tile = T.alloc_fragment((block_rows, cols), "float32")
            most = T.alloc_fragment((block_rows,), "float32")
            total = T.alloc_fragment((block_rows,), "float32")
            T.copy(x[block * block_rows, 0], tile)
            T.reduce_max(tile, most, dim=1)
            for i, j in T.Parallel(block_rows, cols):
                tile[i, j] = T.exp(tile[i, j] - most[i])
            T.reduce_sum(tile, total, dim=1)
            for i, j in T.Parallel(block_rows, cols):
                tile[i, j] = tile[i, j] / total[i]
            T.copy(tile, out[block * block_rows, 0])

    return kernel


def compiled(rows, cols, target="auto"):
    made = tilelang.compile(softmax(rows, cols), out_idx=-1, target=target)
    return made.adapter.get_exportable_executable()["main"]


if __name__ == "__main__":
    rows, cols = 512, 1024
    if jax.default_backend() != "gpu" and shutil.which("nvcc"):
        compiled(rows, cols, {"kind": "cuda", "arch": "sm_90"})
        print("compiled for sm_90")
    require(gpu=True)

    kernel = xla_gpu.external_kernel(
        compiled(rows, cols),
        name="tilelang_softmax",
        arguments=["x"],
        # What it takes: x, and a tensor that tells where its result is to lie.
        parameters=["x", "x"],
        outputs={"out": "x"},  # in no parameter, so it is what the function returns
        capture=True,  # it only launches
    )
    x = jax.random.normal(jax.random.key(0), (rows, cols))
    got = jax.jit(lambda x: kernel(2 * x))(x)
    np.testing.assert_allclose(got, jax.nn.softmax(2 * x), rtol=1e-5, atol=1e-7)
    print("ok on", jax.default_backend())
