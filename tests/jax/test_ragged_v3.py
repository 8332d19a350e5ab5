"""ragged_paged_attention_v3 and its head_dim-64 variant through JAX on the CPU."""

import dataclasses
import functools
import inspect
import re

import jax
import jax.numpy as jnp
import jax_calls
import ml_dtypes
import numpy as np
import plain_attention
import pytest
import ragged_v3
from problems import FP8 as FP8_NAMES
from problems import SMALL, np_dtype
from ragged_v3 import TENSORS, V3Static
from xla_gpu import _ops
from xla_gpu.jax import (
    _ragged_v3,
    export_checks,
    packed_kv_cache_shape,
    ragged_paged_attention_hd64,
    ragged_paged_attention_v3,
    register_all,
)

GROUPS = 40
CASES_A_GROUP = 12

# Two sequences of three pages each and a third place, head_dim padded to 128.
BASE = V3Static(dataclasses.replace(SMALL, tokens=5, max_pages=3, max_seqs=3))
HD64 = dataclasses.replace(
    BASE, base=dataclasses.replace(BASE.base, head_dim=64, sinks=True), hd64=True
)


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_problems_against_float64(group, histogram):
    rng = np.random.default_rng([17, group])
    static = ragged_v3.random_v3_static(rng)
    call = jax.jit(lambda args: jax_calls.ragged_v3(static, args))
    for number in range(CASES_A_GROUP):
        case = ragged_v3.v3_case(static, rng)
        try:
            ragged_v3.check(case, *call(case.args), histogram)
        except Exception as e:
            raise AssertionError(f"group {group}, case {number}: {static}: {e}") from e
    assert call._cache_size() == 1


def good_case(static, seed=0):
    """A case without wrong indices, with at least one sequence."""
    for attempt in range(100):
        case = ragged_v3.v3_case(static, np.random.default_rng([seed, attempt]))
        if not case.bad and case.args["cu_q_lens"][case.args["distribution"][2]] > 1:
            return case
    raise AssertionError("no such case")


@pytest.mark.parametrize(
    "kernel", [ragged_paged_attention_hd64, plain_attention.ragged_paged_attention_hd64]
)
def test_rows_before_the_first_token_are_0_and_not_written(kernel):
    """Also in the plain form, which vLLM's tests compare with."""
    case = good_case(HD64)
    case.args["cu_q_lens"][:] = [0, 3, 5, 5]
    case.args["kv_lens"][:] = [1, 0, -1]
    case.args["page_indices"][:] = range(9)
    case.args["distribution"][:] = [0, 0, 2]
    arguments = [case.args[name] for name in (*TENSORS, "attention_sink")]
    out, cache = jax.jit(functools.partial(kernel, **HD64.kwargs()))(*arguments)
    ragged_v3.check(case, out, cache)
    assert np.array_equal(np.any(np.asarray(out), axis=(1, 2)), [False, False, True, False, False])


def hlo(call, *args):
    return call.lower(*args).compile().as_text()


def custom_calls(text):
    return re.findall(r'custom_call_target="(xla_gpu_[a-z0-9_]*)"', text)


def copies(text, shape):
    """Instructions that copy an array of this shape."""
    dims = ",".join(map(str, shape))
    return re.findall(rf"\w+\[{dims}\]\S* copy\(.*", text)


# ---- In place ------------------------------------------------------------------------------------


def decode_state(static, layers=1):
    """Caches, and the (fixed) pages of two decoding sequences."""
    s = static.base
    shape = packed_kv_cache_shape(
        s.pages, s.page_size, s.kv_heads, s.head_dim, jnp.float32, side_by_side=static.hd64
    )
    caches = [jnp.zeros(shape, jnp.float32) + layer for layer in range(layers)]
    return caches, jnp.asarray([4, 2, 9, 0, 7, 5, 1, 1, 1], jnp.int32)


