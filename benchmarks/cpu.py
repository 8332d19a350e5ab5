"""Paged attention on the CPU beside torch's SDPA, the jnp gather and the memory's bandwidth.

    python benchmarks/cpu.py [--out FOLDER]         # measures, ten minutes; torch where installed
    python benchmarks/cpu.py --runs 3               # all problems, then again, and again
    python benchmarks/cpu.py --problems 'decode.* bfloat16'  # those alone
    python benchmarks/cpu.py --name cpu-amx --cores 1,16  # other files, other numbers of cores
    python benchmarks/cpu.py --no-peers --seconds 0.3     # ours alone, two minutes
    python benchmarks/cpu.py --from FOLDER/cpu.json # makes table and chart again

Writes FOLDER/cpu.json, cpu.md and cpu.svg: GB/s of keys and values for decode, GFLOP/s for prefill,
calls a second for a prompt beside decodes in one batch.

Medians of single calls, and the largest error of an output against fp64, over the largest of
those outputs; 16 rows of a prefill are compared. Queries and outputs are bfloat16 where the cache
is fp8. What is compared:

- ours, paged: one jitted xla_gpu.jax.paged_attention on the paged cache;
- torch SDPA, gathered: torch.nn.functional.scaled_dot_product_attention with enable_gqa=True on
  keys and values as a gather of the pages gives them, [batch, context, kv_heads, head_dim], seen
  head first through transpose(1, 2); the gather itself is not counted;
- torch SDPA, head-major: the same on keys and values copied to contiguous [batch, kv_heads,
  context, head_dim] beforehand, which is not counted either;
- torch SDPA, folded: head-major, with the query heads of a group folded into rows of one head,
  which a user must know to do and which prefill's mask rules out. It takes no fp8: keys and values
  are made bfloat16 beforehand, not counted, and its rate is in bytes of fp8, as ours is;
- torch flex_attention: head-major through torch.compile, of fp8 as bfloat16 too; not where each
  head has more than 4096 x 4096 logits, as jnp, paged;
- jnp, paged: the pages by indexing, then einsum and softmax, jitted.

A prompt beside decodes is one call of ours; of the others it is one for the prompt and one for all
decodes, whose times are added up.

The ceilings: for decode, what all cores together read from memory (they search 1 GiB for a byte
that it does not hold), right before and right after ours, since neighbours on a shared machine
change it from minute to minute, and ours where all entries of the block tables are one page, which
lies in each core's L2, so that the arithmetic alone counts: the lower of the two binds. For
prefill, XLA's product of two 2048 x 2048 matrices of f32, before and after, which products of bf16
may exceed. Of several runs ours, the ceilings and ours' shares of them are given run by run, of the
others the medians.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import dataclasses
import importlib.util
import os
import re
import statistics
import time
from collections.abc import Callable

import cpu_scaling
import jax
import jax.numpy as jnp
import numpy as np
import overhead
from common import commit, cpu_name, folder_of
from cpu_page import ARITHMETIC, FLEX, JNP, OURS, PRODUCT, READ, TORCH, load, save, unit
from workloads import Mixed, Problem, jnp_gather, joined
from xla_gpu.jax import paged_attention

MOST_LOGITS = 4096**2  # of a head: the jnp form holds all heads' at once, and flex is slow


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


@dataclasses.dataclass
class Timed:
    seconds: float
    out: np.ndarray  # f32 [tokens, q_heads, head_dim]


def time_jax(call: Callable[[], jax.Array], budget: float) -> Timed:
    seconds = median_seconds(lambda: jax.block_until_ready(call()), budget)
    return Timed(seconds, np.asarray(call().astype(jnp.float32)))


def time_ours(p: Problem, args: dict[str, jax.Array], budget: float) -> Timed:
    step = jax.jit(lambda args: paged_attention(**args, scale=p.scale))
    return time_jax(lambda: step(args), budget)


def time_jnp(p: Problem, args: dict[str, jax.Array], budget: float) -> Timed:
    step = jax.jit(lambda args: jnp_gather(p, args))
    return time_jax(lambda: step(args), budget)


def time_torch(
    p: Problem, args: dict[str, jax.Array], budget: float, flex: bool = True
) -> dict[str, Timed]:
    """Each form of SDPA, and flex_attention, by its name; none where torch is not installed.

    Prefill, whose rows have masks, has no folded form.
    """
    if importlib.util.find_spec("torch") is None:
        return {}
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype = getattr(torch, p.query_dtype)

    def to_torch(array: jax.Array) -> torch.Tensor:
        return torch.from_numpy(np.array(array.astype(jnp.float32))).to(dtype)

    gathered = [to_torch(a).transpose(1, 2) for a in p.gathered(args)]
    head_major = [a.contiguous() for a in gathered]
    q = to_torch(args["query"]).reshape(p.batch, p.query_len, p.q_heads, p.head_dim)
    q = q.transpose(1, 2).contiguous()
    forms = {f"{TORCH}, gathered": (q, gathered), f"{TORCH}, head-major": (q, head_major)}
    if not p.prefill:
        folded = q.reshape(p.batch, p.kv_heads, -1, p.head_dim)
        forms[f"{TORCH}, folded"] = folded, head_major

    def attend(q: torch.Tensor, kv: list[torch.Tensor]) -> torch.Tensor:
        return sdpa(q, *kv, scale=p.scale, is_causal=p.prefill, enable_gqa=True)

    torch.compiler.reset()  # which refuses more than a few shapes of one function
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = None
    if p.prefill:
        mask = create_block_mask(
            lambda _b, _h, q, k: q >= k, None, None, p.query_len, p.context, device="cpu"
        )

    def attend_flex(q: torch.Tensor, kv: list[torch.Tensor]) -> torch.Tensor:
        return compiled(q, *kv, block_mask=mask, scale=p.scale, enable_gqa=True)

    def time_form(form: Callable, q: torch.Tensor, kv: list[torch.Tensor]) -> Timed:
        seconds = median_seconds(lambda: form(q, kv), budget)
        out = form(q, kv).float()
        out = out.reshape(p.batch, p.q_heads, p.query_len, p.head_dim).transpose(1, 2)
        return Timed(seconds, out.reshape(args["query"].shape).numpy())

    with torch.inference_mode():
        timed = {name: time_form(attend, q, kv) for name, (q, kv) in forms.items()}
        if flex and p.context * p.query_len <= MOST_LOGITS:
            timed[FLEX] = time_form(attend_flex, q, head_major)
        return timed


def time_others(
    p: Problem, args: dict[str, jax.Array], budget: float, flex: bool
) -> dict[str, Timed]:
    """All but ours by name."""
    timed = time_torch(p, args, budget, flex)
    if p.context * p.query_len <= MOST_LOGITS:
        timed[JNP] = time_jnp(p, args, budget)
    return timed


def errors(p: Problem, args: dict[str, jax.Array], outs: dict[str, np.ndarray]) -> dict[str, float]:
    """The largest error of each output against fp64, over the largest of 16 rows' outputs."""
    k, v = (np.asarray(a.astype(jnp.float32)) for a in p.gathered(args))
    query = np.asarray(args["query"].astype(jnp.float32), np.float64)
    rows = np.unique(np.linspace(0, len(query) - 1, 16).astype(int))
    wanted = []
    for row in rows:
        seq, seen = row // p.query_len, p.context - p.query_len + row % p.query_len + 1
        q = query[row].reshape(p.kv_heads, -1, p.head_dim)
        logits = np.einsum("hgd,khd->hgk", q, k[seq, :seen].astype(np.float64)) * p.scale
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        wanted.append(np.einsum("hgk,khd->hgd", weights, v[seq, :seen].astype(np.float64)))
    want = np.stack(wanted).reshape(len(rows), p.q_heads, p.head_dim)
    largest = np.abs(want).max()
    return {name: float(np.abs(out[rows] - want).max() / largest) for name, out in outs.items()}


