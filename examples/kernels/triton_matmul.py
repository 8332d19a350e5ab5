"""An autotuned Triton matrix product: of the configurations the quickest on this GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import triton
import triton.language as tl
import xla_gpu

CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, warps, stages in (
        (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3),
        (64, 64, 32, 4, 4),
    )
]


@triton.autotune(configs=CONFIGS, key=["m", "n", "k"])
@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        left_mask = (rows < m)[:, None] & (inner < k)[None, :]
        right_mask = (inner < k)[:, None] & (cols < n)[None, :]
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=left_mask, other=0.0)
        right = tl.load(b + inner[:, None] * n + cols[None, :], mask=right_mask, other=0.0)
        total = tl.dot(left, right, total)
    mask = (rows < m)[:, None] & (cols < n)[None, :]
    tl.store(c + rows[:, None] * n + cols[None, :], total.to(c.dtype.element_ty), mask=mask)


HOST = """
void matmul(const _Float16* a, const _Float16* b, _Float16* c, int m, int n, int k) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float total = 0;
      for (int l = 0; l < k; ++l) total += float(a[i * k + l]) * float(b[l * n + j]);
      c[i * n + j] = total;
    }
  }
}"""

kernel = xla_gpu.triton_kernel(
    matmul,
    grid=lambda meta: (triton.cdiv(meta["m"], meta["BM"]), triton.cdiv(meta["n"], meta["BN"])),
    outputs={"c": lambda a, b: ((a.shape[0], b.shape[1]), a.dtype)},
    scalars={
        "m": lambda a: a.shape[0],
        "n": lambda b: b.shape[1],
        "k": lambda a: a.shape[1],
    },
    host=HOST,
    gradient=lambda args, results, gradients, **sizes: (
        kernel(gradients[0], args[1].T),
        kernel(args[0].T, gradients[0]),
    ),
)

if __name__ == "__main__":
    sizes = [(33, 65, 100), (128, 64, 256)]
    if jax.default_backend() == "gpu":
        sizes.append((4096, 4096, 4096))  # XLA_GPU_LOG=info shows what each configuration takes
    for m, n, k in sizes:
        keys = jax.random.split(jax.random.key(0))
        a, b = (jax.random.normal(key, s, jnp.float16) for key, s in zip(keys, ((m, k), (k, n))))
        got = jax.jit(kernel)(a, b)
        want = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2 * k**0.5)
    gradients = jax.jit(jax.grad(lambda a, b: kernel(a, b).sum(), argnums=(0, 1)))(a, b)
    wanted = jax.grad(lambda a, b: (a @ b).sum(), argnums=(0, 1))(a, b)
    for got, want in zip(gradients, wanted):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-1)
    print("ok on", jax.default_backend())
