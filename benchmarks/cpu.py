"""Paged attention on the CPU beside torch's SDPA, the jnp gather and the memory's bandwidth.

Writes docs/benchmarks/cpu.md and cpu.svg. What is compared, exactly:

- ours: one jitted paged_attention call on the paged cache (pages in random order);
- torch SDPA: torch.nn.functional.scaled_dot_product_attention with enable_gqa=True on keys and
  values as a gather of the pages gives them, [batch, context, kv_heads, head_dim], seen head first
  through transpose(1, 2); the gather itself is not counted;
- torch head-major: the same on keys and values copied to contiguous [batch, kv_heads, context,
  head_dim] beforehand, which is not counted either;
- torch folded: head-major, with the query heads of a group folded into rows of one head, for
  decode;
- jnp gather: the same from the paged cache by indexing and einsum, jitted;
- read bandwidth: all cores search a 1 GiB array for a byte that it does not hold (memchr of libc);
  the mean of two medians of eight, taken right before and right after each decode of ours, since
  neighbours on a shared machine change it from minute to minute.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import importlib.util
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import overhead
from workloads import Problem, jnp_gather
from xla_gpu.jax import paged_attention

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "benchmarks"


def cpu_name() -> str:
    """The processor's name as Linux gives it."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def read_bandwidth(gibibytes: float = 1.0) -> float:
    """GB/s that all cores together read from memory, a chunk a task."""
    workers = len(os.sched_getaffinity(0))
    chunk = 1 << 24
    chunks = max(workers, int(gibibytes * 2**30 / chunk))
    data = np.ones(chunks * chunk, np.uint8)
    memchr = ctypes.CDLL(None).memchr  # reads with the widest loads, and without Python's lock
    memchr.restype = ctypes.c_void_p
    memchr.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    starts = range(data.ctypes.data, data.ctypes.data + data.nbytes, chunk)
    rates = []
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for _ in range(9):
            start = time.perf_counter()
            list(pool.map(lambda address: memchr(address, 0, chunk), starts))
            rates.append(data.nbytes / (time.perf_counter() - start))
    return statistics.median(rates[1:]) / 1e9  # the first starts the threads


def median_seconds(call: Callable[[], object], budget: float) -> float:
    """The median over at least three calls, and as many as `budget` seconds take (at most 200)."""
    call()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def time_ours(p: Problem, args: dict[str, jax.Array], budget: float) -> float:
    step = jax.jit(lambda args: paged_attention(**args, scale=p.scale))
    return median_seconds(lambda: jax.block_until_ready(step(args)), budget)


def time_jnp(p: Problem, args: dict[str, jax.Array], budget: float) -> float:
    step = jax.jit(lambda args: jnp_gather(p, args))
    return median_seconds(lambda: jax.block_until_ready(step(args)), budget)


NAMES = ("ours", "torch SDPA", "torch head-major", "torch folded", "jnp gather")


def time_torch(p: Problem, args: dict[str, jax.Array], budget: float) -> dict[str, float]:
    """Seconds of each form of SDPA by its name; none where torch is not installed.

    Prefill, whose rows have masks, has no folded form.
    """
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype = getattr(torch, p.dtype)

    def to_torch(array: jax.Array) -> torch.Tensor:
        return torch.from_numpy(np.array(array.astype(jnp.float32))).to(dtype)

    gathered = [to_torch(a).transpose(1, 2) for a in p.gathered(args)]
    head_major = [a.contiguous() for a in gathered]
    q = to_torch(args["query"]).reshape(p.batch, p.query_len, p.q_heads, p.head_dim)
    q = q.transpose(1, 2).contiguous()
    forms = {"torch SDPA": (q, gathered), "torch head-major": (q, head_major)}
    if not p.prefill:
        forms["torch folded"] = q.reshape(p.batch, p.kv_heads, -1, p.head_dim), head_major
    with torch.inference_mode():
        return {
            name: median_seconds(
                lambda q=q, kv=kv: sdpa(
                    q, *kv, scale=p.scale, is_causal=p.prefill, enable_gqa=True
                ),
                budget,
            )
            for name, (q, kv) in forms.items()
        }


def measure(p: Problem, budget: float, gibibytes: float) -> dict[str, object]:
    args = jax.block_until_ready(p.make())
    torch = time_torch(p, args, budget)
    before = read_bandwidth(gibibytes)
    ours = time_ours(p, args, budget)
    bandwidth = (before + read_bandwidth(gibibytes)) / 2
    seconds = {"ours": ours, **torch, "jnp gather": time_jnp(p, args, budget)}
    amount = p.flops() if p.prefill else p.kv_bytes()
    rates = {name: amount / s / 1e9 for name, s in seconds.items()}
    return {"problem": p, "rates": rates, "bandwidth": bandwidth}


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2f}"


