"""A table of wrong calls through JAX and through ctypes: each gives its message, none crashes.

Wrong index values are data, not types: they give NaN rows (test_property_*.py).
"""

import _ctypes
import ctypes
import importlib.util
import os
import pathlib
import pickle
import re
import subprocess
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_gpu
from xla_gpu import _errors, _lib, _ops
from xla_gpu.jax import (
    _compat,
    _functions,
    _registration,
    paged_attention,
    ragged_paged_attention,
    ragged_paged_attention_v3,
    simple_add,
    update_kv_cache,
)

T, H, K, D, PAGES, SIZE, SEQS, MAX_PAGES = 4, 4, 2, 8, 6, 4, 2, 3


def zeros(*shape, dtype=jnp.float32):
    return jnp.zeros(shape, dtype)


def i32(*shape):
    return jnp.zeros(shape, jnp.int32)


def attend(*, op=paged_attention, **change):
    call = {
        "query": zeros(T, H, D),
        "kv_cache": zeros(PAGES, SIZE, 2 * K, D),
        "context_lens": i32(SEQS),
        "block_tables": i32(SEQS, MAX_PAGES),
        "query_start_loc": i32(SEQS + 1),
        "num_seqs": i32(1),
        "scale": 1.0,
    } | change
    return jax.jit(lambda arrays: op(**arrays, **statics(call)))(arrays(call))


def statics(call):
    return {name: value for name, value in call.items() if not is_array(value)}


def arrays(call):
    return {name: value for name, value in call.items() if is_array(value)}


def is_array(value):
    return isinstance(value, jax.Array) or (
        isinstance(value, tuple) and all(isinstance(one, jax.Array) for one in value)
    )


def ragged(num_seqs=1, **change):
    arrays = (zeros(T, H, D), zeros(PAGES, SIZE, 2 * K, D), i32(SEQS), i32(SEQS, 3), i32(SEQS + 1))
    return ragged_paged_attention(*arrays, num_seqs, **change)


def update(**change):
    call = {
        "key": zeros(T, K, D),
        "value": zeros(T, K, D),
        "kv_cache": zeros(PAGES, SIZE, 2 * K, D),
        "slot_mapping": i32(T),
    } | change
    return jax.jit(lambda arrays: update_kv_cache(**arrays, **statics(call)))(arrays(call))


F32 = jnp.float32
PAIR = (zeros(PAGES, SIZE, K, D), zeros(PAGES, SIZE, K, D))

