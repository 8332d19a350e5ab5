"""`vllm serve` under load: decode tokens/s, time to first token, ms a step, the attention's share.

    python benchmarks/vllm_serve.py [--tiny] [--concurrency C...] [--attention xla_gpu jnp none]

A random Llama shaped like the 8B model (32 layers, hidden 4096, 32/8 heads, bfloat16) that vLLM
fills by itself (--load-format), served over HTTP by three servers, one after the other: with our
attention, with plain jnp attention and with none (XLA_GPU_VLLM_ATTENTION). At each concurrency C, C
requests of --prompt words are sent at once and answered with --output tokens each, as streams.

  first  the median time until a request's first token, all C prompts being sent together
  step   the time of a decode step: a token's of the request that starts last, while all decode
  share  of our (or jnp's) step: (step - step without attention) / step

--tiny is the same on a small model, for the CPU. Prints a Markdown table and, with --json FILE, all
numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/vllm"), str(ROOT / "python")]

from server import Server, serve

EIGHT_B = dict(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=32000,  # of the step's time little; of the start-up's much
    rope_theta=500000.0,
)
TINY = dict(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=128,
    vocab_size=256,
    rope_theta=500000.0,
)


def write_config(folder: pathlib.Path, sizes: dict, longest: int) -> None:
    """A checkpoint's folder without weights: vLLM makes random ones (dummy)."""
    config = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        torch_dtype="bfloat16",
        dtype="bfloat16",
        hidden_act="silu",
        rms_norm_eps=1e-5,
        max_position_embeddings=longest,
        initializer_range=0.02,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        **sizes,
    )
    (folder / "config.json").write_text(json.dumps(config))


Pieces = list[tuple[float, int]]  # when each came, and the tokens until then


async def one_request(server: Server, prompt: list[int], output: int) -> tuple[float, Pieces]:
    """When it was sent, and when its tokens came."""
    sent, pieces, tokens = time.perf_counter(), [], 0
    async for piece in server.stream(prompt, output):
        tokens += len(piece)
        pieces.append((time.perf_counter(), tokens))
    assert tokens == output, f"{tokens} tokens of {output}"
    return sent, pieces


async def load(server: Server, concurrency: int, prompt: int, output: int, words: int) -> dict:
    """C requests at once; what their clients saw."""
    choose = random.Random(concurrency)
    prompts = [[choose.randrange(3, words) for _ in range(prompt)] for _ in range(concurrency)]
    results = await asyncio.gather(*(one_request(server, p, output) for p in prompts))
    # From the last request's first token to the first request's last, every step decodes them all.
    last = max((pieces for _, pieces in results), key=lambda pieces: pieces[0][0])
    end = min(pieces[-1][0] for _, pieces in results)
    shared = [piece for piece in last if piece[0] <= end]
    if len(shared) < 2:
        shared = last
    (begin, before), (until, after) = shared[0], shared[-1]
    step = (until - begin) / (after - before)
    return dict(
        concurrency=concurrency,
        first_ms=1e3 * statistics.median(pieces[0][0] - sent for sent, pieces in results),
        step_ms=1e3 * step,
        steps=after - before,
        tokens_per_s=concurrency / step,
    )


