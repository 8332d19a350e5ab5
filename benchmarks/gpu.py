"""Paged attention on an NVIDIA GPU beside what JAX itself offers: cuDNN, Pallas, plain jnp.

    python benchmarks/gpu.py [--out FOLDER] [--seconds N]   # measures; a progress line a competitor
    python benchmarks/gpu.py --from FOLDER/h200.json        # makes table and chart again

Writes FOLDER/<gpu>.json, .md and .svg: TB/s of keys and values for decode, TFLOP/s for prefill.

How it is timed: calls for 40 ms (but 10 to 200), each fed with the one before (q + 0.001 * out),
unrolled by ten in one jitted loop, so that nothing overlaps and no call is dropped or shared; the
median of seven such loops, divided by the number of calls. Keys and values of a decode are 1 GiB,
far more than the L2 cache. What a competitor wants prepared (its layout of the cache) is not
counted. Where it has variants all times are given, the fastest first.

- ours, paged: xla_gpu.jax.paged_attention, a custom call, on pages of 16 tokens in random order;
- cuDNN, paged: jax._src.cudnn.fused_attention_stablehlo.paged_attention, JAX's own (not public), on
  the same pages, K and V split, and on pages of 128 tokens;
- cuDNN, contiguous: jax.nn.dot_product_attention(implementation="cudnn") on keys and values
  gathered beforehand: nothing is paged;
- Pallas, paged: jax.experimental.pallas.ops.gpu.paged_attention on pages [kv_heads, pages, ...];
- Pallas, contiguous: jax.experimental.pallas.ops.gpu decode_attention (decode) and attention_mgpu
  or, where that fails, attention (prefill), on gathered keys and values;
- jnp, paged: the pages by indexing, then einsum and softmax.

The ceilings, timed the same way: XLA's sum of 1 GiB, and its bf16 product of two 8192 x 8192
matrices; and the data sheet's bandwidth.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import re
import statistics
import time
from collections.abc import Callable

import chart
import jax
import jax.numpy as jnp
from common import folder_of
from workloads import Problem, jnp_gather
from xla_gpu.jax import paged_attention

# The data sheet's memory bandwidth, TB/s.
SHEET = {"H200": 4.8, "H100": 3.35, "A100": 2.04}

Operands = dict[str, jax.Array]
Step = Callable[[jax.Array, Operands], jax.Array]


@dataclasses.dataclass
class Competitor:
    """One way to compute a problem: `prepare` is not timed."""

    name: str
    prepare: Callable[[Problem, Operands], Operands]
    variants: Callable[[Problem], dict[str, Step]]


@dataclasses.dataclass
class Measured:
    times: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds by variant
    difference: float | None = None  # largest of any variant, from jnp
    error: str = ""  # of the first variant that fails

    @property
    def seconds(self) -> float | None:
        return min(self.times.values(), default=None)


Rows = list[tuple[Problem, dict[str, Measured]]]


# ---- The competitors -----------------------------------------------------------------------------


def _ours(p: Problem) -> dict[str, Step]:
    def step(q: jax.Array, ops: Operands) -> jax.Array:
        return paged_attention(q, **ops, scale=p.scale)

    return {"": step}


def _without_query(p: Problem, args: Operands) -> Operands:
    return {name: array for name, array in args.items() if name != "query"}


def _contiguous(p: Problem, args: Operands) -> Operands:
    k, v = jax.jit(lambda args: p.gathered(args))(args)
    return {"k": k, "v": v}


def _per_head_pages(p: Problem, args: Operands) -> Operands:
    """The Pallas kernel's cache: [kv_heads, pages, page_size, head_dim]."""
    cache = args["kv_cache"]
    move = jax.jit(lambda half: jnp.moveaxis(half, 2, 0))
    return {
        "k": move(cache[:, :, 0::2]),
        "v": move(cache[:, :, 1::2]),
        "tables": args["block_tables"],
        "lens": args["context_lens"],
    }


def _cudnn(p: Problem) -> dict[str, Step]:
    def step(q: jax.Array, ops: Operands) -> jax.Array:
        batched = q.reshape(p.batch, p.query_len, p.q_heads, p.head_dim)
        out = jax.nn.dot_product_attention(
            batched,
            ops["k"],
            ops["v"],
            scale=p.scale,
            is_causal=p.prefill,
            implementation="cudnn",
        )
        return out.reshape(q.shape)

    return {"": step}


