"""Paged attention beside every peer that is installed, over a grid of shapes, on an NVIDIA GPU.

    python benchmarks/bench_gpu.py [--seconds N] [--shapes REGEX] [--random N --seed S] [--update]
    python benchmarks/bench_gpu.py --from build/bench/h200    # makes page and plots again

Needs torch; a peer that cannot be imported is listed as missing. Writes results.json, README.md,
ratio.svg and roofline.svg to build/bench/<gpu>, or with --update over docs/benchmarks/<gpu>. What
results.json of this machine already holds is not measured again (--again: all of it), so that a run
that ends early, by --seconds or by a peer that kills the process (status 3), is gone on with by the
same command. peers/report.py says how the time is taken.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import re
import shlex
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable

from peers import cases, report
from peers.cases import Case
from peers.results import Measured, Results, Row, load

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = {"float32": 1e-4}  # of an error, by the query's dtype; of others and of roundings to fp8:
ALLOWED_16, ALLOWED_FP8 = 1e-2, 8e-2
PEER_SECONDS = 90.0  # a peer that takes longer on one case ends the process
STEP_SECONDS = 150.0
KILLED = 3
# Inside XLA: an attention of decode_step_jax.py, and whether its calls alone.
STEPS = [
    ("ours", True),
    *((name, False) for name in ("ours", "cudnn", "flash-attn3-jax", "pallas")),
]


def options_of(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shapes", type=re.compile, default=re.compile(""), help="regex on regime and case")
    add("--peers", type=re.compile, default=re.compile(""), help="regex on peers; ours always")
    add("--seconds", type=float, default=500.0, help="start nothing after this (500)")
    add("--random", type=int, default=0, metavar="N", help="N shapes more, which no table has")
    add("--seed", type=int, default=0, help="of these shapes")
    add("--library", action="append", default=[], help="a torch operator library to load, a peer's")
    add("--again", action="store_true", help="measure what results.json holds, too")
    add("--continue", dest="again", action="store_false", help="undoes --again")
    add("--jax-python", default=sys.executable, help="a Python with JAX, for the decode step")
    add("--no-steps", action="store_true", help="no decode step inside XLA")
    add("--quick", action="store_true", help="tiny inputs and few rounds, to try the code")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the code")
    add("--from", dest="saved", type=pathlib.Path, help="a folder with results.json; no measuring")
    add("--commit", help="what is measured, where git does not know")
    add("--out", type=pathlib.Path, help="folder for results")
    add("--update", action="store_true", help="write over docs/benchmarks/<gpu>")
    options = parser.parse_args(argv)
    options.told = shlex.join(sys.argv[1:] if argv is None else argv)
    return options


def _short(error: BaseException) -> str:
    return re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:300]


class Session:
    """One run: what it measures goes to `path` after every case."""

    def __init__(self, options: argparse.Namespace, results: Results, path: pathlib.Path) -> None:
        from peers import kernels

        self.options, self.results, self.path = options, results, path
        self.device, self.start = options.device, time.monotonic()
        self.peers = []
        for peer in kernels.PEERS:
            if not peer.own and not options.peers.search(peer.name):
                results.peers.setdefault(peer.name, {"missing": "left out by --peers"})
                continue
            try:
                results.peers[peer.name] = {"version": peer.find()}
                self.peers.append(peer)
            except Exception as e:
                results.peers[peer.name] = {"missing": _short(e)}
        if results.trying is not None:
            results.killers.append(results.trying)
        run = {"commit": options.commit or commit(), "options": options.told}
        results.runs.append({"ceilings": self.ceilings(), **run})

    def seconds_left(self) -> float:
        return self.options.seconds - (time.monotonic() - self.start)

    def save(self, trying: list[str] | None = None) -> None:
        self.results.trying = trying
        self.results.save(self.path)

    def ceilings(self) -> dict[str, float]:
        from peers import timing

        return timing.ceilings(self.device, self.options.quick)

    def end_if_lost(self, failed: str) -> None:
        """After an error of CUDA nothing runs any more in this process."""
        if "CUDA error" in failed:
            print(f"{failed}: run again", flush=True)
            sys.exit(KILLED)

    def watched(self, what: list[str], call: Callable[[], None]) -> None:
        """The call; the process ends where it takes too long, and the next run leaves it out."""

        def end() -> None:
            print(f"{what[0]}: {what[1]} takes over {PEER_SECONDS:.0f} s: run again", flush=True)
            os._exit(KILLED)

        self.save(what)
        timer = threading.Timer(PEER_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            call()
        finally:
            timer.cancel()

    def measure(self, case: Case) -> Row:
        """Raises only where the device is lost: failures are in the row."""
        import torch
        from peers import inputs, timing

        row = self.results.row(case) or Row(case, 0)
        row.run, row.measured = len(self.results.runs) - 1, {}
        if row not in self.results.rows:
            self.results.rows.append(row)
        cold = 1 << 10 if self.options.quick else inputs.COLD_BYTES
        try:
            given = inputs.Inputs(case, self.device, cold)
        except Exception as e:  # memory, most likely
            for peer in self.peers:
                row.measured[peer.name] = Measured(failed=f"no inputs: {_short(e)}")
            self.end_if_lost(_short(e))
            return row
        chains: dict[str, timing.Chain] = {}
        for peer in self.peers:
            if case.own and not peer.own:
                continue
            found = row.measured[peer.name] = Measured()
            what = [case.name, peer.name]
            ended = [of for _, of in self.results.killers].count(peer.name)
            if what in self.results.killers or ended > 1:
                found.failed = "ended the process, or took too long, in runs before"
                continue
            self.watched(what, lambda p=peer, m=found: self._prepare(given, p, m, chains))
            self.end_if_lost(found.failed)
        if not case.sustained:
            times = timing.by_turns(chains, 3 if self.options.quick else timing.ROUNDS)
        elif self.options.quick:
            times = timing.sustained_by_turns(chains, 1, 0.01)
        else:
            times = timing.sustained_by_turns(chains)
        for name, some in times.items():
            found = row.measured[name]
            found.median, found.low, found.high = statistics.median(some), some[0], some[-1]
        chains.clear()
        if self.device == "cuda":
            torch.cuda.empty_cache()
        self.save()
        return row

    def _prepare(self, given, peer, found: Measured, chains: dict) -> None:
        from peers import kernels, timing

        try:
            call = peer.prepare(given)
            found.group = call.group
            call.run(0)
            found.error = given.error(call.result()) if call.result else 0.0
            allowed = ALLOWED.get(given.case.dtype, ALLOWED_16)
            allowed = ALLOWED_FP8 if call.group == "rounded" else allowed
            if not found.error <= allowed:
                was, found.error = found.error, found.error if math.isfinite(found.error) else None
                found.failed = f"wrong: differs by {was:.2g} of the norm; allowed is {allowed:g}"
                return
            chains[peer.name] = timing.Chain(call.run, given.copies, self.device)
        except kernels.UnsupportedError as e:
            found.failed, found.unsupported = f"takes {e}", True
        except Exception as e:
            found.failed = _short(e)

    def step(self, attention: str, calls: bool) -> None:
        """A decode step inside XLA, or its attention alone, in a process of its own."""
        command = [self.options.jax_python, str(ROOT / "benchmarks/decode_step_jax.py")]
        command += ["--attention", attention, *(["--small"] if self.options.quick else [])]
        command += ["--calls", "--steps", "200"] if calls else []
        env = os.environ | {
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_TRACEBACK_FILTERING": "off",  # so that the error is the last line
        }
        found: dict[str, object] = {"attention": attention, "calls": calls}
        found["run"] = len(self.results.runs) - 1
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=STEP_SECONDS
            )
            if done.returncode:
                raise RuntimeError((done.stderr.strip().splitlines() or ["no words"])[-1])
            found |= json.loads(done.stdout.strip().splitlines()[-1])
            if calls:
                found["kernels_ms"] = self.kernels_ms()
        except Exception as e:
            found["failed"] = _short(e)
        self.results.steps.append(found)
        self.save()
        what = f"{'calls' if calls else 'decode step'}, {attention}"
        print(f"{what}: {found.get('failed') or found['ms']}", flush=True)

    def kernels_ms(self) -> float:
        """Milliseconds of the same calls of ours in a CUDA graph of torch's, back to back."""
        import decode_step
        import torch
        from peers import timing
        from xla_gpu.torch import paged_attention

        sizes = decode_step.SMALL if self.options.quick else decode_step.Sizes()
        index = {
            name: torch.as_tensor(array, device=self.device)
            for name, array in decode_step.inputs(sizes).items()
        }
        shape = (sizes.batch, sizes.q_heads, sizes.head_dim)
        first = index["x"].to(torch.bfloat16).view(shape)
        caches = [
            torch.randn(sizes.cache_shape, dtype=torch.bfloat16, device=self.device)
            for _ in range(sizes.layers)
        ]
        names = ("context_lens", "block_tables", "query_start_loc", "num_seqs")
        rest = [index[name] for name in names]

        def calls(_: int) -> None:
            q = first
            for cache in caches:
                q = paged_attention(q, cache, *rest, sizes.head_dim**-0.5)

        return (
            timing.Chain(calls, 1, self.device).sustained(0.01 if self.options.quick else 0.5) * 1e3
        )


