"""Functions on torch tensors (`xla_gpu.torch_kernel`) on a GPU, called by JAX and by torch."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import jax.numpy as jnp
import xla_gpu

needs_jax = pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX finds no GPU here")
LARGE = (4096, 1024)  # 16 MB: what is read too early shows
CALLS = 20


def made(fn, name="f", **said):
    return xla_gpu.torch_kernel(fn, **{"outputs": {"out": "x"}, "name": name, **said})


def add_one(x, out):
    torch.add(x, 1, out=out)


def by_scratch(x):
    """Allocates, frees and allocates again, so that memory of torch's is used anew."""
    for _ in range(3):
        x = (x * 2 + 2) / 2 - 1
    return x + 1


@needs_jax
def test_values_stream_and_device():
    seen = []

    def f(x, out):
        stream = torch.cuda.current_stream()
        seen.append((stream.cuda_stream, stream.device, x.device, torch.cuda.current_device()))
        torch.mul(x, 2, out=out)

    x = jnp.arange(12.0).reshape(3, 4)
    before = torch.cuda.current_stream()
    for _ in range(3):
        np.testing.assert_array_equal(jax.jit(made(f))(x), 2 * x)
    (stream, *devices), *rest = seen
    assert stream not in (0, before.cuda_stream) and all(one == seen[0] for one in rest)
    assert devices == [torch.device("cuda", 0), torch.device("cuda", 0), 0]
    assert torch.cuda.current_stream() == before


@needs_jax
@pytest.mark.parametrize("fn", [add_one, by_scratch])
def test_producers_and_consumers_in_stream_order(fn):
    """XLA's kernels and torch's take turns without a synchronisation between."""
    kernel = made(fn, fn.__name__)

    @jax.jit
    def chain(x):
        for _ in range(CALLS):
            x = jnp.roll(kernel(x), 1, 0) * 0.5
        return x

    for seed in range(3):
        x = want = np.random.default_rng(seed).integers(0, 9, LARGE).astype(np.float32)
        for _ in range(CALLS):
            want = np.roll(want + 1, 1, 0) * np.float32(0.5)
        np.testing.assert_allclose(chain(jnp.asarray(x)), want, rtol=1e-6)


@needs_jax
def test_scan_donation_and_in_place():
    def add_to(y, x):
        y += x

    kernel = made(add_to, outputs={}, in_place=["y"])
    x = jnp.ones(LARGE)
    step = jax.jit(
        lambda y, x: jax.lax.scan(lambda c, _: (kernel(c, x), None), y, None, length=30)[0],
        donate_argnums=0,
    )
    y = jnp.zeros(LARGE)
    for _ in range(4):
        y = step(y, x)
    np.testing.assert_array_equal(y, np.full(LARGE, 120.0))


@needs_jax
@pytest.mark.parametrize("capture", [False, True])
def test_command_buffers(capture):
    """Not captured unless that is asked for: each call enters the function, or the first few."""
    calls = []

    def f(x, out):
        calls.append(torch.cuda.is_current_stream_capturing())
        torch.add(x, 1, out=out)

    kernel = made(f, f"captured_{capture}", capture=capture)

    def chain(x):
        for _ in range(CALLS):
            x = kernel(x) * 2
        return x

    run = jax.jit(chain, compiler_options={"xla_gpu_graph_min_graph_size": 1})
    for seed in range(7):
        x = want = np.random.default_rng(seed).integers(0, 5, (64, 100)).astype(np.float32)
        for _ in range(CALLS):
            want = (want + 1) * 2
        np.testing.assert_array_equal(run(jnp.asarray(x)), want)
    if not capture:
        assert calls == [False] * (7 * CALLS)


@needs_jax
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "float32",
                                   "float8_e4m3fn", "float8_e5m2"])  # fmt: skip
def test_dtypes(dtype):
    seen = []

    def copy(x, out):
        seen.append(x.dtype)
        out.copy_(x)

    x = jnp.asarray([0, 1, 1, 0, 1]).astype(dtype)
    np.testing.assert_array_equal(jax.jit(made(copy))(x), x)
    assert seen == [getattr(torch, dtype)]
    assert made(copy)(jnp.zeros((0, 3), dtype)).shape == (0, 3)


def too_large(x):
    return torch.empty(1 << 50, dtype=torch.uint8, device=x.device)


KEPT = []
FAILS = {
    "raises": (lambda x: {}["missing"], r"raises: KeyError: 'missing' \(.*:\d+\)"),
    "memory": (too_large, "memory: OutOfMemoryError"),
    "host": (lambda x: x.cpu(), r"host: ValueError: the function returned .* on cpu for out"),
    "keeps": (lambda x: KEPT.append(x) or x + 1, "keeps: the function keeps 1 of"),
}


@needs_jax
@pytest.mark.parametrize("case", FAILS)
def test_errors_leave_the_process_as_it_was(case):
    fn, message = FAILS[case]
    fails = made(fn, case)
    good = made(add_one)
    x = jnp.zeros((64, 64))

    @jax.jit
    def chain(x):
        for _ in range(5):
            x = good(x)
        x = fails(x)
        for _ in range(5):
            x = good(x)
        return x

    for _ in range(2):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            chain(x).block_until_ready()
        np.testing.assert_array_equal(jax.jit(good)(x), np.ones((64, 64)))


@needs_jax
def test_threads():
    kernel, failed = made(by_scratch), []
    step = jax.jit(lambda x: kernel(kernel(x)) * 2)

    def work(n):
        results = [step(jnp.full((500, 500), float(n))) for _ in range(20)]
        if not all((np.asarray(r) == 2 * n + 4).all() for r in results):
            failed.append(n)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert not failed


def test_by_torch_on_its_current_stream():
    kernel = made(by_scratch)
    x, stream = torch.arange(1 << 22, dtype=torch.float32, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = x * 1
        for _ in range(20):
            y = kernel(y)
        assert torch.equal(y, x + 20)
    assert torch.equal(made(add_one)(x), x + 1)


@needs_jax
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllms_paged_attention():
    example = pathlib.Path(__file__).parents[2] / "examples/jax/vllm_kernel.py"
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), XLA_PYTHON_CLIENT_PREALLOCATE="0")
    done = subprocess.run(
        [sys.executable, str(example)], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "out (6, 8, 64) on" in done.stdout
