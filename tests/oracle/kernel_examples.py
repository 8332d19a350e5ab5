"""Running the examples of kernels of one's own, as a reader would."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples/kernels"
LACKS_SOMETHING = 2  # an exit code


def run(name, **environment):
    """The process that ran the example to its end."""
    path = os.pathsep.join([str(FOLDER.parents[1] / "python"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, FOLDER / f"{name}.py"],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def module(name, monkeypatch):
    """The example, imported."""
    monkeypatch.syspath_prepend(FOLDER)
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def check(name, backend, **environment):
    """That it runs there; skips where it says that something is missing."""
    done = run(name, **environment)
    if done.returncode == LACKS_SOMETHING:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert f"ok on {backend}" in done.stdout
