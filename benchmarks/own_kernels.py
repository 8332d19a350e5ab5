"""A kernel of one's own by every road into JAX and torch: how soon, how fast, how much code.

    python benchmarks/own_kernels.py [--python PATH ...] [--only ROAD ...] [--first] [--update]
    python benchmarks/own_kernels.py --from RESULTS.json [--update]    # makes the page again

Each road (benchmarks/roads) brings the same SAXPY in, in processes of its own, with the first of
the interpreters that has its packages; one that no interpreter has is "not installed". On a machine
with an NVIDIA GPU the roads to the GPU are taken, else those to the CPU; the other half of the page
stays as it was. Writes build/bench/own-kernels.{json,md}, with --update those of docs/benchmarks.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from common import ROOT, cpu_name, folder_of
from roads import ROADS, Road, jax_peers, ours, torch_peers
from roads.trial import CHAIN, LARGE, SMALL, try_road

__all__ = ["jax_peers", "ours", "torch_peers"]  # which fill ROADS

# Where each package keeps what it compiled.
CACHES = (
    "ROADS_CACHE",
    "XLA_GPU_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TVM_FFI_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "WARP_CACHE_PATH",
    "CUPY_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "CUTE_DSL_CACHE_DIR",
)
JAX_KEEPS_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


# ---- The processes -------------------------------------------------------------------------------


def _environment() -> dict[str, str]:
    path = [str(ROOT / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _python_for(road: Road, pythons: list[str]) -> str | None:
    wanted = [road.framework, *road.packages]
    test = (
        "import importlib.util as u, sys\n"
        "def has(name):\n"
        "    try: return u.find_spec(name) is not None\n"
        "    except ImportError: return False\n"
        f"sys.exit(not all(map(has, {wanted!r})))"
    )
    for python in pythons:
        env = _environment()
        if subprocess.run([python, "-c", test], env=env, capture_output=True).returncode == 0:
            return python
    return None


def _start(python: str, road: Road, stage: str, cache: str) -> dict[str, Any]:
    env = _environment()
    for name in CACHES:
        folder = pathlib.Path(cache) / name
        folder.mkdir(exist_ok=True)
        env[name] = str(folder)
    if road.platform == "CPU":
        env["JAX_PLATFORMS"] = "cpu"
    if stage == "kept":
        folder = pathlib.Path(cache) / "jax"
        folder.mkdir(exist_ok=True)
        env |= {"JAX_COMPILATION_CACHE_DIR": str(folder), **JAX_KEEPS_ALL}
    if stage == "probes" and road.platform == "CPU":
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    program = [python, __file__, "--child", road.key, "--stage", stage]
    try:
        ran = subprocess.run(program, env=env, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return {"error": "not through after 300 s"}
    if ran.returncode != 0:
        said = re.findall(r"^[\w.]*(?:Error|Exception)\b.*", ran.stderr, re.MULTILINE)
        return {"error": (said or [f"exit {ran.returncode}"])[-1][:200]}
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measure(road: Road, pythons: list[str], rounds: int, more: list[str]) -> dict[str, Any]:
    """A row of the table: what all processes of the road found out; `more`: further stages."""
    row: dict[str, Any] = {"road": road.key, "lines": road.lines}
    python = _python_for(road, pythons)
    if python is None:
        return row | {"error": "not installed"}
    with tempfile.TemporaryDirectory() as cache:
        cold = _start(python, road, "first", cache)
        if "error" in cold:
            return row | cold
        warm = [_start(python, road, stage, cache) for stage in ["first"] * (rounds - 1) + more]
        # The first of these processes keeps, the others read.
        keeping = ["kept"] * rounds if road.framework == "jax" else []
        kept = [_start(python, road, stage, cache) for stage in keeping]
    for one in warm:
        row |= {name: one[name] for name in ("us", "can", "error") if name in one}
    row |= {"versions": cold["versions"], "cold": cold["first"], "import": cold["import"]}
    for name, ran in {"warm": warm, "kept": kept[1:]}.items():
        if firsts := [one["first"] for one in ran if "first" in one]:
            row[name] = min(firsts)
    return row


# ---- The page ------------------------------------------------------------------------------------

HOW = f"""Made by `python benchmarks/own_kernels.py --update`. SAXPY of f32, out = 2 * x + y, by
every road in [benchmarks/roads](../../benchmarks/roads), each in processes of its own.

