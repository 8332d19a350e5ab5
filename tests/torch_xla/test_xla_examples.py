"""The examples run as they are."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch_xla", reason="PyTorch/XLA is not installed")

import xla_gpu
import xla_gpu.torch_xla

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "torch_xla"
ON_CUDA = xla_gpu.torch_xla.platform() == "CUDA"


def run(*command):
    package = str(pathlib.Path(xla_gpu.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env=dict(os.environ, PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("version", [1, 2, 3, 4] if ON_CUDA else [4])
def test_the_classic_custom_call(version):
    done = run(EXAMPLES / "minimal_xla_custom_call.py", "--api-version", version)
    assert done.returncode == 0, done.stderr
    assert 'custom_call_target="XlaGpuSimpleAdd' in done.stdout
    assert done.stdout.splitlines()[-1] == "ok"


@pytest.mark.skipif(ON_CUDA, reason="the CUDA plugin takes untyped handlers")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_classic_custom_call_untyped_on_the_cpu_says_why_not(version):
    script = EXAMPLES / "minimal_xla_custom_call.py"
    done = run(script, "--api-version", version, "--ffi-include")  # no headers: built at once
    assert done.returncode != 0
    assert f"takes typed FFI handlers only (FFI 0.2), not API version {version}" in done.stderr


def test_the_typed_custom_call_without_headers_says_what_is_missing():
    done = run(EXAMPLES / "minimal_xla_custom_call.py", "--api-version", 4, "--ffi-include")
    assert done.returncode == 2
    assert "needs XLA's FFI headers" in done.stderr


def test_paged_decoding():
    done = run(EXAMPLES / "paged_attention.py")
    assert done.returncode == 0, done.stderr
    assert "40 decode steps" in done.stdout and "the cache in place" in done.stdout