def _split_pages(p: Problem, args: Operands) -> Operands:
    """cuDNN's caches, K and V apart: pages of 16 tokens and, in an order of their own, of 128."""
    cache, tables = args["kv_cache"], args["block_tables"]
    ops = {
        "k16": cache[:, :, 0::2],
        "v16": cache[:, :, 1::2],
        "tables16": tables[:, None, :, None],
        "lens": args["context_lens"],
        "query_lens": jnp.full_like(args["context_lens"], p.query_len),
    }
    if p.context % 128 == 0:
        pages = p.batch * p.context // 128
        order = jax.random.permutation(jax.random.PRNGKey(1), pages).astype(jnp.int32)
        for name, array in zip("kv", p.gathered(args), strict=True):
            blocks = array.reshape(pages, 128, p.kv_heads, p.head_dim)
            ops[f"{name}128"] = jnp.zeros_like(blocks).at[order].set(blocks)
        ops["tables128"] = order.reshape(p.batch, 1, -1, 1)
    return ops


def _cudnn_paged(p: Problem) -> dict[str, Step]:
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    mask = cudnn.MaskType.PADDING_CAUSAL if p.prefill else cudnn.MaskType.PADDING

    def make(size: int) -> Step:
        def step(q: jax.Array, ops: Operands) -> jax.Array:
            out = cudnn.paged_attention(
                q.reshape(p.batch, p.query_len, p.q_heads, p.head_dim),
                ops[f"k{size}"],
                ops[f"v{size}"],
                ops["query_lens"],
                ops["lens"],
                ops[f"tables{size}"],
                ops[f"tables{size}"],
                scale=p.scale,
                mask_type=mask,
            )
            return out.reshape(q.shape)

        return step

    sizes = (16, 128) if p.context % 128 == 0 else (16,)
    return {f"pages of {size}": make(size) for size in sizes}


def _pallas_paged(p: Problem) -> dict[str, Step]:
    from jax.experimental.pallas.ops.gpu import paged_attention as pallas

    if p.prefill:
        raise NotImplementedError("decode only")

    def make(k_splits: int, pages: int) -> Step:
        def step(q: jax.Array, ops: Operands) -> jax.Array:
            scaled = q * jnp.asarray(p.scale, q.dtype)
            return pallas.paged_attention(
                scaled,
                ops["k"],
                ops["v"],
                ops["tables"],
                ops["lens"],
                k_splits=k_splits,
                pages_per_compute_block=pages,
            )

        return step

    return {f"k_splits={s}, pages={n}": make(s, n) for s, n in ((16, 8), (8, 4), (32, 8))}


def _pallas_dense(p: Problem) -> dict[str, Step]:
    return _pallas_prefill(p) if p.prefill else _pallas_decode(p)


def _pallas_decode(p: Problem) -> dict[str, Step]:
    from jax.experimental.pallas.ops.gpu import decode_attention as pallas

    def make(k_splits: int, block_k: int) -> Step:
        def step(q: jax.Array, ops: Operands) -> jax.Array:
            return pallas.gqa(
                q, ops["k"], ops["v"], sm_scale=p.scale, k_splits=k_splits, block_k=block_k
            )

        return step

    return {f"k_splits={s}, block_k={n}": make(s, n) for s, n in ((16, 128), (32, 128))}


def _pallas_prefill(p: Problem) -> dict[str, Step]:
    shape = (p.batch, p.query_len, p.q_heads, p.head_dim)

    def mosaic(q: jax.Array, ops: Operands) -> jax.Array:
        from jax.experimental.pallas.ops.gpu import attention_mgpu as pallas

        config = pallas.TuningConfig(block_q=128, block_kv=128, max_concurrent_steps=2, causal=True)
        scaled = (q * jnp.asarray(p.scale, q.dtype)).reshape(shape)
        return pallas.attention(scaled, ops["k"], ops["v"], config).reshape(q.shape)

    def triton(q: jax.Array, ops: Operands) -> jax.Array:
        from jax.experimental.pallas.ops.gpu import attention as pallas

        k, v = (jnp.repeat(ops[name], p.q_heads // p.kv_heads, axis=2) for name in ("k", "v"))
        out = pallas.mha(q.reshape(shape), k, v, None, sm_scale=p.scale, causal=True)
        return out.reshape(q.shape)

    return {"mosaic": mosaic, "triton": triton}


def _jnp(p: Problem) -> dict[str, Step]:
    return {"": lambda q, ops: jnp_gather(p, {"query": q, **ops})}


COMPETITORS = [
    Competitor("ours, paged", _without_query, _ours),
    Competitor("cuDNN, paged", _split_pages, _cudnn_paged),
    Competitor("Pallas, paged", _per_head_pages, _pallas_paged),
    Competitor("jnp, paged", _without_query, _jnp),
    Competitor("cuDNN, contiguous", _contiguous, _cudnn),
    Competitor("Pallas, contiguous", _contiguous, _pallas_dense),
]


# ---- Timing --------------------------------------------------------------------------------------


def seconds_a_call(step: Step, x: jax.Array, ops: Operands, calls: int) -> float:
    """The median time of seven chains of `calls`, divided by `calls`."""
    jitted = jax.jit(step)

    def once(x: jax.Array, ops: Operands) -> jax.Array:
        # The barrier keeps what depends on ops alone (a gather) in each call.
        return jitted(*jax.lax.optimization_barrier((x, ops)))

    @jax.jit
    def chain(x: jax.Array, ops: Operands) -> jax.Array:
        return jax.lax.fori_loop(0, calls, lambda _, x: once(x, ops), x, unroll=min(calls, 10))

    times = []
    for _ in range(3 + 7):  # the first three compile, capture, replay
        start = time.perf_counter()
        jax.block_until_ready(chain(x, ops))
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:]) / calls


