"""Host time of a call of the torch ops, beside torch itself and other libraries' attention.

What Python and the library do before the call returns. On the CPU the problem is empty (no tokens),
so nothing is computed; on CUDA it is one decode step of eight sequences, enqueued and not awaited.
Printed: the least and the median of many short runs, in us, all rows in turn; the least is what the
code costs, the median what this machine made of it. Usage: torch_overhead.py [--device cuda]
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable

import torch
import xla_gpu.torch
from xla_gpu.torch import _kernels

RUNS, CALLS = 300, 100
Rows = list[tuple[str, Callable[[], object], bool]]  # name, call, under inference_mode


def batch(device: str, tokens: int) -> list[torch.Tensor]:
    """The first six arguments of paged_attention: 8 sequences of 8 pages, bf16 on CUDA."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    i32 = {"dtype": torch.int32, "device": device}
    query = torch.randn(tokens, 32, 128, dtype=dtype, device=device)
    cache = torch.randn(64, 16, 16, 128, dtype=dtype, device=device)
    starts = torch.arange(9, **i32).clamp(max=tokens)
    lens = torch.full((8,), 100, **i32) if tokens else torch.zeros(8, **i32)
    tables = torch.arange(64, **i32).view(8, 8)
    return [query, cache, lens, tables, starts, torch.full((1,), 8, **i32)]


def our_rows(device: str) -> Rows:
    args = batch(device, 8 if device == "cuda" else 0)
    query, cache, *_ = args
    key = query[:, :8].contiguous()
    slots = torch.arange(key.shape[0], device=device)
    one = torch.zeros(1, device=device)
    ops = torch.ops.xla_gpu
    function = xla_gpu.torch.paged_attention
    update = xla_gpu.torch.update_kv_cache_
    kernel, tensors, options = _kernels.INPUTS["paged_attention"](*args, 0.1)
    return [
        ("torch: a + b, one element", lambda: one + one, False),
        ("torch.ops.xla_gpu.simple_add", lambda: ops.simple_add(one, one), False),
        ("torch.ops.xla_gpu.paged_attention", lambda: ops.paged_attention(*args, 0.1), False),
        ("  under inference_mode", lambda: ops.paged_attention(*args, 0.1), True),
        ("xla_gpu.torch.paged_attention", lambda: function(*args, 0.1), False),
        ("  under inference_mode", lambda: function(*args, 0.1), True),
        ("  its kernel alone", lambda: kernel(tensors, options), True),
        (
            "torch.ops.xla_gpu.update_kv_cache_",
            lambda: ops.update_kv_cache_(key, key, cache, slots),
            True,
        ),
        ("xla_gpu.torch.update_kv_cache_", lambda: update(key, key, cache, slots), True),
    ]


def floor_rows(device: str) -> Rows:
    """What torch alone costs: the same schema, a Python function that does nothing."""
    library = torch.library.Library("xla_gpu_floor", "DEF")
    schema = str(torch.ops.xla_gpu.paged_attention.default._schema)
    library.define("paged_attention" + schema[schema.index("(") :])
    args = batch(device, 0)
    library.impl("paged_attention", lambda query, *_, **__: query, device.upper())
    op = torch.ops.xla_gpu_floor.paged_attention
    return [("a Python op that does nothing, same schema", lambda: (library, op(*args, 0.1)), True)]


def sdpa_rows(device: str) -> Rows:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q = torch.randn(8, 32, 1, 128, dtype=dtype, device=device)
    k = torch.randn(8, 32, 128, 128, dtype=dtype, device=device)
    if device == "cpu":
        q, k = q[:1, :1], k[:1, :1, :1]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return [("torch SDPA", lambda: sdpa(q, k, k), True)]


def flash_attn_rows() -> Rows:
    flash = importlib.import_module("flash_attn")
    query, _, lens, *_ = batch("cuda", 8)
    k = torch.randn(8, 256, 8, 128, dtype=query.dtype, device="cuda")
    table = torch.arange(8, dtype=torch.int32, device="cuda").view(8, 1)
    call = flash.flash_attn_with_kvcache
    return [
        (
            "flash_attn_with_kvcache",
            lambda: call(query.unsqueeze(1), k, k, cache_seqlens=lens, block_table=table),
            True,
        )
    ]


def flashinfer_rows() -> Rows:
    flashinfer = importlib.import_module("flashinfer")
    query, cache, *_ = batch("cuda", 8)
    work = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(work, "NHD")
    i32 = {"dtype": torch.int32, "device": "cuda"}
    starts = torch.arange(9, **i32) * 7
    pages = torch.arange(56, **i32)
    last = torch.full((8,), 4, **i32)
    dtypes = {"q_data_type": query.dtype, "kv_data_type": query.dtype}
    wrapper.plan(starts, pages, last, 32, 8, 128, 16, **dtypes)
    pair = cache.view(64, 16, 2, 8, 128).transpose(1, 2).contiguous()
    return [("flashinfer wrapper.run (plan not counted)", lambda: wrapper.run(query, pair), True)]


def vllm_rows() -> Rows:
    flash = importlib.import_module("vllm.vllm_flash_attn")
    query, _, lens, tables, starts, _ = batch("cuda", 8)
    k = torch.randn(64, 16, 8, 128, dtype=query.dtype, device="cuda")
    out = torch.empty_like(query)

    def call() -> object:
        return flash.flash_attn_varlen_func(
            query, k, k, 1, starts, 100, seqused_k=lens, block_table=tables, causal=True, out=out
        )

    return [("vllm flash_attn_varlen_func", call, True)]


def short_run(call: Callable[[], object], device: str) -> float:
    """us a call over a short run; on CUDA the queue is empty before it."""
    calls = CALLS if device == "cpu" else 20
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - start
    if device == "cuda":
        torch.cuda.synchronize()
    return seconds / calls * 1e6


def rows_of(device: str) -> list[tuple[str, float, float] | tuple[str, str]]:
    """The table: a row's name and its two figures, or why there are none."""
    groups: list[Callable[[], Rows]] = [
        lambda: our_rows(device),
        lambda: floor_rows(device),
        lambda: sdpa_rows(device),
    ]
    if device == "cuda":
        groups += [flash_attn_rows, flashinfer_rows, vllm_rows]
    rows: Rows = []
    absent: dict[str, str] = {}
    for group in groups:
        try:
            rows += group()
        except ImportError as e:
            absent[getattr(group, "__name__", "").removesuffix("_rows")] = str(e)
    times: dict[int, list[float]] = {}
    # In turn, so that what else the machine does meets all rows alike.
    for number in range(RUNS + 5):
        for i, (name, call, inference) in enumerate(rows):
            if name in absent:
                continue
            try:
                with torch.inference_mode(inference):
                    us = short_run(call, device)
            except Exception as e:  # a peer of another version: say so and go on
                absent[name] = f"{type(e).__name__}: {e}"[:120]
                continue
            if number >= 5:
                times.setdefault(i, []).append(us)
    table: list[tuple[str, float, float] | tuple[str, str]] = [
        (rows[i][0], min(us), statistics.median(us)) for i, us in times.items()
    ]
    return table + list(absent.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--runs", type=int, default=RUNS)
    args = parser.parse_args()
    globals()["RUNS"] = args.runs
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {args.device}; us of host time a call (least, median)")
    for name, *figures in rows_of(args.device):
        if len(figures) == 2:
            print(f"  {name:45} {figures[0]:7.2f} {figures[1]:7.2f}")
        else:
            print(f"  {name:45} not measured: {figures[0]}")


if __name__ == "__main__":
    main()
