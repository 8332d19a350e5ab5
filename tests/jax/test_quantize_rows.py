"""quantize_rows through JAX: what it stands for, transforms, wrong inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xla_gpu.jax import quantize_rows


def expect_near(rows, scale, want):
    """Within half a unit of fp8: 2^-4 of a value, 2^-10 of the scale."""
    assert (rows.dtype, scale.dtype) == ("float8_e4m3fn", "float32")
    scale = np.asarray(scale, np.float64)[:, None]
    error = np.abs(np.asarray(rows, np.float64) * scale - want)
    assert (error <= 1.001 * np.maximum(np.abs(want) / 16, scale / 1024)).all()
    largest = np.maximum(np.abs(want).max(1, keepdims=True) / 448, 2.0**-126)
    np.testing.assert_allclose(scale, largest, rtol=1e-5)


def normed(x, weight, epsilon):
    x = np.asarray(x, np.float64)
    mean = (x * x).mean(1, keepdims=True)
    return x / np.sqrt(mean + epsilon) * np.asarray(weight, np.float64)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 99),
    st.integers(0, 9),
    st.integers(1, 300),
    st.sampled_from(["float32", "bfloat16", "float16"]),
    st.sampled_from([None, "float32", "bfloat16"]),
)
def test_rows_times_their_scales_are_what_came(seed, rows, columns, dtype, norm):
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.normal(size=(rows, columns)), dtype)
    if norm is None:
        expect_near(*jax.jit(quantize_rows)(x), np.asarray(x, np.float64))
    else:
        weight = jnp.asarray(rng.normal(size=columns), norm)
        got = quantize_rows(x, norm_weight=weight, epsilon=1e-3)
        expect_near(*got, normed(x, weight, 1e-3))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("factors", [(), ("row_factor",), ("column_factor", "row_factor")])
@pytest.mark.parametrize("activation", ["none", "silu_mul"])
def test_what_is_computed_in_front(activation, factors, norm):
    rng = np.random.default_rng(0)
    made = {"x": (5, 64), "row_factor": (5,), "column_factor": (64,)}
    made = {k: jnp.asarray(rng.normal(size=made[k]), "float32") for k in ("x", *factors)}
    x, of_row, of_column = (
        np.asarray(made.get(k, 1.0), np.float64) for k in ("x", "row_factor", "column_factor")
    )
    want = x * of_row.reshape(-1, 1) * of_column
    if activation == "silu_mul":
        want = want[:, :32] / (1 + np.exp(-want[:, :32])) * want[:, 32:]
    if norm:
        made["norm_weight"] = jnp.asarray(rng.normal(size=want.shape[1]), "bfloat16")
        want = normed(want, made["norm_weight"], 1e-3)
    expect_near(
        *jax.jit(lambda m: quantize_rows(**m, activation=activation, epsilon=1e-3))(made), want
    )


def test_a_sum_is_given_too():
    rng = np.random.default_rng(0)
    x, residual = (jnp.asarray(rng.normal(size=(5, 64)), "bfloat16") for _ in range(2))
    weight = jnp.asarray(rng.normal(size=64), "bfloat16")
    rows, scale, total = jax.jit(quantize_rows)(x, residual=residual, norm_weight=weight)
    want = np.asarray(x, np.float64) + np.asarray(residual, np.float64)
    np.testing.assert_array_equal(total, want.astype("float32").astype("bfloat16"))
    expect_near(rows, scale, normed(want, weight, 1e-6))


def test_a_product_of_what_was_quantized():
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.normal(size=shape), "float32") for shape in ((9, 64), (64, 8)))
    rows, scale = quantize_rows(x)
    got = jnp.dot(rows.astype("float32"), weight) * scale[:, None]
    error = np.linalg.norm(got - x @ weight) / np.linalg.norm(x @ weight)
    assert 0.005 < error < 0.05


WRONG = {
    "rank": (dict(x=jnp.zeros(3)), r"x is f32\[3\]; it must be \[rows, columns\]"),
    "dtype": (dict(x=jnp.zeros((2, 3), "int8")), r"x is i8\[2,3\]; its dtype must be"),
    "weight": (dict(x=jnp.zeros((2, 3)), norm_weight=jnp.zeros(2)), r"norm_weight is f32\[2\]"),
    "factor": (dict(x=jnp.zeros((2, 3)), row_factor=jnp.zeros(3)), r"row_factor is f32\[3\]"),
    "residual": (dict(x=jnp.zeros((2, 3)), residual=jnp.zeros(3)), r"residual is f32\[3\]"),
    "activation": (dict(x=jnp.zeros((2, 3)), activation="relu"), 'activation.* is "relu"'),
    "epsilon": (dict(x=jnp.zeros((2, 3)), epsilon=-1.0), "epsilon.* is -1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_named(name):
    args, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        quantize_rows(**args)


def test_transforms_that_it_lacks_name_a_remedy():
    x = jnp.ones((2, 3))
    with pytest.raises(Exception, match="it rounds"):
        jax.grad(lambda x: quantize_rows(x)[1].sum())(x)
    with pytest.raises(Exception, match="make one call of all rows"):
        jax.vmap(quantize_rows)(x[None])
