"""The product of rows with a dense layer's fp8 weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tpu_inference.layers.common import linear
from xla_gpu.vllm_xla import _linear

INNER, COLUMNS = 256, 128
MANY_ROWS = _linear.FEW_ROWS + 1


@pytest.fixture
def product(monkeypatch):
    """The function that linear layers call, with what stands in its place."""
    before = linear.xla_quantized_matmul
    monkeypatch.setattr(linear, "xla_quantized_matmul", before)
    _linear.few_rows_are_not_quantized()
    return linear.xla_quantized_matmul


def operands(rows: int, dtype: str = "bfloat16", channels: tuple[int, ...] = (COLUMNS,)):
    rng = np.random.default_rng(rows)
    x = jnp.asarray(rng.normal(size=(rows, INNER)), dtype)
    weight = jnp.asarray(rng.normal(size=(INNER, COLUMNS)), "float8_e4m3fn")
    return x, weight, jnp.asarray(rng.uniform(0.5, 1, channels), "float32")


def exact(x, weight, scale):
    return np.asarray(x, np.float64) @ np.asarray(weight, np.float64) * np.asarray(scale)


@pytest.mark.parametrize("channels", [(COLUMNS,), ()])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rows", [1, 16, _linear.FEW_ROWS])
def test_of_few_rows_the_result_alone_is_rounded(product, rows, dtype, channels):
    x, weight, scale = operands(rows, dtype, channels)
    got, want = jax.jit(product)(x, weight, scale), exact(x, weight, scale)
    assert got.dtype == dtype
    tolerance = jnp.finfo(dtype).eps
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=tolerance, atol=1e-4)


def same(function, other, *values):
    got, want = (np.asarray(jax.jit(f)(*values), np.float32) for f in (function, other))
    return np.array_equal(got, want)


@pytest.mark.parametrize(
    "case", [(MANY_ROWS, "bfloat16"), (MANY_ROWS, "float32"), (1, "float32")], ids=str
)
def test_many_rows_and_float32_are_quantized(product, case):
    values = operands(*case)
    assert same(product, product.__wrapped__, *values)
    want = exact(*values)
    error = np.asarray(product(*values), np.float64) - want
    assert 0.01 < np.linalg.norm(error) / np.linalg.norm(want) < 0.05


@pytest.mark.parametrize("other", ["int8", "blocks"])
def test_other_weights_are_tpu_inferences(product, other):
    x, weight, scale = operands(16)
    if other == "int8":
        weight = (16 * weight.astype("float32")).astype("int8")
    else:
        scale = jnp.stack([scale, 2 * scale])
    assert same(product, product.__wrapped__, x, weight, scale)
