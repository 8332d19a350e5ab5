"""compute-sanitizer over every family of kernels, on all GPUs and cores of this machine.

    python3 scripts/sanitize_gpu.py [--tools racecheck,memcheck,initcheck,synccheck]
        [--families REGEX] [--timeout S] [--seconds S] [--processes N] [--out FOLDER]

Runs the GPU tests of build/release with few cases each, a process a kind of kernel and tool. Prints
a table of families and tools, what did not end or went wrong, and which kernels were launched. The
exit code is 1 unless every test has run without an error, and every kernel that FAMILIES names. The
tool `none` runs the tests alone, which fills the cache of compiled kernels.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("racecheck", "memcheck", "initcheck", "synccheck")  # those that take longest first

PAGED = "ops.paged_attention.cuda.paged_attention_gpu_test"
EDGES = "ops.paged_attention.cuda.paged_attention_edges_gpu_test"
ALTERNATIVES = "ops.paged_attention.cuda.alternatives_gpu_test"
V3 = "ops.ragged_paged_attention_v3.cuda.ragged_paged_attention_v3_gpu_test"
UPDATE = "ops.update_kv_cache.cuda.update_kv_cache_gpu_test"
GROUPED = "ops.grouped_matmul.cuda.grouped_matmul_gpu_test"
QUANTIZE = "ops.quantize_rows.cuda.quantize_rows_gpu_test"
ALL_REDUCE = "ops.all_reduce.cuda.all_reduce_gpu_test"
ROTARY = "ops.rotary_embedding.cuda.rotary_embedding_gpu_test"


@dataclasses.dataclass(frozen=True)
class Tests:
    """A process: some tests of a program, with so many cases of a kind (XLA_GPU_TEST_CASES), from
    that seed on (XLA_GPU_TEST_SEED)."""

    program: str
    filter: str
    cases: int = 2
    seed: int = 1


@dataclasses.dataclass(frozen=True)
class Family:
    """Kernels that belong together: `kernels` are words of the log's line of a first launch, a
    source and defines, of which each must have been launched by one of the tests."""

    name: str
    kernels: tuple[str, ...]
    tests: tuple[Tests, ...]


def _of_kinds(suite: str, *kinds: str, cases: int = 2, seed: int = 1) -> tuple[Tests, ...]:
    return tuple(Tests(PAGED, f"{suite}GpuTest.*/{kind}", cases, seed) for kind in kinds)


def _edges(test: str) -> Tests:
    return Tests(EDGES, f"*{test}*")


def _words(start: str, **values: str) -> tuple[str, ...]:
    """The words with each of a define's values."""
    return tuple(
        f"{start} {name}={value}" for name, some in values.items() for value in some.split()
    )


