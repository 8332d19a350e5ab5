"""`xla-gpu probe` tries JAX's own registries with the Python of the active environment."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

PROGRAM = os.environ.get("XLA_GPU_PROGRAM") or shutil.which("xla-gpu")


@pytest.fixture(params=["active", "gone"])
def environment(request, tmp_path):
    """An active environment, or one named that is no more: then the Python on PATH is asked."""
    python = pathlib.Path(sys.executable)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    gone = str(tmp_path / "gone")
    return {"VIRTUAL_ENV": sys.prefix if request.param == "active" else gone, "PATH": path}


@pytest.mark.skipif(PROGRAM is None, reason="the program xla-gpu is not there")
def test_probe_tries_jax(environment):
    run = subprocess.run(
        [PROGRAM, "probe", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        env=dict(os.environ, JAX_PLATFORMS="cpu", PYTHONPATH=os.pathsep.join(sys.path))
        | environment,
    )
    assert run.returncode == 0, run.stderr
    runtimes = {runtime["runtime"]: runtime for runtime in json.loads(run.stdout)}
    cells = runtimes["JAX, backend cpu"]["cells"]
    worked = {(cell["platform"], cell["api_version"]) for cell in cells if cell["ok"]}
    assert {(platform, 4) for platform in ("Host", "cpu")} <= worked
    assert all(cell["message"] for cell in cells if not cell["ok"])
