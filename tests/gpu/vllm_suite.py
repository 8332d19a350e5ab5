"""vLLM on XLA on an NVIDIA GPU, offline, in one command; each step in a process of its own.

    python tests/gpu/vllm_suite.py [serving] [engine] [devices] [load] [--seconds N] [--kind llama]
    python tests/gpu/vllm_suite.py families [--only NAME,NAME]

For a Python 3.12 with tpu-inference 0.32.0, vllm-tpu 0.32.0, JAX's CUDA plugin 0.11.2 and pytest
(on PYTHONPATH, if they are a folder); the package itself need not be installed. Without a GPU the
same steps run on the CPU.

  serving  `vllm serve` over HTTP, every greedy token against transformers' (tests/vllm)
  engine   head_dim 64, a sliding window, fp8 caches, bfloat16, our output zeroed (tests/vllm)
  devices  heads, sequences and experts over two devices, 60 requests each, against transformers;
           where there are two
  families each model of tests/vllm in the engine alone, 200 requests, against transformers; not
           unless named, as it takes five minutes on two cores
  load     --seconds of mixed load with a small cache, so that requests are preempted: greedy and
           sampled, streams, malformed requests, clients that go away (tests/vllm/soak.py); every
           token is checked, and that neither the host's memory nor the device's grows
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/vllm", "tests/oracle", "python")]
STEPS = ("serving", "engine", "devices", "load", "families")


def run_pytest(file: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=5"]
    return subprocess.run([*command, f"tests/vllm/{file}"], cwd=ROOT, check=False).returncode == 0


# Of tests/vllm/engine_program.py: the case and its model.
TWO_DEVICES = {
    "two devices": "llama",
    "torchax, two devices": "qwen3",
    "sequences on two devices": "llama",
    "qwen3-moe, experts on two devices": "qwen3moe",
}


# Cases of the same program that are not named as their models.
NAMED = {
    "gemma2": "gemma 2",
    "gemma3": "gemma",
    "gemma4": "gemma 4",
    "llama4": "llama 4",
    "glm4moe": "glm 4",
    "gptoss": "gpt-oss",
    "mixtral": "mixtral",
}


def run_families(only: list[str]) -> bool:
    import tiny_models

    cases = {NAMED.get(kind, kind): kind for kind in (*NAMED, *tiny_models.FAMILIES)}
    if unknown := set(only) - set(cases.values()):
        sys.exit(f"unknown {', '.join(sorted(unknown))}; there are {', '.join(cases.values())}")
    wanted = {case: kind for case, kind in cases.items() if not only or kind in only}
    return run_cases("families", wanted, number=200, at_once=2)


def run_cases(step: str, cases: dict[str, str], number: int, at_once: int) -> bool:
    """`cases`, as TWO_DEVICES, side by side, each in a process of its own; a line for each."""
    import load
    import tiny_models
    import torch
    from server import run

    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"vllm-{step}-"))
    for kind in set(cases.values()):
        tiny_models.make(kind, folder / kind)
    requests = load.mixed_requests(number, seed=9, longest=70, most=24)
    program = ROOT / "tests/vllm/engine_program.py"

    def one(case: str) -> tuple[bool, str]:
        start = time.monotonic()
        env = dict(JAX_DEFAULT_MATMUL_PRECISION="highest")
        env["XLA_FLAGS"] = (
            f"--xla_force_host_platform_device_count=2 {os.environ.get('XLA_FLAGS', '')}"
        )
        command = [sys.executable, program, folder, json.dumps(requests), case]
        try:
            done = run(*command, seconds=280, **env)
        except subprocess.TimeoutExpired as e:
            (folder / f"{case}.log").write_bytes((e.stdout or b"") + (e.stderr or b""))
            return False, "not done in 280 s"
        (folder / f"{case}.log").write_text(done.stdout + done.stderr)
        lines = [line for line in done.stdout.splitlines() if line.startswith("CASE ")]
        if not lines:
            return False, f"ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
        _, tokens = json.loads(lines[0].removeprefix("CASE "))
        reference = tiny_models.Reference(folder / cases[case])
        pairs = [(prompt, got) for (prompt, _), got in zip(requests, tokens, strict=True)]
        own = float((torch.cat(reference.ranks(pairs)) == 0).float().mean())
        wrong = len(load.wrong(reference, requests, tokens))
        taken = f"{time.monotonic() - start:.0f} s"
        count = sum(map(len, tokens))
        return (
            wrong == 0,
            f"{100 * own:.1f}% of {count} tokens, {wrong} of {number} differ, {taken}",
        )

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(one, case): case for case in cases}
        results = []
        for future in concurrent.futures.as_completed(futures):
            ok, said = future.result()
            results.append(ok)
            print(f"{step}: {futures[future]}: {'ok' if ok else 'FAILED'}: {said}", flush=True)
    return all(results)


def run_load(kind: str, seconds: float) -> bool:
    """Prints what came of it as JSON, memory as at the end of the first minute and at the end."""
    import tiny_models
    from server import serve
    from soak import Soak

    folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm-load-"))
    model = tiny_models.make(kind, folder / "model")
    options = ["--dtype", "float32", "--max-model-len", "256", "--max-num-seqs", "16"]
    options += ["--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "40"]
    options += ["--enable-prefix-caching", "--async-scheduling"]
    env = {"JAX_DEFAULT_MATMUL_PRECISION": "highest", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    env["VLLM_SERVER_DEV_MODE"] = "1"  # it has /collective_rpc then
    env["VLLM_CPU_KVCACHE_SPACE"] = "2"  # else what others leave of the host's memory counts
    with serve(model, folder / "serve", *options, **env) as server:
        server.wait()
        soak = Soak(server, tiny_models.Reference(model))
        try:
            asyncio.run(soak.run(seconds))
            preemptions = int(server.metrics()["vllm:num_preemptions_total"])
        except Exception:
            print(server.log[-6000:], flush=True)
            raise
        device = server.device
    count, memory = soak.counts, soak.memory
    warm, end = memory[min(1, len(memory) - 2)], memory[-1]
    result = dict(
        device=device,
        seconds=seconds,
        **{name: count[name] for name in ("answered", "sampled", "cancelled", "malformed")},
        faults=len(soak.faults),
        preemptions=preemptions,
        tokens=count["tokens"],
        host_mib=[round(warm[0]), round(end[0])],
        device_growth_mib=round(end[1] - warm[1], 2),
    )
    print("load:", json.dumps(result), flush=True)
    seen = preemptions and count["cancelled"] and count["malformed"] and count["unlikelier"]
    grown = end[0] - warm[0] > 64 or end[1] - warm[1] > 8
    return bool(seen) and not soak.faults and not grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", help=", ".join(STEPS))
    parser.add_argument("--seconds", type=float, default=60, help="of step load")
    parser.add_argument("--only", default="", help="models of step families")
    parser.add_argument("--kind", default="llama", help="the model of step load")
    args = parser.parse_args()
    steps = args.steps or STEPS[:-1]
    if unknown := set(steps) - set(STEPS):
        parser.error(f"unknown step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    failed = []
    for step in steps:
        start = time.monotonic()
        own = {
            "load": lambda: run_load(args.kind, args.seconds),
            "devices": lambda: run_cases("devices", TWO_DEVICES, number=60, at_once=4),
            "families": lambda: run_families([name for name in args.only.split(",") if name]),
        }
        ok = own[step]() if step in own else run_pytest(f"test_{step}.py")
        verdict = "ok" if ok else "FAILED"
        print(f"==== {step}: {verdict} in {time.monotonic() - start:.0f} s", flush=True)
        if not ok:
            failed.append(step)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
