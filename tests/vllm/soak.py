"""A server under mixed load for minutes: is every request answered, rightly, and does memory grow?

Bursts of requests come at random times: greedy ones and sampled, read at once or as streams, ones
whose clients leave at any time, and malformed ones. Most ask for other logits (asked.py).
"""

from __future__ import annotations

import asyncio
import collections
import random
import time

from asked import asks_of
from load import MALFORMED, answer, mixed_requests
from server import Server
from tiny_models import Reference

MEBI = 1 << 20
Answer = tuple[bool, int, tuple[int, ...]]  # sampled?, which of the requests, tokens
KINDS = {"greedy": 12, "sampled": 4, "leaving": 3, "malformed": 1}  # and how many of 20
SAMPLED = dict(temperature=0.8, top_k=4)
AT_ONCE = 64
PATIENCE = 120  # seconds for an answer
FAULTS = 20  # after which no more is asked


class Soak:
    """The load on `server` and what came of it.

    What went wrong is in `faults`. Counted are the requests by kind, those `answered` and
    `cancelled`, all `tokens`, and the sampled ones that are `unlikelier` than the greedy.
    `memory` is a list of (host, device), in MiB: what is resident of the server's processes, and
    how much less of the device's the engine finds available than at first.
    """

    def __init__(self, server: Server, reference: Reference, seed: int = 0):
        self.server, self.reference = server, reference
        self.choose = random.Random(seed)
        self.requests = mixed_requests(300, seed, longest=60, most=90, shared=48)
        self.asks = asks_of(self.requests)
        self.places = asyncio.Semaphore(AT_ONCE)
        self.faults: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.memory: list[tuple[float, float]] = []
        self._answers: list[Answer] = []
        self._seen: set[Answer] = set()

    async def run(self, seconds: float) -> None:
        """Asks for so long, until all is answered; a line every 30 s."""
        self.available = await self._available()
        self.started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._arrivals(group, seconds))
            while (left := seconds - self._taken()) > 0:
                await asyncio.sleep(min(30, left))
                if self._taken() < seconds:
                    await self._report()
        await self._all_freed()
        await self._report()

    def _taken(self) -> float:
        return time.monotonic() - self.started

    async def _arrivals(self, group: asyncio.TaskGroup, seconds: float) -> None:
        while self._taken() < seconds and len(self.faults) < FAULTS:
            for _ in range(self.choose.randint(1, 32)):
                await self.places.acquire()
                group.create_task(self._one())
            await asyncio.sleep(self.choose.expovariate(5))

    async def _one(self) -> None:
        choose = self.choose  # before anything is waited for, so that the order is the seed's
        (kind,) = choose.choices(list(KINDS), list(KINDS.values()))
        name, body = choose.choice(list(MALFORMED.items()))
        which, stream = choose.randrange(len(self.requests)), choose.random() < 0.3
        patience = choose.uniform(0, 1) if kind == "leaving" else PATIENCE
        sampled = kind == "sampled"
        self.counts[kind] += 1
        try:
            async with asyncio.timeout(patience):
                if kind == "malformed":
                    status, _ = await self.server.post(body)
                    if not 400 <= status < 500:
                        self.faults.append(f"malformed, {name}: status {status}")
                else:
                    more = self.asks[which] | (SAMPLED if sampled else {})
                    tokens = await answer(self.server, self.requests[which], stream, **more)
                    self._answers.append((sampled, which, tuple(tokens)))
                    self.counts["answered"] += 1
                    self.counts["tokens"] += len(tokens)
        except TimeoutError:
            if kind == "leaving":
                self.counts["cancelled"] += 1
            else:
                self.faults.append(f"{kind}: no answer in {PATIENCE} s")
        except Exception as e:
            self.faults.append(f"{kind}: {e!r}")
        finally:
            self.places.release()

    async def _all_freed(self) -> None:
        """Requests whose clients have left are dropped, and no block of the cache is kept."""
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        for _ in range(60):
            metrics = await asyncio.to_thread(self.server.metrics)
            kept = {name: metrics[f"vllm:{name}"] for name in gauges}
            if not any(kept.values()):
                return
            await asyncio.sleep(0.5)
        self.faults.append(f"kept when all is answered: {kept}")

    async def _available(self) -> int:
        """Bytes; on GPUs by JAX's statistics, else by its arrays."""
        body = {"method": "determine_available_memory"}  # of the worker; it changes nothing
        status, found = await self.server.post(body, "/collective_rpc")
        assert status == 200, found
        return int(found["results"][0])

    def _check(self, answers: list[Answer]) -> None:
        for _, which, tokens in answers:
            if len(tokens) != (wanted := self.requests[which][1]):
                self.faults.append(f"{len(tokens)} tokens, {wanted} were asked for")
        new = [one for one in set(answers) - self._seen if one[2]]
        ranks = self.reference.ranks(
            [(self.requests[i][0], list(tokens)) for _, i, tokens in new],
            asks=[self.asks[i] for _, i, _ in new],
        )
        for (sampled, which, tokens), rank in zip(new, ranks, strict=True):
            if (rank >= (SAMPLED["top_k"] if sampled else 1)).any():
                kind = "sampled" if sampled else "greedy"
                self.faults.append(f"{kind}, request {which}: {tokens} of ranks {rank.tolist()}")
            if sampled:
                self.counts["unlikelier"] += int((rank > 0).sum())
        self._seen.update(new)

    async def _report(self) -> None:
        taken, count = self._taken(), self.counts.copy()
        host = await asyncio.to_thread(self.server.memory) / MEBI
        device = (self.available - await self._available()) / MEBI
        self.memory.append((host, device))
        answers, self._answers = self._answers, []
        seen = len(self.faults)
        await asyncio.to_thread(self._check, answers)
        print(
            f"load: {taken:.0f} s: {count['answered']} answered, {count['tokens']} tokens, "
            f"{count['cancelled']} cancelled, {count['malformed']} malformed, "
            f"{len(self.faults)} faults, host {host:.0f} MiB, device {device:+.1f} MiB",
            *self.faults[seen:],
            sep="\n  ",
            flush=True,
        )
