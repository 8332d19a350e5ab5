"""vLLM's engines side by side: on XLA with our attention, and its own on torch CUDA.

    python benchmarks/vllm_engines.py [--tiny] [--experts LAYERS] [--requests CxWORDS...]
                                      [--engines xla xla-several xla-tfrt xla-ngram xla-tp2
                                       xla-tp4 xla-dp2 xla-ep2 before cuda cuda-tp2 cuda-tp4
                                       cuda-ep2 custom]
                                      [--cuda-packages FOLDER] [--before FOLDER]
                                      [--weights fp8] [--cache fp8] [--profile CxWORDS] [--trace]
                                      [--start]

`xla-several` takes up to 10 decode steps in one program, and waits for it (enable_continue_decode).
`xla-tfrt` has XLA's other client for GPUs, which launches in threads of its own.
-ngram lets three drafts follow what followed the last token before.
`cuda` has the attention that vLLM chooses, `custom` is the same engine with ours (CUSTOM). -tp2,
-dp2 and -ep2 are over two devices: heads, sequences (each device has half of the requests, and
batches of its own), or heads and experts split; -tp4 over four. `before`, with xla's endings too,
has the package in FOLDER (another commit's python/): a change measured by turns.

Each engine is vllm.LLM in a process of its own, with the model of benchmarks/vllm_serve.py and
nothing compiled before, and takes at most an equal part of each GPU's memory. They start together
and are asked in turn, each round in another order: C requests of WORDS words at once, answered with
1 token and with --output more.

  start  seconds until the engine can be asked, all of them starting side by side; by parts, each
         in the engine's thread: `imports` of vLLM, `settings` made, then the worker's calls by
         name, the rest; `programs`: XLA's, seconds added up over threads, and those of tracing and
         lowering, one after the other; `host`: the memory of its processes at its most, without
         files' pages
  first  ms until the answers of one token are there, all prompts being sent together
  step   ms a decode step: (time of 1 + output tokens - time of 1) / output; tokens/s are of it
  host   of these ms, the processor time of the engine's thread

--start ends there, and tells the programs by name: of each how long all take, the longest, and how
many. --profile tells first what the host does in a decode step of so many requests: which functions
the engine's thread is found in each 0.5 ms, and how often each is called. --trace tells last, of
each CxWORDS, how long a step takes in which all C decode (NaN: --output is too short for them to),
which the steps of many requests above are not, and what the device does in it: its kernels by name.
Of several devices it is the first; those of `cuda-` are other processes', and not told of.

Medians over --rounds. Where vLLM's CUDA build is not that of this Python (it and vllm-tpu have one
name), --cuda-packages is the folder that holds it. VLLM_... variables are passed on.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import cProfile
import json
import math
import os
import pathlib
import pstats
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from vllm_serve import EIGHT_B, EXPERTS, TINY, load_size, random_prompts, write_checkpoint
from vllm_step import kernel_times, trace

OPTIONS = {  # by the ending of an engine's name
    "several": {
        "async_scheduling": False,
        "additional_config": {"enable_continue_decode": True},
    },
    "tfrt": {},
    "ngram": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 2,
        },
    },
    "tp2": {"tensor_parallel_size": 2},
    "tp4": {"tensor_parallel_size": 4},
    "dp2": {"data_parallel_size": 2},
    "ep2": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
}
CALLS = ("init_device", "load_model", "determine_available_memory", "initialize_from_config")
CALLS += ("compile_or_warm_up_model",)  # the worker's, in this order
CUDA = ("cuda", "cuda-tp2", "cuda-tp4", "cuda-ep2", "custom")
XLA = ("xla", "before")
ENGINES = (*XLA, *(f"{name}-{ending}" for name in XLA for ending in OPTIONS), *CUDA)
TRACED = [f"/jax/core/compile/jaxpr_{what}_duration" for what in ("trace", "to_mlir_module")]
STEPS = 32  # that --trace looks at,
MOST = 40  # and kernels that it names


def own_memory() -> int:
    """Of this process group, octets: written pages that are no file's."""
    kib = 0
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it may have ended
            if os.getpgid(int(status.parent.name)) == os.getpgrp():
                lines = status.read_text().splitlines()
                kib += sum(
                    int(x.split()[1]) for x in lines if x.startswith(("RssAnon", "RssShmem"))
                )
    return 1024 * kib


