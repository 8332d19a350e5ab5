"""Faults on a GPU and what is measured there, for kernels of one's own (docs/your-kernel.md)."""

import os
import subprocess
import sys

import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp
import xla_gpu

pytestmark = pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX finds no GPU here")

SAXPY = """
__global__ void saxpy(const float* x, const float* y, float* out, float alpha, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = alpha * x[i] + y[i];
}
"""
SPIN = """
__global__ void spin(const float* x, float* out, long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
  *out = *x;
}
"""
FAULT = """
import jax, jax.numpy as jnp, xla_gpu

good = xla_gpu.cuda_kernel("__global__ void good(const float* x, float* out) { *out = *x; }",
                           "good", grid=1, block=1, outputs={"out": "x"})
bad = xla_gpu.cuda_kernel("__global__ void bad(const float* x, float* out) { out[1l << 44] = *x; }",
                          "bad", grid=1, block=1, outputs={"out": "x"})
try:
    jax.jit(lambda x: good(bad(good(x))))(jnp.ones(1)).block_until_ready()
except jax.errors.JaxRuntimeError as e:
    print(e)
"""


@pytest.mark.parametrize("buffers", ["", "FUSION,CUSTOM_CALL"])
def test_an_illegal_address_is_an_error_of_its_kernel(buffers):
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), XLA_GPU_SYNC="1")
    env["XLA_FLAGS"] = f"--xla_gpu_enable_command_buffer={buffers}"
    done = subprocess.run(
        [sys.executable, "-c", FAULT], env=env, capture_output=True, text=True, timeout=120
    )
    assert "bad" in done.stdout and "good" not in done.stdout.replace("good(", ""), (
        done.stdout + done.stderr[-2000:]
    )
    assert "illegal" in done.stdout.lower()


WRONG_LAUNCHES = {  # what is said of it, by the driver or before
    "grid": (dict(grid=(1, 1 << 20), block=32), "grid"),
    "block": (dict(grid=1, block=2048), "block"),
    "shared memory": (dict(grid=1, block=32, shared_memory=1 << 20), "shared"),
}


@pytest.mark.parametrize("case", WRONG_LAUNCHES)
def test_a_launch_that_fails_is_an_error_that_names_the_kernel(case):
    said, word = WRONG_LAUNCHES[case]
    x = jnp.ones(8)
    with pytest.raises((jax.errors.JaxRuntimeError, xla_gpu.XlaGpuError, ValueError)) as caught:
        kernel = xla_gpu.cuda_kernel(SAXPY, "saxpy", outputs={"out": "x"}, **said)
        jax.jit(lambda x: kernel(x, x, alpha=2.0, n=8))(x).block_until_ready()
    assert "saxpy" in str(caught.value) and word in str(caught.value).lower(), str(caught.value)
    good = xla_gpu.cuda_kernel(SAXPY, "saxpy", grid=1, block=8, outputs={"out": "x"})
    assert (good(x, x, alpha=2.0, n=8) == 3).all()


def test_a_profile_has_the_time_on_the_device():
    spin = xla_gpu.cuda_kernel(SPIN, "spin", grid=1, block=1, outputs={"out": "x"})
    x = jnp.ones(1)
    call = jax.jit(
        lambda x, us: spin(x, nanoseconds=1000 * us),
        static_argnums=1,
        compiler_options={"xla_gpu_enable_command_buffer": ""},
    )
    for us in (500, 2000):
        call(x, us).block_until_ready()
    with xla_gpu.profile() as p:
        for us in (500, 2000, 2000):
            call(x, us)  # not awaited: what is timed is the device
    (times,) = p.kernels
    assert (times.name, times.platform, times.calls, times.timed) == ("spin", "CUDA", 3, 3)
    assert 500 <= times.min_us < 700 and 2000 <= times.max_us < 2300
    assert 4500 <= times.total_us < 5200


@pytest.mark.skipif("XLA_GPU_PROGRAM" not in os.environ, reason="XLA_GPU_PROGRAM names xla-gpu")
def test_compile_for_the_gpu_that_is_here(tmp_path):
    source = tmp_path / "saxpy.cu"
    source.write_text(SAXPY)
    done = subprocess.run(
        [os.environ["XLA_GPU_PROGRAM"], "compile", str(source), "--resources"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "saxpy" in done.stdout and "registers" in done.stdout
