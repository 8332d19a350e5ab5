"""The smallest kernel as a custom call: scale * (a + b), in the HLO under its own name.

The same by hand, by each of XLA's API versions: examples/torch_xla/minimal_xla_custom_call.cu.
"""

import jax
import jax.numpy as jnp
import xla_gpu

CUDA = """
__global__ void my_add(const float* a, const float* b, float* out, float scale, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = scale * (a[i] + b[i]);
}"""

HOST = """
void my_add(const float* a, const float* b, float* out, float scale, int n) {
  for (int i = 0; i < n; ++i) out[i] = scale * (a[i] + b[i]);
}"""

my_add = xla_gpu.cuda_kernel(
    CUDA,
    "my_add",
    grid=lambda a: xla_gpu.cdiv(a.size, 256),
    block=256,
    outputs={"out": "a"},
    scalars={"n": lambda a: a.size, "scale": 1.0},
    host=HOST,
)

if __name__ == "__main__":
    a, b = jnp.array([1.0, 2.0, 3.0]), jnp.array([10.0, 20.0, 30.0])
    assert my_add(a, b).tolist() == [11, 22, 33]
    twice = jax.jit(lambda a, b: my_add(a, b, scale=2.0))
    assert twice(a, b).tolist() == [22, 44, 66]

    hlo = twice.lower(a, b).compile().as_text()
    call = next(line.strip() for line in hlo.splitlines() if "custom-call(" in line)
    assert 'custom_call_target="my_add"' in call
    print(f"ok on {jax.default_backend()}: {call[:120]} ...")
