"""SAXPY of any size: under jit, vmap and grad in JAX, and the same object on torch's tensors."""

import importlib.util

import jax
import numpy as np
import xla_gpu

saxpy = xla_gpu.cuda_kernel(
    """
    __global__ void saxpy(const float* x, const float* y, float* out, float alpha, long n) {
      long i = blockIdx.x * long(blockDim.x) + threadIdx.x;
      if (i < n) out[i] = alpha * x[i] + y[i];
    }
    """,
    "saxpy",
    grid=lambda x: xla_gpu.cdiv(x.size, 256),
    block=256,
    outputs={"out": "x"},
    scalars={"n": lambda x: x.size},
    host="""
    void saxpy(const float* x, const float* y, float* out, float alpha, long n) {
      for (long i = 0; i < n; ++i) out[i] = alpha * x[i] + y[i];
    }
    """,
    gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
    vmap="broadcast_all",
    doc="alpha * x + y.",
)


def in_jax() -> None:
    call = jax.jit(lambda x, y: saxpy(x, y, alpha=2.0))
    for shape in ((0,), (1,), (257,), (3, 1000)):
        x, y = jax.random.normal(jax.random.key(0), (2, *shape))
        np.testing.assert_allclose(call(x, y), 2 * x + y, rtol=1e-6, atol=1e-6)

    x, y = jax.random.normal(jax.random.key(1), (2, 5, 7))
    one_y = jax.vmap(call, in_axes=(0, None))(x, y[0])  # one custom call, of a batch
    np.testing.assert_allclose(one_y, 2 * x + y[0], rtol=1e-6, atol=1e-6)

    gradients = jax.grad(lambda x, y: (call(x, y) ** 2).sum(), argnums=(0, 1))(x, y)
    wanted = jax.grad(lambda x, y: ((2 * x + y) ** 2).sum(), argnums=(0, 1))(x, y)
    for got, want in zip(gradients, wanted):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    print(f"ok on {jax.default_backend()}: JAX")


def in_torch() -> None:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = torch.randn(2, 1000, device=device).unbind()
    x.requires_grad_()
    out = saxpy(x, y, alpha=2.0)
    torch.testing.assert_close(out, 2 * x + y)
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 2.0))
    print(f"ok on {device}: torch")


if __name__ == "__main__":
    in_jax()
    if importlib.util.find_spec("torch"):
        in_torch()
