"""grouped_matmul through JAX: jax.lax.ragged_dot's results, quantized matrices, transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xla_gpu.jax import grouped_matmul


def arrays(seed, sizes, inner, columns, dtype="float32"):
    rng = np.random.default_rng(seed)
    lhs = jnp.asarray(rng.normal(size=(sum(sizes) + 3, inner)), dtype)
    rhs = jnp.asarray(rng.normal(size=(len(sizes), inner, columns)), dtype)
    return lhs, rhs, jnp.asarray(sizes, jnp.int32)


def product(lhs, rhs, sizes):
    """In float64; rows of no group are 0."""
    lhs, rhs = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
    out, row = np.zeros((lhs.shape[0], rhs.shape[2])), 0
    for matrix, size in zip(rhs, sizes, strict=True):
        out[row : row + size] = lhs[row : row + size] @ matrix
        row += size
    return out


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 99),
    st.lists(st.integers(0, 20), min_size=1, max_size=6),
    st.integers(1, 80),
    st.integers(0, 80),
    st.sampled_from(["float32", "bfloat16", "float16"]),
)
def test_is_the_product_of_each_group(seed, sizes, inner, columns, dtype):
    lhs, rhs, group_sizes = arrays(seed, sizes, inner, columns, dtype)
    got = grouped_matmul(lhs, rhs, group_sizes, out_dtype="float32")
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, product(lhs, rhs, sizes), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("blocks", [None, 1, 4])
def test_quantized_matrices(dtype, blocks):
    sizes = [4, 0, 7]
    lhs, rhs, group_sizes = arrays(1, sizes, 32, 48, "bfloat16")
    rhs = (rhs * 9).astype(dtype)
    wide, scale = np.asarray(rhs.astype(jnp.float32)), None
    if blocks:
        scale = jnp.asarray(np.random.default_rng(2).uniform(0.5, 2, (3, blocks, 48)), jnp.float32)
        wide = (wide.reshape(3, blocks, -1, 48) * np.asarray(scale)[:, :, None]).reshape(3, 32, 48)
    got = jax.jit(grouped_matmul)(lhs, rhs, group_sizes, rhs_scale=scale)
    assert got.dtype == jnp.bfloat16
    want = product(lhs, wide, sizes)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2**-7, atol=1e-2)


def test_sizes_that_cannot_be():
    lhs, rhs, _ = arrays(3, [5, 5], 8, 8)
    for sizes, used in (([-4, 6], [0, 6]), ([2**31 - 1, 9], [13, 0]), ([9, 9], [9, 4])):
        got = grouped_matmul(lhs, rhs, jnp.asarray(sizes, jnp.int32))
        np.testing.assert_allclose(got, product(lhs, rhs, used), rtol=1e-5, atol=1e-5)


def test_one_typed_custom_call_and_scan():
    lhs, rhs, sizes = arrays(4, [3, 4], 16, 16)
    text = jax.jit(grouped_matmul).lower(lhs, rhs, sizes).compile().as_text()
    assert text.count('custom_call_target="xla_gpu_grouped_matmul"') == 1
    step = lambda x, _: (grouped_matmul(x, rhs, sizes), None)  # noqa: E731
    got, _ = jax.jit(lambda x: jax.lax.scan(step, x, length=2))(lhs)
    want = grouped_matmul(grouped_matmul(lhs, rhs, sizes), rhs, sizes)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lhs": (7, 15)}, r"rhs is f32\[2,16,8\]; it must be \[groups, 15, N\]"),
        ({"rhs": (2, 16)}, r"rhs is f32\[2,16\]; it must be"),
        ({"group_sizes": (3,)}, r"group_sizes is i32\[3\]; it must be i32\[2\]"),
        ({"rhs_scale": (2, 3, 8)}, r"rhs_scale is f32\[2,3,8\]; it must be"),
    ],
)
def test_wrong_shapes_are_named(change, message):
    shapes = {"lhs": (7, 16), "rhs": (2, 16, 8), "group_sizes": (2,)} | change
    args = {n: jnp.zeros(s, jnp.int32 if n == "group_sizes" else None) for n, s in shapes.items()}
    with pytest.raises(ValueError, match=message):
        jax.jit(grouped_matmul)(**args)


def test_transforms_it_has_not_name_the_remedy():
    lhs, rhs, sizes = arrays(5, [3, 4], 8, 8)
    with pytest.raises(Exception, match=r"jax\.lax\.ragged_dot"):
        jax.grad(lambda x: grouped_matmul(x, rhs, sizes).sum())(lhs)
    with pytest.raises(Exception, match="sorted by group"):
        jax.vmap(grouped_matmul, (0, None, None))(lhs[None], rhs, sizes)
