"""The benchmarks' code, with sizes that measure nothing: tables are whole, failures are shown."""

import collections
import dataclasses
import json
import pathlib
import re
import sys
import time
import xml.etree.ElementTree

import jax
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))

import bench_gpu
import cpu
import cpu_page
import decode_layer
import decode_step_jax
import gpu
import own_kernels
import roads
import roads.trial
from peers import cases, plots, report, targets
from peers.results import Measured, Results, Row, load
from workloads import Mixed, Problem, jnp_gather

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
    assert len(row["ceilings"]) == (1 if problem.prefill else 2)
    limit = min(row["ceilings"].values())
    assert limit > 0
    facts = {"machine": "a test", "cores": 1, "jax": "0", "torch": "none", "how": "so"}
    facts["overhead_us"] = {"empty": 1.0}
    facts["scaling"] = [{"cores": 1, "decode": 2.0}, {"cores": 4, "decode": 6.0}]
    cpu.save(tmp_path, facts, [row])
    assert str(problem) in (tmp_path / "cpu.md").read_text()
    assert "| decode | 2 (1.0x) | 6 (3.0x) |" in (tmp_path / "cpu.md").read_text()
    again = tmp_path / "again"
    cpu.main(["--from", str(tmp_path / "cpu.json"), "--out", str(again)])
    for name in ("cpu.json", "cpu.md", "cpu.svg"):
        assert (again / name).read_text() == (tmp_path / name).read_text()
    words, bars = chart_of(again / "cpu.svg")
    assert bars.count("ours") == 1
    assert any(f": {limit:.3g}" in text for text in words)


def test_cpu_measures_a_prompt_beside_decodes(tmp_path):
    problem = Mixed(3, 24, "float32", prompt=9, **SIZES)
    row = cpu.measure(problem, budget=0.001, shrink=64)
    assert all(error < 1e-5 for error in row["errors"].values())
    facts = {"machine": "", "cores": 1, "jax": "", "torch": "", "how": "", "overhead_us": {}}
    cpu.save(tmp_path, facts, [row])
    assert cpu.load(tmp_path / "cpu.json")[1][0]["problem"] == problem


def test_cpu_page_says_what_is_asked_and_what_binds():
    def row(problem, ours, read=0.0, arithmetic=0.0, **peers):
        limits = (
            {cpu_page.READ: read, cpu_page.ARITHMETIC: arithmetic} if read else {"product": 1.0}
        )
        rates = {"ours, paged": ours} | peers
        return {
            "problem": problem,
            "rates": rates,
            "errors": dict.fromkeys(rates, 0.0),
            "ceilings": limits,
        }

    wide, narrow = (Problem(8, 4096, dtype) for dtype in ("bfloat16", "float8_e5m2"))
    prompt = Problem(1, 2048, "bfloat16", prefill=True)
    rows = [
        *(row(wide, 40.0, 50.0, 60.0), row(narrow, 36.0, 50.0, 40.0)),
        row(prompt, 300.0, **{"torch SDPA, gathered": 100.0, "torch SDPA, head-major": 150.0}),
        *(row(wide, 45.0, 50.0, 60.0), row(narrow, 41.0, 50.0, 40.0)),
        row(prompt, 300.0, **{"torch SDPA, gathered": 100.0, "torch SDPA, head-major": 160.0}),
    ]
    assert (
        "| decode 8x4096 bfloat16 | **40, 45**, error 0e+00 | 50, 50 (ours: 80%, 90%) |"
        in "".join(cpu_page.table(rows))
    )
    assert cpu_page.asked_table(rows, "AMD (avx512_bf16)", cores=2)[3:] == [
        "| decode 8x4096 bfloat16, of the read bandwidth | 85% | 80%, 90% | 1 of 2 |"
        " memory, read (ours: 80%, 90%) |",
        "| decode 8x4096 float8_e5m2, GB/s a core | 20 | 18, 20.5 | 1 of 2 |"
        " arithmetic, pages in L2 (ours: 90%, 102%) |",
        "| decode 8x4096 float8_e5m2, of bfloat16's tokens a second | 1.60x | 1.80x, 1.82x |"
        " 2 of 2 | arithmetic, pages in L2 (ours: 90%, 102%) |",
        "| prefill 1x2048 bfloat16, of torch SDPA's speed | 2.00x | 2.00x, 1.88x | 1 of 2 | - |",
    ]
    assert "| 1.10x |" in cpu_page.asked_table(rows, "Intel (avx512_bf16, amx_bf16)", cores=2)[-1]


@pytest.mark.parametrize("module", [cpu, gpu], ids=["cpu", "gpu"])
def test_tracked_tables_are_those_of_their_results(module, tmp_path):
    docs = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
    for saved in sorted(docs.glob("cpu*.json" if module is cpu else "h*.json")):
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


