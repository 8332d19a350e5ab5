"""Two or more builds of the library on the same shapes by turns, on an NVIDIA GPU: old and new.

    python benchmarks/compare_libraries.py old=PATH/libxla_gpu.so new=PATH/libxla_gpu.so \
        [--shapes REGEX] [--random N --seed S] [--rounds N] [--sustained]

Each build is a process of its own, in which bench_gpu.py's shapes are made from the same numbers,
checked against the fp64 reference and captured in CUDA graphs; the processes then run by turns, so
that none of them finds the cooler GPU. Prints us a call, and the first build's time over each
other's.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

from peers import cases, timing
from peers.cases import Case


def serve() -> None:
    """A child: reads a command a line, writes an answer a line."""
    from peers import inputs, kernels

    ours = next(peer for peer in kernels.PEERS if peer.name == "ours")
    ours.find()
    chain = None
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        command, value = json.loads(line)
        answer: object = None
        try:
            if command == "prepare":
                chain = None
                known = {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()}
                given = inputs.Inputs(Case(**known), "cuda")
                call = ours.prepare(given)
                call.run(0)
                answer = given.error(call.result())
                chain = timing.Chain(call.run, given.copies, "cuda")
            elif command == "round":
                answer = chain.seconds()
            elif command == "sustained":
                answer = chain.sustained(value)
        except Exception as e:
            answer = f"{type(e).__name__}: {e}"[:200]
        print(json.dumps(answer), file=answers, flush=True)


class Build:
    """A child process with one library."""

    def __init__(self, name: str, library: str) -> None:
        self.name = name
        env = os.environ | {"XLA_GPU_LIBRARY": str(pathlib.Path(library).resolve())}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self) -> float:
        """As timing.Chain's."""
        return self.ask("round")

    def sustained(self, seconds: float = timing.SUSTAINED_SECONDS) -> float:
        return self.ask("sustained", seconds)

    def ask(self, command: str, value: object = None):
        self.tell(command, value)
        return self.answer()

    def tell(self, command: str, value: object = None) -> None:
        print(json.dumps([command, value]), file=self.process.stdin, flush=True)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("builds", nargs="*", metavar="NAME=LIBRARY")
    add("--serve", action="store_true", help=argparse.SUPPRESS)
    add("--shapes", type=re.compile, default=re.compile(""), help="regex on regime and case")
    add("--random", type=int, default=0, metavar="N", help="N shapes more, which no table has")
    add("--seed", type=int, default=0, help="of these shapes")
    add("--rounds", type=int, default=9)
    add("--seconds", type=float, default=300.0, help="start nothing after this")
    add("--sustained", action="store_true", help="also back to back, for shapes that ask for it")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    start = time.monotonic()
    builds = [Build(*spec.split("=", 1)) for spec in options.builds]
    known = [*cases.CASES, *cases.SERVED, *cases.PROMPTS]
    wanted = [c for c in known if options.shapes.search(f"{c.regime}: {c.name}")]
    for case in [*wanted, *cases.random_cases(options.random, options.seed)]:
        if time.monotonic() - start > options.seconds:
            print("no time for the rest")
            break
        for build in builds:  # side by side
            build.tell("prepare", vars(case))
        errors = {b.name: b.answer() for b in builds}
        failed = {n: e for n, e in errors.items() if not isinstance(e, float) or not e < 1e-2}
        if failed:
            print(f"{case.name}: {failed}", flush=True)
            continue
        times = timing.by_turns({b.name: b for b in builds}, options.rounds)
        medians = {name: statistics.median(some) for name, some in times.items()}
        text = f"{case.name:44}"
        first = medians[builds[0].name]
        for name, some in times.items():
            us = medians[name] * 1e6
            text += f"  {name} {us:8.1f} us ({first / medians[name]:.3f}, {some[0] * 1e6:.1f}-)"
        if options.sustained and case.sustained:
            for name, some in timing.sustained_by_turns({b.name: b for b in builds}).items():
                text += f"  sustained {name} {' '.join(f'{s * 1e6:.1f}' for s in some)}"
        print(text, flush=True)
    for build in builds:
        build.process.stdin.close()
        build.process.wait()


if __name__ == "__main__":
    main()