FAMILIES = (
    Family(
        "schedule, wrong batches",
        _words("schedule.cu", LINE_ONLY="0 1", SCHEDULE_THREADS="128 512 1024"),
        (
            _edges("AValidSequence"),
            _edges("RowsThatSeeNothing"),
            _edges("ManySequences*/bf16_bf16_64"),
            Tests(PAGED, "*BadIndices*", 8),
        ),
    ),
    Family(
        "decode_sm90, 16 bits",
        (
            *_words("decode_sm90.cu LINE_ROWS=8 BOXES=1", HEAD_DIM="256 512"),
            *_words("decode_sm90.cu LINE_ROWS=16 BOXES=1", HEAD_DIM="64 128", PAIRS="0 1"),
            *_words("decode_sm90.cu LINE_ROWS=16 BOXES=0", HEAD_DIM="64 128"),
        ),
        (
            *_of_kinds("DecodeOfManyPages", "bf16_bf16__128", "f16_f16__128_cap"),
            *_of_kinds("DecodeOfManyPages", "bf16_bf16__128", "bf16_bf16_f32_64_cap", seed=15),
            *_of_kinds("DecodeOfManyPages", "bf16_bf16_f32_64_cap", seed=33),
            *_of_kinds("DecodeOfManyPages", "bf16_bf16_f32_64_cap", "bf16_bf16__256", seed=43),
            *_of_kinds("DecodeOfManyPages", "bf16_bf16__256", "bf16_bf16__512"),
            *_of_kinds("DecodeOfManyPages", "bf16_bf16__512", seed=37),
            Tests(PAGED, "*DecodeOfManyKeys*"),
        ),
    ),
    Family(
        "decode of head_dim 96 and 192",
        (
            *_words("decode_sm90.cu HEAD_DIM=96 LINE_ROWS=16", BOXES="0 1", PAIRS="0 1"),
            *_words("decode_sm90.cu HEAD_DIM=192", BOXES="0 1", LINE_ROWS="8 16"),
            *_words("decode_cluster_sm90.cu", HEAD_DIM="96 192"),
        ),
        (
            *_of_kinds("DecodeOfManyPages", "bf16_bf16__192", "bf16_bf16_f32_96_cap", cases=4),
            *_of_kinds("ManyRows", "bf16_bf16__192", "bf16_bf16_f32_96_cap"),
            *_of_kinds("DecodeOfFewSequences", "bf16_bf16__192", "bf16_bf16_f32_96_cap"),
        ),
    ),
    Family(
        "decode_sm90, tiles of 32 rows",
        _words("decode_sm90.cu LINE_ROWS=32", HEAD_DIM="64 128", BOXES="0 1"),
        _of_kinds("ManyRows", "bf16_bf16__128", "bf16_bf16_f32_64_cap", "f16_f16__128_cap", seed=37)
        + _of_kinds("ManyRows", "bf16_bf16__128", seed=28)
        + _of_kinds("ManyRows", "bf16_bf16_f32_128", seed=10),
    ),
    Family(
        "decode_sm90, fp8",
        _words("decode_sm90.cu", CACHE_TYPE="E4M3 E5M2")
        + _words("decode_sm90.cu CACHE_TYPE=E4M3", HEAD_DIM="128 512", BOXES="0 1"),
        _of_kinds("DecodeOfManyPages", "bf16_f8e4m3fn__128", "f16_f8e5m2_f32_128_cap", cases=8)
        + _of_kinds("DecodeOfManyPages", "bf16_f8e4m3fn__128", "bf16_f8e4m3fn__512", seed=37)
        + _of_kinds("DecodeOfManyPages", "bf16_f8e4m3fn__512"),
    ),
    Family(
        "decode_cluster_sm90, decode_tokens_sm90",
        _words("decode_tokens_sm90.cu", LINE_ROWS="8 16")
        + _words("decode_cluster_sm90.cu", CLUSTER="2 4 6 8 16", BOXES="0 1", LINE_ROWS="8 16")
        + _words("decode_cluster_sm90.cu", HEAD_DIM="64 128 256 512", CACHE_TYPE="E4M3 E5M2")
        + _words("decode_cluster_sm90.cu MANY_SEQS", BOXES="0 1", LINE_ROWS="8 16")
        + _words("decode_cluster_sm90.cu", PLAIN="0 1"),
        (
            *_of_kinds("DecodeOfFewSequences", "bf16_bf16__128", "bf16_bf16_f32_64_cap"),
            *_of_kinds("DecodeOfFewSequences", "f16_f16__128_cap", "bf16_f8e4m3fn__128"),
            *_of_kinds("DecodeOfFewSequences", "f16_f8e5m2_f32_128_cap", "bf16_bf16__256"),
            *_of_kinds("DecodeOfFewSequences", "bf16_bf16__512", "bf16_f8e4m3fn__512"),
            *(Tests(ALTERNATIVES, f"Alternatives*/{i}", 4) for i in range(4)),
        ),
    ),
    Family(
        "prefill_sm90, head_dim up to 256",
        _words("prefill_sm90.cu COPIED=0", HEAD_DIM="64 80 96 128 192 256", BOXES="0 1")
        + _words("prefill_sm90.cu COPIED=0", SOFT_CAP="0 1", OUT_TYPE="BF16 F16 float")
        + _words("prefill_sm90.cu COPIED=0", LEVEL_TILES="0 64 256", PLAIN="0 1"),
        (
            *_of_kinds("PrefillOfManyTiles", "bf16_bf16__128", "bf16_bf16_f32_64_cap"),
            *_of_kinds("PrefillOfManyTiles", "f16_f16__128_cap", "bf16_bf16__256"),
            *_of_kinds("PrefillOfManyTiles", "f16_f16_f32_256"),
            *_of_kinds("LongContexts", "bf16_bf16__128", "bf16_bf16_f32_64_cap", cases=40),
            *_of_kinds("RandomProblems", "f16_f16__80", "bf16_bf16__192", seed=12, cases=4),
            *_of_kinds("RandomProblems", "bf16_bf16_f32_96_cap", seed=12, cases=4),
        ),
    ),
    Family(
        "prefill_sm90, pairs of blocks",
        _words("prefill_sm90.cu COPIED=0", CLUSTER="2"),
        (_edges("CallsInARow"),),
    ),
    Family(
        "prefill_sm90, three warpgroups",
        _words("prefill_sm90.cu TILE_ROWS=192", HEAD_DIM="40 64", BOXES="0 1", COPIED="0 1")
        + _words("prefill_sm90.cu TILE_ROWS=192", BESIDE_DECODE="0 1"),
        _of_kinds("PrefillOfThreeWarpgroups", "bf16_bf16__64", "f16_f16__40", cases=40)
        + _of_kinds("PrefillOfThreeWarpgroups", "bf16_f8e4m3fn__64"),
    ),
    Family(
        "prefill_sm90, head_dim 512",
        _words("prefill_sm90.cu HEAD_DIM=512", BOXES="0 1", SOFT_CAP="0 1"),
        (
            *_of_kinds("PrefillOfManyTiles", "bf16_bf16__512", "f16_f16_f32_512_cap"),
            *_of_kinds("LongContexts", "bf16_bf16__512"),
        ),
    ),
    Family(
        "prefill_sm90, fp8 converted",
        _words("prefill_sm90.cu COPIED=0", CACHE_TYPE="E4M3 E5M2"),
        _of_kinds("PrefillOfManyTiles", "bf16_f8e4m3fn__128", "f16_f8e5m2__64_cap")
        + _of_kinds("LongContexts", "bf16_f8e4m3fn__128"),
    ),
    Family(
        "prefill_sm90, fp8 copied",
        _words("prefill_sm90.cu COPIED=1", HEAD_DIM="64 128", SOFT_CAP="0 1"),
        tuple(Tests(ALTERNATIVES, f"Copies*/{i}", 3) for i in range(4)),
    ),
    Family(
        "prefill_sm90, terms of f32",
        ("copy_terms.cu", *_words("prefill_sm90.cu QUERY_TYPE=float", HEAD_DIM="64 128")),
        (
            *(Tests(ALTERNATIVES, f"Copies*/{i}", 3) for i in (4, 5)),
            *_of_kinds("PrefillOfManyTiles", "f32_f32__128", "f32_f32__64_cap"),
        ),
    ),
    Family(
        "prefill_sm90 beside decode",
        _words("prefill_sm90.cu", BESIDE_DECODE="1"),
        tuple(Tests(ALTERNATIVES, f"Alternatives*/{i}", 8) for i in (0, 1)),
    ),
    Family(
        "attend_sm80",
        _words("attend_sm80.cu", CACHE_TYPE="BF16 F16 E4M3 E5M2 float", BEHIND_PREFILL="0 1")
        + _words("attend_sm80.cu REDO_ONLY", BEHIND_DECODE="0 1")
        + _words(
            "attend_sm80.cu", HEAD_DIM="3 36 80 128 256 264 347 512", TILE_ROWS="16 32 64 128"
        ),
        (
            *_of_kinds("RandomProblems", "bf16_bf16__128", "bf16_f8e4m3fn__128", seed=12, cases=4),
            *_of_kinds("RandomProblems", "bf16_bf16__128", "bf16_bf16_f32_64_cap"),
            *_of_kinds("RandomProblems", "bf16_bf16__3", "f16_f8e5m2__36_cap", "f16_f16__80"),
            *_of_kinds("RandomProblems", "bf16_f8e4m3fn__128", "bf16_bf16__256", "bf16_bf16__512"),
            *_of_kinds("RandomProblems", "f16_f16_f32_264_cap", "bf16_bf16_f32_347_cap"),
            *_of_kinds("RandomProblems", "f32_f32__128", "f32_f32__7_cap", "f32_f32__512"),
            *_of_kinds("RandomProblems", "f32_f32__64_cap", "f32_f32_bf16_256"),
            *_of_kinds("LongContexts", "f32_f32_bf16_256", "f32_f32__512", "f16_f16_f32_264_cap"),
            *_of_kinds("LongContexts", "bf16_f8e4m3fn__512"),
        ),
    ),
    Family(
        "attend_simt",
        ("attend_simt.cu", "attend_simt.cu UNALIGNED"),
        _of_kinds("RandomProblems", "f32_f8e4m3fn__64", "f32_bf16_bf16_96")
        + _of_kinds("Unaligned", "bf16_bf16__128", "bf16_f8e4m3fn__128", "f32_f32__128")
        + _of_kinds("Unaligned", "bf16_bf16__3", "bf16_bf16__512"),
    ),
    Family(
        "scales of tokens",
        (
            *_words("attend_sm80.cu TOKEN_SCALES", CACHE_TYPE="E4M3 E5M2 BF16 F16 float"),
            "attend_simt.cu TOKEN_SCALES",
        ),
        _of_kinds("TokenScales", "bf16_f8e4m3fn__128", "f16_f8e5m2__64_cap", "bf16_bf16__128")
        + _of_kinds("TokenScales", "bf16_f8e4m3fn__512", "f16_f16_f32_80_cap", "f32_f32__128")
        + _of_kinds("TokenScales", "f32_f8e4m3fn_bf16_96"),
    ),
    Family(
        "not finite, extremes",
        (),
        (
            _edges("ANonFiniteValue"),
            _edges("LargeAndInfinite"),
            _edges("ExtremesAreRight/bf16_bf16_64"),
        ),
    ),
    Family(
        "update_kv_cache",
        (
            *_words("update_kv_cache.cu", VECTOR="1 8"),
            "update_kv_cache.cu UNALIGNED",
            *_words("update_kv_cache_sm90.cu", VECTOR="1 4 8"),
        ),
        (Tests(UPDATE, "*", 6),),
    ),
    Family(
        "ragged_paged_attention_v3",
        ("append.cu", "append.cu UNALIGNED", "append.cu APPEND_ALONE"),
        (
            Tests(V3, "*RandomProblems", 1),
            Tests(V3, "*ServedSteps", 1),
            Tests(V3, "*StartAnywhere"),
            Tests(V3, "*WrongIndices*:*AGraph*"),
        ),
    ),
    Family(
        "grouped_matmul",
        (
            "grouped_matmul.cu",
            *_words("grouped_matmul_sm90.cu", ROWS="16 32 64 128", PANELS="1 2", SPLITS="1 2"),
        ),
        tuple(Tests(GROUPED, "*", 1, seed) for seed in range(7, 11)),
    ),
    Family(
        "quantize_rows",
        ("quantize_rows.cu", "quantize_rows.cu NORM=BF16", "quantize_rows.cu UNALIGNED"),
        (Tests(QUANTIZE, "*", 4),),
    ),
    Family("all_reduce", ("all_reduce.cu",), (Tests(ALL_REDUCE, "*", 4),)),
    Family(
        "rotary_embedding",
        (
            "rotary_embedding.cu",
            "rotary_embedding.cu INTERLEAVED",
            "rotary_embedding.cu NORM=BF16",
            "rotary_embedding.cu UNALIGNED",
        ),
        (Tests(ROTARY, "*", 4),),
    ),
)


