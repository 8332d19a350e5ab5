"""benchmarks/vllm_step.py and vllm_engines.py, with sizes that measure nothing."""

import contextlib
import pathlib
import re
import sys
from types import SimpleNamespace

import jax.profiler
import pytest
import torch
from server import ROOT, run

sys.path.insert(0, str(ROOT / "benchmarks"))


def event(name: str, start: float, duration: float) -> SimpleNamespace:
    return SimpleNamespace(name=name, start_ns=start * 1e9, duration_ns=duration * 1e9)


def test_a_trace_is_added_up(monkeypatch, tmp_path: pathlib.Path):
    import vllm_step

    def line(name: str, *events: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(name=name, events=events)

    kernels = [event("gemm", 0, 2), event("attend", 1, 3), event("gemm", 5, 1)]  # two overlap
    planes = [
        SimpleNamespace(
            name="/device:GPU:0",
            lines=[line("Stream #1", *kernels), line("Steps", event("x", 0, 9))],
        ),
        SimpleNamespace(
            name="/host:CPU",
            lines=[
                line(
                    "python3",
                    event("PjitFunction(f)", 5, 2),
                    event("command_buffer::update", 0, 4),
                    event("PjitFunction(f)", 0, 5),
                )
            ],
        ),
    ]
    data = SimpleNamespace(from_file=lambda file: SimpleNamespace(planes=planes))
    monkeypatch.setattr(jax.profiler, "ProfileData", data)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/host.xplane.pb").touch()
    found = vllm_step.totals(tmp_path)
    assert found.kernels == {"gemm": [pytest.approx(3), 2], "attend": [pytest.approx(3), 1]}
    assert found.busy == pytest.approx(5)
    assert found.update == pytest.approx(4)
    assert found.calls == {"f": 2}
    assert found.host == {
        "PjitFunction(f)": [pytest.approx(3), 2],
        "command_buffer::update": [pytest.approx(4), 1],
    }


def test_a_step_is_measured():
    options = ["--tiny", "--requests", "1x8", "--longest", "512", "--max-seqs", "2"]
    program = ROOT / "benchmarks/vllm_step.py"
    done = run(sys.executable, program, *options, "--attention", "xla_gpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 requests of 8 words" in done.stdout
    (row,) = (line for line in done.stdout.splitlines() if line.startswith("| xla_gpu "))
    assert float(row.split("|")[2]) > 0
    # Each is a transfer or work for the host, and nothing else may be: eager operations are calls.
    assert "xla_gpu, a decode step's calls: logits_of_rows, step;" in done.stdout


def test_an_engine_is_asked():
    options = ["--tiny", "--engines", "xla", "--requests", "1x8", "2x8", "--longest", "256"]
    program = ROOT / "benchmarks/vllm_engines.py"
    options += ["--output", "40", "--rounds", "1", "--profile", "1x8", "--trace"]
    done = run(sys.executable, program, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "xla, 1x8: ms a step " in done.stdout
    for how in ("execute_model", "us a step at a line", "_execute_model"):
        assert how in done.stdout
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[1].strip() for row in rows] == ["CxWORDS", "1x8", "2x8"]
    assert all(float(row[4]) > 0 for row in rows[1:])
    # A CPU has no device in XLA's traces.
    steps = re.findall(
        r"(\dx8), xla: ([\d.]+) ms a step, .* busy \(traced\) for 0.000", done.stdout
    )
    assert [load for load, _ in steps] == ["1x8", "2x8"]
    assert all(float(ms) > 0 for _, ms in steps)


def test_torchs_trace_is_added_up(monkeypatch):
    import vllm_engines

    def of_torch(name: str, start: float, end: float) -> SimpleNamespace:
        return SimpleNamespace(
            name=name,
            device_type=getattr(torch.autograd.DeviceType, "CPU" if "cuda" in name else "CUDA"),
            time_range=SimpleNamespace(start=1e6 * start, end=1e6 * end),
        )

    events = [of_torch("cudaGraphLaunch", 0, 9), of_torch("gemm", 1, 3), of_torch("gemm", 2, 5)]
    profiler = contextlib.nullcontext(SimpleNamespace(events=lambda: events))
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: profiler)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    result: dict = {}
    with vllm_engines.traced(cuda=True, result=result):
        pass
    assert result == {"kernels": {"gemm": [pytest.approx(5), 2]}, "busy": pytest.approx(4)}


def test_kernels_are_told_by_layer():
    from vllm_engines import told_step

    kernels = {"norm": [20e-6, 8], "gemm": [400e-6, 4]}
    kernels |= {f"small {i}": [2e-6, 4] for i in range(40)}
    step = dict(ms=1.5, steps=2, busy=2.5e-3, kernels=kernels)
    first, _, *rows = told_step(step, layers=2).splitlines()
    assert first == "1.500 ms a step, the device busy (traced) for 1.250"
    assert [row.split(maxsplit=3) for row in rows[:2]] == [
        ["200.0", "100.00", "1.00", "gemm"],
        ["10.0", "5.00", "2.00", "norm"],
    ]
    assert rows[-1].split() == ["2.0", "1.00", "2.00", "2", "more"]
    assert told_step(dict(ms=1.5), layers=2) == "1.500 ms a step"


def test_engines_over_two_devices():
    engines = ["xla-tp2", "xla-dp2", "xla-ep2"]
    options = ["--tiny", "--experts", "1", "--engines", *engines, "--requests", "1x8", "3x8"]
    options += ["--longest", "64", "--output", "8", "--rounds", "1"]
    two = dict(JAX_PLATFORMS="cpu", XLA_FLAGS="--xla_force_host_platform_device_count=2")
    done = run(sys.executable, ROOT / "benchmarks/vllm_engines.py", *options, **two)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row[2].strip() for row in rows] == 2 * engines
    assert all(float(row[4]) > 0 for row in rows)


def test_a_start_is_told_by_parts():
    options = ["--tiny", "--engines", "xla", "--requests", "1x8", "--longest", "256", "--start"]
    done = run(sys.executable, ROOT / "benchmarks/vllm_engines.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *programs = done.stdout.splitlines()
    told = r"xla: started in ([\d.]+) s: (.*); \d+ programs [\d.]+, traced and lowered ([\d.]+); "
    total, parts, traced = re.fullmatch(told + r"host [\d.]+ GiB", first).groups()
    assert float(traced) > 0
    parts = {name: float(seconds) for name, seconds in (part.split() for part in parts.split(", "))}
    assert sum(parts.values()) == pytest.approx(float(total), abs=0.1 * len(parts))
    assert parts["imports"] > 0
    assert parts["compile_or_warm_up_model"] > 0
    # None is compiled twice: tokens are padded to 16, 32 and 64; 16 are decode's too.
    steps = [line.split() for line in programs if line.endswith(" jit(step)")]
    assert [step[-2] for step in steps] == ["4"]
