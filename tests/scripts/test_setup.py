"""scripts/setup.sh and requirements/: nothing is installed that was not named before."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted(path for path in (ROOT / "requirements").glob("*.in"))


def requirements_of(path):
    """Each requirement of a file, its lines joined."""
    text = re.sub(r"#.*", "", path.read_text()).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip()]


def name_of(requirement):
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


@pytest.mark.parametrize("source", LOCKS, ids=lambda path: path.stem)
def test_every_package_is_pinned_with_its_hashes(source):
    locked = requirements_of(source.with_suffix(".txt"))
    for requirement in locked:
        assert re.match(r"\S+==\S+ ", requirement), requirement
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", requirement), requirement
    versions = {(name_of(r), re.search(r"==(\S+)", r)[1]) for r in locked}
    for requirement in requirements_of(source):
        exact = re.search(r"==([^\s;]+)", requirement)
        found = [v for name, v in versions if name == name_of(requirement)]
        assert found and (exact is None or exact[1] in found), (
            f"{requirement} is not in {source.stem}.txt: run scripts/lock.sh {source.stem}"
        )


def test_pip_is_given_nothing_without_hashes():
    """Whoever installs by pip here, or says why not, takes a file with hashes."""
    for path in [ROOT / "scripts/setup.sh", ROOT / "cmake/xla_headers.cmake"]:
        commands = re.findall(r"-m pip install(?:[^)\n]|\n\s+-)*", path.read_text())
        assert commands and all("--require-hashes" in command for command in commands), path


@pytest.fixture
def stubs(tmp_path):
    """A folder for PATH: commands of a machine where nothing is installed and root asks."""
    for name, body in {
        "dpkg-query": "exit 1",
        "id": "echo 0",
        "apt-get": 'case "$*" in *--simulate*) printf "Inst a (1)\\nInst b (2)\\nConf a (1)\\n" ;; '
        '*) echo "RUN $*" >&2 ;; esac',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_what_apt_installs_is_said_before(stubs):
    done = subprocess.run(
        ["bash", ROOT / "scripts/setup.sh", "system", "build"],
        env={**os.environ, "PATH": f"{stubs}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    missing, update, said, install = done.stdout.splitlines()
    assert missing.startswith("-- missing packages: cmake ") and "python3-venv" in missing
    assert update.startswith("RUN ") and update.endswith(" update")
    assert said == "-- installing with apt-get, with all that they need: a b"
    assert install.startswith("RUN ") and " install " in install


def test_an_old_python_is_refused_by_name(tmp_path):
    old = tmp_path / "python3.10"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.10.13" && exit\nexit 1\n')
    old.chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/setup.sh").write_bytes((ROOT / "scripts/setup.sh").read_bytes())
    done = subprocess.run(
        ["bash", tmp_path / "scripts/setup.sh", "venv", "test"],
        env={**os.environ, "BASE_PYTHON": str(old)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Python 3.10.13; requirements/*.txt are for 3.11 and newer" in done.stderr
