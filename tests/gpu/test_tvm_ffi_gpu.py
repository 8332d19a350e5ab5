"""TVM-FFI functions on a GPU: alone, in CUDA graphs that XLA replays, and the errors between.

XLA_GPU_TEST_TVM_FFI_KERNELS names the library of tests/tvm_ffi/kernels.cu where nvcc is not here.
"""

import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import jax
import jax.numpy as jnp
import xla_gpu

CALLS = 20
RUNS = 7
SHAPE = (64, 1000)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    if built := os.environ.get("XLA_GPU_TEST_TVM_FFI_KERNELS"):
        return built
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not here")
    source = pathlib.Path(__file__).parent.parent / "tvm_ffi/kernels.cu"
    library = tmp_path_factory.mktemp("tvm_ffi") / "kernels.so"
    flags = ["-std=c++17", "-O2", "-shared", "-Xcompiler", "-fPIC", "-arch=native"]
    flags += ["-I" + tvm_ffi.libinfo.find_include_path()]
    flags += ["-L" + str(pathlib.Path(tvm_ffi.libinfo.find_libtvm_ffi()).parent), "-ltvm_ffi"]
    subprocess.run([nvcc, *flags, source, "-o", library], check=True)
    return str(library)


@pytest.fixture
def function(kernels):
    def made(symbol, arguments="x", returned=("out",), parameters=None, capture=True, **members):
        return xla_gpu.external_kernel(
            (kernels, symbol),
            convention="tvm_ffi",
            arguments=list(arguments),
            outputs=dict.fromkeys(returned, "x"),
            parameters=parameters or list(arguments),
            capture=capture,
            # Whether calls may be captured belongs to the custom call's name.
            name=symbol if capture else f"{symbol}_alone",
            **members,
        )

    return made


def add_scaled(function, **members):
    return function(
        "add_scaled",
        "xy",
        parameters=["x", "y", "alpha", "out"],
        scalars={"alpha": ("f64", 0.5)},
        **members,
    )


def inputs(count, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(SHAPE), jnp.float32) for _ in range(count)]


SCRATCH = 4 * 64 * 1000 + 256
FORMS = {
    "views": (add_scaled, lambda f, x: f(x, x, alpha=0.25), lambda x: 1.25 * x),
    "owned": (
        lambda function, **members: add_scaled(function, owned=True, **members),
        lambda f, x: f(x, x),
        lambda x: 1.5 * x,
    ),
    "allocated": (
        lambda function, **members: function("doubled", **members),
        lambda f, x: f(x),
        lambda x: 2 * x,
    ),
    "scratch_first": (
        lambda function, **members: function("scratch_first", workspace=SCRATCH, **members),
        lambda f, x: f(x),
        lambda x: 4 * x + 1,
    ),
    "two_swapped": (
        lambda function, **members: function(
            "two_swapped", returned=("a", "b"), workspace=SCRATCH, **members
        ),
        lambda f, x: f(x)[0] - 2 * f(x)[1],
        lambda x: -x,
    ),
}


@pytest.mark.parametrize("smallest_graph", [None, 1])
@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_values_change_between_replays(function, form, capture, smallest_graph):
    """With XLA's own threshold (five commands), and with every call in a graph."""
    make, call, expected = FORMS[form]
    kernel = make(function, capture=capture)
    options = {"xla_gpu_graph_min_graph_size": smallest_graph} if smallest_graph else None
    step = jax.jit(lambda xs: [call(kernel, x) for x in xs], compiler_options=options)
    for run in range(RUNS):
        xs = inputs(CALLS, seed=run)
        for got, x in zip(step(xs), xs):
            np.testing.assert_allclose(got, expected(np.asarray(x)), rtol=1e-5, atol=1e-5)


def test_a_chain_whose_first_launch_is_captured(function):
    kernel = function("doubled")

    def chain(x):
        for _ in range(CALLS):
            x = kernel(x) * 0.5
        return x

    chain = jax.jit(chain, compiler_options={"xla_gpu_graph_min_graph_size": 1})
    for run in range(RUNS):
        (x,) = inputs(1, seed=run)
        np.testing.assert_allclose(chain(x), x, rtol=1e-5)


def test_donation_and_scan(function):
    add = add_scaled(function)
    (y,) = inputs(1)
    step = jax.jit(
        lambda x: jax.lax.scan(lambda c, _: (add(c, y), None), x, None, length=50)[0],
        donate_argnums=0,
    )
    x = jnp.zeros(SHAPE, jnp.float32)
    for _ in range(4):
        x = step(x)
    np.testing.assert_allclose(x, 100 * y, rtol=1e-4, atol=1e-4)


def test_errors_alone_and_in_a_chain(function):
    fails = function("fails", parameters=["x", "out"])
    add = add_scaled(function)
    (x,) = inputs(1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="fails: ValueError: rows must be even"):
        jax.jit(fails)(x).block_until_ready()

    @jax.jit
    def chain(x):
        for _ in range(CALLS):
            x = add(x, x)
        x = fails(x)
        for _ in range(CALLS):
            x = add(x, x)
        return x

    with pytest.raises(jax.errors.JaxRuntimeError, match="fails: ValueError: rows must be even"):
        chain(x).block_until_ready()
    np.testing.assert_allclose(jax.jit(add)(x, x), 1.5 * x, rtol=1e-6)


def test_too_little_workspace(function):
    (x,) = inputs(1)
    small = function("scratch_first", workspace=1000)
    with pytest.raises(jax.errors.JaxRuntimeError, match="scratch_first: MemoryError: .* at least"):
        jax.jit(small)(x).block_until_ready()
    none = function("two_swapped", returned=("a", "b"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="two_swapped: .*workspace has 0 bytes"):
        jax.block_until_ready(jax.jit(none)(x))