def start(
    attention: str, model: pathlib.Path, folder: pathlib.Path, args
) -> AbstractContextManager:
    """A server with this attention, on its way up."""
    options = ["--dtype", "bfloat16", "--load-format", args.load_format, "--skip-tokenizer-init"]
    options += ["--max-model-len", str(args.longest), "--max-num-seqs", str(max(args.concurrency))]
    options += ["--max-num-batched-tokens", str(args.batched_tokens), "--no-enable-prefix-caching"]
    pages = (max(args.concurrency) + 1) * -(-args.longest // args.page)
    options += ["--num-gpu-blocks-override", str(pages), "--block-size", str(args.page)]
    # A first token at once, later ones in eights: a server that writes each by itself is the limit
    # at many requests, not the step.
    options += ["--stream-interval", "8"]
    if args.tiny:
        options[1] = "float32"
    env = {"XLA_GPU_VLLM_ATTENTION": attention, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    cache = folder / "compiled"  # of its own: the start-up is that of a first start
    return serve(model, folder, *options, VLLM_XLA_CACHE_PATH=str(cache), **env)


def measure(attention: str, server: Server, startup_s: float, args, words: int) -> dict:
    """A server's numbers at each concurrency: the best of the runs."""
    rows = []
    for concurrency in args.concurrency:
        runs = [
            asyncio.run(load(server, concurrency, args.prompt, args.output, words))
            for _ in range(args.runs + 1)
        ][1:]  # the first may compile
        rows.append(min(runs, key=lambda run: run["step_ms"]))
        print(attention, json.dumps(rows[-1]), flush=True)
    where = [line for line in server.log.splitlines() if "vLLM on XLA" in line]
    return dict(
        attention=attention, startup_s=startup_s, rows=rows, device=where[-1].split(":")[-1]
    )


def measure_all(model: pathlib.Path, folder: pathlib.Path, args, words: int) -> Iterator[dict]:
    """Each attention's numbers."""
    with ExitStack() as together:
        servers = {}
        if args.together:
            for attention in args.attention:
                server = together.enter_context(start(attention, model, folder / attention, args))
                servers[attention] = server
        for attention in args.attention:
            with ExitStack() as alone:
                server = servers.get(attention) or alone.enter_context(
                    start(attention, model, folder / attention, args)
                )
                server.wait(args.patience)
                startup_s = time.monotonic() - server.started
                print(f"{attention}: up after {startup_s:.0f} s", flush=True)
                if attention == args.attention[0] and args.together:
                    for other in servers.values():
                        other.wait(args.patience)
                yield measure(attention, server, startup_s, args, words)


def table(results: list[dict]) -> str:
    """Ours beside the others, a line a concurrency and attention."""
    none = {
        row["concurrency"]: row["step_ms"]
        for result in results
        if result["attention"] == "none"
        for row in result["rows"]
    }
    lines = [
        "| concurrency | attention | decode tokens/s | first, ms | step, ms | its ms | share |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [
        (row["concurrency"], result["attention"], row)
        for result in results
        for row in result["rows"]
    ]
    for concurrency, attention, row in sorted(rows, key=lambda r: r[0]):
        without = none.get(concurrency)
        own = "" if without is None else f"{row['step_ms'] - without:.2f}"
        share = "" if without is None else f"{100 * (1 - without / row['step_ms']):.0f}%"
        lines.append(
            f"| {concurrency} | {attention} | {row['tokens_per_s']:.0f} | {row['first_ms']:.1f} "
            f"| {row['step_ms']:.2f} | {own} | {share} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a small model in float32, for a CPU")
    parser.add_argument("--concurrency", type=int, nargs="+")
    parser.add_argument("--attention", nargs="+", default=["xla_gpu", "jnp", "none"])
    parser.add_argument("--prompt", type=int, help="words a prompt")
    parser.add_argument("--output", type=int, help="tokens an answer")
    parser.add_argument("--longest", type=int, default=512, help="--max-model-len")
    parser.add_argument("--page", type=int, default=32, help="--block-size")
    parser.add_argument("--batched-tokens", type=int, help="--max-num-batched-tokens")
    parser.add_argument(
        "--runs", type=int, default=1, help="after one that warms up; the best counts"
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="start all servers at once (three times the memory; their start-up is not comparable)",
    )
    parser.add_argument("--load-format", default="dummy")
    parser.add_argument("--patience", type=float, default=400, help="seconds for a start-up")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    sizes = TINY if args.tiny else EIGHT_B
    args.concurrency = args.concurrency or ([1, 4] if args.tiny else [1, 16, 64, 256])
    args.prompt = args.prompt or (64 if args.tiny else 256)
    args.output = args.output or (16 if args.tiny else 128)
    args.batched_tokens = args.batched_tokens or (64 if args.tiny else 2048)
    assert args.prompt + args.output <= args.longest
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm-serve-"))
    model = folder / "model"
    model.mkdir()
    write_config(model, sizes, args.longest)
    results = []
    for result in measure_all(model, folder, args, sizes["vocab_size"]):
        results.append(result)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))
    shape = f"{args.prompt} words in, {args.output} tokens out"
    size = "tiny" if args.tiny else "8B-shaped"
    print(f"\nvLLM on XLA:{results[0]['device']}, {size} Llama, {shape}\n")
    print(table(results))
    if not args.together:
        starts = ", ".join(f"{r['attention']} {r['startup_s']:.0f} s" for r in results)
        print(f"\nStart-up with nothing compiled: {starts}.")


if __name__ == "__main__":
    main()