JAX_TABLE = {
    # paged_attention: types
    "query rank": (lambda: attend(query=zeros(T, H * D)), "query is f32[4,32]; it must be"),
    "query dtype": (lambda: attend(query=i32(T, H, D)), "query is i32[4,4,8]; its dtype must be"),
    "query f8": (
        lambda: attend(query=zeros(T, H, D, dtype=jnp.float8_e4m3fn)),
        "its dtype must be f32, bf16 or f16",
    ),
    "head_dim differs": (
        lambda: attend(query=zeros(T, H, 16)),
        "head_dim is 16 in query f32[4,4,16] but 8 in kv_cache",
    ),
    "head_dim too large": (
        lambda: attend(query=zeros(T, H, 513), kv_cache=zeros(PAGES, SIZE, 4, 513)),
        "513",
    ),
    "heads no multiple": (
        lambda: attend(query=zeros(T, 3, D)),
        "q_heads must be a multiple of kv_heads",
    ),
    "cache rank": (lambda: attend(kv_cache=zeros(PAGES, SIZE, D)), "kv_cache is f32[6,4,8]"),
    "cache dtype": (lambda: attend(kv_cache=i32(PAGES, SIZE, 4, D)), "kv_cache is i32[6,4,4,8]"),
    "cache odd heads": (lambda: attend(kv_cache=zeros(PAGES, SIZE, 3, D)), "[6,4,3,8]"),
    "cache stacked by 3": (lambda: attend(kv_cache=zeros(3, PAGES, SIZE, K, D)), "[3,6,4,2,8]"),
    "pair differs": (lambda: attend(kv_cache=(PAIR[0], zeros(PAGES, SIZE, 1, D))), "v_cache"),
    "pair dtypes": (lambda: attend(kv_cache=(PAIR[0], PAIR[1].astype(jnp.bfloat16))), "v_cache"),
    "triple": (
        lambda: attend(kv_cache=(*PAIR, PAIR[0])),
        "kv_cache is a tuple of 3; allowed is one array or a pair (K, V)",
    ),
    "half a pair": (lambda: attend(kv_cache=(PAIR[0], None)), "kv_cache[1] is NoneType None; it"),
    "context_lens shape": (
        lambda: attend(context_lens=i32(3)),
        "context_lens is i32[3]; it must be i32[2]",
    ),
    "context_lens dtype": (
        lambda: attend(context_lens=zeros(SEQS)),
        "context_lens is f32[2]; its dtype must be i32",
    ),
    "block_tables rank": (lambda: attend(block_tables=i32(6)), "block_tables is i32[6]"),
    "block_tables dtype": (
        lambda: attend(block_tables=zeros(SEQS, MAX_PAGES)),
        "block_tables is f32[2,3]",
    ),
    "query_start_loc": (
        lambda: attend(query_start_loc=i32(SEQS)),
        "query_start_loc is i32[2]; it must be i32[3]",
    ),
    "num_seqs": (lambda: attend(num_seqs=i32(2)), "num_seqs is i32[2]; it must be i32[1]"),
    "num_seqs int": (lambda: attend(num_seqs=3), "num_seqs is 3; it must be 0 to 2, as many"),
    "num_seqs negative": (lambda: attend(num_seqs=-1), "num_seqs is -1; it must be 0 to 2"),
    "num_seqs bool": (lambda: attend(num_seqs=True), "num_seqs is True; it must be 0 to 2"),
    "num_seqs and lens": (
        lambda: attend(num_seqs=9, context_lens=i32(SEQS, 1)),
        "context_lens is i32[2,1]; it must be i32[2]",
    ),
    "num_seqs float": (lambda: attend(num_seqs=2.0), "num_seqs is f32[1]; its dtype must be i32"),
    "num_seqs text": (lambda: attend(num_seqs="2"), "num_seqs is str '2'; it must be an array"),
    "sinks shape": (lambda: attend(sinks=zeros(K)), "sinks is f32[2]; it must be f32[4]"),
    "sinks ints": (lambda: attend(sinks=i32(H)), "sinks is i32[4]; its dtype must be floating"),
    "k_scale shape": (lambda: attend(k_scale=zeros(3)), "k_scale is f32[3]"),
    "v_scale rank": (lambda: attend(v_scale=zeros(1, 1)), "v_scale is f32[1,1]"),
    # paged_attention: attributes
    "scale array": (lambda: attend(scale=zeros(1)), "scale is an array: it is fixed when"),
    "scale text": (lambda: attend(scale="1"), "scale is str '1'; allowed is a Python number"),
    "scale nan": (lambda: attend(scale=float("nan")), "'scale' is nan; it must be a finite"),
    "scale inf": (lambda: attend(scale=1e39), "'scale' is 1e+39; it must be a finite"),
    "window negative": (
        lambda: attend(sliding_window=-1),
        "'sliding_window' is -1; it must be at least 1",
    ),
    "window 0": (
        lambda: attend(sliding_window=0),
        "'sliding_window' is 0; it must be at least 1, or left out for no window",
    ),
    "window float": (lambda: attend(sliding_window=2.0), "sliding_window is float 2.0; allowed"),
    "window bool": (lambda: attend(sliding_window=True), "sliding_window is bool True; allowed"),
    "cap negative": (lambda: attend(soft_cap=-1.0), "'soft_cap' is -1; it must be a finite"),
    "cap 0": (
        lambda: attend(soft_cap=0.0),
        "'soft_cap' is 0; it must be a finite number from 1e-20 to 1e+20, or left out for no cap",
    ),
    "v2 window 0": (lambda: ragged(sliding_window=0), "'sliding_window' is 0; it must be"),
    "v2 cap 0": (lambda: ragged(soft_cap=0), "'soft_cap' is 0; it must be"),
    "v2 num_seqs": (lambda: ragged(num_seqs=3), "num_seqs is 3; it must be 0 to 2"),
    "causal text": (lambda: attend(causal="yes"), "causal is str 'yes'; allowed are True and"),
    "return_lse int": (lambda: attend(return_lse=1), "return_lse is int 1; allowed are True and"),
    "queries negative": (
        lambda: attend(max_query_len=-1),
        "'max_query_len' is -1; it must be at least 1, or 0 where it is unknown",
    ),
    "queries bool": (lambda: attend(max_query_len=True), "max_query_len is bool True; allowed"),
    "out_dtype int": (
        lambda: attend(out_dtype=jnp.int32),
        "'out_dtype' is \"i32\"; it must be f32",
    ),
    "out_dtype unknown": (lambda: attend(out_dtype="f23"), "out_dtype is 'f23'; allowed are"),
    "query text": (lambda: attend(query="q"), "query is str 'q'; it must be an array"),
    "ragged pair": (
        lambda: ragged_paged_attention(
            zeros(T, H, D), PAIR, i32(SEQS), i32(SEQS, 3), i32(SEQS + 1), i32(1)
        ),
        "kv_pages must be one array",
    ),
    # update_kv_cache
    "key rank": (lambda: update(key=zeros(T, K * D)), "key is f32[4,16]"),
    "key and value": (lambda: update(value=zeros(T, K, 16)), "value is f32[4,2,16]"),
    "key dtype": (lambda: update(key=i32(T, K, D), value=i32(T, K, D)), "key is i32[4,2,8]"),
    "kv_heads differ": (
        lambda: update(key=zeros(T, 3, D), value=zeros(T, 3, D)),
        "key is f32[4,3,8]",
    ),
    "slots shape": (lambda: update(slot_mapping=i32(5)), "slot_mapping is i32[5]"),
    "slots dtype": (lambda: update(slot_mapping=zeros(T)), "slot_mapping is f32[4]"),
    "update scale": (lambda: update(k_scale=zeros(5)), "k_scale is f32[5]"),
    "update pair": (lambda: update(kv_cache=(PAIR[0],) * 3), "kv_cache is a tuple of 3"),
    # simple_add
    "add shapes": (lambda: simple_add(zeros(3), zeros(4)), "a is f32[3] but b is f32[4]"),
    "add dtypes": (lambda: simple_add(zeros(3), i32(3)), "a is f32[3] but b is i32[3]"),
    "add bools": (
        lambda: simple_add(jnp.ones(3, bool), jnp.ones(3, bool)),
        "a is pred[3]; its dtype must be",
    ),
    "add complex": (
        lambda: simple_add(jnp.ones(3, jnp.complex64), jnp.ones(3, jnp.complex64)),
        "simple_add: a: dtype complex64 has no counterpart",
    ),
    # Python values
    "add a large int": (lambda: simple_add(2**40, 1), "a is 1099511627776; ints must fit i32"),
    "add large ints": (lambda: simple_add([2**40], [1]), "a is [1099511627776]; ints must fit i32"),
    "add True": (lambda: simple_add([True], [True]), "a is pred[1]; its dtype must be"),
    "add texts": (lambda: simple_add(["a"], ["b"]), "a is ndarray of dtype <U1; it must be an"),
    "k_scale large": (lambda: attend(k_scale=10**400), "k_scale is an int of 1329 bits; allowed"),
    "k_scale bool": (lambda: attend(k_scale=True), "k_scale is pred[1]; its dtype must be float"),
    "sinks large": (lambda: attend(sinks=10**400), "sinks is an int of 1329 bits; allowed are"),
    "sinks bool": (lambda: attend(sinks=True), "sinks is pred[1]; its dtype must be floating"),
}