- lines: what a user writes besides the kernel itself, ours with the rules for vmap, gradient and
  sharding.
- cold, warm: milliseconds from the kernel's text to the first result, {LARGE:,} elements: with
  nothing compiled before, and in a new process with what the first one left on disk (the least of
  some). The framework and the packages are imported by then, and the framework has run something.
  kept: warm with JAX's own compilation cache on, which it is not unless asked for.
- eager, jit: microseconds a call of {SMALL} elements, one after the other, not awaited; jit: by
  jax.jit. The least of 15 rounds, as all below.
- chain: microseconds a kernel where {CHAIN} follow one another, of {SMALL} elements: in JAX one
  jitted function (on a GPU with command buffers), in torch a CUDA graph on a GPU and a loop on the
  CPU. Large: of {LARGE:,}.
- The second table was tried: vmap over one argument; a gradient; a program that is exported and run
  by another process ("without the kernel": which has to have it by another way); arrays that are
  split over two devices and stay so ("gathered": they do not). Where it says no, jax.custom_vjp,
  custom_vmap, shard_map or torch.library may be written around the call.

Where ours is behind, and why:

- warm, kept: a handler in C++ has its checks and launch compiled in; ours reads the definition,
  looks for the compiler, whose version is in the cache's key, and lowers rules for vmap, gradient
  and sharding, which the others lack. The rest of "warm" is XLA's compilation, which "kept" spares.
  A tvm_ffi.Function has no name in another process, so that JAX never finds its program again.
- jit: an execution looks up its plan by the types and attributes that XLA gives it.
- chain: of custom calls XLA's command buffers hold graphs, of its own kernels single nodes. Large:
  this SAXPY reads 4 bytes a thread, those of XLA, Triton and torch 16.