def chained(step: Step) -> Step:
    """`step` whose query depends on the result before."""
    return lambda q, ops: q + (0.001 * step(q, ops)).astype(q.dtype)


def measure_one(
    competitor: Competitor,
    p: Problem,
    args: Operands,
    want: jax.Array | None,
    deadline: float,
    budget: float,
) -> Measured:
    """Never raises: a failure is in the result. `budget`: of a chain, in seconds."""
    found = Measured()
    try:
        ops = jax.block_until_ready(jax.jit(lambda args: competitor.prepare(p, args))(args))
        variants = competitor.variants(p)
    except Exception as e:
        return Measured(error=_short(e))
    for name, step in variants.items():
        if time.monotonic() > deadline:
            found.error = found.error or "not measured: time is up"
            break
        try:
            once = jax.jit(step)
            out = jax.block_until_ready(once(args["query"], ops))
            start = time.perf_counter()
            jax.block_until_ready(once(args["query"], ops))
            calls = 10 * max(1, min(20, round(budget / (time.perf_counter() - start) / 10)))
            if want is not None:
                both = out.reshape(want.shape).astype(jnp.float32) - want.astype(jnp.float32)
                found.difference = max(found.difference or 0.0, float(jnp.abs(both).max()))
            found.times[name] = seconds_a_call(chained(step), args["query"], ops, calls)
        except Exception as e:
            found.error = found.error or _short(e)
    return found


def _short(error: Exception) -> str:
    text = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").replace("|", "/")
    return text[:160] or type(error).__name__


