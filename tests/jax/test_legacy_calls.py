"""Custom calls by API versions 1, 2, 3 and 4 through the real XLA CPU runtime inside jaxlib."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import xla_gpu
from attention_oracle import update_kv_cache
from compare import check_attention, check_cache
from legacy_calls import call_by_version, custom_call, opaque, register
from problems import np_dtype, paged_attention_case, random_static, update_case
from xla_gpu import _lib, _ops

DTYPES = [np.float32, np.int32, np.float16, ml_dtypes.bfloat16]
SHAPES = [(3,), (), (0,), (2, 0, 5), (7, 1, 9), (1 << 17,), (1, 1, 1, 1, 2)]

every_version = pytest.mark.parametrize("version", [1, 2, 3, 4])


def operands(dtype: type, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    values = [rng.integers(-100, 100, size=shape).astype(dtype) for _ in range(2)]
    return values[0], values[1]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@every_version
def test_adds_every_dtype(version, dtype):
    a, b = operands(dtype, (5, 33))
    (result,) = call_by_version(version, "simple_add", [a, b], [a])(a, b)
    assert result.dtype == a.dtype
    np.testing.assert_array_equal(np.asarray(result), a + b)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_version
def test_adds_every_shape(version, shape):
    a, b = operands(np.float32, shape)
    (result,) = call_by_version(version, "simple_add", [a, b], [a])(a, b)
    np.testing.assert_array_equal(np.asarray(result), a + b)


def test_one_generic_handler_serves_every_opaque():
    target = register(_lib.handler_address("XlaGpuSimpleAdd", "Host", 3), 3)
    for shape in [(3,), (4,), (2, 2)]:
        a, b = operands(np.float32, shape)
        call = custom_call(target, 3, opaque("XlaGpuSimpleAdd", [a, b]), [a])
        np.testing.assert_array_equal(np.asarray(call(a, b)[0]), a + b)


def test_optimised_hlo_shows_the_call():
    a, b = operands(np.float32, (3,))
    target = register(_lib.handler_address("simple_add", "Host", 3), 3)
    call = custom_call(target, 3, opaque("simple_add", [a, b]), [a])
    hlo = call.lower(a, b).compile().as_text()
    assert f'custom_call_target="{target}"' in hlo
    assert "API_VERSION_STATUS_RETURNING_UNIFIED" in hlo
    assert '"op":"simple_add"' in hlo.replace("\\", "")  # printers quote it differently


def test_many_calls_in_one_program_keep_their_configuration():
    calls = []
    for shape in [(3,), (4, 4), (1, 2, 3)]:
        for version in (1, 2, 3):
            like = np.zeros(shape, np.float32)
            call = call_by_version(version, "simple_add", [like, like], [like])
            calls.append((shape, call))

    @jax.jit
    def program(xs):
        return [call(x, 2 * x)[0] for x, (_, call) in zip(xs, calls, strict=True)]

    inputs = [jnp.full(shape, i + 1.0) for i, (shape, _) in enumerate(calls)]
    for x, y in zip(inputs, program(inputs), strict=True):
        np.testing.assert_array_equal(np.asarray(y), 3 * np.asarray(x))


# ---- Ops with attributes, optional arguments and tuples of results -------------------------------


@pytest.mark.parametrize("seed", range(4))
@every_version
def test_paged_attention(version, seed):
    rng = np.random.default_rng([23, seed])
    case = paged_attention_case(random_static(rng), rng)
    static = case.static
    optional = case.optional_args(("v_cache", "sinks", "k_scale", "v_scale"))
    names = ["query", "kv_cache", "context_lens", "block_tables", "query_start_loc", "num_seqs"]
    args = [case.args[name] for name in [*names, *optional]]
    attrs = dict(static.attrs(), optional_args=",".join(optional))
    if static.out_dtype:
        attrs["out_dtype"] = _ops.NUMPY_DTYPE_NAMES[static.out_dtype]
    out = np.empty((static.tokens, static.q_heads, static.head_dim), np_dtype(static.result_dtype))
    lse = np.empty((static.tokens, static.q_heads), np.float32)
    results = [out, lse] if static.return_lse else [out]
    got = call_by_version(version, "paged_attention", args, results, attrs)(*args)
    check_attention(case, got[0], got[1] if static.return_lse else None)


@pytest.mark.parametrize("seed", range(4))
@every_version
def test_update_kv_cache(version, seed):
    rng = np.random.default_rng([24, seed])
    case = update_case(random_static(rng), rng)
    want = update_kv_cache(**case.args)
    optional = case.optional_args(("v_cache", "k_scale", "v_scale"))
    args = [case.args[n] for n in ["key", "value", "kv_cache", "slot_mapping", *optional]]
    caches = [case.args[name] for name in ("kv_cache", "v_cache") if name in case.args]
    attrs = {"optional_args": ",".join(optional)}
    got = call_by_version(version, "update_kv_cache", args, caches, attrs)(*args)
    for one, expected in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        check_cache(one, expected)


# ---- Aliases -------------------------------------------------------------------------------------


def alias(version: int, text: str) -> int:
    return _lib.handler_address("simple_add", "Host", version, text)


def test_equal_calls_share_an_alias():
    a = np.zeros(3, np.float32)
    text = opaque("simple_add", [a, a])
    address = alias(1, text)
    assert alias(1, text) == address
    assert alias(1, json.dumps(json.loads(text), indent=2)) == address
    assert alias(2, text) != address
    assert alias(1, opaque("simple_add", [a[:2], a[:2]])) != address


@pytest.mark.parametrize("version", [1, 2])
def test_host_versions_1_and_2_need_an_alias(version):
    with pytest.raises(xla_gpu.XlaGpuError, match=r"carries no opaque.*xla_gpu_alias"):
        _lib.handler_address("simple_add", "Host", version)


F32 = '{"dtype":"f32","shape":[3]}'
F32_4 = '{"dtype":"f32","shape":[4]}'


@pytest.mark.parametrize(
    ("args", "results", "attrs", "message"),
    [
        (f"{F32},{F32_4}", F32, "", r"a is f32\[3\] but b is f32\[4\]"),
        (f"{F32},{F32}", F32_4, "", r"result 0 is f32\[4\] but must be f32\[3\]"),
        (f"{F32},{F32}", F32, '"scale":1.0', "unknown attribute 'scale'"),
        (F32, F32, "", "1 arguments came but 2 are expected"),
        (f"{F32},{F32}", "", "", "the call has 0 results but on Host it must have 1"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_an_alias_of_a_wrong_call_is_refused(version, args, results, attrs, message):
    text = f'{{"op":"simple_add","args":[{args}],"results":[{results}],"attrs":{{{attrs}}}}}'
    with pytest.raises(ValueError, match=message):
        alias(version, text)


def test_aliases_of_no_version_or_no_json_are_refused():
    a = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="api_version is 5; allowed are 1 and 2 on Host"):
        alias(5, opaque("simple_add", [a, a]))
    with pytest.raises(ValueError, match="opaque: not JSON at byte 1"):
        alias(1, "scale = 1.0")


def test_an_opaque_of_a_wrong_call_is_refused():
    f32 = _ops.TensorSpec("f32", (3,))
    with pytest.raises(ValueError, match=r"a is f32\[3\] but b is i32\[3\]"):
        _ops.opaque("simple_add", "Host", [f32, _ops.TensorSpec("i32", (3,))], {})
    with pytest.raises(ValueError, match=r"result 0 is i32\[3\] but must be f32\[3\]"):
        _ops.opaque("simple_add", "Host", [f32, f32], {}, [_ops.TensorSpec("i32", (3,))])


# ---- Errors while running ------------------------------------------------------------------------

BAD_CALL = """
    import numpy as np
    from legacy_calls import custom_call, opaque, register
    from xla_gpu import _lib

    a = np.ones(3, np.{dtype})
    text = {text}
    call = custom_call(register(_lib.handler_address("simple_add", "Host", 3), 3), 3, text, [a])
    try:
        for _ in range(4):
            (result,) = call(a, a)
        print("RESULT", np.asarray(result).tolist())
    except Exception as error:
        print("RAISED", error)
