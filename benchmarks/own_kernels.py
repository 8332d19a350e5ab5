"""A kernel of one's own by every road into JAX and torch: how soon, how fast, how much code.

    python benchmarks/own_kernels.py [--python PATH ...] [--only ROAD ...] [--update]
    python benchmarks/own_kernels.py --from docs/benchmarks/own-kernels.json --update  # the page again

Each road (benchmarks/roads) brings the same SAXPY in, in processes of its own, with the first of
the interpreters that has its packages; one that no interpreter has is "not installed". On a machine
with an NVIDIA GPU the roads to the GPU are taken, else those to the CPU; the other half of the page
stays as it was. Writes build/bench/own-kernels.{json,md}, with --update those of docs/benchmarks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from common import ROOT, cpu_name, folder_of
from roads import ROADS, Road, jax_peers, ours, torch_peers

__all__ = ["jax_peers", "ours", "torch_peers"]  # which fill ROADS

SMALL, LARGE, CHAIN = 8, 1 << 20, 100
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


# ---- In a process of a road's own ----------------------------------------------------------------


def _us(call: Callable[[], Any], wait: Callable[[Any], Any], rounds: int = 15) -> float:
    """The least of the rounds' microseconds a call: of many calls, and one wait behind them."""
    calls, passed = 1, 0.0
    while passed < 0.02:  # seconds a round
        calls *= 2
        start = time.perf_counter()
        for _ in range(calls):
            out = call()
        wait(out)
        passed = time.perf_counter() - start
    least = passed
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            out = call()
        wait(out)
        least = min(least, time.perf_counter() - start)
    return 1e6 * least / calls


class _Jax:
    def __init__(self, road: Road) -> None:
        import jax
        import jax.numpy as jnp

        self.jax, self.jnp, self.road = jax, jnp, road
        self.wait = jax.block_until_ready
        self.wait(jax.jit(lambda x: x + 1)(jnp.ones(SMALL)))  # the client exists

    def arrays(self, size: int) -> tuple[Any, Any]:
        return self.jnp.arange(float(size)) % 7, self.jnp.ones(size)

    def value(self, out: Any) -> Any:
        import numpy as np

        return np.asarray(out)

    def times(self, f: Callable[..., Any]) -> dict[str, float]:
        jax = self.jax

        @jax.jit
        def chain(x: Any, y: Any) -> Any:
            for _ in range(CHAIN):
                x = f(x, y)
                if not self.road.is_kernel:  # which XLA would make one of
                    x = jax.lax.optimization_barrier(x)
            return x

        small, large = self.arrays(SMALL), self.arrays(LARGE)
        jitted = jax.jit(f)
        return {
            "eager": _us(lambda: f(*small), self.wait),
            "jit": _us(lambda: jitted(*small), self.wait),
            "chain": _us(lambda: chain(*small), self.wait) / CHAIN,
            "chain, large": _us(lambda: chain(*large), self.wait) / CHAIN,
        }

    def probes(self, f: Callable[..., Any]) -> dict[str, Callable[[], str]]:
        jax, jnp = self.jax, self.jnp
        x, y = self.arrays(SMALL)

        def vmap() -> str:
            stack = jnp.stack([x, x + 1, x + 2])
            got = jax.jit(jax.vmap(f, (0, None)))(stack, y)
            assert (got == 2 * stack + 1).all(), "wrong values"
            return "yes"

        def gradient() -> str:
            assert (jax.grad(lambda x: f(x, y).sum())(x) == 2).all(), "wrong values"
            return "yes"

        def sharding() -> str:
            devices = jax.devices()[:2]
            if len(devices) < 2:
                return "not tried: one device"
            mesh = jax.sharding.Mesh(devices, ("i",))
            split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
            args = jax.device_put((x, y), split)
            compiled = jax.jit(f).lower(*args).compile()
            out = compiled(*args)
            assert (self.value(out) == self.value(2 * x + y)).all(), "wrong values"
            is_split = out.sharding.is_equivalent_to(split, 1)
            return "yes" if is_split and "all-gather" not in compiled.as_text() else "gathered"

        def export() -> str:
            from jax import export as exporting

            jitted = jax.jit(f)
            targets = set(re.findall(r"custom_call @([\w.$]+)", jitted.lower(x, y).as_text()))
            checks = [exporting.DisabledSafetyCheck.custom_call(name) for name in targets]
            program = exporting.export(jitted, disabled_checks=checks)(x, y).serialize()
            ours = "xla_gpu" in self.road.name
            with tempfile.NamedTemporaryFile() as file:
                file.write(program)
                file.flush()
                load = (
                    "import sys, jax.numpy as jnp\n"
                    f"from {'xla_gpu.jax' if ours else 'jax.export'} import deserialize\n"
                    "program = deserialize(bytearray(open(sys.argv[1], 'rb').read()))\n"
                    f"x, y = jnp.arange({SMALL}.0) % 7, jnp.ones({SMALL})\n"
                    "assert (program.call(x, y) == 2 * x + y).all()\n"
                )
                ran = subprocess.run([sys.executable, "-c", load, file.name], capture_output=True)
            return "yes" if ran.returncode == 0 else "without the kernel"

        return {"vmap": vmap, "gradient": gradient, "sharding": sharding, "export": export}


