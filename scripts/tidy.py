"""clang-tidy over every source of the library and the program.

A file whose preprocessed text and settings are as in its last clean run is skipped. With
--seconds, files that changed since origin/main come first and the rest as time allows.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "xla_gpu_tidy"
SKIPPED = re.compile(r"_(test|fuzz|bench)\.cc$")


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def changed_files() -> set[str]:
    """Sources that differ from origin/main; none if there is no such branch."""
    try:
        return set(output_of("git", "diff", "--name-only", "--merge-base", "origin/main").split())
    except subprocess.CalledProcessError:
        return set()


def fingerprint(entry: dict[str, str], settings: bytes) -> str:
    """A digest of all that clang-tidy's verdict on one compilation depends on."""
    command = shlex.split(entry["command"])
    command = command[command[0].endswith("ccache") :]
    output = command.index("-o")
    del command[output : output + 2]
    command[command.index("-c")] = "-E"
    text = subprocess.run(command, cwd=entry["directory"], capture_output=True, check=True).stdout
    return hashlib.sha256(settings + text).hexdigest()


def check(entry: dict[str, str], settings: bytes, deadline: float) -> tuple[str, str]:
    """Runs clang-tidy on one compilation; gives the verdict and what it printed."""
    if time.monotonic() > deadline:
        return "skipped", ""
    mark = CACHE / fingerprint(entry, settings)
    if mark.exists():
        return "cached", ""
    run = subprocess.run(
        ["clang-tidy", "--quiet", "-p", "build/release", entry["file"]],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if run.returncode != 0:
        return "found", run.stdout + run.stderr
    CACHE.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return "clean", ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    settings = (ROOT / ".clang-tidy").read_bytes()
    settings += output_of("clang-tidy", "--version").encode()

    entries = json.loads((ROOT / "build/release/compile_commands.json").read_text())
    sources = ROOT / "src"
    entries = {
        name: entry
        for entry in entries
        if (path := Path(entry["file"])).is_relative_to(sources)
        and not SKIPPED.search(name := str(path.relative_to(ROOT)))
    }
    changed = changed_files()
    order = sorted(entries, key=lambda name: (name not in changed, name))
    counts = dict.fromkeys(("clean", "cached", "skipped", "found"), 0)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {name: pool.submit(check, entries[name], settings, deadline) for name in order}
        for run in runs.values():
            verdict, text = run.result()
            counts[verdict] += 1
            if text:
                print(text)
    print("clang-tidy:", ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
