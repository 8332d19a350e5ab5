"""Paged attention on an NVIDIA GPU beside what JAX itself offers: cuDNN, Pallas, plain jnp.

Writes docs/benchmarks/<gpu>.md and .svg and ends within four minutes. How it is timed: N calls,
each fed with the one before (q + 0.001 * out), in one jitted loop, so that nothing overlaps and no
call is dropped; the median of several such loops, divided by N. Keys and values are 1 GiB, far more
than the L2 cache. A competitor that fails has its error in the table.

- ours: xla_gpu.jax.paged_attention, a custom call, on the paged cache (pages in random order);
- cuDNN: jax.nn.dot_product_attention(implementation="cudnn") on contiguous keys and values;
- Pallas paged: jax.experimental.pallas.ops.gpu.paged_attention on pages [kv_heads, pages, ...];
- Pallas dense: jax.experimental.pallas.ops.gpu decode_attention (decode) and attention_mgpu or,
  where that fails, attention (prefill), on contiguous keys and values;
- jnp gather: the pages by indexing, then einsum and softmax.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import pathlib
import re
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
from workloads import Problem, jnp_gather
from xla_gpu.jax import paged_attention

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
# Beside the numbers: what the hardware can do at most (NVIDIA's data sheet).
PEAKS = {"H200": (4.8, 989.0), "H100": (3.35, 989.0), "A100": (2.0, 312.0)}

Operands = dict[str, jax.Array]
Step = Callable[[jax.Array, Operands], jax.Array]


@dataclasses.dataclass
class Competitor:
    """One way to compute a problem: `prepare` is not timed, the fastest variant counts."""

    name: str
    prepare: Callable[[Problem, Operands], Operands]
    variants: Callable[[Problem], dict[str, Step]]


@dataclasses.dataclass
class Measured:
    seconds: float | None = None
    variant: str = ""
    difference: float | None = None  # largest, from jnp gather
    error: str = ""


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
    Competitor("ours", _without_query, _ours),
    Competitor("JAX cuDNN", _contiguous, _cudnn),
    Competitor("Pallas paged", _per_head_pages, _pallas_paged),
    Competitor("Pallas dense", _contiguous, _pallas_dense),
    Competitor("jnp gather", _without_query, _jnp),
]


# ---- Timing --------------------------------------------------------------------------------------


def seconds_a_call(step: Step, q: jax.Array, ops: Operands, calls: int, loops: int) -> float:
    """The median over `loops` of the time of a chain of `calls`, divided by `calls`."""

    @jax.jit
    def chain(q: jax.Array, ops: Operands) -> jax.Array:
        def body(_: int, q: jax.Array) -> jax.Array:
            return q + (0.001 * step(q, ops)).astype(q.dtype)

        return jax.lax.fori_loop(0, calls, body, q)

    for _ in range(3):  # compile, capture, replay
        jax.block_until_ready(chain(q, ops))
    times = []
    for _ in range(loops):
        start = time.perf_counter()
        jax.block_until_ready(chain(q, ops))
        times.append(time.perf_counter() - start)
    return statistics.median(times) / calls


def measure_one(
    competitor: Competitor,
    p: Problem,
    args: Operands,
    want: jax.Array | None,
    deadline: float,
    calls: int,
) -> Measured:
    """Never raises: a failure is in the result."""
    best = Measured()
    try:
        ops = jax.block_until_ready(competitor.prepare(p, args))
        variants = competitor.variants(p)
    except Exception as e:
        return Measured(error=_short(e))
    for name, step in variants.items():
        if time.monotonic() > deadline:
            best.error = best.error or "not measured: time is up"
            break
        try:
            out = jax.block_until_ready(jax.jit(step)(args["query"], ops))
            difference = None
            if want is not None:
                both = out.reshape(want.shape).astype(jnp.float32) - want.astype(jnp.float32)
                difference = float(jnp.abs(both).max())
            seconds = seconds_a_call(step, args["query"], ops, calls, loops=7)
        except Exception as e:
            best.error = _short(e)
            continue
        if best.seconds is None or seconds < best.seconds:
            best = Measured(seconds, name, difference)
    return best


def _short(error: Exception) -> str:
    text = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}").replace("|", "/")
    return text[:160] or type(error).__name__


# ---- Output --------------------------------------------------------------------------------------


def rate(p: Problem, seconds: float) -> float:
    """TB/s of KV for decode, TFLOP/s for prefill."""
    return (p.flops() if p.prefill else p.kv_bytes()) / seconds / 1e12


def _cell(p: Problem, measured: Measured) -> str:
    if measured.seconds is None:
        return measured.error or "-"
    text = f"{rate(p, measured.seconds):.2f} ({measured.seconds * 1e6:.0f} us"
    return text + (f"; {measured.variant})" if measured.variant else ")")


def write(path: pathlib.Path, device: str, rows: list[tuple[Problem, dict[str, Measured]]]) -> None:
    """The table as Markdown; called after every row, so that a late failure loses nothing."""
    names = [competitor.name for competitor in COMPETITORS]
    peak = next((peaks for name, peaks in PEAKS.items() if name in device), None)
    lines = [
        f"# Speed on {device}",
        "",
        f"Made by `benchmarks/gpu.py` with jax {jax.__version__}. bf16, 32 query heads, 8 kv "
        "heads, head_dim 128, pages of 16 tokens in random order.",
        "Decode in TB/s of keys and values read, prefill in TFLOP/s (the causal half counted).",
    ]
    if peak is not None:
        lines.append(f"The data sheet's peaks: {peak[0]} TB/s, {peak[1]:.0f} TFLOP/s.")
    lines += ["", "| problem | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for p, row in rows:
        cells = [_cell(p, row[name]) if name in row else "-" for name in names]
        lines.append(f"| {p} ({'TFLOP/s' if p.prefill else 'TB/s'}) | " + " | ".join(cells) + " |")
    lines += ["", "Largest difference from jnp gather:", ""]
    for p, row in rows:
        found = [f"{n} {m.difference:.1e}" for n, m in row.items() if m.difference is not None]
        lines.append(f"- {p}: {', '.join(found) or '-'}")
    how = __doc__.split("\n\n", 1)[1].strip()
    path.write_text("\n".join([*lines, "", how, "", f"![speed]({path.stem}.svg)", ""]))


def plot(path: pathlib.Path, rows: list[tuple[Problem, dict[str, Measured]]]) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed: no plot")
        return
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(rows), figsize=(4 * len(rows), 4), squeeze=False)
    for axis, (p, row) in zip(axes[0], rows, strict=True):
        done = {name: rate(p, m.seconds) for name, m in row.items() if m.seconds is not None}
        axis.bar(list(done), list(done.values()))
        axis.set_title(str(p), fontsize=9)
        axis.set_ylabel("TFLOP/s" if p.prefill else "TB/s of KV")
        axis.tick_params(axis="x", rotation=40, labelsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def reference(p: Problem, args: Operands) -> jax.Array | None:
    """jnp gather's result; None where that does not fit into memory."""
    try:
        return jax.block_until_ready(jax.jit(lambda args: jnp_gather(p, args))(args))
    except Exception as e:
        print(f"{p}: no reference: {_short(e)}", flush=True)
        return None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try the code")
    parser.add_argument("--out", type=pathlib.Path, default=DOCS)
    parser.add_argument("--seconds", type=float, default=210.0, help="start nothing after this")
    options = parser.parse_args(argv)
    start = time.monotonic()
    device = jax.devices()[0].device_kind
    shrink = 128 if options.quick else 1
    problems = [
        Problem(8, 32768 // shrink, "bfloat16"),
        Problem(64, 4096 // shrink, "bfloat16"),
        Problem(4, 4096 // shrink, "bfloat16", prefill=True),
    ]
    short = next((name.lower() for name in PEAKS if name in device), "gpu")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{short}.md"
    rows: list[tuple[Problem, dict[str, Measured]]] = []
    for number, p in enumerate(problems):
        # Each problem has its share of the time that is left.
        now = time.monotonic()
        left = start + options.seconds - now
        deadline = now + max(0.0, left) / (len(problems) - number)
        args = jax.block_until_ready(jax.jit(p.make)())
        want = reference(p, args)
        row: dict[str, Measured] = {}
        rows.append((p, row))
        calls = 2 if options.quick else 20
        for competitor in COMPETITORS:
            row[competitor.name] = measure_one(competitor, p, args, want, deadline, calls)
            print(f"{p}: {competitor.name}: {_cell(p, row[competitor.name])}", flush=True)
            write(path, device, rows)
        if want is not None and not math.isfinite(float(jnp.abs(want.astype(jnp.float32)).max())):
            print(f"{p}: the reference is not finite", flush=True)
    plot(path.with_suffix(".svg"), rows)
    print(f"wrote {path} after {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
