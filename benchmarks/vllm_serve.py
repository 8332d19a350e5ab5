"""`vllm serve` under load: decode tokens/s, time to first token, ms a step, the attention's share.

    python benchmarks/vllm_serve.py [--tiny] [--experts LAYERS] [--requests CxWORDS...]
                                    [--attention xla_gpu jnp none]

A random Llama shaped like the 8B model (32 layers, hidden 4096, 32/8 heads, bfloat16), served over
HTTP by three servers, one after the other (--together: at once, asked in turn): with our attention,
with plain jnp attention and with none (plain_attention.py). For each CxWORDS, C requests of
WORDS words are sent at once and answered with --output tokens each, as streams.

  first  the median time until a request's first token, all C prompts being sent together
  step   the time of a decode step: a token's of the request that starts last, while all decode
  share  of our (or jnp's) step: (step - step without attention) / step

--tiny is the same on a small model, for the CPU. --experts is a mixture of experts shaped like
Qwen3-30B-A3B, of so many of its 48 layers. Prints a Markdown table; --json FILE keeps all
numbers, so that a later run with other --attention completes the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/vllm", "tests/oracle")]
sys.path.append(str(ROOT / "python"))  # after PYTHONPATH's, which vllm_engines --before sets

import torch
from safetensors.torch import save_file
from server import ATTENTIONS, Server, serve, with_attention

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
EXPERTS = dict(  # and num_hidden_layers
    hidden_size=2048,
    intermediate_size=6144,
    moe_intermediate_size=768,
    num_experts=128,
    num_experts_per_tok=8,
    norm_topk_prob=True,
    num_attention_heads=32,
    num_key_value_heads=4,
    head_dim=128,
    vocab_size=32000,
    rope_theta=1000000.0,
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


FP8_SCALE = 2.0**-10  # of weights of 0.02


def write_checkpoint(
    folder: pathlib.Path, sizes: dict, longest: int, weights: str = "bfloat16"
) -> None:
    """A random checkpoint, a file a layer. The numbers of a matrix repeat after a million.

    `weights` "fp8": of layers e4m3, with a scale for each matrix, and what they are
    multiplied with rounded to fp8 as it comes.
    """
    experts = sizes.get("num_experts", 0)
    config = dict(
        architectures=["Qwen3MoeForCausalLM" if experts else "LlamaForCausalLM"],
        model_type="qwen3_moe" if experts else "llama",
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
    fp8 = weights == "fp8"
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (folder / "config.json").write_text(json.dumps(config))
    hidden, inner, words = (sizes[f"{n}_size"] for n in ("hidden", "intermediate", "vocab"))
    heads, kv_heads = (
        sizes[f"num_{n}_heads"] * sizes["head_dim"] for n in ("attention", "key_value")
    )
    some = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)).bfloat16() * 0.02

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return some.repeat(-(-rows * columns // len(some)))[: rows * columns].view(rows, columns)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    layer = {
        "self_attn.q_proj": matrix(heads, hidden),
        "self_attn.k_proj": matrix(kv_heads, hidden),
        "self_attn.v_proj": matrix(kv_heads, hidden),
        "self_attn.o_proj": matrix(hidden, heads),
        "input_layernorm": ones(hidden),
        "post_attention_layernorm": ones(hidden),
    }
    if experts:
        layer |= {f"self_attn.{name}_norm": ones(sizes["head_dim"]) for name in "qk"}
        layer["mlp.gate"] = matrix(experts, hidden)
        inner = sizes["moe_intermediate_size"]
    for mlp in [f"mlp.experts.{i}" for i in range(experts)] or ["mlp"]:
        layer |= {
            f"{mlp}.gate_proj": matrix(inner, hidden),
            f"{mlp}.up_proj": matrix(inner, hidden),
            f"{mlp}.down_proj": matrix(hidden, inner),
        }
    layer = {f"{name}.weight": x for name, x in layer.items()}
    if fp8:
        for name in [name for name in layer if "_proj." in name]:
            layer[name] = (layer[name] / FP8_SCALE).to(torch.float8_e4m3fn)
            layer[f"{name}_scale"] = torch.tensor(FP8_SCALE)
    layers = sizes["num_hidden_layers"]
    files = [{f"model.layers.{i}.{name}": x for name, x in layer.items()} for i in range(layers)]
    files.append(
        {
            "model.embed_tokens.weight": matrix(words, hidden),
            "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            "lm_head.weight": matrix(words, hidden),
        }
    )
    places = {}
    for i, tensors in enumerate(files):
        name = f"model-{i + 1:05}-of-{len(files):05}.safetensors"
        save_file(tensors, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def random_prompts(concurrency: int, prompt: int, words: int) -> list[list[int]]:
    """C prompts of so many of the first `words` words, the same in each run."""
    choose = random.Random(concurrency)
    return [[choose.randrange(3, words) for _ in range(prompt)] for _ in range(concurrency)]


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
    """C requests of `prompt` words at once; what their clients saw."""
    prompts = random_prompts(concurrency, prompt, words)
    results = await asyncio.gather(*(one_request(server, p, output) for p in prompts))
    # From the last request's first token to the first request's last, every step decodes them all.
    last = max((pieces for _, pieces in results), key=lambda pieces: pieces[0][0])
    end = min(pieces[-1][0] for _, pieces in results)
    shared = [piece for piece in last if piece[0] <= end]
    if len(shared) < 2:
        raise SystemExit(f"the first of {concurrency} ended before the last began: larger --output")
    (begin, before), (until, after) = shared[0], shared[-1]
    step = (until - begin) / (after - before)
    return dict(
        requests=f"{concurrency}x{prompt}",
        first_ms=1e3 * statistics.median(pieces[0][0] - sent for sent, pieces in results),
        step_ms=1e3 * step,
        steps=after - before,
        tokens_per_s=concurrency / step,
    )


def start(
    attention: str, model: pathlib.Path, folder: pathlib.Path, args
) -> AbstractContextManager:
    """A server with this attention, on its way up."""
    options = ["--dtype", "float32" if args.tiny else "bfloat16", "--skip-tokenizer-init"]
    most = max(concurrency for concurrency, _ in args.requests)
    options += ["--max-model-len", str(args.longest), "--max-num-seqs", str(most)]
    options += ["--max-num-batched-tokens", str(args.batched_tokens), "--no-enable-prefix-caching"]
    pages = max((c + 1) * -(-(prompt + args.output) // args.page) for c, prompt in args.requests)
    options += ["--num-gpu-blocks-override", str(pages), "--block-size", str(args.page)]
    # A first token at once, later ones in eights: a server that writes each by itself is the limit
    # at many requests, not the step.
    options += ["--stream-interval", "8"]
    env = with_attention(attention) | {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    cache = folder / "compiled"  # of its own: the start-up is that of a first start
    return serve(model, folder, *options, VLLM_XLA_CACHE_PATH=str(cache), **env)


def measure(servers: dict[str, Server], args, words: int) -> list[dict]:
    """The numbers of servers that run, asked in turn: the median run of each for each CxWORDS."""
    rows: dict[str, list[dict]] = {attention: [] for attention in servers}

    def ask_all(concurrency: int, prompt: int) -> dict[str, dict]:
        return {
            attention: asyncio.run(load(server, concurrency, prompt, args.output, words))
            for attention, server in servers.items()
        }

    for concurrency, prompt in args.requests:
        ask_all(concurrency, prompt)  # it may compile, and does not count
        end = time.monotonic() + args.seconds * len(servers)
        rounds = [ask_all(concurrency, prompt)]
        while time.monotonic() < end:
            rounds.append(ask_all(concurrency, prompt))
        for attention in servers:
            by_step = sorted((runs[attention] for runs in rounds), key=lambda run: run["step_ms"])
            rows[attention].append(dict(by_step[len(by_step) // 2], runs=len(by_step)))
            print(attention, json.dumps(rows[attention][-1]), flush=True)
    return [
        dict(attention=attention, device=server.device, **start_up(server), rows=rows[attention])
        for attention, server in servers.items()
    ]


def start_up(server: Server) -> dict[str, float]:
    """Seconds until the engine was ready from when its weights were there, and of compiling."""
    (engine, compiling) = re.search(
        r"init engine .* took ([\d.]+) s \(compilation: ([\d.]+) s\)", server.log
    ).groups()
    return dict(engine_s=float(engine), compile_s=float(compiling))


def measure_all(model: pathlib.Path, folder: pathlib.Path, args, words: int) -> Iterator[dict]:
    """Each attention's numbers."""
    groups = [args.attention] if args.together else [[name] for name in args.attention]
    for group in groups:
        with ExitStack() as stack:
            servers = {
                name: stack.enter_context(start(name, model, folder / name, args)) for name in group
            }
            for name, server in servers.items():
                server.wait(args.patience)
                print(f"{name}: up after {time.monotonic() - server.started:.0f} s", flush=True)
            yield from measure(servers, args, words)