class _Torch:
    def __init__(self, road: Road) -> None:
        import torch

        self.torch = torch
        self.device = "cuda" if road.platform == "GPU" else "cpu"
        (torch.ones(SMALL, device=self.device) + 1).cpu()

    def wait(self, out: Any) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def arrays(self, size: int) -> tuple[Any, Any]:
        x = self.torch.arange(float(size), device=self.device) % 7
        return x, self.torch.ones(size, device=self.device)

    def value(self, out: Any) -> Any:
        return out.detach().cpu().numpy()

    def times(self, f: Callable[..., Any]) -> dict[str, float]:
        small = self.arrays(SMALL)
        times = {"eager": _us(lambda: f(*small), self.wait)}
        for name, (x, y) in {"chain": small, "chain, large": self.arrays(LARGE)}.items():

            def chain(x: Any = x, y: Any = y) -> Any:
                for _ in range(CHAIN):
                    x = f(x, y)
                return x

            run = chain
            if self.device == "cuda":  # a graph of the launches, which is what there is to win
                graph = self.torch.cuda.CUDAGraph()
                with self.torch.cuda.graph(graph):
                    chain()
                run = graph.replay
            times[name] = _us(run, self.wait) / CHAIN
        return times

    def probes(self, f: Callable[..., Any]) -> dict[str, Callable[[], str]]:
        torch = self.torch
        x, y = self.arrays(SMALL)

        def vmap() -> str:
            stack = torch.stack([x, x + 1, x + 2])
            got = torch.vmap(f, (0, None))(stack, y)
            assert (got == 2 * stack + 1).all(), "wrong values"
            return "yes"

        def gradient() -> str:
            given = x.clone().requires_grad_()
            f(given, y).sum().backward()
            assert (given.grad == 2).all(), "wrong values"
            return "yes"

        def export() -> str:
            class Module(torch.nn.Module):
                def forward(self, x: Any, y: Any) -> Any:
                    return f(x, y)

            got = torch.export.export(Module(), (x, y)).module()(x, y)
            assert (got == 2 * x + y).all(), "wrong values"
            return "yes"

        return {"vmap": vmap, "gradient": gradient, "export": export}