- torch eager: types are checked, the launch worked out and the result made in each call, in C++.
"""
TURNS = f"""By turns (`python benchmarks/overhead.py --update`), us: an awaited call of {SMALL}
elements beyond an empty jitted one of the same arguments, in one process; and an awaited call of
one jitted function of {CHAIN} kernels with command buffers, each road in processes of its own, with
its ratio to that of as many of XLA's own. XLA records a command buffer for the addresses that it
sees: with memory that is donated it replays it; with new memory for each result it records it
again.
"""
COLUMNS = {"eager": "eager", "jit": "jit", "chain": "chain", "chain, large": "large"}


def _machine(platform: str) -> str:
    if platform == "CPU":
        return f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    told = []
    if shutil.which(query[0]):
        told = subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines()
    return f"{(told or ['an NVIDIA GPU'])[0]}; {cpu_name()}"


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(platform: str, measured: dict[str, Any]) -> list[str]:
    rows = [(ROADS[row["road"]], row) for row in measured["rows"]]
    rows.sort(key=lambda pair: ("xla_gpu" not in pair[0].name, not pair[0].is_kernel))
    # The large ones show what a kernel takes, and on the CPU what each compiler makes of a loop.
    columns = [name for name in COLUMNS if platform == "GPU" or name != "chain, large"]
    lines = [f"## On the {platform}", "", f"Machine: {measured['machine']}.", ""]
    for framework in ("jax", "torch"):
        told = " | ".join(f"{COLUMNS[name]}, us" for name in columns)
        firsts = ["cold", "warm", *(["kept"] if framework == "jax" else [])]
        told = " | ".join([*(f"{name}, ms" for name in firsts), told])
        lines += [f"| {framework} | lines | {told} |"]
        lines += ["|---" * (2 + len(firsts) + len(columns)) + "|"]
        for road, row in rows:
            if road.framework == framework and "us" in row:
                first = [str(row["lines"]), *(_cell(row.get(name)) for name in firsts)]
                cells = first if road.is_kernel else [""] * len(first)
                cells += [_cell(row["us"].get(name)) for name in columns]
                lines.append(f"| {_name(road)} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["| | taken by | compiled | vmap | gradient | sharding | export |", "|---" * 7 + "|"]
    for road, row in rows:
        if road.is_kernel and "can" in row:
            said = (row["can"].get(n, "") for n in ("vmap", "gradient", "sharding", "export"))
            cells = ["no" if can.startswith("no:") else can for can in said]
            where = "anywhere" if road.compiles == "here" else "on the GPU"
            start = f"| {_name(road)}, {road.framework} | {road.takes} | {where} |"
            lines.append(f"{start} {' | '.join(cells)} |")
    versions: dict[str, str] = {}
    for _, row in rows:
        versions |= {name: v for name, v in row.get("versions", {}).items() if v}
    told = ", ".join(f"{name} {v}" for name, v in sorted(versions.items()))
    lines += ["", f"Versions: {told}."]
    if "turns" in measured:
        lines += ["", *_turns_table(measured["turns"])]
    failed = [f"- {road.name}, {road.framework}: {r['error']}" for road, r in rows if "error" in r]
    if failed:
        lines += ["", "Not measured:", "", *failed]
    return [*lines, ""]


def _turns_table(turns: dict[str, float]) -> list[str]:
    """Of what overhead.py has measured."""
    lines = [TURNS]
    kinds = [f"{size}{how}" for size in ("8", "1M") for how in (", donated", "")]
    told = " | ".join(f"{CHAIN} of {kind}" for kind in kinds)
    lines += [f"| | a call | {told} |", "|---" * (2 + len(kinds)) + "|"]
    for key, road in ROADS.items():
        chains = [(turns.get(f"{CHAIN} of {key}, {kind}"), kind) for kind in kinds]
        if not any(took for took, _ in chains):
            continue
        cells = [_cell(max(0.0, turns[f"{key} adds"]))]
        for took, kind in chains:
            ratio = (took or 0.0) / turns.get(f"{CHAIN} of plain_jax_gpu, {kind}", math.inf)
            cells.append(f"{_cell(took)} ({ratio:.2f})" if took else "")
        lines.append(f"| {_name(road)} | {' | '.join(cells)} |")
    return lines


def keep_turns(folder: pathlib.Path, turns: dict[str, float]) -> None:
    """Adds what overhead.py has measured to the page, if it is of chains."""
    if not any(name.startswith(f"{CHAIN} of ") for name in turns):
        return
    known = [folder / "own-kernels.json", ROOT / "docs" / "benchmarks" / "own-kernels.json"]
    results = json.loads(next(path for path in known if path.exists()).read_text())
    results["GPU"]["turns"] = {name: round(took, 2) for name, took in turns.items()}
    save(folder, results)


def _name(road: Road) -> str:
    return f"**{road.name}**" if "xla_gpu" in road.name else road.name


def save(folder: pathlib.Path, results: dict[str, Any]) -> None:
    """own-kernels.json and the page made of it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Bringing a kernel: by which road", "", HOW]
    for platform in ("GPU", "CPU"):
        if platform in results:
            lines += _table(platform, results[platform])
    (folder / "own-kernels.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "own-kernels.md").write_text("\n".join(lines).rstrip() + "\n")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--only", nargs="+", choices=sorted(ROADS), default=list(ROADS))
    parser.add_argument("--platform", choices=["CPU", "GPU"])
    parser.add_argument("--rounds", type=int, default=5, help="warm processes a road")
    parser.add_argument("--first", action="store_true", help="of known rows cold, warm, kept alone")
    parser.add_argument("--child", choices=sorted(ROADS), help=argparse.SUPPRESS)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    args = folder_of(parser, argv)
    if args.child:
        print(json.dumps(try_road(ROADS[args.child], args.stage)))
        return
    if args.saved:
        save(args.out, json.loads(args.saved.read_text()))
        return
    platform = args.platform or ("GPU" if pathlib.Path("/dev/nvidiactl").exists() else "CPU")
    # Rows that are not measured now are those of the last time.
    known = [folder / "own-kernels.json" for folder in (args.out, ROOT / "docs" / "benchmarks")]
    results = next((json.loads(path.read_text()) for path in known if path.exists()), {})
    rounds = 2 if args.quick else args.rounds
    rows = {row["road"]: row for row in results.get(platform, {}).get("rows", [])}
    for key in args.only:
        if ROADS[key].platform == platform:
            more = [] if args.first else ["times", "probes"]
            row = measure(ROADS[key], args.python, rounds, more)
            rows[key] = rows[key] | row if args.first else row
            print(f"{ROADS[key].name}, {ROADS[key].framework}: {json.dumps(rows[key])}", flush=True)
            measured = {
                "machine": _machine(platform),
                "rows": [rows[k] for k in ROADS if k in rows],
            }
            save(args.out, results | {platform: measured})
    print(f"wrote {args.out / 'own-kernels.md'}")


if __name__ == "__main__":
    main()