def _ratio(a: float, b: float | None) -> str:
    return "-" if b is None else f"{a / b:.1f}x"


def table(rows: list[dict[str, object]]) -> list[str]:
    lines = []
    for prefill, unit in ((False, "GB/s of KV"), (True, "GFLOP/s")):
        chosen = [row for row in rows if row["problem"].prefill == prefill]
        if not chosen:
            continue
        header = [unit, *NAMES, *(f"ours / {name}" for name in NAMES[1:])]
        if not prefill:
            header += ["read bandwidth", "ours / read bandwidth"]
        lines += ["", "| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
        for row in chosen:
            ours, *others = (row["rates"].get(name) for name in NAMES)
            cells = [str(row["problem"]), _rate(ours), *map(_rate, others)]
            cells += [_ratio(ours, other) for other in others]
            if not prefill:
                cells += [_rate(row["bandwidth"]), f"{100 * ours / row['bandwidth']:.0f}%"]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def plot(rows: list[dict[str, object]], path: pathlib.Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no plot")
        return
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 1))
    for axis, prefill, unit in ((axes[0], False, "GB/s of KV"), (axes[1], True, "GFLOP/s")):
        chosen = [row for row in rows if row["problem"].prefill == prefill]
        for i, name in enumerate(NAMES):
            heights = [row["rates"].get(name, 0.0) for row in chosen]
            axis.bar(np.arange(len(chosen)) + 0.17 * (i - 2), heights, 0.16, label=name)
        axis.set_xticks(range(len(chosen)), [str(row["problem"]) for row in chosen], fontsize=8)
        axis.set_ylabel(unit)
        if not prefill:
            bandwidths = [row["bandwidth"] for row in chosen]
            axis.plot(range(len(chosen)), bandwidths, "--", c="gray", label="read bandwidth")
            axis.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the code")
    parser.add_argument("--out", type=pathlib.Path, default=DOCS)
    options = parser.parse_args(argv)
    shrink = 64 if options.quick else 1
    budget = 0.1 if options.quick else 3.0

    with jax.default_device(jax.devices("cpu")[0]):
        problems = [
            Problem(batch, context // shrink, dtype)
            for dtype in ("float32", "bfloat16")
            for batch, context in ((8, 4096), (1, 32768))
        ]
        problems.append(Problem(1, 2048 // shrink, "float32", prefill=True))
        rows = []
        for problem in problems:
            rows.append(measure(problem, budget, 1.0 / shrink))
            rates = {n: round(r, 2) for n, r in rows[-1]["rates"].items()}
            print(f"{problem}: {rates}, reading {rows[-1]['bandwidth']:.2f}", flush=True)
        call = overhead.measure()

    torch_version = "not installed"
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch_version = torch.__version__
    lines = [
        "# Speed on the CPU",
        "",
        "Made by `make bench`. 32 query heads, 8 kv heads, head_dim 128, pages of 16 tokens in "
        "random order.",
        f"Machine: {cpu_name()}, {len(os.sched_getaffinity(0))} cores; jax {jax.__version__}, "
        f"torch {torch_version}.",
        *table(rows),
        "",
        "What is compared: `ours` is one jitted `xla_gpu.jax.paged_attention` on the paged cache. "
        "`torch SDPA` gets keys and values as a gather of the pages gives them, seen head first "
        "through `transpose(1, 2)`, and `enable_gqa=True`; `torch head-major` gets them copied to "
        "contiguous [batch, kv_heads, context, head_dim]; neither the gather nor the copy is "
        "counted. `torch folded` is head-major with the query heads of a group folded into rows "
        "of one head, which a user must know to do and which prefill's mask rules out. "
        "`jnp gather` indexes the pages and uses einsum and "
        "softmax, jitted. `read bandwidth`: all cores search 1 GiB for a byte, right before and "
        "right after ours. Medians.",
        "",
        "| call overhead | median, us |",
        "|---|---|",
        *(f"| {name} | {us:.2f} |" for name, us in call.items()),
        "",
        "![speed on the CPU](cpu.svg)",
        "",
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cpu.md").write_text("\n".join(lines))
    plot(rows, options.out / "cpu.svg")
    print(f"wrote {options.out / 'cpu.md'}")


if __name__ == "__main__":
    main()