class Start:
    """What an engine's start is made of."""

    def __init__(self) -> None:
        self.memory, self.over = 0, threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()
        self.began = self.last = time.perf_counter()
        self.parts: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.programs: collections.defaultdict[str, list] = collections.defaultdict(
            lambda: [0, 0, 0]
        )
        self.traced = 0.0

    def _sample(self) -> None:
        while not self.over.wait(0.1):
            self.memory = max(self.memory, own_memory())

    def part(self, name: str) -> None:
        """Ends here; it began where the last one ended."""
        now = time.perf_counter()
        self.parts[name] += now - self.last
        self.last = now

    def watch(self) -> None:
        """Parts the worker's calls; counts XLA's programs where JAX is."""
        from vllm.v1.worker.worker_base import WorkerWrapperBase

        init_worker = WorkerWrapperBase.init_worker

        def init_and_watch(wrapper, *args, **kwargs) -> None:
            init_worker(wrapper, *args, **kwargs)
            self.part("settings")
            for name in CALLS:
                setattr(wrapper.worker, name, self._timed(name, getattr(wrapper.worker, name)))

        WorkerWrapperBase.init_worker = init_and_watch
        if "jax" not in sys.modules:
            return
        from jax import monitoring

        def listen(event: str, seconds: float, fun_name: str = "", **_) -> None:
            if event == "/jax/core/compile/backend_compile_duration":
                counted = self.programs[fun_name]
                counted[0] += 1
                counted[1] += seconds
                counted[2] = max(counted[2], seconds)
            elif event in TRACED:
                self.traced += seconds

        monitoring.register_event_duration_secs_listener(listen)

    def _timed(self, name: str, call: Callable) -> Callable:
        def timed(*args, **kwargs):
            self.part("rest")
            try:
                return call(*args, **kwargs)
            finally:
                self.part(name)

        return timed

    def result(self) -> dict:
        self.part("rest")
        self.over.set()
        return dict(
            seconds=self.last - self.began,
            parts=dict(self.parts),
            programs=dict(self.programs),
            traced=self.traced,
            memory=self.memory,
        )


def told(start: dict, every_program: bool) -> str:
    """A result of Start, in words."""
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in start["parts"].items())
    text = f"started in {start['seconds']:.1f} s: {parts}"
    programs = sorted(start["programs"].items(), key=lambda item: -item[1][1])
    if programs:
        count, seconds = (sum(both[i] for _, both in programs) for i in range(2))
        text += f"; {count} programs {seconds:.1f}, traced and lowered {start['traced']:.1f}"
    text += f"; host {start['memory'] / 2**30:.1f} GiB"
    if every_program:
        text += "".join(
            f"\n{s:8.1f} s {most:6.1f} s {n:4d} {name}" for name, (n, s, most) in programs
        )
    return text


