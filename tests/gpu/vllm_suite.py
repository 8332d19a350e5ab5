"""vLLM on XLA on an NVIDIA GPU, offline, in one command; each step in a process of its own.

    python tests/gpu/vllm_suite.py [serving] [engine] [load] [--seconds N] [--kind llama]
    python tests/gpu/vllm_suite.py http [FORM...] [--at-once N]

For a Python 3.12 with tpu-inference 0.32.0, vllm-tpu 0.32.0, JAX's CUDA plugin 0.11.2 and pytest
(on PYTHONPATH, if they are a folder); the package itself need not be installed. Without a GPU the
same steps run on the CPU.

  serving  `vllm serve` over HTTP, every greedy token against transformers' (tests/vllm)
  engine   head_dim 64, a sliding window, fp8 caches, bfloat16, our output zeroed (tests/vllm)
  http     each model and form of parallelism of tests/vllm/forms.py, or those named: 200 requests
           at once, tokens against transformers', the HLO of a step, our output zeroed; those over
           two devices where there are two
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
STEPS = ("serving", "engine", "load")


def run_pytest(file: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--durations=5"]
    return subprocess.run([*command, f"tests/vllm/{file}"], cwd=ROOT, check=False).returncode == 0


def run_http(names: list[str], at_once: int) -> bool:
    """Serves these forms, or all, side by side; a line for each."""
    from checkpoints import Checkpoints
    from forms import FORMS, TWO_OF_THE_CPU, devices, served

    if unknown := set(names) - set(FORMS):
        sys.exit(f"unknown {', '.join(sorted(unknown))}; there are {', '.join(FORMS)}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="vllm-http-"))
    checkpoints = Checkpoints(folder / "checkpoints")
    os.environ["XLA_FLAGS"] = f"{TWO_OF_THE_CPU} {os.environ.get('XLA_FLAGS', '')}"
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        futures, results = {}, []
        for name in names or FORMS:
            if FORMS[name].devices > devices():
                print(f"http: {name}: left out: there is one device", flush=True)
                continue
            checkpoints.reference(FORMS[name].checkpoint)
            futures[pool.submit(served, name, checkpoints, folder)] = name
        for future in concurrent.futures.as_completed(futures):
            try:
                found = future.result()
                ok, said = not found.faults, str(found)
            except Exception as e:
                ok, said = False, f"{e!r:.4000}"
            results.append(ok)
            print(f"http: {futures[future]}: {'ok' if ok else 'FAILED'}: {said}", flush=True)
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
    parser.add_argument("steps", nargs="*", help=f"{', '.join(STEPS)}; or http and its forms")
    parser.add_argument("--seconds", type=float, default=60, help="of step load")
    parser.add_argument("--kind", default="llama", help="the model of step load")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--at-once", type=int, default=cores, help="servers of step http")
    args = parser.parse_args()
    names: list[str] = []
    steps = args.steps or STEPS
    if steps[0] == "http":
        steps, names = steps[:1], steps[1:]
    elif unknown := set(steps) - set(STEPS):
        parser.error(f"unknown step {', '.join(sorted(unknown))}; there are {', '.join(STEPS)}")
    failed = []
    for step in steps:
        start = time.monotonic()
        own = {
            "load": lambda: run_load(args.kind, args.seconds),
            "http": lambda: run_http(names, args.at_once),
        }
        ok = own[step]() if step in own else run_pytest(f"test_{step}.py")
        verdict = "ok" if ok else "FAILED"
        print(f"==== {step}: {verdict} in {time.monotonic() - start:.0f} s", flush=True)
        if not ok:
            failed.append(step)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
