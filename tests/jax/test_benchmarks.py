"""The benchmarks' code, with sizes that measure nothing: tables are whole, failures are shown."""

import pathlib
import sys
import time
import xml.etree.ElementTree

import jax
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))

import cpu
import decode_layer
import gpu
from workloads import Problem, jnp_gather

SIZES = {"q_heads": 4, "kv_heads": 2, "head_dim": 16, "page_size": 4}


@pytest.fixture(params=[False, True], ids=["decode", "prefill"])
def problem(request):
    return Problem(2, 24, "float32", prefill=request.param, **SIZES)


def test_gather_is_the_same_attention(problem):
    args = problem.make()
    ours = gpu._ours(problem)[""](args["query"], gpu._without_query(problem, args))
    np.testing.assert_allclose(ours, jnp_gather(problem, args), rtol=1e-5, atol=1e-5)


def chart_of(path):
    """The chart's words and its bars by class."""
    root = xml.etree.ElementTree.parse(path).getroot()
    words = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    return words, [e.get("class") for e in root.iter("{http://www.w3.org/2000/svg}rect")]


def test_cpu_results_are_saved_and_made_again(problem, tmp_path):
    row = cpu.measure(problem, budget=0.001, shrink=64)
    assert row["rates"]["ours, paged"] > 0
    (limit,) = row["ceilings"].values()
    assert limit > 0
    facts = {"machine": "a test", "jax": "0", "torch": "none", "how": "so"}
    facts["overhead_us"] = {"empty": 1.0}
    cpu.save(tmp_path, facts, [row])
    assert str(problem) in (tmp_path / "cpu.md").read_text()
    again = tmp_path / "again"
    cpu.main(["--from", str(tmp_path / "cpu.json"), "--out", str(again)])
    for name in ("cpu.json", "cpu.md", "cpu.svg"):
        assert (again / name).read_text() == (tmp_path / name).read_text()
    words, bars = chart_of(again / "cpu.svg")
    assert bars.count("ours") == 1
    assert any(f": {limit:.3g}" in text for text in words)


@pytest.mark.parametrize("module", [cpu, gpu], ids=["cpu", "gpu"])
def test_tracked_tables_are_those_of_their_results(module, tmp_path):
    docs = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
    for saved in [docs / "cpu.json"] if module is cpu else sorted(docs.glob("h*.json")):
        module.main(["--from", str(saved), "--out", str(tmp_path)])
        for made in tmp_path.glob(f"{saved.stem}.*"):
            assert made.read_text() == (docs / made.name).read_text(), f"--from {saved} --update"


def test_decode_layer_prints_a_line_a_shape(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["decode_layer.py", "2", "20", "3", "5", "--layers", "1"])
    decode_layer.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert "us a layer" in first
    assert [line.split()[:3] for line in lines] == [["2", "x", "20"], ["3", "x", "5"]]


def test_gpu_table_shows_each_competitor_or_its_error(problem, tmp_path):
    args = problem.make()
    want = gpu.reference(problem, args)
    deadline = time.monotonic() + 60
    row = {
        c.name: gpu.measure_one(c, problem, args, want, deadline, budget=0.0)
        for c in gpu.COMPETITORS
    }
    assert row["ours, paged"].seconds > 0
    assert row["ours, paged"].difference < 1e-5
    if jax.default_backend() == "cpu":
        assert row["cuDNN, paged"].seconds is None
        assert row["cuDNN, paged"].error
    path = tmp_path / "gpu.md"
    facts = {"device": "a test", "jax": "0", "how": "so", "ceilings": gpu.ceilings("H200", 4096)}
    gpu.save(path, facts, [(problem, row)])
    words, bars = chart_of(tmp_path / "gpu.svg")
    assert bars.count("ours") == 1
    for name in row:
        assert name in path.read_text()
        assert name in words


def test_gpu_stops_at_its_deadline(problem):
    measured = gpu.measure_one(gpu.COMPETITORS[0], problem, problem.make(), None, 0.0, 0.0)
    assert measured.error == "not measured: time is up"
