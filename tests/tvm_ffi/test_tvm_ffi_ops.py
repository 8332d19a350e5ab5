"""The library's own ops as TVM-FFI functions, called from Python on NumPy's arrays."""

import numpy as np
import pytest

tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import jax.numpy as jnp
import xla_gpu
import xla_gpu.jax
from xla_gpu import _schema

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def ops():
    return tvm_ffi.load_module(xla_gpu.library_path())


def uniform(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def names_of(op):
    """A function's parameters, as the schema gives them."""
    schema = _schema.schema(op)
    outputs = [r.name for r in schema.results if r.kind == "output"]
    return [a.name for a in schema.args] + outputs + [a.name for a in schema.attrs]


def call(ops, op, *args, **named):
    """Calls a function, with those of its parameters by name that others precede."""
    names = names_of(op)
    count = max([len(args), *(names.index(name) + 1 for name in named)])
    return getattr(ops, op)(*args, *(named.get(name) for name in names[len(args) : count]))


# Three sequences, one of them prefill.
QUERY, CACHE = uniform(6, 4, 16), uniform(8, 4, 4, 16)
BATCH = (
    np.array([3, 9, 4], np.int32),
    np.array([[0, 1, 2], [3, 4, 5], [6, 7, 0]], np.int32),
    np.array([0, 1, 2, 6], np.int32),
    np.array([3], np.int32),
)


def attention_in_jax(**options):
    arrays = map(jnp.asarray, (QUERY, CACHE, *BATCH))
    return xla_gpu.jax.paged_attention(*arrays, 0.25, **options)


def test_every_op_is_a_function(ops):
    for op in _schema.schemas():
        with pytest.raises(ValueError, match=rf"{op}: 0 values came; there must be .*, "):
            getattr(ops, op)()


def test_simple_add(ops):
    a, b = uniform(3, 5), uniform(3, 5)
    out = np.empty_like(a)
    assert ops.simple_add(a, b, out) is None
    np.testing.assert_array_equal(out, a + b)
    ops.simple_add(tvm_ffi.from_dlpack(a), tvm_ffi.from_dlpack(out), a)
    np.testing.assert_array_equal(a, out - b + out)


@pytest.mark.parametrize(
    "options",
    [{}, {"sliding_window": 3}, {"soft_cap": 2}, {"causal": False}, {"sinks": uniform(4)}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_attention(ops, options):
    out = np.empty_like(QUERY)
    call(ops, "paged_attention", QUERY, CACHE, *BATCH, out=out, scale=0.25, **options)
    named = {name: jnp.asarray(v) if name == "sinks" else v for name, v in options.items()}
    np.testing.assert_allclose(out, attention_in_jax(**named), rtol=1e-6, atol=1e-6)


def test_a_second_result_is_there_where_its_attribute_says_so(ops):
    out, lse = np.empty_like(QUERY), np.empty(QUERY.shape[:2], np.float32)
    given = {"out": out, "lse": lse, "scale": 0.25}
    call(ops, "paged_attention", QUERY, CACHE, *BATCH, return_lse=True, **given)
    wanted = attention_in_jax(return_lse=True)
    np.testing.assert_allclose(out, wanted[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(lse, wanted[1], rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="lse is a tensor; it must be None, .* return_lse"):
        call(ops, "paged_attention", QUERY, CACHE, *BATCH, **given)
    with pytest.raises(ValueError, match="lse is None; it must be a tensor"):
        call(ops, "paged_attention", QUERY, CACHE, *BATCH, out=out, scale=0.25, return_lse=True)


@pytest.mark.parametrize("dtype", ["f16", tvm_ffi.dtype("float16")])
def test_a_dtype_is_a_name_or_a_type(ops, dtype):
    out = np.empty(QUERY.shape, np.float16)
    call(ops, "paged_attention", QUERY, CACHE, *BATCH, out=out, scale=0.25, out_dtype=dtype)
    np.testing.assert_allclose(out, attention_in_jax(), rtol=2e-3, atol=2e-3)


def test_caches_are_updated_in_place(ops):
    key, value = uniform(2, 1, 4), uniform(2, 1, 4)
    k_cache, v_cache = uniform(2, 4, 1, 4), uniform(2, 4, 1, 4)
    wanted_k, wanted_v = k_cache.copy(), v_cache.copy()
    slots = np.array([1, 4], np.int32)
    wanted_k.reshape(8, 1, 4)[slots] = key
    wanted_v.reshape(8, 1, 4)[slots] = value
    ops.update_kv_cache(key, value, k_cache, slots, v_cache, None, None)
    np.testing.assert_array_equal(k_cache, wanted_k)
    np.testing.assert_array_equal(v_cache, wanted_v)
    # A 0-d scale stands for a vector of one element.
    scale = np.array(2.0, np.float32)
    call(
        ops,
        "update_kv_cache",
        key,
        value,
        np.zeros((2, 4, 2, 4), "f4"),
        slots,
        k_scale=scale,
        v_scale=scale,
    )


def test_ragged_attention_v3(ops):
    tokens, heads, dim = 5, 2, 128
    queries, keys, values = (uniform(tokens, heads, dim) for _ in range(3))
    shape = xla_gpu.jax.packed_kv_cache_shape(4, 8, heads, dim, "float32")
    cache = np.zeros(shape, np.float32)
    batch = (
        np.array([5, 0], np.int32),
        np.arange(4, dtype=np.int32),
        np.array([0, 5, 5], np.int32),
        np.array([0, 0, 1], np.int32),
    )
    wanted, wanted_cache = xla_gpu.jax.ragged_paged_attention_v3(
        *map(jnp.asarray, (queries, keys, values, cache, *batch)), sm_scale=0.1
    )
    out = np.empty_like(queries)
    call(
        ops,
        "ragged_paged_attention_v3",
        *(queries, keys, values, cache, *batch),
        out=out,
        sm_scale=0.1,
        cache_layout="interleaved",
    )
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(cache, wanted_cache)


A = uniform(2, 3)
OUT = np.empty_like(A)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((A, A), "simple_add: 2 values came; there must be 3 to 3: a, b, c"),
        ((A, A, OUT, 1), "simple_add: 4 values came; there must be 3 to 3"),
        ((A, None, OUT), "simple_add: b is None; it must be a tensor"),
        ((A, 2.5, OUT), "simple_add: b is the float 2.5; it must be a tensor"),
        ((A, "b", OUT), "simple_add: b is a value of type index 11; it must be a tensor"),
        ((A, uniform(3, 2).T, OUT), r"simple_add: b must be dense and row-major"),
        ((A, uniform(3, 2), OUT), r"simple_add: a is f32\[2,3\] but b is f32\[3,2\]"),
        ((A, A, np.empty((2, 3), np.int32)), r"result 0 is i32\[2,3\] but must be f32\[2,3\]"),
        ((A, A, A.astype(np.complex64)), r"result 0 is invalid\[2,3\] but must be f32\[2,3\]"),
    ],
)
def test_wrong_tensors_are_refused(ops, args, message):
    OUT.fill(7)
    with pytest.raises(ValueError, match=message):
        ops.simple_add(*args)
    assert (OUT == 7).all()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"scale": "big"}, "attribute 'scale' is string \"big\"; it must be float"),
        ({"causal": 1.5}, "attribute 'causal' is float 1.5; it must be bool"),
        ({"scale": [1, 2]}, "scale"),
        ({"out_dtype": "f31"}, "attribute 'out_dtype' is \"f31\"; it must be f32, bf16 or f16"),
        ({"out_dtype": tvm_ffi.dtype("float16x4")}, "out_dtype"),
        ({"scale": tvm_ffi.dtype("float16")}, "scale is a value of type index 5"),
        ({"sliding_window": -1}, "sliding_window"),
    ],
)
def test_wrong_attributes_are_refused(ops, named, message):
    with pytest.raises(ValueError, match=f"paged_attention: .*{message}"):
        given = {"out": np.empty_like(QUERY), "scale": 0.25} | named
        call(ops, "paged_attention", QUERY, CACHE, *BATCH, **given)
