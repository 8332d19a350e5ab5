"""Time of calls on one device: CUDA graphs by turns, and what the machine can do at most."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from peers import reads

ROUNDS = 15
GRAPH_SECONDS = 0.002  # of calls in one graph, at least
SUSTAINED_ROUNDS = 3
SUSTAINED_SECONDS = 0.5

Run = Callable[[int], object]  # one call, on this copy of the inputs


def elapsed(run: Callable[[], object], device: str) -> float:
    """Seconds of the device for what `run` enqueues (of the host on a CPU)."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return time.perf_counter() - start
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


class Chain:
    """Calls over all copies in turn, as often as a graph of some length needs; one CUDA graph."""

    def __init__(self, run: Run, copies: int, device: str) -> None:
        self.device = device
        self.run = run  # holds what the graph reads and writes

        def once() -> None:
            for copy in range(copies):
                run(copy)

        once()  # compiles, plans, allocates
        took = elapsed(once, device)
        times = max(1, min(32, round(GRAPH_SECONDS / max(took, 1e-9))))
        self.calls = times * copies
        self.replay: Callable[[], object] = lambda: [once() for _ in range(times)]
        if device == "cpu":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run(0)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.replay()
        self.replay = self.graph.replay
        self.replay()
        torch.cuda.synchronize()

    def seconds(self) -> float:
        """Of a call, in one replay."""
        return elapsed(self.replay, self.device) / self.calls

    def sustained(self, seconds: float = SUSTAINED_SECONDS) -> float:
        """Of a call, in the second half of `seconds` without a pause: at the power limit."""
        half = max(1, round(seconds / 2 / (self.seconds() * self.calls)))
        for _ in range(half):
            self.replay()
        took = elapsed(lambda: [self.replay() for _ in range(half)], self.device)
        return took / half / self.calls


class Timed(Protocol):
    """A Chain, or one in another process."""

    def seconds(self) -> float: ...
    def sustained(self, seconds: float = SUSTAINED_SECONDS) -> float: ...


def by_turns(chains: Mapping[str, Timed], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds a call of each chain in each round after one to warm up, in rising order."""
    for chain in chains.values():
        chain.seconds()
    return _by_turns(chains, rounds, lambda chain: chain.seconds())


def sustained_by_turns(
    chains: Mapping[str, Timed],
    rounds: int = SUSTAINED_ROUNDS,
    seconds: float = SUSTAINED_SECONDS,
) -> dict[str, list[float]]:
    """The same at the power limit."""
    return _by_turns(chains, rounds, lambda chain: chain.sustained(seconds))


def _by_turns(
    chains: Mapping[str, Timed], rounds: int, time: Callable[[Timed], float]
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in chains}
    # Each time another order: clocks and caches are as the call before has left them.
    orders = random.Random(0)
    for _ in range(rounds):
        for name in orders.sample(list(chains), len(chains)):
            times[name].append(time(chains[name]))
    return {name: sorted(some) for name, some in times.items()}


def ceilings(device: str, quick: bool = False) -> dict[str, float]:
    """What this machine does at most: `read` and `copy` in bytes/s, `product` in FLOP/s."""
    numbers, n = (1 << 16, 64) if quick else (1 << 31, 8192)
    data = torch.zeros(numbers, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(data)
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    wide = data.view(torch.int32)
    # The fastest of these reads is the ceiling.
    whole = [reads.reader([wide], blocks) for blocks in ("wave", "part")]
    whole.append(lambda _: data.sum(dtype=torch.float32))
    runs: dict[str, tuple[Run, float]] = {
        **{f"read {i}": (read, data.nbytes) for i, read in enumerate(whole)},
        "copy": (lambda _: target.copy_(data), 2 * data.nbytes),
        "product": (lambda _: a @ b, 2 * n**3),
    }
    found = {}
    for name, (run, amount) in runs.items():
        chain = Chain(run, 1, device)
        times = sorted(chain.seconds() for _ in range(ROUNDS))
        found[name] = amount / statistics.median(times)
        if name == "product":
            found["product, sustained"] = amount / chain.sustained(0.01 if quick else 1.4)
    read = max(found.pop(f"read {i}") for i in range(len(whole)))
    return {"read": read, **found}
