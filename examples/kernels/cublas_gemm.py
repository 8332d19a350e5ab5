"""A cuBLAS call as a custom call: a C function that launches, with the workspace XLA gives it."""

import functools
import itertools
import os
import pathlib
import subprocess
import sysconfig
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import xla_gpu
from _require import stop

SOURCE = pathlib.Path(__file__).with_suffix(".cc")
WORKSPACE = 32 << 20  # bytes, what cuBLAS asks for on Hopper

HOST = """
void gemm(const float* a, const float* b, float* out, int m, int n, int k, bool a_transposed,
          bool b_transposed) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) {
        sum += a[a_transposed ? l * m + i : i * k + l] * b[b_transposed ? j * k + l : l * n + j];
      }
      out[i * n + j] = sum;
    }
  }
}"""


HEADERS = ("cublas_v2.h", "cuda_runtime_api.h", "crt/host_defines.h")  # of three packages


def cuda():
    """The folders of CUDA's headers and libraries: pip's (of JAX for CUDA 13) or the toolkit's."""
    pip = pathlib.Path(sysconfig.get_path("platlib"), "nvidia/cu13")
    toolkit = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    for include, lib in ((pip / "include", pip / "lib"), (toolkit / "include", toolkit / "lib64")):
        if all((include / name).is_file() for name in HEADERS):
            return include, lib
    return stop(f"{', '.join(HEADERS)} are neither pip's nor in $CUDA_HOME")


def build(folder):
    """The library of cublas_gemm.cc, in the folder."""
    include, lib = cuda()
    linked = [str(next(lib.glob(f"lib{name}.so*"))) for name in ("cublas", "cudart")]
    library = f"{folder}/cublas_gemm.so"
    command = ["c++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{include}", str(SOURCE)]
    subprocess.run([*command, "-o", library, *linked, f"-Wl,-rpath,{lib}"], check=True)
    return library


def shape(a, b, a_transposed, b_transposed):
    m, k = a.shape[::-1] if a_transposed else a.shape
    inner, n = b.shape[::-1] if b_transposed else b.shape
    if k != inner:
        raise ValueError(f"gemm: the inner sizes are {k} of a and {inner} of b")
    return (m, n), "f32"


def gradient(args, results, gradients, a_transposed, b_transposed):
    (a, b), (g,) = args, gradients
    da = (b, g, b_transposed, True) if a_transposed else (g, b, False, not b_transposed)
    db = (g, a, True, a_transposed) if b_transposed else (a, g, not a_transposed, False)
    return [gemm(x, y, a_transposed=t, b_transposed=u) for x, y, t, u in (da, db)]


folder = tempfile.TemporaryDirectory()  # until the process ends
gemm = xla_gpu.external_kernel(
    (build(folder.name) if jax.default_backend() == "gpu" else "not built without a GPU", "gemm"),
    arguments=[{"name": name, "dtypes": ["f32"]} for name in "ab"],
    outputs={"out": shape},
    scalars={
        "m": ("i32", lambda a, a_transposed: a.shape[a_transposed]),
        "n": ("i32", lambda b, b_transposed: b.shape[not b_transposed]),
        "k": ("i32", lambda a, a_transposed: a.shape[not a_transposed]),
        "a_transposed": ("bool", False),
        "b_transposed": ("bool", False),
    },
    workspace=WORKSPACE,
    parameters=[
        *("stream", "a", "b", "out", "workspace", {"value": WORKSPACE, "type": "u64"}),
        *("m", "n", "k", "a_transposed", "b_transposed"),
    ],
    returns_error=True,
    capture=True,  # it only enqueues
    host=HOST,
    gradient=gradient,
)


def plain(a, b, a_transposed, b_transposed):
    a, b = a.T if a_transposed else a, b.T if b_transposed else b
    return jnp.matmul(a, b, precision="highest")


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def value_and_gradients(gemm, a, b, a_transposed, b_transposed):
    def loss(a, b):
        out = gemm(a, b, a_transposed=a_transposed, b_transposed=b_transposed)
        return jnp.sum(jnp.sin(out)), out

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(a, b)


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    for m, n, k in ((1, 1, 1), (33, 65, 100)):
        for t, u in itertools.product((False, True), repeat=2):
            a = rng.standard_normal((k, m) if t else (m, k), np.float32)
            b = rng.standard_normal((n, k) if u else (k, n), np.float32)
            got, want = (value_and_gradients(f, a, b, t, u) for f in (gemm, plain))
            for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
                np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    print("ok on", jax.default_backend())