@pytest.mark.parametrize("row", JAX_TABLE)
def test_jax(row):
    call, message = JAX_TABLE[row]
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)
    assert isinstance(error.value, xla_gpu.XlaGpuError)
    assert error.value.code_name == "INVALID_ARGUMENT"


def spec(dtype, *shape):
    return _ops.TensorSpec(dtype, shape)


ADD = [spec("f32", 3), spec("f32", 3)]
ATTENTION = [
    spec("f32", T, H, D),
    spec("f32", PAGES, SIZE, 2 * K, D),
    spec("i32", SEQS),
    spec("i32", SEQS, MAX_PAGES),
    spec("i32", SEQS + 1),
    spec("i32", 1),
]

CTYPES_TABLE = {
    "unknown op": (("no_op", "Host", ADD, {}), LookupError, "no_op"),
    "unknown platform": (("simple_add", "TPU", ADD, {}), ValueError, "platform is 'TPU'; allowed"),
    "too few": (("simple_add", "Host", ADD[:1], {}), ValueError, "1"),
    "too many": (("simple_add", "Host", ADD * 2, {}), ValueError, "4"),
    "very many": (("simple_add", "Host", ADD * 40, {}), ValueError, "at most 64"),
    "unknown dtype": (("simple_add", "Host", [spec("f4", 3)] * 2, {}), ValueError, "does not know"),
    "negative size": (("simple_add", "Host", [spec("f32", -3)] * 2, {}), ValueError, "-3"),
    "huge rank": (("simple_add", "Host", [spec("f32", *[1] * 33)] * 2, {}), ValueError, "rank 33"),
    "unknown attribute": (("simple_add", "Host", ADD, {"scale": 1.0}), ValueError, "'scale'"),
    "window 0": (
        ("paged_attention", "Host", ATTENTION, {"sliding_window": 0}),
        ValueError,
        "attribute 'sliding_window' is 0; it must be at least 1, or left out",
    ),
    "cap 0": (
        ("paged_attention", "Host", ATTENTION, {"soft_cap": 0.0}),
        ValueError,
        "attribute 'soft_cap' is 0; it must be a finite number from 1e-20",
    ),
    "attribute type": (
        ("paged_attention", "Host", ATTENTION, {"scale": "1"}),
        ValueError,
        "'scale'",
    ),
    "window array": (
        ("paged_attention", "Host", ATTENTION, {"scale": 1.0, "sliding_window": [1]}),
        ValueError,
        "'sliding_window'",
    ),
    "unknown optional": (
        (
            "paged_attention",
            "Host",
            [*ATTENTION, spec("f32", H)],
            {"scale": 1.0, "optional_args": "sink"},
        ),
        ValueError,
        "sink",
    ),
    "optional not named": (
        ("paged_attention", "Host", [*ATTENTION, spec("f32", H)], {"scale": 1.0}),
        ValueError,
        "7",
    ),
    "optional order": (
        (
            "paged_attention",
            "Host",
            [*ATTENTION, spec("f32", 1), spec("f32", H)],
            {"scale": 1.0, "optional_args": "k_scale,sinks"},
        ),
        ValueError,
        "optional_args",
    ),
    "too many attributes": (
        ("simple_add", "Host", ADD, {f"a{i}": i for i in range(40)}),
        ValueError,
        "attribute",
    ),
}