def product(dtype: str, n: int) -> float:
    """GFLOP/s of XLA's product of two n x n matrices."""
    a = jnp.ones((n, n), dtype)
    multiply = jax.jit(jnp.matmul)
    return 2e-9 * n**3 / median_seconds(lambda: jax.block_until_ready(multiply(a, a)), 1.0)


def measure(
    p: Problem, budget: float, shrink: int = 1, flex: bool = True, peers: bool = True
) -> dict[str, object]:
    """Rates by name in the problem's unit, errors and the ceilings, where there are any."""

    def ceiling() -> float:
        return product("float32", 2048 // shrink) if p.prefill else read_bandwidth(1.0 / shrink)

    args = [part.make(i) for i, part in enumerate(p.parts)]
    jax.block_until_ready(args)
    others = [
        time_others(part, a, budget, flex) if peers else {}
        for part, a in zip(p.parts, args, strict=True)
    ]
    limits = {}
    if isinstance(p, Mixed):
        ours = time_ours(p, joined(*args), budget)
    else:
        before = ceiling()
        ours = time_ours(p, *args, budget)
        limits[PRODUCT if p.prefill else READ] = (before + ceiling()) / 2
        if not p.prefill:
            one_page = args[0] | {"block_tables": jnp.zeros_like(args[0]["block_tables"])}
            limits[ARITHMETIC] = p.kv_bytes() / time_ours(p, one_page, budget).seconds / 1e9
    seconds = {OURS: ours.seconds}
    for name in others[-1]:
        if all(name in timed for timed in others):
            seconds[name] = sum(timed[name].seconds for timed in others)
    largest = dict.fromkeys(seconds, 0.0)
    for part, a, timed in zip(p.parts, args, others, strict=True):
        own, ours.out = np.split(ours.out, [len(a["query"])])
        outs = {name: timed[name].out if name in timed else own for name in seconds}
        for name, error in errors(part, a, outs).items():
            largest[name] = max(largest[name], error)
    amount = 1e9 if isinstance(p, Mixed) else p.flops() if p.prefill else p.kv_bytes()
    return {
        "problem": p,
        "rates": {name: amount / one / 1e9 for name, one in seconds.items()},
        "errors": largest,
        "ceilings": limits,
    }


def core_counts(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="cpu", help="of the files written")
    parser.add_argument("--seconds", type=float, default=3.0, help="that each form is called for")
    parser.add_argument("--no-flex", action="store_true", help="which takes long to compile")
    parser.add_argument("--no-peers", action="store_true", help="ours alone, and the ceilings")
    parser.add_argument("--runs", type=int, default=1, help="of all problems, one after the other")
    parser.add_argument(
        "--problems", default="", metavar="REGEX", help="those alone, and no call overhead"
    )
    parser.add_argument(
        "--cores", type=core_counts, help="numbers of them, with commas between; else 1, 2, 4, ..."
    )
    options = folder_of(parser, argv)
    if options.saved:
        save(options.out, *load(options.saved), options.saved.stem)
        return
    cores = len(os.sched_getaffinity(0))
    shrink, budget = (64, 0.1) if options.quick else (1, options.seconds)
    facts = {
        "machine": f"{cpu_name()}, {cores} cores",
        "cores": cores,
        "commit": commit(),
        "jax": jax.__version__,
        "torch": "not installed",
        "how": __doc__[__doc__.index("Medians of") :].strip(),
    }
    if importlib.util.find_spec("torch") is not None:
        import torch

        facts["torch"] = torch.__version__

    powers = [] if options.quick else [1 << i for i in range(cores.bit_length())]
    facts["scaling"] = cpu_scaling.in_children(options.cores or powers, options.problems)
    with jax.default_device(jax.devices("cpu")[0]):
        problems = (
            [
                Problem(batch, context // shrink, dtype)
                for dtype in ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
                for batch, context in ((8, 4096), (1, 32768))
            ]
            + [
                Problem(1, context // shrink, dtype, prefill=True)
                for dtype in ("float32", "bfloat16", "float16", "float8_e4m3fn")
                for context in (2048, 8192)
            ]
            + [
                Mixed(15, 2048 // shrink, dtype, prompt=512 // shrink)
                for dtype in ("float32", "bfloat16", "float8_e4m3fn")
            ]
        )
        problems = [p for p in problems if re.search(options.problems, str(p))] * options.runs
        print(
            f"{facts['machine']}: {len(problems)} problems, to {options.out}/{options.name}.md",
            flush=True,
        )
        rows = []
        for number, problem in enumerate(problems, 1):
            row = measure(problem, budget, shrink, not options.no_flex, not options.no_peers)
            rows.append(row)
            found = "; ".join(f"{n}: {r:.3g}" for n, r in (row["rates"] | row["ceilings"]).items())
            print(f"{number}/{len(problems)} {problem}, {unit(problem)}: {found}", flush=True)
            save(options.out, facts | {"overhead_us": {}}, rows, options.name)  # if it is cut off
        facts["overhead_us"] = {} if options.problems else overhead.measure()
    save(options.out, facts, rows, options.name)
    print(f"wrote {options.out}/{options.name}.md")


if __name__ == "__main__":
    main()
