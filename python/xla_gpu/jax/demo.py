"""The demo for JAX: one call serves prefill, decode and a chunk in between."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xla_gpu import library_path, library_version
from xla_gpu.jax import paged_attention, update_kv_cache


@dataclasses.dataclass(frozen=True)
class Batch:
    """Sequences of one serving step: (new tokens, tokens in the cache with them)."""

    sequences: tuple[tuple[int, int], ...]
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    page_size: int = 16

    @property
    def tokens(self) -> int:
        """Rows of the query."""
        return sum(new for new, _ in self.sequences)

    @property
    def scale(self) -> float:
        """The usual 1/sqrt(head_dim)."""
        return float(self.head_dim**-0.5)

    def flops(self) -> float:
        """Multiplications and additions of both products, under the causal mask."""
        pairs = sum(new * context - new * (new - 1) // 2 for new, context in self.sequences)
        return 4.0 * pairs * self.q_heads * self.head_dim

    def kv_bytes(self, dtype: Any) -> float:
        """Bytes of keys and values of all contexts."""
        tokens = sum(context for _, context in self.sequences)
        return 2.0 * tokens * self.kv_heads * self.head_dim * float(jnp.dtype(dtype).itemsize)

    def make(self, dtype: Any, seed: int = 0) -> dict[str, Any]:
        """The arguments of paged_attention; pages in random order."""
        rng = np.random.default_rng(seed)
        used = [-(-context // self.page_size) for _, context in self.sequences]
        pages = rng.permutation(sum(used)).astype(np.int32)
        tables = np.full((len(used), max(used)), -1, np.int32)
        for i, count in enumerate(used):
            tables[i, :count], pages = pages[:count], pages[count:]
        shape = (sum(used), self.page_size, 2 * self.kv_heads, self.head_dim)
        starts = np.cumsum([0, *(new for new, _ in self.sequences)])
        return {
            "query": jnp.asarray(
                rng.standard_normal((self.tokens, self.q_heads, self.head_dim), np.float32), dtype
            ),
            "kv_cache": jnp.asarray(rng.standard_normal(shape, np.float32), dtype),
            "context_lens": jnp.array([context for _, context in self.sequences], jnp.int32),
            "block_tables": jnp.asarray(tables),
            "query_start_loc": jnp.asarray(starts, jnp.int32),
            "num_seqs": jnp.array([len(self.sequences)], jnp.int32),
        }


CPU_BATCH = Batch(((512, 512), (1, 2048), (1, 1500), (1, 777), (128, 1024), (7, 1031)))
GPU_BATCH = Batch(((2048, 2048), *((1, 4096 + 37 * i) for i in range(32)), (512, 8192), (5, 3000)))


def gather_attention(batch: Batch, args: dict[str, jax.Array]) -> jax.Array:
    """Pure jnp: what one writes without a kernel, any ragged batch, static shapes."""
    query, tables = args["query"], args["block_tables"]
    max_context = tables.shape[1] * batch.page_size
    row = jnp.arange(query.shape[0])
    sequence = jnp.searchsorted(args["query_start_loc"], row, side="right") - 1
    group = batch.q_heads // batch.kv_heads

    def one_sequence(s: jax.Array) -> jax.Array:
        kv = args["kv_cache"][tables[s]]
        kv = kv.reshape(max_context, batch.kv_heads, 2, batch.head_dim)
        start, end = args["query_start_loc"][s], args["query_start_loc"][s + 1]
        position = args["context_lens"][s] - (end - start) + row - start
        q = query.reshape(-1, batch.kv_heads, group, batch.head_dim)
        logits = jnp.einsum("qhgd,khd->hgqk", q, kv[:, :, 0], preferred_element_type=jnp.float32)
        visible = jnp.arange(max_context) <= position[:, None]
        weights = jax.nn.softmax(jnp.where(visible, logits * batch.scale, -jnp.inf), axis=-1)
        values = jnp.nan_to_num(kv[:, :, 1])
        return jnp.einsum("hgqk,khd->qhgd", weights.astype(values.dtype), values)

    def body(s: jax.Array, out: jax.Array) -> jax.Array:
        mine = (sequence == s)[:, None, None]
        return jnp.where(mine, one_sequence(s).reshape(query.shape).astype(query.dtype), out)

    out: jax.Array = jax.lax.fori_loop(0, tables.shape[0], body, jnp.zeros_like(query))
    return out


def exact_attention(batch: Batch, args: dict[str, jax.Array]) -> np.ndarray:
    """The truth, in float64 NumPy."""
    cache = np.asarray(args["kv_cache"].astype(jnp.float32))
    query = np.asarray(args["query"].astype(jnp.float32)).astype(np.float64)
    tables = np.asarray(args["block_tables"])
    group = batch.q_heads // batch.kv_heads
    out, row = np.empty(query.shape), 0
    for i, (new, context) in enumerate(batch.sequences):
        pages = tables[i, : -(-context // batch.page_size)]
        kv = cache[pages].reshape(-1, 2 * batch.kv_heads, batch.head_dim)[:context]
        hidden = np.arange(context) > (context - new + np.arange(new))[:, None]
        for head in range(batch.q_heads):
            k, v = (kv[:, 2 * (head // group) + j].astype(np.float64) for j in (0, 1))
            logits = query[row : row + new, head] @ k.T * batch.scale
            logits[hidden] = -np.inf
            weights = np.exp(logits - logits.max(axis=1, keepdims=True))
            out[row : row + new, head] = (weights / weights.sum(axis=1, keepdims=True)) @ v
        row += new
    return out


def _median_ms(call: Callable[[], object], seconds: float = 1.5) -> float:
    """The median of as many calls as `seconds` take, of one if it takes longer."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    times = [time.perf_counter() - start]
    if times[0] < seconds:  # that one warmed up
        times.clear()
    while not times or (sum(times) < seconds and len(times) < 50):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def _torch_ms(batch: Batch, args: dict[str, jax.Array]) -> float | None:
    """Torch's CPU attention, a call a sequence, its keys and values gathered beforehand."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")  # a baseline to compare with, not a dependency
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    cache = np.asarray(args["kv_cache"].astype(jnp.float32))
    query = np.asarray(args["query"].astype(jnp.float32))
    dtype = getattr(torch, str(args["query"].dtype))
    calls, row = [], 0
    for i, (new, context) in enumerate(batch.sequences):
        pages = np.asarray(args["block_tables"])[i, : -(-context // batch.page_size)]
        kv = cache[pages].reshape(-1, 2 * batch.kv_heads, batch.head_dim)[:context]
        k, v = (torch.tensor(kv[:, j::2]).to(dtype).transpose(0, 1)[None] for j in (0, 1))
        q = torch.tensor(query[row : row + new]).to(dtype).transpose(0, 1)[None]
        mask = torch.ones(new, context, dtype=torch.bool).tril(context - new)
        calls.append((q.contiguous(), k.contiguous(), v.contiguous(), mask))
        row += new

    def step() -> None:
        with torch.inference_mode():
            for q, k, v, mask in calls:
                torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, scale=batch.scale, enable_gqa=True
                )

    return _median_ms(step)


def _say(text: str = "") -> None:
    print(text, flush=True)


def _show_hlo(compiled: Any) -> None:
    for line in compiled.as_text().splitlines():
        if 'custom_call_target="xla_gpu_paged_attention"' in line:
            _say(f"  {line.strip().removeprefix('ROOT ')[:400]}")


def _decode_loop(batch: Batch, dtype: Any) -> None:
    """Cache writes and attention in one jitted step; the donated cache keeps its memory."""
    args = batch.make(dtype)
    slots = jnp.arange(batch.tokens, dtype=jnp.int32)

    def step(cache: jax.Array, query: jax.Array, rest: dict[str, Any]) -> Any:
        key = query[:, :: batch.q_heads // batch.kv_heads]
        cache = update_kv_cache(key, key, cache, slots)
        return cache, paged_attention(query, cache, **rest, scale=batch.scale)

    jitted = jax.jit(step, donate_argnums=0)
    rest = {name: args[name] for name in args if name not in ("query", "kv_cache")}
    cache, pointers = args["kv_cache"], set()
    for _ in range(4):
        cache, _ = jitted(cache, args["query"], rest)
        pointers.add(cache.unsafe_buffer_pointer())
    _say(
        f"  4 steps of update_kv_cache + paged_attention: "
        f"{'the cache stayed in place' if len(pointers) == 1 else 'the cache moved'}"
    )


def main() -> int:
    """Prints what a newcomer wants to see; returns 1 if the error is too large."""
    start = time.perf_counter()
    device = jax.devices()[0]
    gpu = device.platform == "gpu"
    batch = GPU_BATCH if gpu else CPU_BATCH
    _say(f"xla_gpu {library_version()} ({library_path()}), jax {jax.__version__}, {device}")
    news = sorted({new for new, _ in batch.sequences}, reverse=True)
    _say(
        f"a ragged batch of {len(batch.sequences)} sequences: new tokens {news}, contexts up to "
        f"{max(context for _, context in batch.sequences)}; {batch.q_heads} query heads, "
        f"{batch.kv_heads} kv heads, head_dim {batch.head_dim}, pages of {batch.page_size}"
    )
    failed = False
    for dtype, rounding in ((jnp.float32, 2.0**-24), (jnp.bfloat16, 2.0**-9)):
        name = jnp.dtype(dtype).name
        args = batch.make(dtype)
        step = jax.jit(lambda args: paged_attention(**args, scale=batch.scale))
        compiled = step.lower(args).compile()
        if dtype == jnp.float32:
            _say("\nthe custom call in XLA's optimised HLO:")
            _show_hlo(compiled)
        _say(f"\n{name}:")
        exact = exact_attention(batch, args)
        error = np.abs(np.asarray(step(args).astype(jnp.float32)) - exact).max()
        limit = (64 if dtype == jnp.float32 else 4) * rounding * np.abs(exact).max()
        failed |= not error <= limit
        _say(f"  error against float64: {error:.1e} (allowed {limit:.1e})")
        ours = _median_ms(functools.partial(step, args))
        rates = f"{batch.flops() / ours / 1e6:.0f} GFLOP/s, "
        rates += f"{batch.kv_bytes(dtype) / ours / 1e6:.1f} GB/s of KV"
        _say(f"  paged_attention {ours:10.2f} ms  ({rates})")
        gather = jax.jit(lambda args: gather_attention(batch, args)).lower(args).compile()
        theirs = _median_ms(functools.partial(gather, args))
        _say(f"  pure jnp gather {theirs:10.2f} ms  ({theirs / ours:.1f}x ours)")
        torch = None if gpu else _torch_ms(batch, args)
        if torch is not None:
            _say(f"  torch CPU SDPA  {torch:10.2f} ms  ({torch / ours:.1f}x ours; KV gathered)")
        elif not gpu:
            _say("  torch is not installed: not compared")
    _say("\nserving steps:")
    _decode_loop(batch, jnp.bfloat16)
    _say(f"\n{'FAILED' if failed else 'ok'} after {time.perf_counter() - start:.0f} s")
    return int(failed)
