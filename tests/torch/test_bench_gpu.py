"""benchmarks/bench_gpu.py on the CPU with tiny shapes: the code that measures, not its figures."""

import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))

import bench_gpu
from peers import cases, inputs, kernels, timing
from peers.results import load

SIZES = {"q_heads": 4, "kv_heads": 2, "head_dim": 16, "page": 4}
TINY = [
    cases._decode("Decode", 2, 20, **SIZES, dtype="float32", cache="float32", asked=1.0),
    cases._case("mixed", "Mixed", [5, 1, 1], [9, 1, 30], **SIZES),
    cases._prefill("Prefill", 2, 24, **SIZES, sustained=True, asked={"contiguous": 1.1}),
    cases._decode("fp8", 3, 40, **SIZES, cache=cases.FP8, asked={"paged": 1.6, "any": 1.05}),
    cases._chunk("Window", 5, 40, **SIZES, window=7),
    cases._prefill("Options", 2, 24, **SIZES, soft_cap=50.0, asked={"own": None}),
    cases._decode("Options", 2, 20, **SIZES, invariant=True, asked={"own": None}),
    cases._decode("Options", 3, 20, **SIZES, unaligned=True, asked={"own": None}),
    cases._case("update 12", "Update", [12], [12], update=True, asked={"copy": None}),
]


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.setattr(cases, "CASES", TINY)

    def call(*arguments):
        options = ["--device", "cpu", "--quick", "--no-steps", "--out", str(tmp_path)]
        return bench_gpu.main([*options, *arguments])

    return call


def test_ours_is_right_and_timed_on_every_tiny_case(run, tmp_path, capsys):
    assert run() == 0
    results = load(tmp_path / "results.json")
    assert [row.case for row in results.rows] == TINY
    for row in results.rows:
        for name in ("ours", "ours, K and V apart"):
            if row.case.own and name != "ours":
                assert name not in row.measured
                continue
            found = row.measured[name]
            if row.case.update and name != "ours":
                assert found.unsupported
                continue
            assert found.failed == ""
            assert found.low <= found.median <= found.high
            assert found.error < 1e-2
    update = results.rows[-1]
    assert update.measured["copy"].median > 0
    assert update.measured["ours"].error == 0.0
    for row in results.rows:
        plain, reads = row.measured["ours, plain"], row.ranked("read")
        assert (plain.median is not None) == ("own" in row.case.asked), plain.failed
        assert len(reads) == (2 if row.case.reads else 0)
    dense = results.rows[2].measured["SDPA, contiguous"]
    assert dense.group == "contiguous" and dense.median > 0
    page = (tmp_path / "README.md").read_text()
    for name, found in results.peers.items():
        assert f"- {name}: missing: " in page if "missing" in found else f"- {name}: " in page
    assert "missing" in results.peers["FA3"]
    # Again: nothing is left; the page is made again from the results alone.
    capsys.readouterr()
    assert run() == 0
    assert "0 of 9 cases" in capsys.readouterr().out
    again = tmp_path / "again"
    again.mkdir()
    assert bench_gpu.main(["--from", str(tmp_path), "--out", str(again)]) == 0
    for name in ("README.md", "ratio.svg", "roofline.svg"):
        assert (again / name).read_text() == (tmp_path / name).read_text()


def test_shapes_seconds_and_another_machine(run, tmp_path, capsys):
    assert run("--shapes", "^Mixed", "--peers", "SDPA", "--commit", "1a2b3c") == 0
    assert "1 of 1 cases" in capsys.readouterr().out
    assert run("--seconds", "-1") == 0
    assert "8 cases left: run again" in capsys.readouterr().out
    file = tmp_path / "results.json"
    plain = json.loads(file.read_text())
    assert [found["commit"] for found in plain["runs"]] == ["1a2b3c", bench_gpu.commit()]
    assert "--shapes ^Mixed" in plain["runs"][0]["options"].replace("'", "")
    plain["facts"]["device"] = "another"
    file.write_text(json.dumps(plain))
    assert run() == 1
    assert "give --again" in capsys.readouterr().out