@pytest.mark.parametrize("row", CTYPES_TABLE)
def test_ctypes(row):
    (op, platform, specs, attrs), kind, message = CTYPES_TABLE[row]
    with pytest.raises(kind) as error:
        _ops.infer(op, platform, specs, attrs)
    assert message in str(error.value)
    assert isinstance(error.value, xla_gpu.XlaGpuError)


def test_ctypes_run_refuses_null_data_and_wrong_results():
    a = np.zeros(3, np.float32)
    good = _ops.TensorRef(spec("f32", 3), a.ctypes.data)
    null = _ops.TensorRef(spec("f32", 3), 0)
    short = _ops.TensorRef(spec("f32", 2), a.ctypes.data)
    for args, results, message in (
        ([good, null], [good], "null"),
        ([good, good], [null], "null"),
        ([good, good], [short], "f32[2]"),
        ([good, good], [], "0"),
    ):
        with pytest.raises(ValueError) as error:
            _ops.run("simple_add", "Host", args, results, {})
        assert message in str(error.value).lower()


def test_ctypes_struct_sizes_are_checked():
    library = _lib.load()
    call = _lib.Call(struct_size=8)
    with pytest.raises(ValueError, match=r"xla_gpu_call.struct_size is 8 but must be at least"):
        _lib.check(library.xla_gpu_run(ctypes.byref(call)))
    with pytest.raises(ValueError, match="call is NULL"):
        _lib.check(library.xla_gpu_run(None))


