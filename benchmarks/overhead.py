"""What a custom call of ours costs beyond an empty jitted call of the same arguments.

    python benchmarks/overhead.py [--update]

On a GPU also chains: of as many kernels of XLA's own, and by each road in benchmarks/roads; they go
to build/bench/own-kernels.{json,md}, with --update to those of docs/benchmarks.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import own_kernels
import xla_gpu
from common import folder_of
from roads import ROADS, jax_peers, ours
from roads.trial import CHAIN
from xla_gpu.jax import paged_attention, simple_add

__all__ = ["jax_peers", "measure", "ours"]  # which fill ROADS


def _median_us(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        jax.block_until_ready(call())
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def _arguments() -> tuple[jax.Array, ...]:
    """One token of one sequence: next to no work, so that what is left is the call."""
    return (
        jnp.ones((1, 1, 8)),
        jnp.ones((2, 1, 2, 8)),
        jnp.ones((1,), jnp.int32),
        jnp.zeros((1, 1), jnp.int32),
        jnp.array([0, 1], jnp.int32),
        jnp.ones((1,), jnp.int32),
    )


def _cuda_roads() -> list[str]:
    """SAXPY by those that are installed, the first by XLA itself."""
    os.environ.setdefault("ROADS_CACHE", tempfile.mkdtemp())
    keys = (
        "plain_jax_gpu",
        "cuda_kernel",
        "triton_kernel",
        "tvm_ffi_cuda_kernel",
        "raw_cuda_ffi",
    )
    packages = {key: [name.split(".")[0] for name in ROADS[key].packages] for key in keys}
    return [key for key in keys if all(map(importlib.util.find_spec, packages[key]))]


class _Chain:
    """CHAIN of f, one after the other, each a kernel; a call goes on from the last one's result.

    `donated`: in its memory, so that XLA, which records a command buffer for the addresses that it
    sees, may replay it as it is; else a call has new memory, and its command buffer is updated.
    """

    def __init__(self, f: Callable[..., jax.Array], x: jax.Array, donated: bool) -> None:
        def chain(x: jax.Array, y: jax.Array) -> jax.Array:
            for _ in range(CHAIN):
                x = jax.lax.optimization_barrier(f(x, y))
            return x

        self.chain = jax.jit(chain, donate_argnums=0 if donated else ())
        self.x, self.y = jnp.copy(x), x

    def __call__(self) -> jax.Array:
        self.x = self.chain(self.x, self.y)
        return self.x


def _own_kernels() -> dict[str, Callable[..., jax.Array]]:
    """Additions of two arrays by each road for functions on the CPU."""
    source = (
        "void add(const float* a, const float* b, float* out, long n)"
        "{ while (n--) out[n] = a[n] + b[n]; }"
    )
    like_a = {"outputs": {"out": "a"}}
    made: dict[str, Callable[..., jax.Array]] = {
        "host_kernel": xla_gpu.host_kernel(
            source, "add", scalars={"n": lambda a: a.size}, **like_a
        ),
        "pure_callback": lambda a, b: jax.pure_callback(
            np.add, jax.ShapeDtypeStruct(a.shape, a.dtype), a, b
        ),
    }
    if importlib.util.find_spec("torch") is not None:
        import torch

        made["torch_kernel, writing"] = xla_gpu.torch_kernel(
            lambda a, b, out: torch.add(a, b, out=out), name="add_into", **like_a
        )
        made["torch_kernel, returning"] = xla_gpu.torch_kernel(
            torch.add, name="add_new", arguments=["a", "b"], parameters=["a", "b"], **like_a
        )
    return {name: jax.jit(kernel) for name, kernel in made.items()}


def measure(rounds: int = 15, repeats: int = 300) -> dict[str, float]:
    """Medians in microseconds: of each call, and of what it adds to the empty one.

    Rounds of the calls take turns, so that a busy machine slows all alike. "adds": the median of
    the rounds' differences; "adds at least": the difference of each one's fastest round.
    """
    args = _arguments()
    query = args[0]
    empty = jax.jit(lambda *args: args[0] * 2)
    attend = jax.jit(lambda *args: paged_attention(*args, 0.5))
    add = jax.jit(simple_add)
    add_empty = jax.jit(lambda a, b: a * 2)
    calls = {
        "empty": lambda: empty(*args),
        "paged_attention": lambda: attend(*args),
        "paged_attention, eager": lambda: paged_attention(*args, 0.5),
        "empty, two arguments": lambda: add_empty(query, query),
        "simple_add": lambda: add(query, query),
    }
    own = _own_kernels() if jax.default_backend() == "cpu" else {}
    calls |= {name: functools.partial(call, query, query) for name, call in own.items()}
    for name in [] if own else _cuda_roads():
        own[name] = jax.jit(ROADS[name].make())
        calls[name] = functools.partial(own[name], query, query)
    for call in calls.values():
        jax.block_until_ready(call())
    medians = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            medians[name].append(_median_us(call, repeats))
    result = {name: statistics.median(values) for name, values in medians.items()}
    pairs = {
        "paged_attention": "empty",
        "paged_attention, eager": "empty",
        **dict.fromkeys(["simple_add", *own], "empty, two arguments"),
    }
    for name, base in pairs.items():
        differences = [a - b for a, b in zip(medians[name], medians[base], strict=True)]
        result[f"{name} adds"] = statistics.median(differences)
        result[f"{name} adds at least"] = min(medians[name]) - min(medians[base])
    return result


def _chains(road: str) -> dict[str, float]:
    """Medians in microseconds of an awaited call of each chain of a road."""
    f = ROADS[road].make()
    found = {}
    for size, x in {"8": jnp.ones(8), "1M": jnp.ones(1 << 20)}.items():
        for donated in (True, False):
            chain = _Chain(f, x, donated)
            _median_us(chain, 20)
            how = ", donated" if donated else ""
            found[f"{CHAIN} of {road}, {size}{how}"] = _median_us(chain, 300)
    return found


def measure_chains(turns: int = 2) -> dict[str, float]:
    """Of all roads, each in processes of its own, by turns: the least of their medians."""
    least: dict[str, float] = {}
    for _ in range(turns):
        for road in _cuda_roads():
            program = [sys.executable, __file__, "--road", road]
            ran = subprocess.run(program, check=True, stdout=subprocess.PIPE)
            for name, took in json.loads(ran.stdout.splitlines()[-1]).items():
                least[name] = min(took, least.get(name, took))
    return least


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--road", help=argparse.SUPPRESS)
    args = folder_of(parser, argv)
    if args.road:
        print(json.dumps(_chains(args.road)))
        return
    if args.saved:
        turns = json.loads(args.saved.read_text())
    else:
        turns = measure(rounds=2, repeats=3) if args.quick else measure()
        if jax.default_backend() != "cpu":
            turns |= measure_chains()
        for name, microseconds in turns.items():
            print(f"{name:32} {microseconds:7.2f} us")
    own_kernels.keep_turns(args.out, turns)


if __name__ == "__main__":
    main()