def child(road: Road, stage: str) -> dict[str, Any]:
    """What one process finds out. Times are ms, but for those of `times`."""
    framework = (_Jax if road.framework == "jax" else _Torch)(road)
    x, y = framework.arrays(LARGE)
    expected = framework.value(2 * x + y)
    start = time.perf_counter()
    for package in road.packages:
        importlib.import_module(package)
    imported = time.perf_counter()
    f = road.make()
    out = f(x, y)
    framework.wait(out)
    done = time.perf_counter()
    assert (framework.value(out) == expected).all(), "wrong values"
    found: dict[str, Any] = {
        "import": 1e3 * (imported - start),
        "first": 1e3 * (done - imported),
        "versions": {
            name: getattr(sys.modules.get(name), "__version__", "")
            for name in {road.framework, *(p.split(".")[0] for p in road.packages)}
        },
    }
    if stage == "times":
        found["us"] = framework.times(f)
    if stage == "probes":
        found["can"] = {}
        for name, probe in framework.probes(f).items():
            try:
                found["can"][name] = probe()
            except Exception as error:  # whatever a road says to it
                said = (str(error).strip().splitlines() or [""])[0]
                found["can"][name] = f"no: {type(error).__name__}: {said[:160]}"
    return found


# ---- The processes -------------------------------------------------------------------------------


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
        if subprocess.run([python, "-c", test], capture_output=True).returncode == 0:
            return python
    return None