# What ctypes would cut to another value, without a word.
LOST = {
    "attribute": (lambda: window(2**64 + 3), "attribute 'sliding_window' is 18446744073709551619"),
    "negative attribute": (lambda: window(-(2**63) - 1), "attribute 'sliding_window' is -92"),
    "ints": (
        lambda: _ops.infer("simple_add", "Host", [], {"x": [1, 2**63]}),
        "attribute 'x' is 9223372036854775808; it must be",
    ),
    "dimension": (
        lambda: _ops.infer("simple_add", "Host", [spec("f32", 2**64 + 2)] * 2, {}),
        "a dimension is 18446744073709551618",
    ),
    "address": (
        lambda: _ops.run("simple_add", "Host", [_ops.TensorRef(spec("f32", 1), 2**64)], [], {}),
        "a tensor's address is 18446744073709551616",
    ),
    "stream": (lambda: _ops.run("simple_add", "CUDA", [], [], {}, stream=-1), "stream is -1"),
    "api_version": (
        lambda: xla_gpu.handler("simple_add", platform="Host", api_version=2**32 + 4),
        "api_version is 4294967300",
    ),
    "NUL in an op": (lambda: _ops.infer("simple_add\0x", "Host", [], {}), "NUL"),
    "NUL in a platform": (
        lambda: xla_gpu.handler("simple_add", platform="Host\0"),
        r"platform is 'Host\\x00'; it must not hold a NUL",
    ),
    "NUL in an attribute's name": (lambda: _ops.infer("simple_add", "Host", [], {"a\0": 1}), "NUL"),
    "NUL in an opaque": (
        lambda: _lib.handler_address("simple_add", "Host", 3, "{}\0"),
        "opaque is",
    ),
    "NUL in a target": (
        lambda: xla_gpu.register(
            "a\0b", xla_gpu.handler("simple_add", platform="Host"), platform="Host"
        ),
        r"register: name is 'a\\x00b'",
    ),
    "a surrogate": (lambda: xla_gpu.handler("\ud800", platform="Host"), "op is"),
}


def window(value):
    return _ops.infer("paged_attention", "Host", [], {"scale": 1.0, "sliding_window": value})


