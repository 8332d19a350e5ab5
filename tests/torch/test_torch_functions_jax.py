"""Functions on torch tensors (`xla_gpu.torch_kernel`) called by JAX, through XLA on the CPU."""

import os
import pathlib
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
import xla_gpu
from torch.nn import functional

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp

X, Y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))


def made(fn, **said):
    return xla_gpu.torch_kernel(fn, **{"outputs": {"out": "x"}, "name": "f", **said})


def saxpy(x, y, out, *, alpha: float = 1.0):
    torch.add(y, x, alpha=alpha, out=out)


@pytest.fixture(scope="module")
def kernel():
    return xla_gpu.torch_kernel(
        saxpy,
        outputs={"out": "x"},
        vmap="broadcast_all",
        gradient=lambda args, results, gradients, alpha: (alpha * gradients[0], gradients[0]),
    )


def test_a_call_is_one_custom_call_of_the_kernels_name(kernel):
    call = jax.jit(lambda x, y: kernel(x, y, alpha=2.0))
    np.testing.assert_array_equal(call(X, Y), 2 * X + Y)
    text = call.lower(X, Y).compile().as_text()
    assert 'custom_call_target="saxpy"' in text
    assert text.count(" custom-call(") == 1
    np.testing.assert_array_equal(kernel(X, y=Y, alpha=3), 3 * X + Y)


def test_several_shapes_and_scalars_in_one_program(kernel):
    @jax.jit
    def program(x):
        return [kernel(x[:n], x[:n], alpha=float(n)) for n in (0, 1, 2, 5)]

    x = jnp.arange(5.0)
    for n, result in zip((0, 1, 2, 5), program(x), strict=True):
        np.testing.assert_array_equal(result, (n + 1) * x[:n])


def test_transforms(kernel):
    looped = jax.jit(lambda x: jax.lax.scan(lambda c, _: (kernel(c, Y), None), x, None, 5)[0])
    np.testing.assert_array_equal(looped(X), X + 5)
    mapped = jax.jit(jax.vmap(lambda x, y: kernel(x, y, alpha=2.0), (0, None)))
    np.testing.assert_array_equal(mapped(X, jnp.ones(3)), 2 * X + 1)
    loss = jax.jit(jax.grad(jax.checkpoint(lambda x: kernel(x, Y, alpha=3.0).sum())))
    np.testing.assert_array_equal(loss(X), jnp.full((2, 3), 3.0))


def test_attention():
    attend = made(
        lambda q, k, v, causal=False: functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal
        ),
        outputs={"out": "q"},
    )
    q, k, v = (jax.random.normal(jax.random.key(i), (2, 4, 7, 16)) for i in range(3))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 4
    for causal in (False, True):
        masked = jnp.where(jnp.tril(jnp.ones((7, 7), bool)), scores, -jnp.inf) if causal else scores
        want = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(masked), v)
        got = jax.jit(lambda *qkv, causal=causal: attend(*qkv, causal=causal))(q, k, v)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_example():
    example = pathlib.Path(__file__).parents[2] / "examples/jax/vllm_kernel.py"
    env = dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, str(example)], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "out (6, 8, 64) on cpu, error against float64" in done.stdout


def test_in_place_and_donated():
    def add_to(y, x):
        y += x

    kernel = made(add_to, outputs={}, in_place=["y"])
    np.testing.assert_array_equal(kernel(Y, X), X + 1)
    np.testing.assert_array_equal(Y, np.ones((2, 3)))
    donated = jax.jit(kernel, donate_argnums=0)
    np.testing.assert_array_equal(donated(Y + 0, X), X + 1)


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "int32", "uint8", "uint16", "uint32", "float16", "float32", "bfloat16",
     "float8_e5m2", "float8_e4m3fn"],
)  # fmt: skip
def test_dtypes(dtype):
    seen = []

    def flip(x, out):
        seen.append((x.dtype, out.dtype))
        out.copy_(x.view(torch.uint8).reshape(x.shape).flip(0).view(x.dtype)
                  if x.element_size() == 1 else torch.stack(x.unbind()[::-1]))  # fmt: skip

    x = jnp.asarray([0, 1, 1, 0, 1]).astype(dtype)
    np.testing.assert_array_equal(jax.jit(made(flip))(x), x[::-1])
    assert seen == [(getattr(torch, dtype),) * 2]