def decode_step(static, caches, length, hidden, pages):
    """A step of a small model: each layer appends a token to two sequences and attends."""
    s = static.base
    tail = (jnp.zeros(s.q_heads),) if static.hd64 else ()
    call = ragged_paged_attention_hd64 if static.hd64 else ragged_paged_attention_v3
    kv_lens = jnp.stack([length + 1, length + 1, 0])
    starts = jnp.asarray([0, 1, 2, 2], jnp.int32)
    distribution = jnp.asarray([2, 2, 2], jnp.int32)
    updated = []
    for cache in caches:
        keys = hidden[:, : s.kv_heads] * 0.5
        out, cache = call(
            hidden, keys, -keys, cache, kv_lens, pages, starts, distribution, *tail, sm_scale=0.2
        )
        hidden = hidden + out
        updated.append(cache)
    return updated, hidden


@pytest.mark.parametrize("static", [BASE, HD64], ids=["v3", "hd64"])
def test_donated_caches_are_updated_in_place_over_steps(static):
    caches, pages = decode_state(static, layers=3)
    shape = caches[0].shape
    hidden = jax.random.normal(
        jax.random.PRNGKey(0), (5, static.base.q_heads, static.base.head_dim)
    )
    plain = [jnp.array(cache) for cache in caches]
    step = jax.jit(
        lambda caches, length, hidden, pages: decode_step(static, caches, length, hidden, pages),
        donate_argnums=0,
    )
    text = hlo(step, caches, jnp.int32(0), hidden, pages)
    assert custom_calls(text) == ["xla_gpu_ragged_paged_attention_v3"] * 3
    assert text.count("output_to_operand_aliasing={{1}: (3, {})}") == 3
    assert copies(text, shape) == []

    pointers = [cache.unsafe_buffer_pointer() for cache in caches]
    other = hidden
    for length in range(6):
        caches, hidden = step(caches, jnp.int32(length), hidden, pages)
        assert [cache.unsafe_buffer_pointer() for cache in caches] == pointers
        with jax.disable_jit():
            plain, other = decode_step(static, plain, jnp.int32(length), other, pages)
        np.testing.assert_allclose(hidden, other, rtol=1e-5, atol=1e-5)
    for cache, want in zip(caches, plain, strict=True):
        np.testing.assert_allclose(cache, want, rtol=1e-5, atol=1e-5)


def test_scan_over_steps_copies_no_cache():
    caches, pages = decode_state(BASE)
    hidden = jnp.ones((5, BASE.base.q_heads, BASE.base.head_dim))

    def body(carry, length):
        caches, hidden = decode_step(BASE, *carry[:1], length, carry[1], pages)
        return (caches, hidden), hidden

    @jax.jit
    def python_loop(caches, hidden):
        for length in range(4):
            (caches, hidden), _ = body((caches, hidden), jnp.int32(length))
        return caches, hidden

    scan = jax.jit(
        lambda caches, hidden: jax.lax.scan(body, (caches, hidden), jnp.arange(4))[0],
        donate_argnums=0,
    )
    text = hlo(scan, caches, hidden)
    assert custom_calls(text) == ["xla_gpu_ragged_paged_attention_v3"]
    assert copies(text, caches[0].shape) == []
    want_caches, want = python_loop(caches, hidden)
    pointer = caches[0].unsafe_buffer_pointer()
    got_caches, got = scan(caches, hidden)
    assert got_caches[0].unsafe_buffer_pointer() == pointer
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got_caches[0], want_caches[0])


def test_a_cache_that_is_not_donated_stays_as_it_was():
    case = good_case(BASE)
    cache = jnp.asarray(case.args["kv_cache"])
    before = np.array(cache)
    call = jax.jit(lambda args: jax_calls.ragged_v3(BASE, args))
    args = {name: jnp.asarray(value) for name, value in case.args.items()} | {"kv_cache": cache}
    assert copies(hlo(call, args), cache.shape)  # what the other tests find absent
    out, updated = call(args)
    ragged_v3.check(case, out, updated)
    np.testing.assert_array_equal(cache, before)
    assert updated.unsafe_buffer_pointer() != cache.unsafe_buffer_pointer()