def _start(python: str, road: Road, stage: str, cache: str) -> dict[str, Any]:
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "python"), *filter(None, [env.get("PYTHONPATH")])]
    )
    for name in CACHES:
        env[name] = os.path.join(cache, name)
        os.makedirs(env[name], exist_ok=True)
    if road.platform == "CPU":
        env["JAX_PLATFORMS"] = "cpu"
    if stage == "probes" and road.platform == "CPU":
        env["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    program = [python, __file__, "--child", road.key, "--stage", stage]
    try:
        ran = subprocess.run(program, env=env, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return {"error": "not through after 300 s"}
    if ran.returncode != 0:
        said = [line for line in ran.stderr.splitlines() if line and not line.startswith(" ")]
        return {"error": (said or [f"exit {ran.returncode}"])[-1][:200]}
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def measure(road: Road, pythons: list[str], rounds: int) -> dict[str, Any]:
    """A row of the table: what all processes of the road found out."""
    row: dict[str, Any] = {"road": road.key, "lines": road.lines}
    python = _python_for(road, pythons)
    if python is None:
        return row | {"error": "not installed"}
    stages = ["first"] * (rounds - 1) + ["times", "probes"]
    with tempfile.TemporaryDirectory() as cache:
        cold = _start(python, road, "first", cache)
        if "error" in cold:
            return row | cold
        warm = [_start(python, road, stage, cache) for stage in stages]
    for one in warm:
        row |= {name: one[name] for name in ("us", "can", "error") if name in one}
    firsts = [one["first"] for one in warm if "first" in one]
    row |= {"versions": cold["versions"], "cold": cold["first"], "import": cold["import"]}
    return row | ({"warm": statistics.median(firsts)} if firsts else {})


# ---- The page ------------------------------------------------------------------------------------

HOW = """Made by `python benchmarks/own_kernels.py --update`. SAXPY of f32, out = 2 * x + y, the same text by every
road in [benchmarks/roads](../../benchmarks/roads), each in processes of its own.

- lines: what a user writes besides the kernel itself (ours with the rules for vmap, gradient and sharding);
- cold, warm: milliseconds from the kernel's text to the first result, {large} elements: nothing compiled
  before; and in a new process with what the first one left on disk, the median of {rounds}. The framework
  and the packages are imported by then, and the framework has run something;
- eager, jit: microseconds a call of {small} elements, one after the other, not awaited; jit: by jax.jit;
- chain: microseconds a kernel where {chain} follow one another in one program ({chain_how}), {small} and
  {large} elements;
- what it can do was tried: vmap over one argument; a gradient; an exported program that another process
  runs ("without the kernel": it has to be brought again there); arrays that are split over two devices
  staying so ("gathered": XLA puts them together first). Where it says no, one may write jax.custom_vjp,
  custom_vmap, shard_map or torch.library around the call.
"""
CHAIN_HOW = {
    "CPU": "JAX: one jitted function; torch: a loop",
    "GPU": "JAX: one jitted function, command buffers as XLA has them; torch: a CUDA graph",
}


def _machine(platform: str) -> str:
    if platform == "CPU":
        return f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    told = subprocess.run(query, capture_output=True, text=True).stdout.strip().splitlines()
    return f"{(told or ['an NVIDIA GPU'])[0]}; {cpu_name()}"


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _table(platform: str, measured: dict[str, Any]) -> list[str]:
    rows = [(ROADS[row["road"]], row) for row in measured["rows"]]
    how = HOW.format(
        small=SMALL,
        large=f"{LARGE:,}",
        chain=CHAIN,
        rounds=measured["rounds"],
        chain_how=CHAIN_HOW[platform],
    )
    lines = [f"## On the {platform}", "", f"Machine: {measured['machine']}.", "", how]
    for framework in ("jax", "torch"):
        lines += [
            f"| {framework} | lines | cold, ms | warm, ms | eager, us | jit, us | chain, us | "
            "chain, large, us |",
            "|---" * 8 + "|",
        ]
        for road, row in rows:
            if road.framework != framework or "us" not in row:
                continue
            us = row["us"]
            first = ("cold", "warm") if road.is_kernel else ()
            cells = [_cell(row[name]) for name in first] or ["", ""]
            cells += [_cell(us.get(n)) for n in ("eager", "jit", "chain", "chain, large")]
            name = f"**{road.name}**" if "xla_gpu" in road.name else road.name
            count = str(row["lines"]) if road.is_kernel else ""
            lines.append(f"| {name} | {count} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["| | takes | compiled | vmap | gradient | sharding | export |", "|---" * 7 + "|"]
    for road, row in rows:
        if road.is_kernel and "can" in row:
            said = (row["can"].get(n, "-") for n in ("vmap", "gradient", "sharding", "export"))
            cells = ["no" if can.startswith("no:") else can for can in said]
            lines.append(
                f"| {road.name}, {road.framework} | {road.takes} | "
                f"{'without a GPU' if road.compiles == 'here' else 'on the GPU'} | "
                f"{' | '.join(cells)} |"
            )
    versions: dict[str, str] = {}
    for _, row in rows:
        versions |= {name: v for name, v in row.get("versions", {}).items() if v}
    told = ", ".join(f"{name} {v}" for name, v in sorted(versions.items()))
    lines += ["", f"Versions: {told}."]
    failed = [f"- {road.name}, {road.framework}: {r['error']}" for road, r in rows if "error" in r]
    if failed:
        lines += ["", "Not measured:", "", *failed]
    return [*lines, ""]


def save(folder: pathlib.Path, results: dict[str, Any]) -> None:
    """own-kernels.json and the page made of it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Bringing a kernel: by which road", ""]
    for platform in ("GPU", "CPU"):
        if platform in results:
            lines += _table(platform, results[platform])
    (folder / "own-kernels.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "own-kernels.md").write_text("\n".join(lines).rstrip() + "\n")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--only", nargs="+", choices=sorted(ROADS), default=sorted(ROADS))
    parser.add_argument("--platform", choices=["CPU", "GPU"])
    parser.add_argument("--rounds", type=int, default=5, help="warm processes a road")
    parser.add_argument("--child", choices=sorted(ROADS), help=argparse.SUPPRESS)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    args = folder_of(parser, argv)
    if args.child:
        print(json.dumps(child(ROADS[args.child], args.stage)))
        return
    if args.saved:
        save(args.out, json.loads(args.saved.read_text()))
        return
    platform = args.platform or ("GPU" if os.path.exists("/dev/nvidiactl") else "CPU")
    known = ROOT / "docs" / "benchmarks" / "own-kernels.json"
    results = json.loads(known.read_text()) if known.exists() else {}
    rounds = 2 if args.quick else args.rounds
    rows = []
    for road in ROADS.values():
        if road.platform == platform and road.key in args.only:
            row = measure(road, args.python, rounds)
            rows.append(row)
            print(f"{road.name}, {road.framework}: {json.dumps(row)}", flush=True)
    results[platform] = {"machine": _machine(platform), "rounds": rounds, "rows": rows}
    save(args.out, results)
    print(f"wrote {args.out / 'own-kernels.md'}")


if __name__ == "__main__":
    main()