@pytest.mark.parametrize("name", LOST)
def test_what_ctypes_would_cut_is_refused(name):
    call, message = LOST[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_messages_of_bytes_that_are_no_text():
    with pytest.raises(LookupError, match="no op is named 'caf\ufffd'"):
        call = _lib.Call(struct_size=ctypes.sizeof(_lib.Call), op=b"caf\xe9", platform=b"Host")
        _lib.check(_lib.load().xla_gpu_run(ctypes.byref(call)))


def test_a_missing_library_says_where_it_was_looked_for(monkeypatch):
    monkeypatch.setenv("XLA_GPU_LIBRARY", "/no/such/libxla_gpu.so")
    with pytest.raises(LookupError, match=r"tried /no/such/libxla_gpu.so.*XLA_GPU_LIBRARY"):
        _lib.library_path.__wrapped__()


@pytest.mark.parametrize(
    "path, problem",
    [
        (_ctypes.__file__, "is no libxla_gpu.so .* not export xla_gpu_.*; set XLA_GPU_LIBRARY"),
        (__file__, "cannot load .*: .*invalid ELF header"),
    ],
    ids=["library", "text"],
)
def test_another_file_is_not_taken_for_the_library(monkeypatch, path, problem):
    monkeypatch.setattr(_lib, "library_path", lambda: path)
    with pytest.raises(xla_gpu.XlaGpuError, match=problem) as error:
        _lib.load.__wrapped__()
    assert path in str(error.value)
    assert error.value.code == xla_gpu.StatusCode.FAILED_PRECONDITION


def our_frames(error):
    """How many frames of xla_gpu a user sees below the line that is wrong."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [str(pathlib.Path(xla_gpu.__file__).parent) in file for file in files]
    return ours[::-1].index(False)


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"query": zeros(T, H, 9)},
        {"kv_cache": (zeros(3), None)},
        {"num_seqs": "2"},
        {"scale": "1"},
        {"sliding_window": 0},
        {"sinks": i32(H)},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("op", [paged_attention, _functions.function("paged_attention")])
def test_a_traceback_ends_at_the_callers_line(op, change, jit):
    call = {"op": op, "num_seqs": i32(1)} | change
    with jax.disable_jit(not jit), pytest.raises(ValueError) as error:
        attend(**call)
    assert our_frames(error.value) <= 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: simple_add(zeros(3), zeros(4)),
        lambda: update(key=zeros(T, K, 9)),
        lambda: ragged(sliding_window=0),
        lambda: ragged_paged_attention_v3(*[zeros(3)] * 8),
        lambda: ragged_paged_attention_v3(*[zeros(3)] * 8, q_scale="1"),
        lambda: jax.vmap(lambda x: simple_add(x, x))(zeros(3)),
        lambda: jax.grad(lambda x: simple_add(x, x).sum())(zeros(3)),
    ],
)
def test_other_tracebacks(call):
    with pytest.raises(xla_gpu.XlaGpuError) as error:
        call()
    assert our_frames(error.value) <= 1
    with pytest.raises(TypeError, match="simple_add: missing a required argument: 'b'") as wrong:
        simple_add(zeros(3))
    assert our_frames(wrong.value) <= 2


CLASSES = [k for k in vars(xla_gpu).values() if isinstance(k, type) and issubclass(k, Exception)]


@pytest.mark.parametrize("kind", CLASSES)
def test_error_classes_carry_their_codes(kind):
    names = {
        "XlaGpuError": "INTERNAL",
        "InvalidArgumentError": "INVALID_ARGUMENT",
        "NotFoundError": "NOT_FOUND",
        "UnimplementedError": "UNIMPLEMENTED",
    }
    error = kind("x")
    assert error.code is xla_gpu.StatusCode[names[kind.__name__]]
    assert error.code_name == names[kind.__name__] and str(error) == "x"
    again = pickle.loads(pickle.dumps(_errors.make_error(11, "y")))
    assert type(again) is xla_gpu.InvalidArgumentError and again.code_name == "OUT_OF_RANGE"
    assert _errors.make_error(99, "z").code is xla_gpu.StatusCode.UNKNOWN


@pytest.mark.parametrize("given", [{"sliding_window": np.int64(0)}, {"soft_cap": np.float32(0)}])
def test_typed_ffi_and_the_program_refuse_0_too(given, tmp_path):
    (name,) = given
    arrays = [jnp.zeros(spec.shape, _ops.NUMPY_NAMES[spec.dtype]) for spec in ATTENTION]
    _registration.register_op("paged_attention", "Host")
    call = _compat.ffi.ffi_call("xla_gpu_paged_attention", arrays[0])
    with pytest.raises(Exception, match=f"'{name}' is 0; it must be"):
        jax.block_until_ready(call(*arrays, **given))

    module = tmp_path / "module.mlir"
    text = jax.jit(lambda *a: call(*a, **given)).lower(*arrays).as_text()
    attributes = "api_version = 4 : i32, backend_config = {"
    module.write_text(re.sub(r'backend_config = "",.* mhlo.backend_config = {', attributes, text))
    if importlib.util.find_spec("xla_plugins") is None or "XLA_GPU_PROGRAM" not in os.environ:
        pytest.skip("the program needs xla-cpu-pjrt, and XLA_GPU_PROGRAM names it")
    command = [os.environ["XLA_GPU_PROGRAM"], "run", module, "--plugin", "cpu"]
    for i, array in enumerate(arrays):
        np.save(tmp_path / f"{i}.npy", array)
        command += ["--input", tmp_path / f"{i}.npy"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and f"'{name}' is 0; it must be" in done.stderr
