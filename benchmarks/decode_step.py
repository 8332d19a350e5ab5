"""One decode step of a Llama-like model, the same for JAX and PyTorch/XLA: sizes and inputs.

decode_step_jax.py and decode_step_torch_xla.py time it, each in a process of its own. All layers
share one set of weights, to save memory; each has its own cache. So a step moves the bytes that a
model of as many layers would.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sizes:
    """By default Llama-3-8B's, 16 sequences with a context of 2048 tokens."""

    layers: int = 32
    batch: int = 16
    context: int = 2048
    hidden: int = 4096
    q_heads: int = 32
    kv_heads: int = 8
    mlp: int = 14336
    page_size: int = 16

    @property
    def head_dim(self) -> int:
        return self.hidden // self.q_heads

    @property
    def pages_a_sequence(self) -> int:
        return -(-self.context // self.page_size)

    @property
    def cache_shape(self) -> tuple[int, ...]:
        pages = self.batch * self.pages_a_sequence
        return (pages, self.page_size, 2 * self.kv_heads, self.head_dim)


SMALL = Sizes(layers=3, batch=2, context=40, hidden=64, q_heads=4, kv_heads=2, mlp=96)


def weights(sizes: Sizes) -> dict[str, np.ndarray]:
    """f32, of one layer; the frameworks round them to bf16."""
    rng = np.random.default_rng(0)
    h, kv = sizes.hidden, sizes.kv_heads * sizes.head_dim
    shapes = {
        "q": (h, h),
        "k": (h, kv),
        "v": (h, kv),
        "o": (h, h),
        "gate": (h, sizes.mlp),
        "up": (h, sizes.mlp),
        "down": (sizes.mlp, h),
    }
    return {
        name: rng.standard_normal(shape, np.float32) * np.float32(shape[0] ** -0.5)
        for name, shape in shapes.items()
    }


def inputs(sizes: Sizes) -> dict[str, np.ndarray]:
    """The hidden state of the new tokens, and the indices of the batch's last position."""
    rng = np.random.default_rng(1)
    batch, per = sizes.batch, sizes.pages_a_sequence
    tables = rng.permutation(batch * per).astype(np.int32).reshape(batch, per)
    last = sizes.context - 1
    return {
        "x": rng.standard_normal((batch, sizes.hidden), np.float32),
        "slots": tables[:, last // sizes.page_size] * sizes.page_size + last % sizes.page_size,
        "context_lens": np.full(batch, sizes.context, np.int32),
        "block_tables": tables,
        "query_start_loc": np.arange(batch + 1, dtype=np.int32),
        "num_seqs": np.array([batch], np.int32),
    }


def cache(sizes: Sizes) -> np.ndarray:
    """f32, that of every layer before the first step."""
    return np.random.default_rng(2).standard_normal(sizes.cache_shape, np.float32)


def angles(sizes: Sizes) -> np.ndarray:
    """Rotary angles of the new tokens' position, f32 [head_dim / 2]."""
    half = sizes.head_dim // 2
    return ((sizes.context - 1) * 10000.0 ** (-np.arange(half) / half)).astype(np.float32)


def time_steps(step: Callable[[], None], wait: Callable[[], None], steps: int) -> list[float]:
    """Milliseconds a step of five runs of `steps`, after two that warm up."""
    for _ in range(2):
        step()
        wait()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        times.append((time.perf_counter() - start) / steps * 1e3)
    return times


def parse(
    description: str, attentions: tuple[str, ...] = ("ours",)
) -> tuple[Sizes, int, str, bool]:
    """The sizes, the steps to time, which attention of these, and whether its calls alone."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--small", action="store_true", help="a model for a test on the CPU")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--attention", choices=attentions, default=attentions[0])
    parser.add_argument("--calls", action="store_true", help="the attention alone, where it can")
    options = parser.parse_args()
    return (SMALL if options.small else Sizes()), options.steps, options.attention, options.calls


def report(
    framework: str, sizes: Sizes, times: list[float], first: np.ndarray, **more: Any
) -> None:
    """One line of JSON; `first`: the hidden state after the first step, to compare."""
    result = {
        "framework": framework,
        "ms": statistics.median(times),
        "runs": [round(t, 4) for t in times],
        "layers": sizes.layers,
        "finite": bool(np.isfinite(first).all()),
        "first": [round(float(x), 4) for x in first.ravel()[:: max(1, first.size // 16)]],
        **more,
    }
    print(json.dumps(result), flush=True)
