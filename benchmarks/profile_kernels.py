"""Nsight Compute's counters of the kernels of one call, of one build or of several side by side.

    python benchmarks/profile_kernels.py old=PATH/libxla_gpu.so new=PATH/libxla_gpu.so \
        --shape REGEX [--kernels REGEX] [--ncu PATH] [--keep FOLDER]
    python benchmarks/profile_kernels.py old=OLD.csv new=NEW.csv

The shape is the first of bench_gpu.py's whose "regime: case" the regex finds. Each build is called
once to warm up and once under ncu, whose CSV --keep leaves as NAME.csv: in place of a library such
a file is shown again, without a GPU. Prints a table for each kernel: its counters, the reasons
(the first build's six most frequent) for which warps do not issue, in warps of an instruction that
is issued, and the last build's figure over the first's.

ncu runs a kernel several times, alone and with flushed caches: launches that overlap, or share
the device, look other than they are. Time them with compare_libraries.py.
"""

from __future__ import annotations

import argparse
import csv
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from peers import cases

SECTIONS = ["WarpStateStats", "ComputeWorkloadAnalysis", "LaunchStats"]
BANKS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
# What to show: regexes of the counters whose largest, or sum, it is, and its unit. Those of the
# tensor pipe have other names on other GPUs, and are what the sections have of it.
ROWS = {
    "us": (r"gpu__time_duration\.sum", max, 1e-3),
    "cycles": (r"sm__cycles_elapsed\.max", max, 1),
    "instructions": (r"smsp__inst_executed\.sum", max, 1),
    "tensor pipe, %": (r"sm__\w*pipe_tensor\w*\.avg\.pct_of_peak_sustained_active", max, 1),
    "L2, MB": (r"lts__t_bytes\.sum", max, 1e-6),
    "DRAM, MB": (r"dram__bytes_(?:read|write)\.sum", sum, 1e-6),
    "bank conflicts": (re.escape(BANKS), max, 1),
    "registers": (r"launch__registers_per_thread", max, 1),
}
METRICS = (
    "gpu__time_duration.sum,sm__cycles_elapsed.max,smsp__inst_executed.sum,lts__t_bytes.sum,"
    f"dram__bytes_read.sum,dram__bytes_write.sum,{BANKS}"
)
STALL = r"smsp__average_warps_issue_stalled_((?!\w*not_issued)\w+)_per_issue_active\.ratio"
STALLS = 6
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")


def parse(text: str) -> dict[str, dict[str, float]]:
    """Each kernel's counters, from ncu's --csv --page raw; of several launches the last one's."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise SystemExit(f"ncu shows no kernel:\n{text[-2000:]}")
    found: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines[start:]):
        if not row["ID"]:
            continue  # the units
        numbers = {name: (value or "").replace(",", "") for name, value in row.items()}
        found[row["Kernel Name"].split("(")[0]] = {
            name: float(value) for name, value in numbers.items() if NUMBER.fullmatch(value)
        }
    return found


def summary(counters: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """The rows of a kernel's table, and its reasons to stall."""
    rows = {}
    for name, (pattern, combine, unit) in ROWS.items():
        values = [value for counter, value in counters.items() if re.fullmatch(pattern, counter)]
        if values:
            rows[name] = combine(values) * unit
    matches = {re.fullmatch(STALL, counter): value for counter, value in counters.items()}
    stalls = {f"stall {m[1]}": v for m, v in matches.items() if m and m[1] != "selected"}
    return rows, stalls


def table(kernel: str, builds: dict[str, dict[str, float]]) -> str:
    """The builds' columns, and the last one's figures over the first one's."""
    of_builds = [summary(counters) for counters in builds.values()]
    first, reasons = of_builds[0]
    names = [*first, *sorted(reasons, key=lambda x: -reasons[x])[:STALLS]]
    lines = [f"{kernel:28}" + "".join(f"{name:>14}" for name in builds)]
    for name in names:
        values = [(rows | stalls).get(name) for rows, stalls in of_builds]
        line = f"{name:28}" + "".join(
            "             -" if v is None else f"{v:14,.2f}" for v in values
        )
        if len(values) > 1 and values[0] and values[-1] is not None:
            line += f"{values[-1] / values[0]:9.3f}"
        lines.append(line)
    return "\n".join(lines)


def profile(library: str, case: cases.Case, kernels: str, ncu: str) -> str:
    """ncu's CSV of one call in a process of its own."""
    env = os.environ | {"XLA_GPU_LIBRARY": str(pathlib.Path(library).resolve())}
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log"
        command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
        command += ["--profile-from-start", "off", "--clock-control", "none"]
        command += ["--kernel-name", f"regex:{kernels}", "--metrics", METRICS]
        command += [f"--section={section}" for section in SECTIONS]
        call = [sys.executable, __file__, "--call", f"{case.regime}: {case.name}"]
        run = subprocess.run([*command, *call], env=env, capture_output=True, text=True)
        text = log.read_text() if log.exists() else ""
    if run.returncode != 0:
        raise SystemExit(
            f"ncu ended with {run.returncode}:\n{text}{run.stdout}{run.stderr}"[-4000:]
        )
    return text


def call_once(case: cases.Case) -> None:
    """Under ncu: a call that compiles, and the one whose kernels count."""
    import torch
    from peers import inputs, kernels

    ours = next(peer for peer in kernels.PEERS if peer.name == "ours")
    ours.find()
    call = ours.prepare(inputs.Inputs(case, "cuda"))
    call.run(0)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call.run(1)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("builds", nargs="*", metavar="NAME=LIBRARY|NAME=CSV")
    add("--call", help=argparse.SUPPRESS)
    add("--shape", type=re.compile, default=re.compile(""), help="regex on regime and case")
    add("--kernels", default="paged_attention", help="regex on names of kernels")
    add("--ncu", default="ncu")
    add("--keep", type=pathlib.Path, metavar="FOLDER", help="for ncu's CSV of each build")
    options = parser.parse_args(arguments)
    by_name = {f"{case.regime}: {case.name}": case for case in cases.CASES}
    if options.call:
        call_once(by_name[options.call])
        return
    name = next((name for name in by_name if options.shape.search(name)), None)
    if name is None:
        parser.error("no shape has such a name")
    builds = {}
    for build, path in (spec.split("=", 1) for spec in options.builds):
        if path.endswith(".csv"):
            text = pathlib.Path(path).read_text()
        else:
            text = profile(path, by_name[name], options.kernels, options.ncu)
            print(f"{build}: {name}", file=sys.stderr)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{build}.csv").write_text(text)
        builds[build] = parse(text)
    for kernel in dict.fromkeys(kernel for found in builds.values() for kernel in found):
        columns = {build: found[kernel] for build, found in builds.items() if kernel in found}
        print(table(kernel, columns), end="\n\n")


if __name__ == "__main__":
    main()
