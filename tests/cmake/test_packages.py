"""Projects outside the tree find, build and link the library, by each way that docs/cpp.md names."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xla_gpu

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("XLA_GPU_LIBRARY", ROOT / "build/release/libxla_gpu.so")).parent
EXAMPLES = ROOT / "examples" / "cpp"
SUM = f"xla_gpu {xla_gpu.__version__}: 11 22 33 44\n"
ATTENTION = ": 20.0000 2.0000 22.0334 2.2033\n"

pytestmark = pytest.mark.skipif(
    not (BUILD / "cmake_install.cmake").exists() or shutil.which("cmake") is None,
    reason="needs the build folder and CMake (a wheel has neither)",
)


def run(*command, code=0, **env):
    """What the command prints; it must end with this exit code."""
    clean = {name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ}
    done = subprocess.run(
        [str(word) for word in command],
        env={**clean, "XLA_GPU_PJRT_PLUGIN": "cpu", **env},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def cache_value(name):
    """A variable of the build's CMake cache."""
    text = (BUILD / "CMakeCache.txt").read_text()
    return re.search(rf"^{name}:\w+=(.*)$", text, re.MULTILINE)[1]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """An installation that was moved after it was made."""
    made = tmp_path_factory.mktemp("install") / "made"
    run("cmake", "--install", BUILD, "--prefix", made)
    return made.rename(made.with_name("moved"))


def build_examples(folder, **settings):
    words = [f"-D{name}={value}" for name, value in settings.items()]
    run("cmake", "-S", EXAMPLES, "-B", folder, *words)
    run("cmake", "--build", folder)
    assert run(folder / "simple_add") == SUM
    assert run(folder / "paged_attention").endswith(ATTENTION)


def test_find_package(prefix, tmp_path):
    build_examples(tmp_path, CMAKE_PREFIX_PATH=prefix)
    needed = run("readelf", "--dynamic", tmp_path / "simple_add")
    major, minor, _ = xla_gpu.__version__.split(".")
    assert f"[libxla_gpu.so.{major}.{minor}]" in needed
