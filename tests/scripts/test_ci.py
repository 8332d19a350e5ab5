"""The workflow runs each part of .ci/run, and once."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_workflow_runs_every_part():
    parts = re.findall(r"^part_(\w+)\(\)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    parts.remove("setup")
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    (jobs,) = re.findall(r"parts: \[(.*)\]", workflow)
    assert sorted(re.findall(r"\w+", jobs)) == sorted(parts)