@dataclasses.dataclass
class Run:
    """One process under one tool, and what came of it."""

    family: Family
    tests: Tests
    tool: str
    log: Path
    ended: bool = False
    status: int | None = None
    seconds: float = 0.0

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def name(self) -> str:
        return f"{self.tool} {self.tests.program.split('.')[-1]} {self.tests.filter}"

    def passed(self) -> int:
        return len(re.findall(r"^\[       OK \]", self.text(), re.M))

    def failed(self) -> bool:
        """Whether a test failed, or the process without the tool having found anything."""
        failing = "[  FAILED  ]" in self.text() or self.passed() == 0
        failing |= self.tool != "none" and "SUMMARY: " not in self.text()
        return self.ended and (failing or (self.status != 0 and self.errors() == 0))

    def errors(self) -> int:
        """As the tool counts them; of a process that did not end those that it has printed."""
        text = self.text()
        counted = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", text)
        if counted:
            return int(counted[1])
        return len(
            re.findall(
                r"^========= (?:Invalid|Error(?!: No attachable process)|Barrier|Uninit|Unused)",
                text,
                re.M,
            )
        )

    def launched(self) -> set[str]:
        return set(
            re.findall(r"first launch of kernel .*: src/ops/\S*/cuda/(.*) for sm", self.text())
        )


