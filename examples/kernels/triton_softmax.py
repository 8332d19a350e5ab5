"""A Triton function as a custom call: softmax over rows, under jit and grad."""

import jax
import jax.numpy as jnp
import numpy as np
import triton
import triton.language as tl
import xla_gpu


@triton.jit
def softmax(x, out, scale, rows, cols, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < cols
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        v = tl.load(x + row * cols + at, mask=mask, other=-float("inf")).to(tl.float32) * scale
        e = tl.exp(v - tl.max(v, axis=0))
        tl.store(out + row * cols + at, (e / tl.sum(e, axis=0)).to(out.dtype.element_ty), mask=mask)


HOST = """
#include <algorithm>
#include <cmath>
void softmax(const float* x, float* out, float scale, int rows, int cols) {
  for (; rows > 0; --rows, x += cols, out += cols) {
    const float most = scale * (scale > 0 ? *std::max_element(x, x + cols)
                                          : *std::min_element(x, x + cols));
    float sum = 0;
    for (int i = 0; i < cols; ++i) sum += out[i] = std::exp(x[i] * scale - most);
    for (int i = 0; i < cols; ++i) out[i] /= sum;
  }
}"""

kernel = xla_gpu.triton_kernel(
    softmax,
    grid=lambda rows: min(rows, 1024),
    outputs={"out": "x"},
    scalars={"rows": lambda x: x.shape[0], "cols": lambda x: x.shape[1], "scale": 1.0},
    constexprs=lambda x: {"BLOCK": triton.next_power_of_2(x.shape[1])},
    host=HOST,  # for f32, where there is no GPU
    gradient=lambda args, results, gradients, scale, **sizes: (
        scale * results[0] * (gradients[0] - (results[0] * gradients[0]).sum(-1, keepdims=True)),
    ),
)

if __name__ == "__main__":
    for rows, cols in ((1, 1), (5, 1000), (2000, 64)):
        x = jax.random.normal(jax.random.key(0), (rows, cols))
        got = jax.jit(lambda x: kernel(x, scale=0.5))(x)
        np.testing.assert_allclose(got, jax.nn.softmax(0.5 * x), rtol=1e-5, atol=1e-7)

    def loss(softmax, x):
        return jnp.sum(softmax(x) ** 2)

    got, want = (
        jax.jit(jax.grad(loss, 1), static_argnums=0)(f, x) for f in (kernel, jax.nn.softmax)
    )
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    print("ok on", jax.default_backend())