def test_optional_arguments():
    kernel = made(lambda x, bias=None: x * 2 if bias is None else x * 2 + bias)
    np.testing.assert_array_equal(jax.jit(kernel)(X), 2 * X)
    np.testing.assert_array_equal(jax.jit(lambda x, b: kernel(x, bias=b))(X, Y), 2 * X + 1)


def test_a_twin_for_the_cpu_of_a_kernel_for_cuda(kernel):
    cuda = xla_gpu.cuda_kernel(
        "__global__ void f(const float* x, const float* y, float* out, double alpha) {}",
        "f",
        grid=1,
        block=1,
        outputs={"out": "x"},
        host=kernel,
    )
    np.testing.assert_array_equal(jax.jit(lambda x, y: cuda(x, y, alpha=2.0))(X, Y), 2 * X + Y)
    of_torch = made(saxpy, platform="CUDA", host=kernel)
    np.testing.assert_array_equal(jax.jit(of_torch)(X, Y), X + Y)


def test_errors_leave_the_process_as_it_was(kernel):
    def fails(x):
        raise ValueError(f"no {tuple(x.shape)}")

    kept = []
    keeps = made(lambda x: kept.append(x) or x + 1, name="keeps")
    wrong = made(lambda x: x.t(), name="wrong")
    for _ in range(3):
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"f: ValueError: no \(2, 3\) \(.*:\d"):
            jax.block_until_ready(jax.jit(made(fails))(X))
        with pytest.raises(jax.errors.JaxRuntimeError, match="keeps: the function keeps 1 of"):
            jax.block_until_ready(jax.jit(keeps)(X))
        with pytest.raises(jax.errors.JaxRuntimeError, match=r"wrong: .* returned f32\[3,2\]"):
            jax.block_until_ready(jax.jit(wrong)(X))
        np.testing.assert_array_equal(jax.jit(kernel)(X, Y), X + Y)


def test_asynchronous_calls_from_many_threads():
    """None waits for the GIL while it holds what another needs: this ends."""

    def slow(x):
        time.sleep(0.001)
        return x + 1

    kernel = made(slow)

    @jax.jit
    def step(x):
        branches = [kernel(x + i) for i in range(4)]
        return kernel(sum(branches))

    x, failed = jnp.zeros((300, 300)), []

    def work(n):
        results = [step(x + n) for _ in range(10)]  # enqueued, then waited for
        if not all((np.asarray(r) == 4 * n + 6 + 4 + 1).all() for r in results):
            failed.append(n)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert not failed


PROGRAM = """
import sys, time
import jax, jax.numpy as jnp, numpy as np, torch, xla_gpu
from jax.sharding import NamedSharding, PartitionSpec

shapes = []
def slow(x):
    shapes.append(tuple(x.shape))
    time.sleep(0.01)
    return x + 1

kernel = xla_gpu.torch_kernel(slow, outputs={"out": "x"}, sharding="i j -> i j")
mesh = jax.make_mesh((2,), ("x",))
x = jax.device_put(jnp.zeros((8, 3)), NamedSharding(mesh, PartitionSpec("x")))
step = jax.jit(kernel)
np.testing.assert_array_equal(step(x), 1)
assert shapes == [(4, 3)] * 2, shapes
assert "all-gather" not in step.lower(x).compile().as_text()
results = [step(x) for _ in range(30)]
print("leaves")  # while calls run
"""


def test_split_over_devices_and_the_end_of_a_process():
    env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    env |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and done.stdout == "leaves\n", done.stderr[-3000:]


def test_a_function_does_not_travel_in_an_exported_program(kernel):
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    from xla_gpu.jax import export_checks

    with pytest.raises(ValueError, match="saxpy: its CUDA code is a function of this process"):
        export.export(jax.jit(kernel), disabled_checks=export_checks())(X, Y)
