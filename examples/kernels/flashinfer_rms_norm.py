"""FlashInfer's RMSNorm inside a jitted JAX model, without torch's tensors on the way.

FlashInfer builds the kernel at its first use, with nvcc and ninja, and keeps it (or takes it from
the package flashinfer-jit-cache). What it gives is a TVM-FFI function, launched on XLA's stream.
"""

from _require import require

require("flashinfer", "flashinfer-python")
require("tvm_ffi", "apache-tvm-ffi")
require(gpu=True)

import jax
import jax.numpy as jnp
import numpy as np
import xla_gpu
from flashinfer.jit.norm import gen_norm_module


def gradient(args, results, gradients, **scalars):
    """Of the plain form: what a kernel has no backward pass for, JAX differentiates."""
    return jax.vjp(plain, *args)[1](gradients[0])


rms_norm = xla_gpu.external_kernel(
    gen_norm_module().build_and_load().rmsnorm,
    name="flashinfer_rms_norm",
    arguments=[{"name": name, "dtypes": ["bf16", "f16"]} for name in ("x", "weight")],
    outputs={"out": "x"},
    scalars={"eps": ("f64", 1e-6), "enable_pdl": ("bool", False)},
    parameters=["out", "x", "weight", "eps", "enable_pdl"],
    capture=True,  # it only launches
    gradient=gradient,
)


def plain(x, weight):
    f32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(f32 * f32, -1, keepdims=True) + 1e-6)
    return (f32 * scale * weight.astype(jnp.float32)).astype(x.dtype)


def model(norm, x, layers):
    for weight, matrix in layers:
        x = x + jax.nn.silu(norm(x, weight) @ matrix)
    return x


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(keys[0], (64, 1024), jnp.bfloat16)
    layers = [
        (jnp.ones(1024, jnp.bfloat16), jax.random.normal(key, (1024, 1024), jnp.bfloat16) / 32)
        for key in keys[1:]
    ]
    run = jax.jit(model, static_argnums=0)
    assert (
        'custom_call_target="flashinfer_rms_norm"'
        in run.lower(rms_norm, x, layers).compile().as_text()
    )
    got, want = (np.asarray(run(norm, x, layers), np.float32) for norm in (rms_norm, plain))
    np.testing.assert_allclose(got, want, rtol=0.1, atol=0.1)
    loss = jax.jit(jax.grad(lambda x: model(rms_norm, x, layers).astype(jnp.float32).sum()))
    assert jnp.isfinite(loss(x)).all()
    print("ok on", jax.default_backend())