def test_layers_that_share_a_cache_write_nothing():
    static = dataclasses.replace(BASE, update_kv_cache=False)
    case = good_case(static)
    call = jax.jit(
        lambda cache, rest: jax_calls.ragged_v3(static, {**rest, "kv_cache": cache}),
        donate_argnums=0,
    )
    rest = {name: value for name, value in case.args.items() if name != "kv_cache"}
    cache = jnp.asarray(case.args["kv_cache"]).copy()  # JAX's own: on CPUs it may lend NumPy's
    pointer = cache.unsafe_buffer_pointer()
    out, same = call(cache, rest)
    assert same.unsafe_buffer_pointer() == pointer
    ragged_v3.check(case, out, same)


# ---- The signature -------------------------------------------------------------------------------


def test_every_argument_of_the_tpu_kernel_is_taken():
    case = good_case(BASE)
    out, _ = ragged_paged_attention_v3(
        *(case.args[name] for name in TENSORS),
        sm_scale=BASE.base.scale,
        mask_value=-1e30,
        chunk_prefill_size=16,
        d_block_sizes=(1, 32, 1, 32),
        p_block_sizes=(16, 32, 16, 32),
        m_block_sizes=(16, 32, 16, 32),
        vmem_limit_bytes=1 << 20,
        debug_mode=False,
        disable_bounds_checks=False,
        disable_semaphore_checks=False,
    )
    want, _ = jax_calls.ragged_v3(BASE, case.args)
    np.testing.assert_array_equal(out, want)
    names = list(inspect.signature(ragged_paged_attention_v3).parameters)
    assert tuple(names[:8]) == TENSORS

    case = good_case(HD64)
    out, _ = ragged_paged_attention_hd64(
        *(case.args[name] for name in TENSORS),
        attention_sink=case.args["attention_sink"],
        sm_scale=HD64.base.scale,
        mask_value=None,
        chunk_prefill_size=16,
        num_kv_pages_per_block=2,
        num_queries_per_block=8,
        vmem_limit_bytes=1 << 20,
        debug_mode=False,
    )
    want, _ = jax_calls.ragged_v3(HD64, case.args)
    np.testing.assert_array_equal(out, want)


def test_shapes_of_packed_caches():
    assert packed_kv_cache_shape(9, 16, 3, 80, jnp.float32) == (9, 16, 6, 1, 128)
    assert packed_kv_cache_shape(9, 16, 3, 128, jnp.bfloat16) == (9, 16, 3, 2, 128)
    assert packed_kv_cache_shape(9, 16, 3, 192, jnp.float8_e4m3fn) == (9, 16, 2, 4, 256)
    shape = packed_kv_cache_shape(9, 16, 3, 64, jnp.float8_e5m2, side_by_side=True)
    assert shape == (9, 16, 1, 4, 128)


@pytest.mark.parametrize("cache_dtype", ["bfloat16", "float16", *FP8_NAMES])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_q_scale_rounds_queries_to_the_cache_dtype(dtype, cache_dtype):
    """Bit for bit, subnormal numbers and the largest included, in spite of excess precision."""
    numbers = np.concatenate(
        [np.ldexp(np.arange(1, 513), e) for e in range(-28, 8)] + [[0.0, np.inf, 1e37]]
    )
    queries = np.concatenate([numbers, -numbers]).astype(np_dtype(dtype))
    scale = 0.25 if dtype == "float32" else 0.3  # XLA multiplies by f32's reciprocal
    got = jax.jit(lambda q: _ragged_v3._round_queries(q, np_dtype(cache_dtype), scale))(queries)
    largest = float(ml_dtypes.finfo(np_dtype(cache_dtype)).max)
    want = (queries / queries.dtype.type(scale)).astype(np.float32)
    want = np.clip(want, -largest, largest).astype(np_dtype(cache_dtype))
    np.testing.assert_array_equal(np.asarray(got), want.astype(np_dtype(dtype)))


def test_the_last_of_distribution_counts_the_sequences():
    case = good_case(BASE)
    want = jax_calls.ragged_v3(BASE, case.args)
    for first in (0, 1, 7):
        distribution = case.args["distribution"].copy()
        distribution[:2] = first
        got = jax_calls.ragged_v3(BASE, {**case.args, "distribution": distribution})
        np.testing.assert_array_equal(got[0], want[0])


