"""Tensors of a case in copies enough to leave nothing in the L2 cache, and an fp64 reference."""

from __future__ import annotations

import random
from itertools import accumulate

import torch

from peers.cases import Case

COLD_BYTES = 320 << 20  # several times any L2 cache: what the copies hold together
MOST_BYTES = 12 << 30
MOST_COPIES = 96
ROWS = 12  # compared with the reference, of each sampled sequence


def _filled(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    """Normal numbers, made a part at a time: fp8 comes from bf16."""
    generator = torch.Generator(device=device).manual_seed(seed)
    made = torch.empty(shape, dtype=dtype, device=device)
    for part in made.view(-1).split(1 << 28):
        wide = dtype if dtype.itemsize > 1 else torch.bfloat16
        part.copy_(torch.randn(part.shape, generator=generator, dtype=wide, device=device))
    return made


class Inputs:
    """What the peers are called with.

    `keys` and `values`, a tensor a copy: [pages, page, kv_heads, head_dim]; for an update what is
    written, [tokens, kv_heads, head_dim], to `slots`. Names with `host_` lie in host memory.
    """

    def __init__(self, case: Case, device: str, cold_bytes: int = COLD_BYTES) -> None:
        self.case, self.device = case, device
        self.dtype = getattr(torch, case.dtype)
        self.cache_dtype = getattr(torch, case.cache)
        size = (case.kv_heads, case.head_dim)
        pages = [-(-n // case.page) for n in case.contexts]
        self.pages = sum(pages)
        held = self.pages * case.page * 2 * size[0] * size[1] * self.cache_dtype.itemsize
        wanted = max(2, -(-cold_bytes // case.bytes()))
        self.copies = min(wanted, MOST_COPIES, max(2, MOST_BYTES // held))
        self.max_query, self.max_context = max(case.queries), max(case.contexts)
        self.pages_of = pages
        if case.update:
            tokens = sum(case.queries)
            shape, dtype = (self.copies, tokens, *size), self.dtype
            each = torch.Generator().manual_seed(2)
            slots = torch.randperm(self.copies * tokens, generator=each).view(self.copies, tokens)
            self.slots = slots.to(device)
        else:
            shape, dtype = (self.copies, self.pages, case.page, *size), self.cache_dtype
        both = _filled((2, *shape), dtype, device, seed=1)
        self.both = both
        self.keys, self.values = list(both[0]), list(both[1])
        if case.update:
            return
        tokens = max(sum(case.queries), case.tokens)
        self.q = _filled((tokens, case.q_heads, case.head_dim), self.dtype, device, 3)
        order = torch.randperm(self.pages, generator=torch.Generator().manual_seed(2)).int()
        width = max(*pages, -(-case.table // case.page))
        tables = torch.zeros(max(len(pages), case.room), width, dtype=torch.int32)
        for row, part in zip(tables, order.split(pages), strict=False):
            row[: len(part)] = part
        empty = [0] * (len(tables) - len(pages))  # sequences
        self.host_starts = torch.tensor(
            [0, *accumulate((*case.queries, *empty))], dtype=torch.int32
        )
        self.host_page_starts = torch.tensor([0, *accumulate(pages)], dtype=torch.int32)
        self.host_lens = torch.tensor([*case.contexts, *empty], dtype=torch.int32)
        self.host_last = (self.host_lens - 1) % case.page + 1
        self.page_order = order.to(device)
        self.host_tables, self.tables = tables, tables.to(device)
        self.starts, self.lens = self.host_starts.to(device), self.host_lens.to(device)
        self._reference()

    def contiguous(self, copy: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(K, V) of all sequences, one after the other: [keys, kv_heads, head_dim]."""
        return self._gathered(copy, range(len(self.pages_of)))

    def _gathered(self, copy: int, sequences: range) -> tuple[torch.Tensor, torch.Tensor]:
        indices = [self.tables[s, : self.pages_of[s]].long() for s in sequences]

        def gather(cache: torch.Tensor) -> torch.Tensor:
            raw = cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache
            parts = [
                raw[index].flatten(0, 1)[: self.case.contexts[s]]
                for s, index in zip(sequences, indices, strict=True)
            ]
            return torch.cat(parts).view(cache.dtype)

        return gather(self.keys[copy]), gather(self.values[copy])

    def _reference(self) -> None:
        """`rows` of the result of copy 0 and what they are, `want`, in f64."""
        case, chosen = self.case, random.Random(4)
        last = len(case.contexts) - 1
        shortest, longest = (case.contexts.index(of(case.contexts)) for of in (min, max))
        rows, wanted = [], []
        for s in sorted({0, last, shortest, longest, chosen.randint(0, last)}):
            queries, context, start = case.queries[s], case.contexts[s], int(self.host_starts[s])
            some = {0, queries - 1, *(chosen.randrange(queries) for _ in range(ROWS - 2))}
            picked = sorted(some)
            k, v = (part.double() for part in self._gathered(0, range(s, s + 1)))
            group = case.q_heads // case.kv_heads
            q = self.q[[start + r for r in picked]].double()
            q = q.view(len(picked), case.kv_heads, group, case.head_dim)
            logits = torch.einsum("rhgd,khd->rhgk", q, k) * case.scale
            if case.soft_cap:
                logits = case.soft_cap * (logits / case.soft_cap).tanh()
            at = torch.tensor([context - queries + r for r in picked], device=self.device)
            key, at = torch.arange(context, device=self.device), at[:, None]
            seen = key <= at
            if case.window:
                seen &= key > at - case.window
            weights = logits.masked_fill(~seen[:, None, None], float("-inf")).softmax(-1)
            out = torch.einsum("rhgk,khd->rhgd", weights, v)
            wanted.append(out.reshape(len(picked), case.q_heads, case.head_dim))
            rows += [start + r for r in picked]
        self.rows, self.want = rows, torch.cat(wanted)

    def error(self, result: torch.Tensor) -> float:
        """The norm of the difference over that of the reference; nan where the result is nan.

        `result`: of copy 0, all rows of it, or what an update has written.
        """
        if self.case.update:
            want = self.both[:, 0].double()
            return ((result.double() - want).norm() / want.norm()).item()
        got = result.reshape(-1, self.case.q_heads, self.case.head_dim)[self.rows].double()
        return ((got - self.want).norm() / self.want.norm()).item()
