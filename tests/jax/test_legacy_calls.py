"""Custom calls by API versions 1, 2, 3 and 4 through the real XLA CPU runtime inside jaxlib."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from legacy_library import LibraryError, alias, custom_call, handler, opaque, register

_COUNTER = itertools.count()
_DTYPES = [np.float32, np.int32, np.float16, ml_dtypes.bfloat16]
_SHAPES = [(3,), (), (0,), (2, 0, 5), (7, 1, 9), (1 << 17,), (1, 1, 1, 1, 2)]


def _fresh_target(stem: str) -> str:
    return f"{stem}_{next(_COUNTER)}"


def _operands(dtype: type, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    values = [rng.integers(-100, 100, size=shape).astype(dtype) for _ in range(2)]
    return values[0], values[1]


def _simple_add(version: int, a: np.ndarray, b: np.ndarray, by_alias: bool) -> np.ndarray:
    """a + b by one custom call, with its shapes in the alias or in backend_config."""
    text = opaque("simple_add", [a, b], [a])
    target = _fresh_target("legacy_add")
    config = ""
    if by_alias:
        register(target, alias("simple_add", version, text), version)
    else:
        register(target, handler("simple_add", version), version)
        config = text
    (result,) = custom_call(target, version, config, [a])(a, b)
    return np.asarray(result)


_ROADS = [(1, True), (2, True), (3, True), (3, False), (4, True), (4, False)]


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("version", "by_alias"), _ROADS)
def test_adds_every_dtype(version: int, by_alias: bool, dtype: type) -> None:
    a, b = _operands(dtype, (5, 33))
    result = _simple_add(version, a, b, by_alias)
    assert result.dtype == a.dtype
    np.testing.assert_array_equal(result, a + b)


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize(("version", "by_alias"), _ROADS)
def test_adds_every_shape(version: int, by_alias: bool, shape: tuple[int, ...]) -> None:
    a, b = _operands(np.float32, shape)
    np.testing.assert_array_equal(_simple_add(version, a, b, by_alias), a + b)


def test_one_generic_handler_serves_every_opaque() -> None:
    target = _fresh_target("shared")
    register(target, handler("XlaGpuSimpleAdd", 3), 3)
    for shape in [(3,), (4,), (2, 2)]:
        a, b = _operands(np.float32, shape)
        call = custom_call(target, 3, opaque("XlaGpuSimpleAdd", [a, b], [a]), [a])
        np.testing.assert_array_equal(np.asarray(call(a, b)[0]), a + b)


def test_optimised_hlo_shows_the_call() -> None:
    a, b = _operands(np.float32, (3,))
    target = _fresh_target("shown")
    register(target, handler("simple_add", 3), 3)
    text = opaque("simple_add", [a, b], [a])
    hlo = custom_call(target, 3, text, [a]).lower(a, b).compile().as_text()
    assert f'custom_call_target="{target}"' in hlo
    assert "API_VERSION_STATUS_RETURNING_UNIFIED" in hlo
    assert '"op":"simple_add"' in hlo.replace("\\", "")  # printers quote it differently


def test_many_calls_in_one_program_keep_their_configuration() -> None:
    shapes = [(3,), (4, 4), (1, 2, 3)]
    calls = []
    for shape in shapes:
        for version in (1, 2, 3):
            like = np.zeros(shape, np.float32)
            target = _fresh_target("mixed")
            text = opaque("simple_add", [like, like], [like])
            register(target, alias("simple_add", version, text), version)
            calls.append((shape, custom_call(target, version, "", [like])))

    @jax.jit
    def program(xs: list[jax.Array]) -> list[jax.Array]:
        return [call(x, 2 * x)[0] for x, (_, call) in zip(xs, calls, strict=True)]

    inputs = [jnp.full(shape, i + 1.0) for i, (shape, _) in enumerate(calls)]
    for x, y in zip(inputs, program(inputs), strict=True):
        np.testing.assert_array_equal(np.asarray(y), 3 * np.asarray(x))


# ---- Aliases --------------------------------------------------------------------------------------


def test_equal_calls_share_an_alias() -> None:
    a = np.zeros(3, np.float32)
    text = opaque("simple_add", [a, a], [a])
    address = alias("simple_add", 1, text)
    assert alias("simple_add", 1, text) == address
    assert alias("XlaGpuSimpleAdd", 1, json.dumps(json.loads(text), indent=2)) == address
    assert alias("simple_add", 2, text) != address
    other = np.zeros(4, np.float32)
    assert alias("simple_add", 1, opaque("simple_add", [other, other], [other])) != address


def test_host_versions_1_and_2_need_an_alias() -> None:
    for version in (1, 2):
        with pytest.raises(LibraryError, match="carries no opaque.*xla_gpu_alias"):
            handler("simple_add", version)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_alias_of_a_wrong_call_is_refused(version: int) -> None:
    a, b = np.zeros(3, np.float32), np.zeros(4, np.float32)
    with pytest.raises(LibraryError, match=r"a is f32\[3\] but b is f32\[4\]"):
        alias("simple_add", version, opaque("simple_add", [a, b], [a]))
    with pytest.raises(LibraryError, match=r"result 0 is f32\[4\] but must be f32\[3\]"):
        alias("simple_add", version, opaque("simple_add", [a, a], [b]))
    with pytest.raises(LibraryError, match="unknown attribute 'scale'"):
        alias("simple_add", version, opaque("simple_add", [a, a], [a], scale=1.0))
    with pytest.raises(LibraryError, match="not JSON at byte 1"):
        alias("simple_add", version, "scale = 1.0")


def test_api_version_5_is_refused() -> None:
    a = np.zeros(3, np.float32)
    with pytest.raises(LibraryError, match="api_version is 5"):
        alias("simple_add", 5, opaque("simple_add", [a, a], [a]))


# ---- Errors while running -------------------------------------------------------------------------

_BAD_CALL = """
    import numpy as np
    from legacy_library import custom_call, handler, opaque, register

    a = np.ones({shape}, np.{dtype})
    text = {text}
    register("bad_call", handler("simple_add", 3), 3)
    try:
        (result,) = custom_call("bad_call", 3, text, [a])(a, a)
        for _ in range(3):
            (result,) = custom_call("bad_call", 3, text, [a])(a, a)
        print("RESULT", np.asarray(result).tolist())
    except Exception as error:
        print("RAISED", error)
