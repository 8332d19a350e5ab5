"""A small Llama: trained with ordinary attention, served with paged attention.

Plain functions: no pytest needed.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 96
    hidden: int = 64
    layers: int = 2
    q_heads: int = 4
    kv_heads: int = 2
    mlp: int = 128

    @property
    def head_dim(self) -> int:
        return self.hidden // self.q_heads


def rotate(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [..., tokens, heads, head_dim] at positions [tokens]."""
    half = x.shape[-1] // 2
    frequencies = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions.to(torch.float32)[:, None, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


@dataclasses.dataclass
class Pages:
    """Where a batch's tokens stand in the paged cache: the indices of paged_attention."""

    positions: torch.Tensor
    slots: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    query_start_loc: torch.Tensor
    num_seqs: torch.Tensor

    def to(self, device) -> Pages:
        return Pages(*(getattr(self, f.name).to(device) for f in dataclasses.fields(self)))


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        c = config
        self.q = nn.Linear(c.hidden, c.q_heads * c.head_dim, bias=False)
        self.k = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.o = nn.Linear(c.q_heads * c.head_dim, c.hidden, bias=False)

    def project(self, x: torch.Tensor, positions: torch.Tensor):
        c, shape = self.config, x.shape[:-1]
        q = rotate(self.q(x).reshape(*shape, c.q_heads, c.head_dim), positions)
        k = rotate(self.k(x).reshape(*shape, c.kv_heads, c.head_dim), positions)
        return q, k, self.v(x).reshape(*shape, c.kv_heads, c.head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of whole sequences [batch, tokens, hidden], causal, in plain torch."""
        c = self.config
        q, k, v = self.project(x, torch.arange(x.shape[1], device=x.device))
        k, v = (t.repeat_interleave(c.q_heads // c.kv_heads, dim=2) for t in (k, v))
        logits = torch.einsum("bqhd,bkhd->bhqk", q, k) * c.head_dim**-0.5
        hidden = torch.ones(x.shape[1], x.shape[1], device=x.device, dtype=torch.bool).triu(1)
        weights = logits.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))

    def paged(self, x: torch.Tensor, cache: torch.Tensor, pages: Pages) -> torch.Tensor:
        """Of ragged tokens [tokens, hidden], with the cache, which gets the new ones."""
        q, k, v = self.project(x, pages.positions)
        torch.ops.xla_gpu.update_kv_cache_(k, v, cache, pages.slots)
        out = torch.ops.xla_gpu.paged_attention(
            q,
            cache,
            pages.context_lens,
            pages.block_tables,
            pages.query_start_loc,
            pages.num_seqs,
            self.config.head_dim**-0.5,
        )
        return self.o(out.flatten(1))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(config.hidden), nn.RMSNorm(config.hidden)
        self.attention = Attention(config)
        self.gate = nn.Linear(config.hidden, config.mlp, bias=False)
        self.up = nn.Linear(config.hidden, config.mlp, bias=False)
        self.down = nn.Linear(config.mlp, config.hidden, bias=False)

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.feed(x + self.attention(self.norm1(x)))

    def paged(self, x: torch.Tensor, cache: torch.Tensor, pages: Pages) -> torch.Tensor:
        return self.feed(x + self.attention.paged(self.norm1(x), cache, pages))


class Llama(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def paged(self, ids: torch.Tensor, caches: list[torch.Tensor], pages: Pages) -> torch.Tensor:
        x = self.embedding(ids)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block.paged(x, cache, pages)
        return self.head(self.norm(x))


def make(seed: int = 0, config: Config | None = None) -> Llama:
    torch.manual_seed(seed)
    return Llama(config or Config())


def train(device, steps: int, sync=lambda: None, compiled: bool = False) -> list[float]:
    """The losses of `steps` AdamW steps on fixed random sequences, from fixed weights."""
    model = make().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    forward = torch.compile(model, backend="openxla") if compiled else model
    ids = torch.randint(0, model.config.vocab, (4, 33), generator=torch.Generator().manual_seed(1))
    ids, losses = ids.to(device), []
    for _ in range(steps):
        optimizer.zero_grad()
        logits = forward(ids[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        sync()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def serving_pages(step: int) -> Pages:
    """Three sequences of 5, 9 and 1 tokens: a prefill (step 0), then a token a step."""
    ints = lambda values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    prompt = [5, 9, 1]
    new = prompt if step == 0 else [1, 1, 1]
    lens = [p + step for p in prompt]
    tables = [[3 * s, 3 * s + 1, 3 * s + 2] for s in range(3)]  # pages of 8
    positions = [lens[s] - new[s] + i for s in range(3) for i in range(new[s])]
    owner = [s for s in range(3) for _ in range(new[s])]
    slots = [tables[s][p // 8] * 8 + p % 8 for s, p in zip(owner, positions)]
    starts = [sum(new[:s]) for s in range(4)]
    return Pages(ints(positions), ints(slots), ints(lens), ints(tables), ints(starts), ints([3]))


def serve(device, steps: int, sync=lambda: None, compiled: bool = False) -> list[torch.Tensor]:
    """The logits of a prefill and `steps` decode steps with paged attention inside."""
    model = make().to(device)
    c = model.config
    caches = [torch.zeros(9, 8, 2 * c.kv_heads, c.head_dim).to(device) for _ in range(c.layers)]
    generator = torch.Generator().manual_seed(2)
    run = torch.compile(model.paged, backend="openxla", fullgraph=True) if compiled else model.paged
    logits = []
    with torch.no_grad():
        for step in range(steps + 1):
            pages = serving_pages(step)
            ids = torch.randint(0, c.vocab, pages.positions.shape, generator=generator)
            sync()
            logits.append(run(ids.to(device), caches, pages.to(device)))
            sync()
    return [one.cpu() for one in logits]