def recorded():
    """A run of five cases; the figures are round numbers, of no machine."""
    us = 1e-6
    decode, prefill, update, bound, single = (
        next(case for case in cases.CASES if case.name == name)
        for name in (
            "decode 64x4096",
            "prefill 4x4096",
            "update 8192",
            "decode 128x4096",
            "prefill 4x4096, f32",
        )
    )
    ours = Measured("ours", 240 * us, 239 * us, 242 * us, 2e-3)
    peer = Measured("paged", 252 * us, 250 * us, 255 * us, 2e-3)
    missing = Measured(failed="takes decode only", unsupported=True)
    wrong = Measured("paged", failed="wrong: differs by 0.5 of the norm; allowed is 0.01")
    rows = [
        Row(decode, 0, {"ours": ours, "FA3": peer, "SDPA": missing, "broken": wrong}),
        Row(
            prefill,
            0,
            {
                "ours": Measured("ours", 1000 * us, 990 * us, 1050 * us, 2e-3),
                "FA3": Measured("paged", 1100 * us, 1090 * us, 1120 * us, 2e-3),
                "SDPA": Measured("contiguous", 1090 * us, 1080 * us, 1110 * us, 2e-3),
            },
        ),
        Row(update, 0, {"ours": Measured(failed="Error: a | b"), "copy": Measured("copy", us)}),
        Row(
            bound,
            0,
            {
                "ours": Measured("ours", 500 * us, 490 * us, 510 * us),
                "FA3": Measured("paged", 505 * us),
                "cuDNN": Measured("paged", 510 * us),
                "read, one wave": Measured("read", 500 * us),
                "read, a block a part": Measured("read", 490 * us),
                "broken": wrong,
            },
        ),
        Row(single, 0, {"ours": Measured("ours", 4000 * us, 4000 * us, 4000 * us)}),
    ]
    found = {"FA3": {"version": "3"}, "XQA": {"missing": "ImportError: none"}}
    ceilings = {"read": 4.5e12, "copy": 4.2e12, "product": 7.5e14, "product, sustained": 6.8e14}
    steps = [
        {"attention": "ours", "calls": True, "layers": 32, "ms": 1.03, "kernels_ms": 1.0},
        {"attention": "ours", "layers": 32, "ms": 5.4, "first": [3.0, 4.0]},
        {"attention": "pallas", "layers": 32, "ms": 7.5, "first": [3.0, 4.1]},
        {"attention": "flash-attn3-jax", "layers": 32, "ms": 6.0, "xla_flags": "--a"}
        | {"versions": {"jax": "1", "flash-attn3-jax": "2"}, "host_calls": 0},
        {"attention": "cudnn", "calls": False, "failed": "Error: a | b"},
    ]
    run = {"ceilings": ceilings, "commit": "1a2b3c", "options": "--shapes ^Decode"}
    return Results({"device": "a test"}, found, [run], rows, steps)


