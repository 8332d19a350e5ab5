"""The benchmarks' code, with sizes that measure nothing: tables are whole, failures are shown."""

import pathlib
import sys
import time

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


def test_cpu_table(problem):
    row = cpu.measure(problem, budget=0.001, gibibytes=0.01)
    assert row["rates"]["ours"] > 0
    assert row["bandwidth"] > 0
    text = "\n".join(cpu.table([row]))
    assert str(problem) in text


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
        c.name: gpu.measure_one(c, problem, args, want, deadline, calls=2) for c in gpu.COMPETITORS
    }
    assert row["ours"].seconds > 0
    assert row["ours"].difference < 1e-5
    if jax.default_backend() == "cpu":
        assert row["JAX cuDNN"].seconds is None
        assert row["JAX cuDNN"].error
    path = tmp_path / "gpu.md"
    gpu.write(path, "a test", [(problem, row)])
    for name in row:
        assert name in path.read_text()


def test_gpu_stops_at_its_deadline(problem):
    measured = gpu.measure_one(gpu.COMPETITORS[0], problem, problem.make(), None, 0.0, calls=2)
    assert measured.error == "not measured: time is up"