def _gpus() -> list[str]:
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown:
        return shown.split(",")
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return [str(i) for i in range(listed.count("GPU "))]


def _run(run: Run, release: Path, gpu: str | None, seconds: float) -> None:
    command = [str(release / "tests" / run.tests.program), f"--gtest_filter={run.tests.filter}"]
    if run.tool != "none":
        limits = ["--print-limit", "20", "--target-processes", "application-only"]
        command = ["compute-sanitizer", "--tool", run.tool, *limits, *command]
    env = os.environ | {
        "XLA_GPU_LOG": "info",
        "XLA_GPU_TEST_GUARDS": "0",
        "XLA_GPU_TEST_CASES": str(run.tests.cases),
        "XLA_GPU_TEST_SEED": str(run.tests.seed),
    }
    env.setdefault("XLA_GPU_COMPILER", str(release / "xla-gpu-compile"))
    if gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpu
    start = time.monotonic()
    with run.log.open("wb") as log:
        process = subprocess.Popen(
            command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            run.status = process.wait(seconds)
            run.ended = True
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    run.seconds = time.monotonic() - start


def _run_all(runs: list[Run], options: argparse.Namespace) -> None:
    gpus, start = _gpus(), time.monotonic()
    lock, busy = threading.Lock(), [0] * max(len(gpus), 1)  # processes of each GPU

    def one(run: Run) -> None:
        left = options.seconds - (time.monotonic() - start)
        if left < 5:
            return
        with lock:
            chosen = busy.index(min(busy))
            busy[chosen] += 1
        gpu = gpus[chosen] if gpus else None
        _run(run, options.release, gpu, min(options.timeout, left))
        with lock:
            busy[chosen] -= 1

    with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
        for done in [pool.submit(one, run) for run in runs]:
            done.result()


def _cell(runs: list[Run]) -> str:
    words = [
        f"{sum(run.errors() for run in runs)} errors, {sum(run.passed() for run in runs)} tests"
    ]
    for count, what in (
        (sum(run.failed() for run in runs), "failed"),
        (sum(not run.ended for run in runs), f"of {len(runs)} did not end"),
    ):
        words += [f"{count} {what}"] if count else []
    return ", ".join(words)


def _never(family: Family, runs: list[Run]) -> list[str]:
    """Kernels of the family that none of these runs launched."""
    lines = [set(re.split(r"[ :\[\]]+", line)) for run in runs for line in run.launched()]
    return [k for k in family.kernels if not any(set(k.split()) <= line for line in lines)]


def _print_kernels(runs: list[Run]) -> None:
    """Of each source the number of its kernels, and the values of each define."""
    kinds: dict[str, set[str]] = {}
    for run in runs:
        for line in run.launched():
            kinds.setdefault(line.split(":")[0], set()).add(line)
    for source, lines in sorted(kinds.items()):
        values: dict[str, set[str]] = {}
        for line in lines:
            for word in line.partition("[")[2].rstrip("]").split():
                name, _, value = word.partition("=")
                values.setdefault(name, set()).add(value)
        told = "; ".join(
            " ".join([name, *sorted(some, key=lambda v: (len(v), v))])
            for name, some in values.items()
        )
        print(f"{source}, {len(lines)} launched: {told}")


def _print_all(runs: list[Run], tools: list[str]) -> bool:
    """True if nothing is wrong."""
    right = True
    print("| family | " + " | ".join(tools) + " |\n" + "|---" * (len(tools) + 1) + "|")
    for family in dict.fromkeys(run.family for run in runs):
        cells = [_cell([r for r in runs if r.family == family and r.tool == t]) for t in tools]
        print(f"| {family.name} | " + " | ".join(cells) + " |")
    print()
    for run in runs:
        if run.ended and not run.failed() and run.errors() == 0:
            continue
        right = False
        how = "did not end" if not run.ended else f"{run.errors()} errors, status {run.status}"
        tests = re.findall(r"^\[ RUN      \] (.*)", run.text(), re.M)
        last = f"; its last test {tests[-1]}" if tests else ""
        print(f"{run.log.name}: {run.name()}: {how} in {run.seconds:.0f} s{last}")
        told = [
            x
            for x in run.text().splitlines()
            if re.match("=========  *(?!COMPUTE)[A-Z]|.*Failure$", x)
        ]
        for line in told[:6] if run.errors() or run.failed() else []:
            print(f"    {line[:150]}")
    for tool in tools:
        for family in dict.fromkeys(run.family for run in runs):
            for kernel in _never(
                family, [r for r in runs if r.family == family and r.tool == tool]
            ):
                right = False
                print(f"{tool}: {family.name}: never launched: {kernel}")
    print(f"the longest: {', '.join(f'{r.name()} {r.seconds:.0f} s' for r in _longest(runs))}")
    print("kernels launched:")
    _print_kernels(runs)
    return right


def _longest(runs: list[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: -run.seconds)[:5]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tools", default=",".join(TOOLS), help=f"of {', '.join(TOOLS)}, none")
    add("--families", type=re.compile, default=re.compile(""), help="regex on their names")
    add("--timeout", type=float, default=600.0, help="seconds of a process (600)")
    add("--seconds", type=float, default=3600.0, help="of all of them (3600)")
    add("--processes", type=int, default=os.cpu_count(), help="side by side (a core each)")
    add("--release", type=Path, default=ROOT / "build/release", help="folder of what was built")
    add("--out", type=Path, default=ROOT / "build/sanitize", help="folder of their logs")
    options = parser.parse_args()
    tools = options.tools.split(",")
    if set(tools) - {*TOOLS, "none"}:
        parser.error(f"--tools are of {', '.join(TOOLS)}, none")
    if tools != ["none"] and shutil.which("compute-sanitizer") is None:
        print("sanitize-gpu: compute-sanitizer is not installed (it comes with the CUDA toolkit)")
        return 1
    options.release = options.release.resolve()  # the library wants whole paths
    options.out.mkdir(parents=True, exist_ok=True)
    runs = [
        Run(family, tests, tool, options.out / f"{tool}.{i}.{j}.log")
        for tool in tools
        for i, family in enumerate(FAMILIES)
        if options.families.search(family.name)
        for j, tests in enumerate(family.tests)
    ]
    for run in runs:
        run.log.unlink(missing_ok=True)
    print(f"sanitize-gpu: {len(runs)} processes, {options.processes} at once, {len(_gpus())} GPUs")
    _run_all(runs, options)
    return 0 if _print_all(runs, tools) else 1


if __name__ == "__main__":
    sys.exit(main())
