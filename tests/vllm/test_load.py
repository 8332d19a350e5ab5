"""A minute of mixed load: tests/gpu/vllm_suite.py asks for more on a GPU."""

import json
import sys

from server import ROOT, run


def test_a_minute_of_mixed_load():
    suite = ROOT / "tests/gpu/vllm_suite.py"
    done = run(sys.executable, suite, "load", "--seconds", "60", seconds=400)
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-4000:]}"
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("load: {"))
    assert json.loads(line.removeprefix("load: "))["answered"] > 100