"""


def run_bad_call(text: str, dtype: str = "float32") -> tuple[str, str]:
    """stdout and stderr of a process that runs simple_add by version 3 with this opaque text."""
    root = pathlib.Path(__file__).parents[2]
    package = str(pathlib.Path(xla_gpu.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(BAD_CALL).format(text=text, dtype=dtype)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([package, str(root / "tests/oracle")])),
    )
    return done.stdout, done.stderr


SCALED = """opaque("simple_add", [a, a]).replace("{}", '{"scale":1.0}')"""


def test_a_failing_call_raises_or_gives_nan_and_one_message():
    """No status reaches a runtime that exports no setter; then the results are NaN."""
    out, err = run_bad_call(SCALED)
    if "RAISED" in out:
        assert "unknown attribute 'scale'" in out
    else:
        assert out.strip() == "RESULT [nan, nan, nan]"
        assert err.count("unknown attribute 'scale'") == 1


def test_a_failing_call_of_ints_gives_zeros():
    out, err = run_bad_call(SCALED, dtype="int32")
    assert "RAISED" in out or out.strip() == "RESULT [0, 0, 0]"
    assert "unknown attribute 'scale'" in out + err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('""', "the text is empty"),
        ('"{scale = 1.0 : f32}"', "not JSON at byte 2"),
        ("""'{"op":"paged"}'""", "lacks the member 'args'"),
        ("""'{"op":"paged","args":[],"results":[]}'""", "no op is named 'paged'"),
        ("""'{"op":"simple_add","args":[],"results":[]}'""", "0 arguments came but 2 are expected"),
    ],
)
def test_bad_opaque_never_crashes(text, message):
    out, err = run_bad_call(text)
    assert "RAISED" in out or "RESULT" in out
    assert message in out + err
