"""What a decode step of vLLM on XLA is made of: its kernels, and the host's work on CUDA graphs.

    python benchmarks/vllm_step.py [--tiny] [--experts LAYERS] [--weights fp8] [--requests CxWORDS]
                                   [--attention xla_gpu jnp none] [--devices N] [--asks JSON]

The engine of benchmarks/vllm_serve.py without its HTTP server, in a process of its own for each
attention, one after the other. C requests of WORDS words are answered twice under jax.profiler,
with 8 and with 24 tokens: the difference is 16 decode steps, whatever came before them.

  step    ms a step by the clock, not traced: 100 steps, median of five
  device  ms a step in which the device is busy (a GPU only)
  own     of these, what the step without attention does not have
  update  ms a step in which XLA brings its CUDA graphs up to date, for tensors lie elsewhere in
          each step; traced, so that it is some microseconds a call too long

Then the compiled functions that the host calls in each step, the kernels that take most of it, and
what JAX and XLA do on the host: by the clock, traced, what is told of within an event not counted.
With --devices heads are split over N of them (tensor parallelism), and what is traced is the first
one's. --experts: a mixture of experts instead, so many layers of Qwen3-30B-A3B's. --asks: what all
requests ask besides, '{"repetition_penalty": 1.05}'. --tiny: a small model, for the CPU.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator

from vllm_serve import (
    ATTENTIONS,
    EIGHT_B,
    EXPERTS,
    TINY,
    load_size,
    random_prompts,
    write_checkpoint,
)

TRACED = (8, 24)  # tokens of an answer; the steps that are measured lie between the two
TIMED = (40, 140)


Totals = collections.namedtuple("Totals", "kernels busy update calls host")


def own_seconds(events: list, totals: dict[str, list[float]]) -> None:
    """Adds to `totals` each event's seconds without those of events within it, and 1."""
    around: list = []
    for event in sorted(events, key=lambda e: (e.start_ns, -e.duration_ns)):
        while around and around[-1].start_ns + around[-1].duration_ns <= event.start_ns:
            around.pop()
        if around:
            totals[around[-1].name][0] -= event.duration_ns / 1e9
        totals[event.name][0] += event.duration_ns / 1e9
        totals[event.name][1] += 1
        around.append(event)


def kernel_times(spans: Iterable[tuple[str, float, float]]) -> tuple[dict[str, list[float]], float]:
    """Each kernel's seconds and count, and the device's busy seconds; of names, begins and ends."""
    kernels: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0])
    busy, until = 0.0, 0.0
    for name, begin, end in sorted(spans, key=lambda span: span[1:]):  # kernels may overlap
        kernels[name][0] += end - begin
        kernels[name][1] += 1
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return kernels, busy


def totals(folder: pathlib.Path) -> Totals:
    """Of a trace: each kernel's seconds and count, the device's busy seconds, those of updates.

    And how many events there are of calls of each compiled function, and each event's own seconds
    and count on the host.

    Of the first device, where there are several.
    """
    from jax.profiler import ProfileData

    (file,) = folder.rglob("*.xplane.pb")
    host: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0])
    calls: dict[str, int] = collections.Counter()
    spans, update = [], 0.0
    for plane in ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            if "GPU" not in plane.name:
                update += sum(e.duration_ns for e in line.events if "buffer::update" in e.name)
                calls.update(e.name[13:-1] for e in line.events if "PjitFunction(" in e.name)
                own_seconds(list(line.events), host)
            elif line.name.startswith("Stream") and plane.name.endswith("GPU:0"):
                spans += [
                    (e.name, e.start_ns / 1e9, (e.start_ns + e.duration_ns) / 1e9)
                    for e in line.events
                ]
    return Totals(*kernel_times(spans), update / 1e9, calls, host)