def test_peers_table_says_met_missing_and_failed(tmp_path):
    results = recorded()
    decode, prefill, update, bound, single = results.rows
    assert results.ratio(decode, "paged") == pytest.approx(252 / 240)
    assert results.verdict(decode, "paged") == "met"  # 1.04 is asked
    assert results.ratio(decode, "ceiling") == pytest.approx(decode.case.bytes() / 240e-6 / 4.5e12)
    assert results.ratio(prefill, "paged") == pytest.approx(1.1)
    assert results.verdict(prefill, "paged") == "not met"
    assert results.verdict(prefill, "contiguous") == "met"
    assert results.verdict(update, "copy") == "not measured"
    assert results.verdict(update, "paged") == "-"
    assert results.verdict(bound, "paged") == "not met: at the speed of a plain read"
    assert results.verdict(single, "TFLOP/s") == "met"  # 120 is asked
    page = report.page(results)
    assert "4 of the 8 lines that ask for a ratio reach it." in page
    assert "Of the others 2 run at the speed of a plain read" in page
    whole = "| FA3 | 252.0 | 240.0 | 239.0 to 242.0 | **1.05** | 1.04 | met | - | 4.47 TB/s (99%) |"
    assert whole in page
    assert "| 1.01 | 1.04 | not met: at the speed of a plain read | 490.0 (98%, 1.03) |" in page
    assert "| TFLOP/s | - | - | 4000.0 |" in page
    assert "| cuDNN 510.0 |" in page  # neither ours nor the best
    assert "| SDPA | 1090.0 | 1000.0 | 990.0 to 1050.0 | **1.09** | 1.08 | met |" in page
    assert "- XQA: missing: ImportError: none" in page
    assert "- broken, 2 cases: wrong: differs by 0.5" in page
    assert "takes decode only" not in page
    assert "sustained 680. Commit 1a2b3c, options `--shapes ^Decode`." in page
    assert "| pallas | 32 | 7.500 | 0.02 | - |" in page
    made = "jax 1, flash-attn3-jax 2, XLA_FLAGS=--a, 0 of our calls made by the host"
    assert f"| flash-attn3-jax | 32 | 6.000 | - | {made} |" in page
    assert "| cudnn | - | Error: a / b | - | - |" in page
    assert "graph of torch's 1.000: 1.030 of their kernels, 1.03 is asked." in page
    assert "Error: a / b" in page  # in a cell
    path = tmp_path / "results.json"
    results.save(path)
    assert load(path) == results
    assert bench_gpu.main(["--from", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text() == page
    words, bars = chart_of(tmp_path / "ratio.svg")
    assert "1.05 of 1.04" in words and "1.09 of 1.08, contiguous" in words
    assert bars.count("met") == 2 and bars.count("unmet") == 5
    root = xml.etree.ElementTree.parse(tmp_path / "roofline.svg").getroot()
    points = [e.get("class") for e in root.iter("{http://www.w3.org/2000/svg}circle")]
    assert sorted(points) == ["point-ours"] * 4 + ["point-peer"] * 3


def test_a_step_says_its_versions_and_who_calls(monkeypatch, capsys):
    """The Host has no command buffers: all three layers' two calls are made."""
    monkeypatch.setattr(sys, "argv", ["decode_step_jax.py", "--small", "--steps", "1"])
    decode_step_jax.main()
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["jax"] == jax.__version__
    assert found["host_calls"] == 6 or jax.default_backend() != "cpu"


def test_plots_of_a_run_without_results():
    xml.etree.ElementTree.fromstring(plots.ratios(Results({})))
    xml.etree.ElementTree.fromstring(plots.roofline(Results({})))


def test_cases_are_distinct_and_count_their_work():
    names = [case.name for case in cases.CASES]
    assert len(set(names)) == len(names)
    for case in cases.CASES:
        assert set(case.asked) <= {*cases.AGAINST, *cases.RATES}, case.name
        assert len(case.queries) == len(case.contexts)
        assert case.update or all(q <= c for q, c in zip(case.queries, case.contexts, strict=True))
    by_name = {case.name: case for case in cases.CASES}
    assert by_name["decode 64x4096"].bytes() == 64 * 4096 * 2 * 8 * 128 * 2
    assert by_name["decode 64x4096, window 128"].bytes() == 64 * 128 * 2 * 8 * 128 * 2
    assert by_name["decode 64x4096"].flops() == 4 * 64 * 4096 * 32 * 128
    assert by_name["prefill 1x1024"].flops() == 4 * 1024 * 1025 // 2 * 32 * 128
    assert by_name["update 128"].bytes() == 2 * 128 * 2 * 8 * 128 * 2


def test_each_line_that_asks_belongs_to_a_target():
    results = Results({}, rows=[Row(case, 0) for case in cases.CASES])
    found = [(row.case.name, a) for t in targets.TARGETS for row, a in targets.lines(results, t)]
    asking = [(c.name, a) for c in cases.CASES for a, asked in c.asked.items() if asked is not None]
    assert sorted(found) == sorted(asking)


def test_reasons_are_sections_of_the_page_on_kernels():
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/kernels.md").read_text()
    anchors, seen = set(), collections.Counter()
    for heading in re.findall(r"^#+ (.*)$", page, re.M):
        anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        anchors.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    assert {bound.section for t in targets.TARGETS for bound in t.bounds} <= anchors


def test_random_cases_are_the_same_for_a_seed():
    assert cases.random_cases(9, seed=3) == cases.random_cases(9, seed=3)
    assert cases.random_cases(9, seed=3) != cases.random_cases(9, seed=4)
    for case in cases.random_cases(60, seed=5):
        assert case.q_heads % case.kv_heads == 0
        assert all(1 <= q <= c for q, c in zip(case.queries, case.contexts, strict=True))


def test_tracked_pages_of_peers_are_those_of_their_results(tmp_path):
    docs = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
    for saved in sorted(docs.glob("*/results.json")):
        bench_gpu.main(["--from", str(saved.parent), "--out", str(tmp_path)])
        for made in tmp_path.iterdir():
            assert made.read_text() == (saved.parent / made.name).read_text(), saved


@pytest.mark.parametrize("stage", ["first", "probes"])
def test_a_road_is_tried(stage):
    found = roads.trial.try_road(roads.ROADS["host_kernel"], stage)
    assert found["first"] > 0
    if stage == "probes":
        assert found["can"].pop("sharding") in ("yes", "not tried: one device")
        assert found["can"] == dict.fromkeys(("vmap", "gradient", "export"), "yes")


def test_roads_are_counted_and_what_is_missing_is_said():
    assert roads.ROADS["plain_jax"].lines == 1
    assert roads.ROADS["torch_host_kernel"].lines == 10
    missing = dataclasses.replace(roads.ROADS["plain_jax"], packages=("no_such_package",))
    assert own_kernels.measure(missing, [sys.executable], 2, [])["error"] == "not installed"


def test_the_page_of_roads_is_that_of_its_results(tmp_path):
    docs = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
    own_kernels.main(["--from", str(docs / "own-kernels.json"), "--out", str(tmp_path)])
    for name in ("own-kernels.json", "own-kernels.md"):
        assert (tmp_path / name).read_text() == (docs / name).read_text()
