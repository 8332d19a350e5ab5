"""Triton's kernels in JAX programs: run on the CPU by a Host implementation, lowered for a GPU."""

import importlib.util
import warnings

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

import jax
import jax.numpy as jnp
import numpy as np
import triton_kernels as kernels
import xla_gpu
from test_variants import blocks

HOST = """
#include <cstdint>
extern "C" void add(const float* x, const float* y, float* out, int32_t n) {
  for (int32_t i = 0; i < n; ++i) out[i] = x[i] + y[i];
}
"""


@pytest.fixture(scope="module")
def add():
    return xla_gpu.triton_kernel(
        kernels.add,
        name="add_somewhere",
        grid=blocks,
        outputs={"out": "x"},
        constexprs={"BLOCK": 128},
        arch="sm_90",
        host=xla_gpu.host_kernel(HOST, "add", outputs={"out": "x"}),
        vmap="sequential",
        gradient=lambda args, results, gradients, n: (gradients[0], gradients[0]),
    )


def test_runs_where_there_is_a_host_implementation(add):
    x, y = jnp.arange(100.0), jnp.ones(100)
    for n in (100, 1, 96):
        assert (add(x, y, n)[:n] == (x + y)[:n]).all()
    assert (add(np.arange(100, dtype=np.float32), y, np.int64(100)) == x + y).all()
    assert (jax.jit(lambda x, y: add(x, y, n=100))(x, y) == x + y).all()


def test_calls_of_every_form(add):
    x, y = jnp.arange(100.0), jnp.ones(100)
    calls = [
        lambda: add(x, y, 100),
        lambda: add(x, y, n=50),
        lambda: add(y=y, n=100, x=x),
        lambda: add(x, n=np.int32(100), y=y),
        lambda: add(x, y, 100, BLOCK=64),
        lambda: add(x, y, 100, BLOCK=32),
        lambda: add(x[:50], y[:50], 50),
        lambda: add(x.__array__(), y, 100),
        lambda: add(x, y, 1),
    ]
    for call in calls * 3:  # the second time by what the first has left
        got = call()
        assert (got[:1] == 1).all()
        assert got.shape in ((50,), (100,))
    assert not add._sites.keys() & {None}
    with pytest.raises(xla_gpu.InvalidArgumentError, match="n is missing"):
        add(x, y)


def test_without_a_gpu_it_needs_no_arch():
    """What is tuned on a GPU is not asked for, either."""
    kernel = xla_gpu.triton_kernel(
        kernels.tuned, name="add", grid=blocks, outputs={"out": "x"}, host=HOST
    )
    x = jnp.arange(100.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (jax.jit(lambda x: kernel(x, x, 100))(x) == 2 * x).all()


def test_the_host_twin_has_an_instance_for_the_arguments():
    source = """
    template <typename T>
    void any_add(const T* x, const T* y, T* out, int n) {
      for (int i = 0; i < n; ++i) out[i] = x[i] + y[i];
    }
    """
    twin = xla_gpu.host_kernel(
        source,
        lambda x, n: f"any_add<{'float' if x.dtype == 'f32' else 'int'}>",
        name="any_add",
        outputs={"out": "x"},
    )
    kernel = xla_gpu.triton_kernel(
        kernels.add, grid=blocks, outputs={"out": "x"}, constexprs={"BLOCK": 128}, host=twin
    )
    for dtype in ("float32", "int32"):
        x = jnp.arange(100).astype(dtype)
        assert (kernel(x, x, 100) == 2 * x).all()


def test_without_one_it_says_so():
    kernel = xla_gpu.triton_kernel(
        kernels.add, grid=1, outputs={"out": "x"}, constexprs={"BLOCK": 128}, arch="sm_90"
    )
    with pytest.raises(Exception, match="there is no kernel for platform Host"):
        jax.block_until_ready(kernel(jnp.ones(8), jnp.ones(8), 8))


def test_transforms(add):
    x, y = jnp.arange(12.0).reshape(3, 4), jnp.ones((3, 4))
    assert (jax.vmap(lambda x, y: add(x, y, 4))(x, y) == x + y).all()
    gradients = jax.grad(lambda x, y: (add(x, y, 4) * jnp.arange(4.0)).sum(), (0, 1))(x[0], y[0])
    assert all((g == jnp.arange(4.0)).all() for g in gradients)
    assert jax.eval_shape(lambda x, y: add(x, y, 4), x, y).shape == (3, 4)


def lowered(function, *args):
    return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_what_a_program_for_a_gpu_calls(add):
    x = jnp.ones(100)
    text = lowered(lambda x: add(x, x, 100), x)
    assert text.count("@add_somewhere(") == 1
    assert "n = 100 : i64" in text and "block = dense<[128, 1, 1]>" in text
    batched = lowered(jax.vmap(lambda x: add(x, x, 100)), jnp.ones((7, 100)))
    assert batched.count("@add_somewhere(") == 1 and "stablehlo.while" in batched


def test_scalars_that_follow_from_shapes_follow_the_batch():
    kernel = xla_gpu.triton_kernel(
        kernels.add,
        name="add_all",
        grid=blocks,
        outputs={"out": "x"},
        constexprs={"BLOCK": 128},
        scalars={"n": lambda x: x.size},
        arch="sm_90",
        vmap="broadcast_all",
    )
    assert "n = 100 : i64" in lowered(lambda x: kernel(x, x), jnp.ones(100))
    assert "n = 700 : i64" in lowered(jax.vmap(lambda x: kernel(x, x)), jnp.ones((7, 100)))


def test_in_place_is_an_alias():
    kernel = xla_gpu.triton_kernel(
        kernels.accumulate, grid=blocks, in_place=["total"], constexprs={"BLOCK": 64}, arch=90
    )
    text = lowered(lambda total, x: kernel(total, x, 100), jnp.ones(100), jnp.ones(100))
    assert "output_operand_alias" in text


def test_errors_end_at_the_callers_line(add):
    with pytest.raises(xla_gpu.InvalidArgumentError, match="n is str 'x'") as caught:
        add(jnp.ones(8), jnp.ones(8), "x")
    assert len(caught.traceback) <= 2


def test_doubles_of_numpy_are_what_jax_makes_of_them(add):
    variant = lowered(lambda x: add(x, x, 100), np.ones(100))
    assert "tensor<100xf32>" in variant
