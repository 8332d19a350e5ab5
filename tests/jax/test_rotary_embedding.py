"""rotary_embedding through JAX: what it stands for, transforms, wrong inputs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xla_gpu.jax import rotary_embedding


def turned(x, positions, cos_sin, heads, interleaved, norm=None, epsilon=1e-3):
    """In f64, of rows of heads."""
    x, table = np.asarray(x, np.float64), np.asarray(cos_sin, np.float64)
    rows = x.reshape(len(x), heads, x.shape[1] // heads).copy()
    if norm is not None:
        mean = (rows * rows).mean(-1, keepdims=True)
        rows = rows / np.sqrt(mean + epsilon) * np.asarray(norm, np.float64)
    cos, sin = np.split(table[positions][:, None], 2, axis=-1)
    half = cos.shape[-1]
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    first, second = pairs if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = rows[..., first].copy(), rows[..., second].copy()
    rows[..., first], rows[..., second] = a * cos - b * sin, b * cos + a * sin
    return rows.reshape(x.shape)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    tokens=st.integers(0, 9),
    heads=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    half_dims=st.tuples(st.integers(1, 40), st.integers(1, 40)).map(sorted),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    interleaved=st.booleans(),
    normed=st.booleans(),
)
def test_queries_and_keys_are_turned(seed, tokens, heads, half_dims, dtype, interleaved, normed):
    rng = np.random.default_rng(seed)
    (q_heads, kv_heads), (rotary, head_dim) = heads, (2 * half for half in half_dims)
    columns = (q_heads + 2 * kv_heads) * head_dim
    qkv = jnp.asarray(rng.normal(size=(tokens, columns)), dtype)
    positions = rng.integers(0, 50, tokens).astype("int32")
    angles = rng.uniform(0, 7, (50, rotary // 2))
    cos_sin = jnp.asarray(np.concatenate([np.cos(angles), np.sin(angles)], axis=1), dtype)
    norms = [jnp.asarray(rng.normal(size=head_dim), dtype) if normed else None for _ in "qk"]
    how = dict(q_heads=q_heads, kv_heads=kv_heads, interleaved=interleaved, epsilon=1e-3)
    call = jax.jit(functools.partial(rotary_embedding, **how))
    got = call(qkv, positions, cos_sin, q_norm=norms[0], k_norm=norms[1])
    q, k, v = jnp.split(qkv, np.cumsum([q_heads, kv_heads]) * head_dim, axis=1)
    tolerance = (8 if normed else 1) * float(jnp.finfo(dtype).eps)
    for array, x, n, norm in zip(got, (q, k), (q_heads, kv_heads), norms):
        want = turned(x, positions, cos_sin, n, interleaved, norm)
        assert array.dtype == dtype
        np.testing.assert_allclose(np.asarray(array, np.float64), want, tolerance, tolerance)
    np.testing.assert_array_equal(got[2], v)


OPERANDS = dict(qkv=jnp.ones((2, 32)), positions=jnp.zeros(2, "int32"), cos_sin=jnp.ones((9, 8)))
HEADS = dict(q_heads=2, kv_heads=1)


def test_a_position_outside_gives_nan_in_its_row_alone():
    positions = jnp.asarray([9, 8], "int32")
    q, k, v = rotary_embedding(**OPERANDS | {"positions": positions}, **HEADS)
    for array in (q, k):
        assert np.isnan(array[0]).all() and np.isfinite(array[1]).all()
    assert np.isfinite(v).all()


WRONG = {
    "heads": (dict(q_heads=3), r"qkv is f32\[2,32\]; it must be \[tokens, 5 \* head_dim\]"),
    "no heads": (dict(kv_heads=0), "attribute 'kv_heads' is 0"),
    "positions": (dict(positions=jnp.zeros(3, "int32")), r"positions is i32\[3\]"),
    "norm": (dict(q_norm=jnp.ones(8)), "q_norm is given alone"),
    "table": (dict(cos_sin=jnp.ones((9, 10))), r"cos_sin is f32\[9,10\]; it must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_named(name):
    args, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        rotary_embedding(**OPERANDS | HEADS | args)


def test_transforms_that_it_lacks_name_a_remedy():
    qkv, *rest = OPERANDS.values()
    with pytest.raises(Exception, match="the framework's own functions"):
        jax.grad(lambda x: rotary_embedding(x, *rest, **HEADS)[0].sum())(qkv)
    with pytest.raises(Exception, match="make one call of all tokens"):
        jax.vmap(lambda x: rotary_embedding(x, *rest, **HEADS))(qkv[None])