def test_failures_are_listed_and_the_next_run_leaves_out_who_killed_it(run, tmp_path, monkeypatch):
    def wrong(given):
        zeros = torch.zeros_like(given.q)
        return kernels.Call(lambda copy: None, lambda: zeros)

    def raises(given):
        raise RuntimeError("no kernel | for this")

    def kills(given):
        raise SystemExit(3)

    def missing():
        raise ImportError("no such package")

    ours = kernels.PEERS[0]
    there = [("wrong", wrong), ("raises", raises), ("kills", kills)]
    peers = [kernels.Peer(name, lambda: "1", prepare) for name, prepare in there]
    peers.append(kernels.Peer("absent", missing, wrong))
    monkeypatch.setattr(kernels, "PEERS", [ours, *peers])
    shape = ("--shapes", "^Mixed")
    with pytest.raises(SystemExit):
        run(*shape)
    assert run(*shape) == 0
    (row,) = load(tmp_path / "results.json").rows
    assert row.measured["wrong"].failed.startswith("wrong: differs by 1 of the norm")
    assert row.measured["raises"].failed == "RuntimeError: no kernel | for this"
    assert row.measured["kills"].failed.startswith("ended the process")
    assert row.measured["ours"].median > 0
    assert row.best("paged") is None
    page = (tmp_path / "README.md").read_text()
    assert "- absent: missing: ImportError: no such package" in page
    assert "- kills, mixed, 4/2 heads, head_dim 16, page 4: ended the process" in page


def test_bench_without_ours_fails(run, monkeypatch, capsys):
    def missing():
        raise ImportError("no library")

    monkeypatch.setattr(kernels, "PEERS", [kernels.Peer("ours", missing, kernels._ours)])
    assert run() == 1
    assert "ours cannot be called: ImportError: no library" in capsys.readouterr().out


def test_reference_sees_window_and_causal_mask():
    case = cases._chunk("Window", 5, 40, **SIZES, window=7, dtype="float32", cache="float32")
    given = inputs.Inputs(case, "cpu", cold_bytes=1)
    k, v = (part.double().repeat_interleave(2, dim=1) for part in given.contiguous(0))
    want = []
    for row in range(5):
        seen = slice(35 + row - 6, 35 + row + 1)
        logits = torch.einsum("hd,khd->hk", given.q[row].double(), k[seen]) * case.scale
        want.append(torch.einsum("hk,khd->hd", logits.softmax(-1), v[seen]))
    torch.testing.assert_close(given.want, torch.stack(want)[given.rows])
    assert given.error(torch.stack(want)) < 1e-12
    assert given.error(torch.zeros(5, 4, 16)) == 1.0
    assert not given.error(torch.full((5, 4, 16), float("nan"))) <= 1.0


def test_copies_are_as_many_as_the_cold_cache_needs():
    case = cases._decode("Decode", 2, 20, **SIZES)
    assert inputs.Inputs(case, "cpu", cold_bytes=5 * case.bytes()).copies == 5
    assert inputs.Inputs(case, "cpu", cold_bytes=1).copies == 2
    assert inputs.Inputs(case, "cpu", cold_bytes=1 << 30).copies == inputs.MOST_COPIES


def test_turns_are_in_another_order_each_round():
    begun = []

    class Fake:
        def __init__(self, name):
            self.name = name

        def seconds(self):
            begun.append(self.name)
            return float(len(begun))

        def sustained(self, seconds):
            begun.append(self.name)
            return seconds

    fakes = {name: Fake(name) for name in "abcd"}
    times = timing.by_turns(fakes, rounds=20)
    orders = ["".join(begun[i : i + 4]) for i in range(0, len(begun), 4)]
    assert len(orders) == 21 and all(sorted(order) == list("abcd") for order in orders)
    assert {order[0] for order in orders} == {order[-1] for order in orders} == set("abcd")
    assert {place for order in orders if (place := order.find("ab")) >= 0} == {0, 1, 2}
    assert all(len(some) == 20 and some == sorted(some) for some in times.values())
    assert min(some[0] for some in times.values()) == 5.0  # what warms up is not counted
    assert timing.sustained_by_turns(fakes, 2, 0.5) == {name: [0.5, 0.5] for name in "abcd"}


def test_random_cases_can_be_built(monkeypatch):
    for case in cases.random_cases(4, seed=7):
        if sum(case.contexts) * case.kv_heads * case.head_dim < 1 << 22:
            given = inputs.Inputs(case, "cpu", cold_bytes=1)
            call = kernels.PEERS[0].prepare(given)
            call.run(0)
            assert given.error(call.result()) < 1e-2, case.name


def test_operators_are_called_by_the_names_that_their_release_has():
    library = torch.library.Library("bench_gpu_test", "DEF")
    library.define("fwd(Tensor q, Tensor? absent, float softcap, int more=3) -> Tensor")
    library.impl("fwd", lambda q, absent, softcap, more=3: q * softcap + more, "CPU")
    call = kernels._by_name(torch.ops.bench_gpu_test.fwd, {"softcap": 2.0, "unknown": 1})
    assert call(q=torch.ones(1)).item() == 5.0