def test_export_runs_again():
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    pytest.importorskip("flatbuffers")
    case = good_case(BASE)
    args = {name: jnp.asarray(value) for name, value in case.args.items()}
    call = jax.jit(lambda args: jax_calls.ragged_v3(BASE, args))
    exported = export.export(call, disabled_checks=export_checks())(args)
    register_all()
    out, cache = export.deserialize(exported.serialize()).call(args)
    ragged_v3.check(case, out, cache)


def test_lowered_for_cuda_the_cache_is_aliased_and_a_workspace_added():
    export = pytest.importorskip("jax.export", reason="needs absl-py or flatbuffers here")
    args = good_case(BASE).args
    call = jax.jit(lambda args: jax_calls.ragged_v3(BASE, args))
    exported = export.export(call, platforms=["cuda"], disabled_checks=export_checks())(args)
    lines = exported.mlir_module().splitlines()
    (line,) = [line for line in lines if "custom_call @xla_gpu_ragged_paged_attention_v3" in line]
    assert "output_tuple_indices = [1], operand_index = 3" in line
    assert re.search(r"-> \(tensor<5x4x16xf32>, tensor<\w+x128xf32>, tensor<\d+xui8>\)", line)


# ---- Wrong calls ---------------------------------------------------------------------------------

T, H, K, D, PAGES, SIZE, SEQS = 4, 4, 2, 8, 6, 4, 2


def zeros(*shape, dtype=jnp.float32):
    return jnp.zeros(shape, dtype)


def i32(*shape):
    return jnp.zeros(shape, jnp.int32)


def v3(function=ragged_paged_attention_v3, head_dim=D, **change):
    call = {
        "queries": zeros(T, H, head_dim),
        "keys": zeros(T, K, head_dim),
        "values": zeros(T, K, head_dim),
        "kv_cache": zeros(PAGES, SIZE, 2 * K, 1, 128),
        "kv_lens": i32(SEQS),
        "page_indices": i32(SEQS * 3),
        "cu_q_lens": i32(SEQS + 1),
        "distribution": i32(3),
    } | change
    arrays = {name: value for name, value in call.items() if isinstance(value, jax.Array)}
    rest = {name: value for name, value in call.items() if name not in arrays}
    return jax.jit(lambda arrays: function(**arrays, **rest))(arrays)


def hd64(**change):
    cache = {"kv_cache": zeros(PAGES, SIZE, K, 1, 128)}
    return v3(ragged_paged_attention_hd64, 64, **cache | change)


