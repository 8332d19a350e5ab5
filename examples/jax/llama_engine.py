"""Continuous batching: which tokens of which sequences each step reads, and where their pages are.

Begin with `Engine.schedule`. The step itself is in llama.py, serve_llama.py gives the sequences.
"""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import llama
import numpy as np


@dataclasses.dataclass(eq=False)
class Sequence:
    """A request: its prompt and what came after it."""

    tokens: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: frozenset[int]  # the tokens that end it
    table: np.ndarray | None = None  # of its pages, of which it has so many:
    pages: int = 0
    read: int = 0  # tokens whose keys and values are in the cache
    made: int = 0  # tokens after the prompt
    finish: str | None = None
    events: asyncio.Queue = dataclasses.field(default_factory=asyncio.Queue)  # (token, finish)


def pages_in_memory(page_bytes: int) -> int:
    """How many pages, of so many bytes in all layers: most of a GPU's free memory, or 1 GiB."""
    known = jax.devices()[0].memory_stats() or {}
    free = 0.8 * (known["bytes_limit"] - known["bytes_in_use"]) if known else 1 << 30
    return max(1, int(free) // page_bytes)


class Engine:
    """Puts new tokens of many sequences into each step, and gives each what the step made of it.

    All of it happens in the event loop's thread, between two steps; while a step runs, the loop
    serves HTTP. Sequences wait and run in the order in which they came.
    """

    def __init__(
        self,
        config: llama.Config,
        weights: dict[str, Any],
        *,
        max_len: int | None = None,
        max_seqs: int = 64,
        budget: int = 512,
        page_size: int = 16,
        num_pages: int | None = None,
    ) -> None:
        """Compiles the step. max_len and budget are tokens, of a sequence and of a step."""
        if budget < max_seqs:
            raise ValueError(f"{budget} tokens a step; allowed: at least the {max_seqs} sequences")
        self.config, self.weights, self.page_size = config, weights, page_size
        max_len = max_len or config.max_len
        if max_len > config.max_len:
            raise ValueError(f"{max_len} tokens a sequence; allowed: the model's {config.max_len}")
        self.max_seqs, self.budget, self.width = max_seqs, budget, self.pages_of(max_len)
        dtype = weights["embedding"].dtype
        shape = (page_size, 2 * config.kv_heads, config.head_dim)
        if num_pages is None:
            num_pages = pages_in_memory(config.layers * math.prod(shape) * dtype.itemsize)
            num_pages = min(num_pages, max_seqs * self.width)
        self.num_pages, self.most_tokens = num_pages, min(max_len, num_pages * page_size)
        self.caches = [jnp.zeros((num_pages, *shape), dtype) for _ in range(config.layers)]
        self.free = list(range(num_pages))
        self.waiting: collections.deque[Sequence] = collections.deque()
        self.running: list[Sequence] = []
        self.wake = asyncio.Event()
        self.steps = self.preemptions = 0

        def step(weights, caches, batch):
            logits, caches = llama.forward(config, weights, caches, batch)
            return llama.sample(logits, batch), caches

        # One program a size, all compiled before the first request comes.
        sizes = [8 << i for i in range(32) if 8 << i < budget] + [budget]
        jitted = jax.jit(step, donate_argnums=1)
        lowered = [jitted.lower(weights, self.caches, self.assemble([], n)) for n in sizes]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            compiled = pool.map(lambda program: program.compile(), lowered)
            self.programs = dict(zip(sizes, compiled, strict=True))

    def pages_of(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def add(self, sequence: Sequence) -> None:
        sequence.table = np.zeros(self.width, np.int32)
        self.waiting.append(sequence)
        self.wake.set()

    def give_back(self, sequence: Sequence) -> None:
        self.free.extend(sequence.table[: sequence.pages].tolist())
        sequence.pages = sequence.read = 0

    def end(self, sequence: Sequence, finish: str, token: int | None = None) -> None:
        """Ends a sequence, wherever it is; a step that still runs may have it in its batch."""
        if sequence.finish is None:
            sequence.finish = finish
            (self.running if sequence in self.running else self.waiting).remove(sequence)
            self.give_back(sequence)
            sequence.events.put_nowait((token, finish))
            self.wake.set()

    def take_pages(self, sequence: Sequence, spare: int = 0) -> bool:
        """Pages for all its tokens; False, and nothing, if there are not so many and `spare`."""
        wanted = self.pages_of(len(sequence.tokens))
        if wanted - sequence.pages + spare > len(self.free):
            return False
        while sequence.pages < wanted:
            sequence.table[sequence.pages] = self.free.pop()
            sequence.pages += 1
        return True

    def schedule(self) -> list[tuple[Sequence, int]]:
        """Who gets how many tokens of the next step: decodes, prompts under way, then new ones."""
        batch = []
        for sequence in [s for s in self.running if len(s.tokens) - s.read == 1]:
            # The newest go back to the queue, and read their tokens again later. The oldest never
            # does, so all come to their end. Who went is behind all that are still to be seen.
            while sequence.pages and not self.take_pages(sequence):
                newest = self.running.pop()
                self.give_back(newest)
                self.waiting.appendleft(newest)
                self.preemptions += 1
            if sequence.pages:
                batch.append((sequence, 1))
        left = self.budget - len(batch)
        for sequence in self.running:
            unread = len(sequence.tokens) - sequence.read
            if unread > 1 and left:
                batch.append((sequence, min(unread, left)))
                left -= batch[-1][1]
        # A page in hand for each that runs, or the next step could throw the new one out again.
        while left and self.waiting and len(self.running) < self.max_seqs:
            sequence = self.waiting[0]
            if not self.take_pages(sequence, spare=len(self.running)):
                break
            self.running.append(self.waiting.popleft())
            batch.append((sequence, min(len(sequence.tokens), left)))
            left -= batch[-1][1]
        return batch

    def assemble(self, batch: list[tuple[Sequence, int]], size: int) -> llama.Batch:
        """The arrays of a step of `size` rows: new ones, as JAX may read them in place."""
        seqs = min(size, self.max_seqs)
        counts = np.array([n for _, n in batch], np.int32)
        read = np.array([s.read for s, _ in batch], np.int32)
        ends = np.cumsum(counts, dtype=np.int32)
        owner = np.repeat(np.arange(len(batch)), counts)
        positions = np.arange(len(owner)) - np.repeat(ends - counts - read, counts)
        tables = np.zeros((seqs, self.width), np.int32)
        for i, (s, _) in enumerate(batch):
            tables[i] = s.table
        page, place = np.divmod(positions, self.page_size)
        num_tokens = len(owner)

        def padded(values: Any, size: int, rest: int = 0, dtype: Any = np.int32) -> np.ndarray:
            array = np.full(size, rest, dtype)
            array[: len(values)] = values
            return array

        return llama.Batch(
            tokens=padded([t for s, n in batch for t in s.tokens[s.read : s.read + n]], size),
            positions=padded(positions, size),
            slots=padded(tables[owner, page] * self.page_size + place, size, -1),
            lens=padded(read + counts, seqs),
            tables=tables,
            starts=padded([0, *ends], seqs + 1, num_tokens),
            num_seqs=np.array([len(batch)], np.int32),
            temperature=padded([s.temperature for s, _ in batch], seqs, dtype=np.float32),
            top_p=padded([s.top_p for s, _ in batch], seqs, dtype=np.float32),
            seeds=padded([s.seed for s, _ in batch], seqs, dtype=np.uint32),
        )

    def start(self, batch: list[tuple[Sequence, int]]) -> jax.Array:
        """Starts a step; the next tokens, which may still be on their way."""
        num_tokens = sum(n for _, n in batch)
        size = min(size for size in self.programs if size >= num_tokens)
        inputs = self.assemble(batch, size)
        tokens, self.caches = self.programs[size](self.weights, self.caches, inputs)
        self.steps += 1
        return tokens

    def deliver(self, batch: list[tuple[Sequence, int]], tokens: np.ndarray) -> None:
        for (sequence, n), token in zip(batch, tokens.tolist()):
            if sequence.finish:
                continue  # its client went away during the step
            sequence.read += n
            if sequence.read < len(sequence.tokens):
                continue  # a part of its prompt
            sequence.tokens.append(token)
            sequence.made += 1
            if token in sequence.stop:
                self.end(sequence, "stop", token)
            elif sequence.made == sequence.max_tokens:
                self.end(sequence, "length", token)
            else:
                sequence.events.put_nowait((token, None))

    def state(self) -> dict[str, int]:
        sequences = {"running": len(self.running), "waiting": len(self.waiting)}
        pages = {"pages": self.num_pages, "free_pages": len(self.free)}
        return sequences | pages | {"steps": self.steps, "preemptions": self.preemptions}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if batch := self.schedule():
                tokens = self.start(batch)
                self.deliver(batch, await loop.run_in_executor(None, np.asarray, tokens))
            else:
                self.wake.clear()
                await self.wake.wait()