def table(results: list[dict]) -> str:
    """Ours beside the others, a line a load and attention."""
    none = {
        row["requests"]: row["step_ms"]
        for result in results
        if result["attention"] == "none"
        for row in result["rows"]
    }
    lines = [
        "| CxWORDS | attention | decode tokens/s | first, ms | step, ms | its ms | share |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [
        (row["requests"], result["attention"], row) for result in results for row in result["rows"]
    ]
    for requests, attention, row in sorted(rows, key=lambda r: load_size(r[0])[::-1]):
        without = none.get(requests)
        own = "" if without is None else f"{row['step_ms'] - without:.2f}"
        share = "" if without is None else f"{100 * (1 - without / row['step_ms']):.0f}%"
        lines.append(
            f"| {requests} | {attention} | {row['tokens_per_s']:.0f} | {row['first_ms']:.1f} "
            f"| {row['step_ms']:.2f} | {own} | {share} |"
        )
    return "\n".join(lines)


def load_size(text: str) -> tuple[int, int]:
    """CxWORDS."""
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} should be REQUESTSxWORDS, as 16x256")
    return int(match[1]), int(match[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a small model in float32, for a CPU")
    parser.add_argument("--experts", type=int, metavar="LAYERS", help="a mixture of experts")
    parser.add_argument(
        "--requests",
        type=load_size,
        nargs="+",
        metavar="CxWORDS",
        help="C requests of so many words",
    )
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    parser.add_argument("--output", type=int, help="tokens an answer")
    parser.add_argument("--longest", type=int, help="--max-model-len; default: as long as needed")
    parser.add_argument("--page", type=int, default=32, help="--block-size")
    parser.add_argument("--batched-tokens", type=int, help="--max-num-batched-tokens")
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="that each server is asked with a load, after a first run; the median run counts",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="all servers at once, asked in turn (so many times the memory; slower start-ups)",
    )
    parser.add_argument("--patience", type=float, default=400, help="seconds for a start-up")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    sizes = TINY if args.tiny else EIGHT_B
    if args.experts:
        sizes = EXPERTS | dict(num_hidden_layers=args.experts)
        if args.tiny:
            sizes |= dict(hidden_size=256, moe_intermediate_size=128, num_experts=16)
    defaults = ["1x64", "4x64"] if args.tiny else ["1x256", "16x256", "64x256", "256x256"]
    args.requests = args.requests or [load_size(text) for text in defaults]
    args.output = args.output or (64 if args.tiny else 128)
    args.batched_tokens = args.batched_tokens or (64 if args.tiny else 1024)
    needed = max(prompt for _, prompt in args.requests) + args.output
    args.longest = args.longest or needed
    if needed > args.longest:
        parser.error(f"--requests and --output need {needed} tokens; --longest is {args.longest}")
    results = json.loads(args.json.read_text()) if args.json and args.json.exists() else []
    # The logs stay, the weights do not: they are large.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm-serve-"))
    with tempfile.TemporaryDirectory(prefix="vllm-serve-model-") as name:
        model = pathlib.Path(name)
        write_checkpoint(model, sizes, args.longest)
        for result in measure_all(model, folder, args, sizes["vocab_size"]):
            results = [old for old in results if old["attention"] != result["attention"]] + [result]
            if args.json:
                args.json.write_text(json.dumps(results, indent=1))
    size = "tiny" if args.tiny else "30B-A3B-shaped" if args.experts else "8B-shaped"
    size += f" Qwen3-MoE of {args.experts} layers" if args.experts else " Llama"
    shape = f"{args.output} tokens an answer, --max-model-len {args.longest}"
    print(f"\nvLLM on XLA:{results[-1]['device']}, {size}, {shape}\n")
    print(table(results))
    starts = [f"{r['attention']} {r['engine_s']:.0f} s ({r['compile_s']:.0f} s)" for r in results]
    print(f"\nThe engine's start, of which compiling: {', '.join(starts)}.")


if __name__ == "__main__":
    main()