def serve_standard_input(args: argparse.Namespace, sizes: dict) -> None:
    """An engine that answers lines, "C WORDS time".

    With [seconds, of them processor time of this thread] for 1 and for more tokens.
    """
    start = Start()
    from vllm import LLM, SamplingParams

    start.part("imports")
    start.watch()
    (name,) = args.engines
    options = OPTIONS.get(name.partition("-")[2], {})
    parts = options.get("data_parallel_size", 1)  # of the requests, and of the pages
    each = [(-(-concurrency // parts), words) for concurrency, words in args.requests]
    pages = max((c + 1) * -(-(words + args.output + 1) // 32) for c, words in each)
    engine = LLM(
        args.model,
        skip_tokenizer_init=True,
        dtype="float32" if args.tiny and args.weights != "fp8" else "bfloat16",
        max_model_len=args.longest,
        max_num_seqs=max(concurrency for concurrency, _ in each),
        max_num_batched_tokens=64 if args.tiny else 1024,
        enable_prefix_caching=False,
        num_gpu_blocks_override=parts * max(args.longest // 32 + 1, pages),
        block_size=32,
        gpu_memory_utilization=args.share if name in CUDA else 0.95,  # or of XLA's pool
        kv_cache_dtype=args.cache,
        **({"attention_backend": "CUSTOM"} if name == "custom" else {}),
        **options,
    )
    print("RESULT", json.dumps(start.result()), flush=True)
    for line in sys.stdin:
        concurrency, words, what = line.split()
        prompts = [
            {"prompt_token_ids": prompt}
            for prompt in random_prompts(int(concurrency), int(words), sizes["vocab_size"])
        ]

        def generate(tokens: int, prompts: list = prompts) -> list[float]:
            wanted = SamplingParams(
                max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False
            )
            start, busy = time.perf_counter(), time.thread_time()
            engine.generate(prompts, wanted, use_tqdm=False)
            return [time.perf_counter() - start, time.thread_time() - busy]

        if what == "profile":
            result = profile(lambda tokens: generate(tokens)[0], args.output)
        elif what == "decode":
            runs = [
                decode(engine.llm_engine, prompts, args.output, contextlib.nullcontext())
                for _ in range(args.rounds)
            ]
            result = 1e3 * statistics.median(seconds / steps for seconds, steps in runs)
        elif what == "trace":
            result = {}
            around = traced(name in CUDA, result)
            result["steps"] = decode(engine.llm_engine, prompts, args.output, around)[1]
        else:
            result = [generate(tokens) for tokens in (1, 1 + args.output)]
        print("RESULT", json.dumps(result), flush=True)


def decode(
    engine, prompts: list, output: int, around: contextlib.AbstractContextManager
) -> tuple[float, float]:
    """Seconds that STEPS steps or more take in which all prompts are answered on, and how many.

    NaN of them if --output is so short that the first answer ends before. They run in `around`.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    for i, prompt in enumerate(prompts):
        last = i == len(prompts) - 1  # told of in each step; the others when they end
        wanted = SamplingParams(
            max_tokens=1 + output,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE if last else RequestOutputKind.FINAL_ONLY,
        )
        engine.add_request(str(i), prompt, wanted)

    def advance(tokens: int) -> int:
        while engine.has_unfinished_requests():
            for answer in engine.step():
                if (length := len(answer.outputs[0].token_ids)) >= tokens:
                    return length
        return 0

    begin = advance(1)
    with around:
        start = time.perf_counter()
        end = advance(begin + STEPS)
        seconds = time.perf_counter() - start
    while engine.has_unfinished_requests():
        engine.step()
    return seconds, end - begin if begin < end <= output else math.nan


@contextlib.contextmanager
def traced(cuda: bool, result: dict) -> Iterator[None]:
    """`kernel_times` of what is begun within, to `result`."""
    if cuda:
        import torch

        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            yield
            torch.cuda.synchronize()
        result["kernels"], result["busy"] = kernel_times(
            (event.name, event.time_range.start / 1e6, event.time_range.end / 1e6)
            for event in profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
        )
        return
    import jax

    def synchronize() -> None:
        jax.block_until_ready([jax.device_put(0, device) + 1 for device in jax.local_devices()])

    synchronize()
    with trace() as totals:
        yield
        synchronize()
    result["kernels"], result["busy"] = totals[0].kernels, totals[0].busy


def told_step(step: dict, layers: int) -> str:
    """Results of "decode" and, where there is one, of "trace", in words."""
    text = f"{step['ms']:.3f} ms a step"
    if "kernels" not in step:
        return text
    steps = step["steps"]
    text += f", the device busy (traced) for {1e3 * step['busy'] / steps:.3f}"
    text += "\nus a step, a layer, times a layer:"
    rows = sorted(step["kernels"].items(), key=lambda item: -item[1][0])
    if rest := rows[MOST:]:
        sums = [sum(values[i] for _, values in rest) for i in range(2)]
        rows[MOST:] = [(f"{len(rest)} more", sums)]
    for name, (seconds, count) in rows:
        us = 1e6 * seconds / steps
        text += f"\n{us:9.1f} {us / layers:8.2f} {count / steps / layers:8.2f}  {name[:120]}"
    return text


def profile(generate: Callable[[int], float], tokens: int) -> str:
    """What this thread does in a step of `tokens` of them: a table each by samples and by calls."""
    inside: collections.Counter = collections.Counter()
    itself: collections.Counter = collections.Counter()

    def sample(_, frame) -> None:
        itself[frame.f_code, frame.f_lineno] += 1
        seen = set()
        while frame is not None:
            seen.add(frame.f_code)
            frame = frame.f_back
        inside.update((code, code.co_firstlineno) for code in seen)

    def place(file: str, line: int, function: str) -> str:
        return f"{'/'.join(pathlib.Path(file).parts[-2:])}:{line}:{function}"

    generate(tokens)
    plain = generate(tokens) / tokens
    outer = signal.signal(signal.SIGALRM, sample)
    signal.setitimer(signal.ITIMER_REAL, 5e-4, 5e-4)
    sampled = sum(generate(tokens) for _ in range(4)) / (4 * tokens)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, outer)
    profiler = cProfile.Profile()
    profiler.enable()
    traced = generate(tokens) / tokens
    profiler.disable()
    lines = [f"ms a step {1e3 * plain:.2f}, sampled {1e3 * sampled:.2f}, traced {1e3 * traced:.2f}"]
    for title, counts in (("with what it calls", inside), ("at a line", itself)):
        lines.append(f"-- us a step {title}")
        every = 1e6 * sampled / max(itself.total(), 1)
        lines += [
            f"{every * count:7.0f} {place(code.co_filename, line, code.co_qualname)}"
            for (code, line), count in counts.most_common(60)
        ]
    lines.append("-- us and calls a step, traced, by itself")
    entries = sorted(pstats.Stats(profiler).stats.items(), key=lambda item: -item[1][2])[:50]
    lines += [
        f"{1e6 * own / tokens:7.0f} (all {1e6 * total / tokens:6.0f}) "
        f"{calls / tokens:7.1f} {place(*where)}"
        for where, (_, calls, own, total, _) in entries
    ]
    return "\n".join(lines)


class Engine:
    """One of ENGINES in a process; what it says goes to `log`."""

    def __init__(self, name: str, args: argparse.Namespace, model: str, log: pathlib.Path):
        from server import environment  # vllm_serve has put its folder on the path

        caches = str(log.with_suffix(""))  # vLLM's, XLA's and ours: all empty
        env = environment(VLLM_ENABLE_V1_MULTIPROCESSING="0", XDG_CACHE_HOME=caches)
        # A pool takes up to twice what it needs, and leaves nothing to the others and to NCCL.
        share = str(0.9 / len(args.engines))
        env["XLA_PYTHON_CLIENT_MEM_FRACTION"] = share
        packages = args.before if name.startswith("before") else None
        if name.endswith("-tfrt"):
            env["XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT"] = "1"
        if name in CUDA:
            env["VLLM_PLUGINS"], packages = "xla_gpu_cuda", args.cuda_packages
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (packages, env["PYTHONPATH"])))
        self.name, self.log, self.patience = name, log, args.patience
        own = ["--engines", name, "--model", model, "--share", share]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *sys.argv[1:], *own],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Ends the engine and the schedulers that it has forked, which keep its GPUs' memory."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def answer(self):
        """The next number that it sends; None if it ends, or takes longer than --patience."""
        timer = threading.Timer(self.patience, self.kill)
        timer.start()
        with self.log.open("a") as log:
            for line in self.process.stdout:
                if line.startswith("RESULT "):
                    timer.cancel()
                    return json.loads(line.removeprefix("RESULT "))
                log.write(line)
        timer.cancel()
        print(f"{self.name} failed:\n{self.log.read_text()[-6000:]}", flush=True)
        return None

    def send(self, concurrency: int, words: int, what: str = "time") -> None:
        """Begins what `ask` waits for, or a profile."""
        with contextlib.suppress(BrokenPipeError):
            print(concurrency, words, what, file=self.process.stdin, flush=True)

    def ask(self, concurrency: int, words: int) -> list[list[float]]:
        """For 1 token of each request and for --output more; NaN once it has failed."""
        self.send(concurrency, words)
        return self.answer() or [[math.nan] * 2] * 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="a small model in float32, for a CPU")
    parser.add_argument("--experts", type=int, metavar="LAYERS", help="a mixture of experts")
    parser.add_argument(
        "--requests", nargs="+", type=load_size, metavar="CxWORDS", default=[(1, 256), (16, 256)]
    )
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["xla", "cuda"])
    parser.add_argument("--weights", choices=("bfloat16", "fp8"), default="bfloat16")
    parser.add_argument("--cache", choices=("auto", "fp8"), default="auto", help="its type")
    parser.add_argument("--before", help="the folder of the package that `before` has")
    parser.add_argument("--cuda-packages", help="the folder of vLLM's CUDA build")
    parser.add_argument("--longest", type=int, default=2048, help="--max-model-len")
    parser.add_argument("--output", type=int, default=128, help="tokens after the first")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--patience", type=float, default=600, help="seconds for a start or an answer"
    )
    parser.add_argument("--start", action="store_true", help="measure the start alone")
    parser.add_argument("--profile", type=load_size, metavar="CxWORDS", help="of the host's part")
    parser.add_argument("--trace", action="store_true", help="of the device's part")
    parser.add_argument("--json", type=pathlib.Path, help="keep all times")
    parser.add_argument("--model", help=argparse.SUPPRESS)  # of a process that is an engine,
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)  # and its GPU memory's part
    args = parser.parse_args()
    sizes = TINY if args.tiny else EIGHT_B
    if args.experts:
        sizes = EXPERTS | dict(num_hidden_layers=args.experts)
        if args.tiny:
            sizes |= TINY | dict(hidden_size=64, moe_intermediate_size=64, num_experts=16)
            sizes |= dict(num_hidden_layers=args.experts)
    if args.model:
        try:
            serve_standard_input(args, sizes)
        except Exception:  # a log without it is that of an engine that was killed
            traceback.print_exc()
        os.killpg(0, signal.SIGKILL)  # its threads and schedulers do not end by themselves
    # Of a time limit, as `timeout` has it: the engines, in groups of their own, end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with (
        tempfile.TemporaryDirectory(prefix="vllm-engines-") as folder,
        contextlib.ExitStack() as running,
    ):
        model = pathlib.Path(folder, "model")
        model.mkdir()
        write_checkpoint(model, sizes, args.longest, args.weights)
        engines = [
            Engine(name, args, str(model), pathlib.Path(folder, f"{name}.log"))
            for name in args.engines
        ]
        for engine in engines:
            running.callback(engine.kill)
        starts = {engine.name: engine.answer() for engine in engines}
        engines = [engine for engine in engines if starts[engine.name] is not None]
        for engine in engines:
            print(f"{engine.name}: {told(starts[engine.name], args.start)}", flush=True)
        if not engines:
            raise SystemExit("no engine has started")
        if args.start:
            args.requests = []
        for engine in engines if args.profile else []:
            engine.send(*args.profile, "profile")
            print("\n{}, {}x{}: {}".format(engine.name, *args.profile, engine.answer()), flush=True)
        times: dict[str, dict[str, list]] = {}
        columns = "CxWORDS | engine | first, ms | step, ms | host, ms | tokens/s"
        if args.requests:
            print(f"\n| {columns} |\n|{'---|' * 6}", flush=True)
        for load in args.requests:
            row = times["{}x{}".format(*load)] = {engine.name: [] for engine in engines}
            for engine in engines:  # at once: they compile what they have not compiled yet
                engine.send(*load)
            for engine in engines:
                engine.answer()
            for turn in range(args.rounds):
                for engine in engines[:: -1 if turn % 2 else 1]:
                    row[engine.name].append(engine.ask(*load))
            for name, pairs in row.items():
                first = statistics.median(one[0] for one, _ in pairs)
                step, host = (
                    statistics.median(more[i] - one[i] for one, more in pairs) / args.output
                    for i in range(2)
                )
                cells = f"{1e3 * first:.1f} | {1e3 * step:.2f} | {1e3 * host:.2f}"
                cells += f" | {load[0] / step:.0f}"
                print("| {}x{} | {} | {} |".format(*load, name, cells), flush=True)
        steps: dict[str, dict[str, dict]] = {load: {} for load in times if args.trace}
        for load, of_load in steps.items():  # before a profiler, which may slow what follows it
            for engine in engines:
                engine.send(*load_size(load), "decode")
                of_load[engine.name] = {"ms": engine.answer() or math.nan}
        for load, of_load in steps.items():
            for engine in engines:
                step = of_load[engine.name]
                if not engine.name.startswith("cuda-"):
                    engine.send(*load_size(load), "trace")
                    step |= engine.answer() or {}
                text = told_step(step, sizes["num_hidden_layers"])
                print(f"\n{load}, {engine.name}: {text}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(dict(starts=starts, times=times, steps=steps)))


if __name__ == "__main__":
    main()