FP8 = jnp.float8_e4m3fn
WRONG = {
    "queries rank": (lambda: v3(queries=zeros(T, 32)), "queries is f32[4,32]; it must be"),
    "queries fp8": (lambda: v3(queries=zeros(T, H, D, dtype=FP8)), "queries is f8e4m3fn[4,4,8]"),
    "head_dim": (lambda: v3(head_dim=513), "its head_dim is 513; allowed are 1 to 512"),
    "keys tokens": (lambda: v3(keys=zeros(3, K, D)), "keys is f32[3,2,8]; it must be [4, "),
    "keys head_dim": (lambda: v3(keys=zeros(T, K, 16)), "keys is f32[4,2,16]; it must be [4, "),
    "keys heads": (
        lambda: v3(keys=zeros(T, 3, D), values=zeros(T, 3, D)),
        "q_heads must be a multiple of kv_heads",
    ),
    "no kv heads": (
        lambda: v3(keys=zeros(T, 0, D), values=zeros(T, 0, D)),
        "q_heads must be a multiple of kv_heads",
    ),
    "keys dtype": (
        lambda: v3(keys=zeros(T, K, D, dtype=jnp.bfloat16)),
        "keys is bf16[4,2,8]; its dtype must be that of kv_cache f32[6,4,4,1,128]: quantise",
    ),
    "values": (lambda: v3(values=zeros(T, K, 16)), "values is f32[4,2,16]; it must be f32[4,2,8]"),
    "cache rank": (
        lambda: v3(kv_cache=zeros(PAGES, SIZE, 2 * K, 128)),
        "kv_cache is f32[6,4,4,128]; for 2 kv heads of head_dim 8 in f32 it must be "
        "[pages, page_size, 4, 1, 128]",
    ),
    "cache heads": (
        lambda: v3(kv_cache=zeros(PAGES, SIZE, 3, 1, 128)),
        "it must be [pages, page_size, 4, 1, 128]",
    ),
    "cache not padded": (
        lambda: v3(kv_cache=zeros(PAGES, SIZE, 4, 1, D)),
        "it must be [pages, page_size, 4, 1, 128]",
    ),
    "cache packing": (
        lambda: v3(kv_cache=zeros(PAGES, SIZE, 2, 2, 128)),
        "packing = 32 / bits of the dtype",
    ),
    "cache dtype": (
        lambda: v3(kv_cache=i32(PAGES, SIZE, 4, 1, 128), keys=i32(T, K, D), values=i32(T, K, D)),
        "keys is i32[4,2,8]; its dtype must be",
    ),
    "cache of hd64": (
        lambda: v3(head_dim=64, kv_cache=zeros(PAGES, SIZE, K, 1, 128)),
        "it must be [pages, page_size, 4, 1, 128]",
    ),
    "no page_size": (
        lambda: v3(kv_cache=zeros(PAGES, 0, 4, 1, 128)),
        "page_size must be 1 to 2^31-1",
    ),
    "kv_lens dtype": (lambda: v3(kv_lens=zeros(SEQS)), "kv_lens is f32[2]; its dtype must be i32"),
    "kv_lens rank": (lambda: v3(kv_lens=i32(SEQS, 1)), "kv_lens is i32[2,1]; it must be i32"),
    "no sequences": (
        lambda: v3(kv_lens=i32(0), page_indices=i32(0), cu_q_lens=i32(1)),
        "kv_lens is i32[0]; it must be i32 [max_seqs], with at least one",
    ),
    "page_indices": (
        lambda: v3(page_indices=i32(5)),
        "page_indices is i32[5]; it must be i32 [max_seqs * pages_per_seq], max_seqs 2",
    ),
    "page_indices rank": (lambda: v3(page_indices=i32(2, 3)), "page_indices is i32[2,3]"),
    "cu_q_lens": (lambda: v3(cu_q_lens=i32(SEQS)), "cu_q_lens is i32[2]; it must be i32[3]"),
    "distribution": (lambda: v3(distribution=i32(1)), "distribution is i32[1]; it must be i32[3]"),
    "text": (lambda: v3(kv_cache="kv"), "kv_cache is str 'kv'; it must be an array"),
    "sm_scale array": (lambda: v3(sm_scale=zeros(1)), "sm_scale is an array: it is fixed when"),
    "sm_scale nan": (lambda: v3(sm_scale=float("nan")), "'sm_scale' is nan; it must be a finite"),
    "window 0": (lambda: v3(sliding_window=0), "'sliding_window' is 0; it must be at least 1"),
    "window float": (lambda: v3(sliding_window=2.0), "sliding_window is float 2.0; allowed"),
    "cap 0": (lambda: v3(soft_cap=0.0), "'soft_cap' is 0; it must be"),
    "out_dtype": (lambda: v3(out_dtype=jnp.int8), "'out_dtype' is \"i8\"; it must be f32"),
    "mask_value": (lambda: v3(mask_value=-1.0), "mask_value is -1.0; masked keys are left out"),
    "mask_value nan": (lambda: v3(mask_value=float("nan")), "mask_value is nan"),
    "q_scale": (lambda: v3(q_scale=0.0), "q_scale is 0.0; it must be positive"),
    "k_scale array": (lambda: v3(k_scale=zeros(1)), "k_scale is an array: it is fixed when"),
    "q_scale, ints": (
        lambda: v3(q_scale=2.0, queries=i32(T, H, D)),
        "queries is i32[4,4,8]; its dtype must be",
    ),
    "q_scale, ints cached": (
        lambda: v3(q_scale=2.0, kv_cache=i32(PAGES, SIZE, 4, 1, 128)),
        "kv_cache is i32[6,4,4,1,128]; its dtype must be",
    ),
    "None": (lambda: v3(queries=None, sm_scale=None, q_scale=2.0), "queries is None; it must be"),
    "a number": (lambda: v3(queries=1.0, sm_scale=None), "queries is f32[]; it must be"),
    "shape of f64": (
        lambda: packed_kv_cache_shape(1, 1, 1, 8, np.float64),
        "packed_kv_cache_shape: kv_dtype is <class 'numpy.float64'>; allowed are dtypes of 8, 16",
    ),
    "shape of text": (lambda: packed_kv_cache_shape(1, 1, 1, 8, "x"), "kv_dtype is 'x'; allowed"),
    "shape of -1": (
        lambda: packed_kv_cache_shape(1, 1, -1, 8, jnp.float32),
        "packed_kv_cache_shape: num_kv_heads is -1; it must be an int, 0 or more",
    ),
    "q_scale inf": (lambda: v3(q_scale=float("inf")), "q_scale is inf; it must be positive and"),
    "k_scale nan": (lambda: v3(k_scale=float("nan")), "k_scale is nan; it must be finite"),
    "v_scale text": (lambda: v3(v_scale="1"), "v_scale is str '1'; allowed is a Python number"),
    "masks": (
        lambda: v3(skip_kv_mask=True),
        "skip_kv_mask is True with use_causal_mask True",
    ),
    "flag": (lambda: v3(update_kv_cache=1), "update_kv_cache is int 1; allowed are True and"),
    "queries negative": (
        lambda: v3(max_query_len=-1),
        "'max_query_len' is -1; it must be at least 1, or 0 where it is unknown",
    ),
    "queries bool": (lambda: v3(max_query_len=True), "max_query_len is bool True; allowed"),
    "hd64 queries": (lambda: hd64(max_query_len=1.0), "max_query_len is float 1.0; allowed"),
    "hd64 head_dim": (
        lambda: v3(ragged_paged_attention_hd64, 128),
        "queries is f32[4,4,128]; with cache_layout side_by_side (the head_dim-64 variant) its "
        "head_dim must be 64",
    ),
    "hd64 cache": (
        lambda: hd64(kv_cache=zeros(PAGES, SIZE, 2 * K, 1, 128)),
        "it must be [pages, page_size, 2, 1, 128]: [pages, page_size, align(kv_heads, packing)",
    ),
    "sink shape": (
        lambda: hd64(attention_sink=zeros(K)),
        "attention_sink is f32[2]; it must be f32[4]",
    ),
    "sink dtype": (
        lambda: hd64(attention_sink=zeros(H, dtype=jnp.bfloat16)),
        "attention_sink is bf16[4]; its dtype must be f32",
    ),
}


@pytest.mark.parametrize("row", WRONG)
def test_wrong_calls_say_what_is_allowed(row):
    call, message = WRONG[row]
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
    assert error.value.code_name == "INVALID_ARGUMENT"


def test_an_unknown_cache_layout_is_refused():
    specs = [
        _ops.spec_of(array)
        for array in (zeros(T, H, D), *[zeros(T, K, D)] * 2, zeros(PAGES, SIZE, 4, 1, 128))
    ] + [_ops.spec_of(i32(*shape)) for shape in ((SEQS,), (6,), (3,), (3,))]
    attrs = {"sm_scale": 1.0, "cache_layout": "stacked"}
    with pytest.raises(ValueError, match="'cache_layout' is \"stacked\"; allowed are interleaved"):
        _ops.infer("ragged_paged_attention_v3", "Host", specs, attrs)


def test_vmap_names_the_remedy():
    with pytest.raises(NotImplementedError, match="give each its pages, or loop with jax.lax.map"):
        jax.vmap(lambda q: v3(queries=q))(zeros(2, T, H, D))
