"""A user's file by mypy --strict: results have their types, and wrong calls are errors.

An `ignore` that hides no error is one itself (warn_unused_ignores).
"""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MYPY = ROOT / ".venv" / "bin" / "mypy"

USER = """
from typing import Any
from typing_extensions import assert_type
import {array_module}
import xla_gpu
from {module} import paged_attention, update_kv_cache

Array = {array}
def attend(q: Array, cache: Array, lens: Array, tables: Array, starts: Array, lse: bool) -> Any:
    rest = lens, tables, starts
    assert_type(paged_attention(q, cache, *rest), Array)
    assert_type(paged_attention(q, (cache, cache), lens, tables, starts, 2, 0.5), Array)
    assert_type(paged_attention(q, cache, *rest, num_seqs=lens, return_lse=False), Array)
    assert_type(paged_attention(q, cache, *rest, return_lse=True), tuple[Array, Array])
    assert_type(paged_attention(q, cache, *rest, return_lse=lse), Array | tuple[Array, Array])
    assert_type(update_kv_cache(q, q, cache, lens, k_scale=2.0), Array)
    assert_type(update_kv_cache(q, q, (cache, cache), lens), tuple[Array, Array])
    assert_type(xla_gpu.InvalidArgumentError("").code, xla_gpu.StatusCode)
    paged_attention(q, cache, *rest, sinks=0.5, k_scale=q, out_dtype={dtype}, causal=False)
    paged_attention(q, cache, lens, tables)  # type: ignore[call-overload]
    paged_attention(q, None, *rest)  # type: ignore[call-overload]
    paged_attention(q, cache, *rest, scale="1")  # type: ignore[call-overload]
    paged_attention(q, cache, *rest, sliding_window=1.5)  # type: ignore[call-overload]
    paged_attention(q, cache, *rest, causal=None)  # type: ignore[call-overload]
    paged_attention(q, cache, *rest, window=3)  # type: ignore[call-overload]
    paged_attention(q, cache, *rest, return_lse=True).shape  # type: ignore[attr-defined]
    paged_attention(q, cache, *rest, out_dtype=3)  # type: ignore[call-overload]
"""
DOORS = {
    "jax": {"array_module": "jax", "array": "jax.Array", "dtype": '"float32"'},
    "torch": {"array_module": "torch", "array": "torch.Tensor", "dtype": "torch.float32"},
}


@pytest.mark.parametrize("door", DOORS)
def test_a_users_file(door, tmp_path):
    pytest.importorskip(door)
    if not MYPY.exists():
        pytest.skip("mypy is not installed (scripts/setup.sh venv lint)")
    (tmp_path / "user.py").write_text(USER.format(module=f"xla_gpu.{door}", **DOORS[door]))
    command = [MYPY, "--strict", "--config-file=", "--follow-imports=silent", "user.py"]
    # No cache: two tests at a time would write to it, and mypy then fails now and then.
    command += [f"--python-executable={sys.executable}", f"--cache-dir={os.devnull}"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=dict(os.environ, MYPYPATH=str(ROOT / "python")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