@contextlib.contextmanager
def trace() -> Iterator[list[Totals]]:
    """Ends with `totals` of what JAX does within, in the list."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    found: list[Totals] = []
    with tempfile.TemporaryDirectory(prefix="vllm-step-") as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        yield found
        jax.profiler.stop_trace()
        found.append(totals(pathlib.Path(folder)))


def sizes(args: argparse.Namespace) -> dict:
    plain = TINY if args.tiny else EIGHT_B
    if not args.experts:
        return plain
    tiny = TINY | dict(moe_intermediate_size=64, num_experts=16) if args.tiny else {}
    return EXPERTS | tiny | dict(num_hidden_layers=args.experts)


def measure(args: argparse.Namespace) -> dict:
    """This process's attention."""
    from vllm import LLM, SamplingParams

    concurrency, words = args.requests
    pages = max(args.longest // 32 + 1, (concurrency + 1) * -(-(words + TIMED[1]) // 32))
    engine = LLM(
        args.model,
        skip_tokenizer_init=True,
        dtype="float32" if args.tiny else "bfloat16",
        max_model_len=args.longest,
        max_num_seqs=max(concurrency, args.max_seqs),
        max_num_batched_tokens=64 if args.tiny else 1024,
        enable_prefix_caching=False,
        num_gpu_blocks_override=pages,
        block_size=32,
        tensor_parallel_size=args.devices,
    )
    prompts = [
        {"prompt_token_ids": prompt}
        for prompt in random_prompts(concurrency, words, sizes(args)["vocab_size"])
    ]

    def generate(tokens: int) -> float:
        plain = dict(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        wanted = SamplingParams(**plain | args.asks)
        start = time.perf_counter()
        engine.generate(prompts, wanted, use_tqdm=False)
        return time.perf_counter() - start

    generate(TRACED[0])
    short, long = TIMED
    steps = [
        (generate(long) - generate(short)) / (long - short) for _ in range(3 if args.tiny else 5)
    ]
    traces = []
    for tokens in TRACED:
        with trace() as found:
            generate(tokens)
        traces += found
    few, many = traces
    count = TRACED[1] - TRACED[0]

    def most(few: dict, many: dict) -> list:
        """By seconds a step: [name, [seconds, count]]."""
        steps = {
            name: [(seconds - few[name][0]) / count, (calls - few[name][1]) / count]
            for name, (seconds, calls) in many.items()
        }
        return sorted(steps.items(), key=lambda item: -item[1][0])[:16]

    return dict(
        step_ms=1e3 * statistics.median(steps),
        device_ms=1e3 * (many.busy - few.busy) / count,
        update_ms=1e3 * (many.update - few.update) / count,
        calls=sorted(name for name in many.calls if many.calls[name] - few.calls[name] >= count),
        kernels=most(few.kernels, many.kernels),
        host=most(few.host, many.host),
    )


def measure_in_process(attention: str, model: str) -> dict:
    """`measure` in a process with that attention."""
    from server import run, with_attention  # vllm_serve has put its folder on the path

    env = dict(with_attention(attention), VLLM_ENABLE_V1_MULTIPROCESSING="0")
    done = run(sys.executable, __file__, *sys.argv[1:], "--model", model, seconds=1200, **env)
    if done.returncode != 0:
        raise SystemExit(f"{attention} failed:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a small model in float32, for a CPU")
    parser.add_argument("--experts", type=int, metavar="LAYERS", help="a mixture of experts")
    parser.add_argument("--weights", choices=("bfloat16", "fp8"), default="bfloat16")
    parser.add_argument("--requests", type=load_size, metavar="CxWORDS", default=(1, 256))
    parser.add_argument("--attention", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    parser.add_argument("--longest", type=int, default=2048, help="--max-model-len")
    parser.add_argument("--max-seqs", type=int, default=256, help="--max-num-seqs, at least")
    parser.add_argument("--devices", type=int, default=1, help="--tensor-parallel-size")
    parser.add_argument("--asks", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--model", help=argparse.SUPPRESS)  # of a process that measures
    args = parser.parse_args()
    concurrency, words = args.requests
    if (needed := words + TIMED[1]) > args.longest:
        parser.error(f"--requests needs {needed} tokens; --longest is {args.longest}")
    if args.model:
        print(json.dumps(measure(args)), flush=True)
        os._exit(0)  # the engine's threads do not end by themselves
    results = {}
    with tempfile.TemporaryDirectory(prefix="vllm-step-model-") as model:
        write_checkpoint(pathlib.Path(model), sizes(args), args.longest, args.weights)
        for attention in args.attention:
            results[attention] = measure_in_process(attention, model)
            print(attention, json.dumps(results[attention]), flush=True)
    none = results.get("none", {}).get("device_ms")
    print(f"\n{concurrency} requests of {words} words, ms a decode step\n")
    print("| attention | step | device | own | update |\n|---|---|---|---|---|")
    for attention, r in results.items():
        own = "" if none is None else f"{r['device_ms'] - none:.3f}"
        numbers = f"{r['step_ms']:.2f} | {r['device_ms']:.3f} | {own} | {r['update_ms']:.2f}"
        print(f"| {attention} | {numbers} |")
    for attention, r in results.items():
        calls = f"{attention}, a decode step's calls: {', '.join(r['calls'])}; its kernels:"
        for what, rows in ((calls, r["kernels"]), ("on its host:", r["host"])):
            print(f"\n{what}")
            for name, (seconds, count) in rows:
                print(f"  {1e3 * seconds:7.3f} ms  {count:5.1f} x {name}")


if __name__ == "__main__":
    main()
