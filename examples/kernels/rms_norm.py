"""RMSNorm fused with the residual before it, and its gradients, as kernels of CUDA source.

`out, residual = rms_norm(x, residual, weight)` adds x to the residual in place and normalises what
comes of it, in f32 and bf16. On the CPU the C++ twins in the same file run.
"""

import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import xla_gpu

SOURCE = pathlib.Path(__file__).with_name("rms_norm.cu")
TYPES = {"f32": "float", "bf16": "bf16"}


def instance(template):
    """Of the template: for the dtype, with 16 bytes a load where the rows allow it."""

    def entry(weight):
        wide = {"f32": 4, "bf16": 8}[weight.dtype]
        return f"{template}<{TYPES[weight.dtype]}, {wide if weight.size % wide == 0 else 1}>"

    return entry


norm_dx = xla_gpu.cuda_kernel(
    SOURCE,
    instance("rms_norm_dx"),
    name="rms_norm_dx",
    grid=lambda inverse: inverse.size,
    block=256,
    outputs={"dx": "h"},
    scalars={"rows": lambda inverse: inverse.size, "cols": lambda weight: weight.size},
    host=SOURCE,
)
norm_dweight = xla_gpu.cuda_kernel(
    SOURCE,
    lambda h: f"rms_norm_dweight<{TYPES[h.dtype]}>",
    name="rms_norm_dweight",
    grid=lambda h: xla_gpu.cdiv(h.shape[-1], 32),
    block=512,
    outputs={"dweight": lambda h: (h.shape[-1:], h.dtype)},
    scalars={"rows": lambda inverse: inverse.size, "cols": lambda h: h.shape[-1]},
    host=SOURCE,
)


def gradient(args, results, gradients, epsilon):
    (_, inverse, h), (d_out, _, d_h) = results, gradients
    dx = norm_dx(h, args[2], inverse, d_out, d_h)
    return dx, dx, norm_dweight(h, inverse, d_out)  # of x, residual and weight


norm = xla_gpu.cuda_kernel(
    SOURCE,
    instance("rms_norm"),
    name="rms_norm",
    grid=lambda x: math.prod(x.shape[:-1]),
    block=256,
    arguments=[{"name": name, "dtypes": [*TYPES]} for name in ("x", "residual", "weight")],
    outputs={"out": "x", "inverse": lambda x: (x.shape[:-1], "f32")},
    in_place=["residual"],
    scalars={
        "rows": lambda x: math.prod(x.shape[:-1]),
        "cols": lambda weight: weight.size,
        "epsilon": 1e-6,
    },
    host=SOURCE,
    gradient=gradient,
    vmap="sequential",
)


def rms_norm(x, residual, weight, epsilon=1e-6):
    out, _, residual = norm(x, residual, weight, epsilon=epsilon)
    return out, residual


def plain(x, residual, weight, epsilon=1e-6):
    h = x + residual
    return h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + epsilon) * weight, h


def loss(norm, x, weights, matrices):
    """Of a small network: each layer adds to the residual, which is normalised for the next."""
    residual = jnp.zeros_like(x)
    for weight, matrix in zip(weights, matrices):
        out, residual = norm(x, residual, weight)
        x = jnp.tanh(out @ matrix)
    return jnp.mean((x + residual) ** 2)


def check(dtype, rows, cols, tolerance):
    """The value and the gradients of the network beside plain JAX in float64."""
    keys = jax.random.split(jax.random.key(cols), 3)
    x = jax.random.normal(keys[0], (rows, cols), dtype)
    weights = 1 + 0.1 * jax.random.normal(keys[1], (3, cols), dtype)
    matrices = jax.random.normal(keys[2], (3, cols, cols), dtype) / cols**0.5
    value_and_grad = jax.jit(jax.value_and_grad(loss, (1, 2, 3)), static_argnums=0)
    got = value_and_grad(rms_norm, x, weights, matrices)
    want = value_and_grad(plain, *(a.astype(jnp.float64) for a in (x, weights, matrices)))
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert ours.dtype == dtype
        error = np.abs(np.asarray(ours, np.float64) - theirs).max() / np.abs(theirs).max()
        assert error < tolerance, f"{dtype.__name__}[{rows},{cols}]: {error:.1e}"


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    for rows, cols in ((4, 64), (33, 257)):
        check(jnp.float32, rows, cols, 1e-5)
        check(jnp.bfloat16, rows, cols, 4e-2)
    print("ok on", jax.default_backend())
