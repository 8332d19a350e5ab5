"""`make compat`: the tests with every supported jax, torch and Triton release, from one library.

Each release has a venv of its own under build/compat; torch's, which take gigabytes, are removed
when their tests are through. What cannot be set up here (no Python of that version, no registry) is
skipped loudly. Usage: scripts/compat.py [jax|torch|triton|VERSION...] [-- PYTEST_ARGS...], where a
version is "0.7.2" or "torch-2.9.1".
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / "build" / "compat"


@dataclasses.dataclass(frozen=True)
class Release:
    """A release of a framework, and the Python that it is tested with."""

    framework: str
    version: str
    python: str

    @property
    def name(self) -> str:
        return f"{self.framework}-{self.version}"

    @property
    def packages(self) -> list[str]:
        if self.framework == "jax":
            exact = [f"jax=={self.version}", f"jaxlib=={self.version}", "apache-tvm-ffi"]
            tests = ["pytest", "pytest-xdist", "hypothesis", "ml_dtypes", "absl-py", "flatbuffers"]
            return [*exact, *tests]
        if self.framework == "triton":  # alone: it asks for no torch
            return [f"triton=={self.version}", "pytest", "pytest-xdist"]
        # torch 2.4's Inductor imports setuptools.
        exact = [f"torch=={self.version}"]
        return [*exact, "pytest", "pytest-xdist", "ml_dtypes", "numpy", "setuptools<81"]

    @property
    def tests(self) -> list[str]:
        if self.framework == "jax":
            return ["tests/jax", "tests/tvm_ffi"]
        if self.framework == "triton":
            return ["tests/triton"]
        return ["tests/torch", "tests/xla_gpu/test_simple_custom_op.py"]


RELEASES = [
    # jax 0.11 and later need 3.11 or 3.12 and newer.
    *[
        Release("jax", version, "3.11")
        for version in ("0.4.38", "0.5.3", "0.6.2", "0.7.2", "0.8.3", "0.9.2", "0.10.2")
    ],
    Release("jax", "0.11.2", "3.12"),
    Release("jax", "0.12.0.1", "3.12"),
    # The oldest that the ops are for, the one of PyTorch/XLA, and the newest.
    *[Release("torch", version, "3.11") for version in ("2.4.1", "2.9.1", "2.15.0")],
    # The oldest, the first with each of the pointers that later ones pass besides, the newest.
    *[Release("triton", v, "3.11") for v in ("3.2.0", "3.3.1", "3.4.0", "3.6.0", "3.9.0")],
]
SUMMARY = re.compile(r"^=*\s*((?:\d+ \w+,? ?)+) in [\d.]+s", re.MULTILINE)


def find_python(version: str) -> list[str] | None:
    """A command that starts Python `version`, e.g. ["python3.12"]; None if there is none."""
    candidates = [[f"python{version}"], ["python3"], [sys.executable]]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [[str(p)] for p in sorted(pyenv.glob(f"{version}.*/bin/python3"))]
    for command in candidates:
        if shutil.which(command[0]) is None:
            continue
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        said = subprocess.run([*command, "-c", code], capture_output=True, text=True)
        if said.returncode == 0 and said.stdout.strip() == version:
            return command
    return None


def set_up(release: Release) -> tuple[Path | None, str]:
    """(the venv's python, "") or (None, why not)."""
    python = VENVS / release.name / "bin" / "python"
    stamp = python.parent.parent / ".complete"
    wanted = "\n".join(release.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return python, ""
    if not stamp.exists():
        command = find_python(release.python)
        if command is None:
            return None, f"no Python {release.python} on this machine"
        shutil.rmtree(python.parent.parent, ignore_errors=True)
        venv = [*command, "-m", "venv", str(python.parent.parent)]
        made = subprocess.run(venv, capture_output=True, text=True)
        if made.returncode != 0:
            return None, "venv failed: " + made.stderr[-200:]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *release.packages], capture_output=True, text=True)
    if done.returncode != 0:
        return None, "pip: " + " ".join(done.stderr.split())[-200:]
    stamp.write_text(wanted)
    return python, ""


def run_tests(
    release: Release, python: Path, library: Path, pytest_args: list[str]
) -> tuple[bool, str]:
    """Whether the tests pass with this release, and pytest's summary."""
    env = dict(
        os.environ,
        XLA_GPU_LIBRARY=str(library),
        JAX_PLATFORMS="cpu",
        PYTHONPATH=str(ROOT / "python"),  # of the processes that tests start
    )
    log = VENVS / f"{release.name}.log"
    with log.open("w") as out:
        done = subprocess.run(
            [str(python), "-m", "pytest", *release.tests, *pytest_args],
            cwd=ROOT,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    text = log.read_text()
    found = SUMMARY.search(text)
    summary = found[1].strip() if found else f"exit {done.returncode}, see {log.relative_to(ROOT)}"
    if done.returncode != 0:
        failed = re.findall(r"^(?:FAILED|ERROR) .*", text, re.MULTILINE)
        print("\n".join(failed[:20]), flush=True)
    return done.returncode == 0, summary


def choose(names: list[str]) -> list[Release]:
    """The releases that the command line names; all without one. SystemExit for an unknown name."""
    chosen = []
    for name in names:
        found = [r for r in RELEASES if name in (r.framework, r.version, r.name)]
        if not found:
            known = ", ".join(r.name for r in RELEASES)
            raise SystemExit(f"compat: {name} is not in the list: {known}")
        chosen += found
    return chosen or RELEASES


def main() -> int:
    """Prints a table; fails if a release failed, or none could be tested."""
    args = sys.argv[1:]
    split = args.index("--") if "--" in args else len(args)
    releases, pytest_args = choose(args[:split]), args[split + 1 :]
    library = Path(
        os.environ.get("XLA_GPU_LIBRARY", ROOT / "build" / "release" / "libxla_gpu.so")
    ).absolute()  # under this name: TVM-FFI loads what ends in .so
    if not library.is_file():
        print(f"compat: {library} is missing; run make build")
        return 2
    jobs = ["-n", str(len(os.sched_getaffinity(0))), "--dist", "loadgroup"]
    rows, failures, tested = [], 0, 0
    for release in releases:
        start = time.monotonic()
        print(f"compat: {release.name} ...", flush=True)
        python, why_not = set_up(release)
        if python is None:
            rows.append((release, f"SKIPPED: {why_not}", ""))
            print(f"compat: SKIPPED {release.name}: {why_not}", flush=True)
            continue
        tested += 1
        passed, summary = run_tests(release, python, library, pytest_args or jobs)
        if release.framework == "torch":
            shutil.rmtree(VENVS / release.name)
        failures += not passed
        seconds = f"{time.monotonic() - start:.0f} s"
        rows.append((release, ("" if passed else "FAILED: ") + summary, seconds))
    print(f"\ncompat: one library, {library.name}, {library.stat().st_size // 1024} KiB")
    for release, summary, seconds in rows:
        print(f"  {release.name:14} Python {release.python}  {summary}  {seconds}")
    return 1 if failures or tested == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