"""


def _run_bad_call(text: str, shape: str = "3", dtype: str = "float32") -> tuple[str, str]:
    """stdout and stderr of a process that runs simple_add by version 3 with this opaque text."""
    code = textwrap.dedent(_BAD_CALL).format(text=text, shape=shape, dtype=dtype)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=__file__.rpartition("/")[0],
    )
    return done.stdout, done.stderr


def test_a_failing_call_raises_or_gives_nan_and_one_message() -> None:
    """No status reaches a runtime that exports no setter; then the results are NaN."""
    out, err = _run_bad_call('opaque("simple_add", [a, a], [a], scale=1.0)')
    if "RAISED" in out:
        assert "unknown attribute 'scale'" in out
    else:
        assert out.strip() == "RESULT [nan, nan, nan]"
        assert err.count("unknown attribute 'scale'") == 1


def test_a_failing_call_of_ints_gives_zeros() -> None:
    out, err = _run_bad_call('opaque("simple_add", [a, a], [a], scale=1.0)', dtype="int32")
    assert "RAISED" in out or out.strip() == "RESULT [0, 0, 0]"
    assert "unknown attribute 'scale'" in out + err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('""', "the text is empty"),
        ('"{scale = 1.0 : f32}"', "not JSON at byte 2"),
        ("""'{"op":"paged"}'""", "lacks the member 'args'"),
        ("""'{"op":"paged","args":[],"results":[]}'""", "no op is named 'paged'"),
        ('opaque("simple_add", [a], [a])', "1 arguments came but 2 are expected"),
    ],
)
def test_bad_opaque_never_crashes(text: str, message: str) -> None:
    out, err = _run_bad_call(text)
    assert "RAISED" in out or "RESULT" in out
    assert message in out + err
