"""Runs what the documentation shows: the fenced blocks of a Markdown page, in order.

A block of ```python, ```sh or ```cpp is run unless a marker in the line before its fence says
otherwise:

  <!-- test: setup -->           commands of a set-up: only that its make targets and extras exist
  <!-- test: gpu -->             run only where there is an NVIDIA GPU
  <!-- test: needs MODULES -->   run only where these Python modules are installed
  <!-- test: fails TEXT -->      it must fail, and say TEXT
  <!-- test: file NAME -->       a file, written as NAME into the page's folder, where blocks run
  <!-- test: excerpt PATH -->    it must occur in this file of the repository
  <!-- test: output -->          what the block before it prints ("..." stands for anything)
  <!-- test: command COMMAND --> not a block: the table that follows must be in COMMAND's output
  <!-- test: elsewhere NAME -->  the test of this name in tests/docs runs it

Blocks of other languages (text, mlir, ...) need no marker and are not run.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("XLA_GPU_LIBRARY", ROOT / "build/release/libxla_gpu.so")).parent
RUN_LANGUAGES = {"python", "sh", "cpp"}
MARKER = re.compile(r"<!-- test: (\w+) ?(.*?) -->$")


@dataclasses.dataclass
class Block:
    """One fenced block, or the table after a `command` marker."""

    line: int
    language: str
    kind: str
    argument: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page and the tables under test, in order."""
    blocks = []
    lines = page.read_text().splitlines()
    marker = ("run", "")
    i = 0
    while i < len(lines):
        found = MARKER.match(lines[i])
        if found:
            marker = (found[1], found[2])
        elif lines[i].startswith("```"):
            language = lines[i][3:].strip()
            start = i + 1
            i = lines.index("```", start)
            text = "\n".join(lines[start:i]) + "\n"
            blocks.append(Block(start, language, *marker, text))
            marker = ("run", "")
        elif marker[0] == "command" and lines[i].startswith("|"):
            start = i
            while i < len(lines) and lines[i].startswith("|"):
                i += 1
            text = "\n".join(lines[start:i]) + "\n"
            blocks.append(Block(start + 1, "", *marker, text))
            marker = ("run", "")
        i += 1
    return blocks


def environment() -> dict[str, str]:
    """As a user has it with the virtual environment active and the program on PATH."""
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)
    env.update(
        PATH=f"{BUILD}:{Path(sys.executable).parent}:{env['PATH']}",
        PYTHONPATH=str(ROOT / "python"),
        XLA_GPU_LIBRARY=str(BUILD / "libxla_gpu.so"),
        VIRTUAL_ENV=sys.prefix,
    )
    return env


def has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


class PageRunner:
    """Runs a page's blocks in one folder that looks like the repository's root."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.printed = ""
        for entry in ROOT.iterdir():
            if entry.name not in {".git", "build"}:
                (folder / entry.name).symlink_to(entry)
        (folder / "build").mkdir()
        (folder / "build/release").symlink_to(BUILD)

    def run(self, block: Block) -> str | None:
        """Runs one block; gives why it was left out, or None. AssertionError if it is wrong."""
        method = getattr(self, f"_{block.kind}", None)
        assert method is not None, f"unknown marker: test: {block.kind}"
        return method(block)

    def _execute(self, block: Block) -> subprocess.CompletedProcess[str]:
        command = {
            "python": [sys.executable, "-c", block.text],
            "sh": ["bash", "-euo", "pipefail", "-c", block.text],
        }.get(block.language)
        assert command, f"a {block.language} block needs a marker (file, excerpt, ...)"
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
        )

    def _run(self, block: Block) -> None:
        if block.language not in RUN_LANGUAGES:
            return
        done = self._execute(block)
        assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}"
        self.printed = done.stdout

    def _fails(self, block: Block) -> None:
        done = self._execute(block)
        assert done.returncode != 0, f"it succeeded:\n{done.stdout}"
        assert block.argument in done.stdout, done.stdout
        self.printed = done.stdout

    def _gpu(self, block: Block) -> str | None:
        if not has_gpu():
            return "needs an NVIDIA GPU"
        self._run(block)
        return None

    def _needs(self, block: Block) -> str | None:
        missing = [name for name in block.argument.split() if not importlib.util.find_spec(name)]
        if missing:
            return f"needs {', '.join(missing)}"
        self._run(block)
        return None

    def _setup(self, block: Block) -> None:
        for line in block.text.splitlines():
            command = line.split("#")[0].split()
            if command and command[0] == "make":
                subprocess.run(
                    ["make", "--dry-run", *command[1:]], cwd=ROOT, check=True, capture_output=True
                )
            for extra in re.findall(r"'\.\[([\w-]+)\]'", line):
                extras = (ROOT / "pyproject.toml").read_text()
                assert f"\n{extra} = [" in extras, f"pyproject.toml has no extra '{extra}'"

    def _file(self, block: Block) -> None:
        file = self.folder / block.argument
        assert not file.exists(), f"{block.argument} exists in the repository"
        file.write_text(block.text)

    def _excerpt(self, block: Block) -> None:
        assert block.text in (ROOT / block.argument).read_text(), f"not in {block.argument}"

    def _output(self, block: Block) -> None:
        pattern = re.escape(block.text.strip()).replace(re.escape("..."), ".*")
        pattern = re.sub(r"(\\ ){2,}", r"\\ {2,}", pattern)  # columns are as wide as numbers need
        assert re.search(pattern, self.printed, re.DOTALL), f"what was printed:\n{self.printed}"

    def _command(self, block: Block) -> None:
        done = subprocess.run(
            block.argument.split(), env=environment(), text=True, check=True, capture_output=True
        )
        assert block.text in done.stdout, f"{block.argument} prints:\n{done.stdout}"

    def _elsewhere(self, block: Block) -> str:
        tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
        assert f"def {block.argument}(" in tests, f"there is no test {block.argument}"
        return f"run by {block.argument}"