def ceilings(device: str, shrink: int) -> dict[str, float]:
    """Rates by name, TB/s and TFLOP/s: what no attention here should pass."""
    n = 8192 // math.isqrt(shrink)
    data = jnp.ones((2**29 // shrink,), jnp.bfloat16)
    matrix = jax.random.normal(jax.random.PRNGKey(0), (n, n), jnp.bfloat16) / n**0.5
    read = seconds_a_call(lambda x, ops: x + ops["a"].sum(), jnp.zeros(()), {"a": data}, 100)
    product = seconds_a_call(lambda x, ops: x @ ops["a"], matrix, {"a": matrix}, 100)
    found = {"XLA's sum": data.nbytes / read / 1e12, "XLA's product": 2e-12 * n**3 / product}
    sheet = next((rate for name, rate in SHEET.items() if name in device), None)
    return found if sheet is None else found | {"data sheet": sheet}


# ---- Output --------------------------------------------------------------------------------------


def rate(p: Problem, seconds: float | None) -> float | None:
    """TB/s of KV for decode, TFLOP/s for prefill."""
    return None if seconds is None else (p.flops() if p.prefill else p.kv_bytes()) / seconds / 1e12


def _unit(p: Problem) -> str:
    return "TFLOP/s" if p.prefill else "TB/s"


def _cell(p: Problem, measured: Measured) -> str:
    if not measured.times:
        return measured.error or "-"
    times = sorted((t, variant) for variant, t in measured.times.items())
    words = (f"{variant}: {t * 1e6:.0f} us".removeprefix(": ") for t, variant in times)
    return f"{rate(p, measured.seconds):.3g} {_unit(p)} ({'; '.join(words)})"


def of_problem(p: Problem, found: dict[str, float]) -> dict[str, float]:
    """The ceilings of `found` that are in the problem's unit."""
    return {name: most for name, most in found.items() if p.prefill == (name == "XLA's product")}


def save(path: pathlib.Path, facts: dict[str, object], rows: Rows) -> None:
    """JSON, table and chart; after every competitor, so that a late failure loses nothing."""
    plain = [
        {"problem": dataclasses.asdict(p)}
        | {"measured": {name: dataclasses.asdict(m) for name, m in row.items()}}
        for p, row in rows
    ]
    path.with_suffix(".json").write_text(json.dumps(facts | {"rows": plain}, indent=1) + "\n")
    names = [competitor.name for competitor in COMPETITORS]
    most = facts["ceilings"]
    lines = [
        f"# Speed on {facts['device']}",
        "",
        f"Made by `benchmarks/gpu.py` with jax {facts['jax']}. bf16, 32 query heads, 8 kv "
        "heads, head_dim 128. Decode in TB/s of keys and values read, prefill in TFLOP/s (the "
        "causal half counted).",
        "",
        f"![speed]({path.stem}.svg)",
        "",
        "| | " + " | ".join(str(p) for p, _ in rows) + " |",
        "|---" * (len(rows) + 1) + "|",
    ]
    for name in names:
        cells = [_cell(p, row[name]) if name in row else "-" for p, row in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    ends = [
        ", ".join(f"{n} {r:.3g} {_unit(p)}" for n, r in of_problem(p, most).items())
        for p, _ in rows
    ]
    lines += [f"| ceilings | {' | '.join(ends)} |", "", "Largest difference from jnp:", ""]
    for p, row in rows:
        found = [f"{n} {m.difference:.1e}" for n, m in row.items() if m.difference is not None]
        lines.append(f"- {p}: {'; '.join(found) or '-'}")
    path.write_text("\n".join([*lines, "", facts["how"], ""]))
    chart.write(
        path.with_suffix(".svg"),
        [
            chart.Panel(
                p.title(),
                _unit(p) if p.prefill else f"{_unit(p)} of keys and values",
                {name: rate(p, m.seconds) for name, m in row.items()},
                of_problem(p, most),
            )
            for p, row in rows
        ],
    )


def load(path: pathlib.Path) -> tuple[dict[str, object], Rows]:
    facts = json.loads(path.read_text())
    return facts, [
        (Problem(**row["problem"]), {n: Measured(**m) for n, m in row["measured"].items()})
        for row in facts.pop("rows")
    ]


def reference(p: Problem, args: Operands) -> jax.Array | None:
    """jnp's result; None where that does not fit into memory."""
    try:
        return jax.block_until_ready(jax.jit(lambda args: jnp_gather(p, args))(args))
    except Exception as e:
        print(f"{p}: no reference: {_short(e)}", flush=True)
        return None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=210.0, help="start nothing after this")
    options = folder_of(parser, argv)
    if options.saved:
        save(options.out / f"{options.saved.stem}.md", *load(options.saved))
        return
    start = time.monotonic()
    device = jax.devices()[0].device_kind
    shrink, budget = (128, 0.001) if options.quick else (1, 0.04)
    problems = [
        Problem(8, 32768 // shrink, "bfloat16"),
        Problem(64, 4096 // shrink, "bfloat16"),
        Problem(4, 4096 // shrink, "bfloat16", prefill=True),
    ]
    path = options.out / f"{next((name for name in SHEET if name in device), 'gpu').lower()}.md"
    print(f"{device}: {len(problems)} problems x {len(COMPETITORS)}, to {path}", flush=True)
    how = __doc__[__doc__.index("How it is timed") :].strip()
    facts = {"device": device, "jax": jax.__version__, "how": how}
    facts["ceilings"] = ceilings(device, shrink)
    print(f"ceilings: {facts['ceilings']}", flush=True)
    rows: Rows = []
    for number, p in enumerate(problems):
        # Each problem has its share of the time that is left.
        now = time.monotonic()
        left = start + options.seconds - now
        deadline = now + max(0.0, left) / (len(problems) - number)
        args = jax.block_until_ready(jax.jit(p.make)())
        want = reference(p, args)
        row: dict[str, Measured] = {}
        rows.append((p, row))
        for competitor in COMPETITORS:
            row[competitor.name] = measure_one(competitor, p, args, want, deadline, budget)
            seconds = time.monotonic() - start
            cell = _cell(p, row[competitor.name])
            print(f"{seconds:4.0f} s  {p}: {competitor.name}: {cell}", flush=True)
            save(path, facts, rows)
        if want is not None and not math.isfinite(float(jnp.abs(want.astype(jnp.float32)).max())):
            print(f"{p}: the reference is not finite", flush=True)
    print(f"wrote {path} after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
