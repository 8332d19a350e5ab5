"""benchmarks/profile_kernels.py reads ncu's CSV, without a GPU: numbers are made up."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import profile_kernels

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = [
    "barrier",
    "gmma",
    "selected",
    "wait",
    "membar",
    "sleeping",
    "long_scoreboard",
    "mio",
    "gmma_not_issued",
]
NAMES = [
    "ID",
    "Kernel Name",
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "smsp__inst_executed.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    *(STALLED.format(reason) for reason in REASONS),
]


def canned(decode_ns, gmma):
    def line(*cells):
        return ",".join(f'"{cell}"' for cell in cells)

    common = ["9,000", "1,234,567", "31.5", "7", "1,000,000", "500000", "0"]
    stalls = ["0.5", gmma, "1.0", "0.25", "2", "0", "3.5", "0.1", "9"]
    decode, schedule = "paged_attention_decode(Params, TensorMap)", "paged_attention_schedule"
    return "\n".join(
        [
            "==PROF== Connected to process 1",
            line(*NAMES),
            line("", "", "ns", "", "inst", "%", "%", "byte", "byte", "", *[""] * len(REASONS)),
            line("0", schedule, "2500", *common, *stalls),
            line("1", decode, decode_ns, *common, *stalls),
        ]
    )


def rows_of(text, kernel):
    part = next(part for part in text.split("\n\n") if part.startswith(kernel))
    return [line.split() for line in part.splitlines()]


@pytest.fixture
def show(tmp_path, capsys):
    def call(**builds):
        for name, text in builds.items():
            (tmp_path / f"{name}.csv").write_text(text)
        profile_kernels.main([f"{name}={tmp_path / name}.csv" for name in builds])
        return capsys.readouterr().out

    return call


def test_counters_of_each_kernel_stand_side_by_side(show):
    out = show(old=canned("250,000", "4.5"), new=canned("200,000", "1.5"))
    rows = rows_of(out, "paged_attention_decode")
    assert rows[0] == ["paged_attention_decode", "old", "new"]
    assert ["us", "250.00", "200.00", "0.800"] in rows
    assert ["instructions", "1,234,567.00", "1,234,567.00", "1.000"] in rows
    assert ["tensor", "pipe,", "%", "31.50", "31.50", "1.000"] in rows  # the larger of its names
    assert ["DRAM,", "MB", "1.50", "1.50", "1.000"] in rows  # read and written
    assert ["bank", "conflicts", "0.00", "0.00"] in rows  # over nothing there is no ratio
    assert rows_of(out, "paged_attention_schedule")[1] == ["us", "2.50", "2.50", "1.000"]


def test_six_reasons_to_stall_of_the_first_build(show):
    rows = rows_of(show(old=canned("1", "4.5"), new=canned("1", "0")), "paged_attention_decode")
    stalls = [row[1] for row in rows if row[0] == "stall"]
    assert stalls == ["gmma", "long_scoreboard", "membar", "barrier", "wait", "mio"]
    assert ["stall", "gmma", "4.50", "0.00", "0.000"] in rows


def test_what_is_not_measured_is_left_out(show):
    assert "L2" not in show(only=canned("1", "1"))


def test_output_without_a_kernel_is_shown():
    with pytest.raises(SystemExit, match="ERR_NVGPUCTRPERM"):
        profile_kernels.parse("==ERROR== ERR_NVGPUCTRPERM")