def machine(device: str) -> dict[str, str]:
    """What a result depends on."""
    import torch

    if device == "cpu":
        return {"device": "cpu", "torch": torch.__version__}
    query = ["nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        driver = "unknown"
    return {
        "device": torch.cuda.get_device_name(),
        "driver": driver.strip().splitlines()[0],
        "torch": torch.__version__,
        "CUDA": str(torch.version.cuda),
    }


def commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _folder(options: argparse.Namespace, facts: dict[str, str]) -> pathlib.Path:
    words = facts["device"].lower().split()
    name = next((w for w in words if re.fullmatch(r"[a-z]+\d+\w*", w)), words[-1])
    parent = ROOT / ("docs/benchmarks" if options.update else "build/bench")
    return options.out or parent / name


def main(argv: list[str] | None = None) -> int:
    options = options_of(argv)
    if options.saved:
        report.write(options.out or options.saved, load(options.saved / "results.json"))
        return 0
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("bench-gpu: torch finds no NVIDIA GPU here; nothing is measured")
        return 1
    for library in options.library:
        torch.ops.load_library(library)
    facts = machine(options.device)
    folder = _folder(options, facts)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.json"
    results = Results(facts)
    if path.exists() and not options.again:
        results = load(path)
        if results.facts != facts:
            print(f"bench-gpu: {path} is of {results.facts}; here is {facts}: give --again")
            return 1
    table = [*cases.CASES, *cases.random_cases(options.random, options.seed)]
    wanted = [c for c in table if options.shapes.search(f"{c.regime}: {c.name}")]
    todo = [case for case in wanted if (row := results.row(case)) is None or not _whole(row)]
    session = Session(options, results, path)
    if "missing" in results.peers["ours"]:
        print(f"bench-gpu: ours cannot be called: {results.peers['ours']['missing']}")
        return 1
    print(f"{facts['device']}: {len(todo)} of {len(wanted)} cases, to {folder}", flush=True)
    print(f"ceilings: {results.runs[-1]['ceilings']}", flush=True)
    for name, found in results.peers.items():
        print(f"{name}: {found.get('version') or 'missing: ' + found['missing']}", flush=True)
    done = 0
    for case in todo:
        if session.seconds_left() < 0:
            break
        try:
            row = session.measure(case)
        except Exception:  # in the timed part: the peer that was prepared last is left out
            traceback.print_exc()
            return KILLED
        done += 1
        print(f"{options.seconds - session.seconds_left():4.0f} s  {_line(row)}", flush=True)
    have = {(step["attention"], step.get("calls", False)) for step in results.steps}
    for step in STEPS:
        if not options.no_steps and step not in have and session.seconds_left() > 0:
            session.step(*step)
    session.save()
    report.write(folder, results)
    left = len(todo) - done
    print(f"wrote {folder}/README.md" + (f"; {left} cases left: run again" if left else ""))
    return 0


def _whole(row: Row) -> bool:
    """Whether the run that began the row ended it."""
    return all(m.median is not None or m.failed for m in row.measured.values())


def _line(row: Row) -> str:
    found = [
        f"{name} {m.median * 1e6:.1f} us" if m.median is not None else f"{name} FAILED"
        for name, m in row.measured.items()
        if not m.unsupported
    ]
    return f"{row.case.name}: " + ", ".join(found)


if __name__ == "__main__":
    sys.exit(main())
