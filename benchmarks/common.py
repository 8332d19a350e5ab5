"""What the programs here share, without a framework."""

from __future__ import annotations

import argparse
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def folder_of(parser: argparse.ArgumentParser, argv: list[str] | None) -> argparse.Namespace:
    """The options of `parser` and those of every benchmark; its folder for results is there."""
    parser.add_argument("--from", dest="saved", type=pathlib.Path, help="results; measure nothing")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the code")
    parser.add_argument(
        "--out", type=pathlib.Path, default=ROOT / "build" / "bench", help="folder for results"
    )
    parser.add_argument(
        "--update",
        dest="out",
        action="store_const",
        const=ROOT / "docs" / "benchmarks",
        help="write over the repository's tables in docs/benchmarks instead",
    )
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def cpu_name() -> str:
    """The processor's name as Linux gives it, on x86 its family and model, for the name may tell
    little, and what its speed hangs on most.
    """
    facts = dict(
        map(str.strip, line.split(":", 1))
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        if ":" in line
    )
    flags = set(facts.get("flags", "").split())
    named = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    name = facts.get("model name", platform.processor())
    if "cpu family" in facts:
        name = f"{name}, family {facts['cpu family']}, model {facts['model']}"
    return f"{name} ({', '.join(named)})" if named else name


def commit() -> str:
    """The checkout's commit, "+" behind it where files differ; "unknown" without git."""
    described = ["git", "-C", str(ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
