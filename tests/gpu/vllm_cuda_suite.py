"""vLLM's own engine with our attention (CUSTOM): greedy tokens, on an NVIDIA GPU.

    python tests/gpu/vllm_cuda_suite.py [CASE...]

For a Python with vLLM 0.26 for CUDA; the package itself need not be installed. Tiny random models;
in float32 each token must be transformers' own. In bfloat16 and with an fp8 cache, where roundings
decide, the line tells the share of tokens that are those of vLLM's FLASH_ATTN. The last case has
its attention zeroed and must be wrong, so the others could have been.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/vllm", "tests/oracle", "python")]
os.environ.update(VLLM_PLUGINS="", VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1")

from vllm import LLM, SamplingParams  # noqa: I001
from vllm.distributed import cleanup_dist_env_and_memory

import load
import tiny_models
import xla_gpu.vllm_cuda

REQUESTS = load.mixed_requests(40, seed=9, longest=70, most=24)
EAGER = dict(enforce_eager=True)
NGRAM = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_min=1, prompt_lookup_max=2)


def graphs(mode: str) -> dict:
    """CUDA graphs of a kind, without torch.compile."""
    return dict(compilation_config=dict(mode=0, cudagraph_mode=mode))


# name: checkpoint, dtype, options, whether the attention is ours
CASES = {
    "llama, eager": ("llama", "float32", EAGER, True),
    "llama, graphs of all batches": ("llama", "float32", graphs("FULL"), True),
    "head_size 64, graphs of decodes": ("llama64", "float32", graphs("FULL_DECODE_ONLY"), True),
    "window, graphs of all batches": ("mistral", "float32", graphs("FULL"), True),
    "speculation": (
        "llama",
        "float32",
        graphs("FULL") | dict(speculative_config=NGRAM),
        True,
    ),
    "bfloat16": ("llama", "bfloat16", graphs("FULL"), True),
    "fp8 cache": ("llama", "bfloat16", graphs("FULL") | dict(kv_cache_dtype="fp8"), True),
    "windows in some layers": ("gemma3", "float32", graphs("FULL"), True),
    "bfloat16, compiled": ("llama", "bfloat16", {}, True),
    "zeroed": ("llama", "float32", EAGER, False),
}


def tokens(folder: pathlib.Path, dtype: str, options: dict, backend: str) -> list[list[int]]:
    """What the engine answers to REQUESTS."""
    engine = LLM(
        str(folder),
        dtype=dtype,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        num_gpu_blocks_override=128,
        gpu_memory_utilization=0.1,
        attention_backend=backend,
        **options,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in REQUESTS]
    limits = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in REQUESTS]
    outputs = engine.generate(prompts, limits, use_tqdm=False)
    del engine
    cleanup_dist_env_and_memory()
    return [list(output.outputs[0].token_ids) for output in outputs]


def zero_attention() -> None:
    """Ours with its output zeroed."""
    from xla_gpu.vllm_cuda.backend import XlaGpuImpl

    forward = XlaGpuImpl.forward
    XlaGpuImpl.forward = lambda *args, **named: forward(*args, **named).zero_()


def check(folder: pathlib.Path, dtype: str, options: dict, ours: bool) -> str:
    """One case: "ok" and more, or "WRONG" and more."""
    if not ours:
        zero_attention()
    answers = tokens(folder, dtype, options, "CUSTOM")
    if dtype == "float32":
        asked = [(prompt, answer) for (prompt, _), answer in zip(REQUESTS, answers, strict=True)]
        differ = tiny_models.Reference(folder).first_differences(asked)
        wrong = sum(place is not None for place in differ)
        passed = (wrong == 0) == ours
        return f"{'ok' if passed else 'WRONG'}: {wrong} of {len(asked)} leave transformers' tokens"
    options = {name: x for name, x in options.items() if name != "compilation_config"} | EAGER
    theirs = tokens(folder, dtype, options, "FLASH_ATTN")
    pairs = [(a, b) for x, y in zip(answers, theirs) for a, b in zip(x, y, strict=True)]
    share = sum(a == b for a, b in pairs) / len(pairs)
    return f"{'ok' if share > 0.3 else 'WRONG'}: {share:.1%} of {len(pairs)} tokens FLASH_ATTN's"


def main() -> None:
    names = sys.argv[1:] or list(CASES)
    if len(names) > 1:  # a process captures the CUDA graphs of one engine
        codes = [subprocess.run([sys.executable, __file__, x], check=False) for x in names]
        sys.exit(any(done.returncode for done in codes))
    (name,) = names
    xla_gpu.vllm_cuda.register()
    began = time.monotonic()
    kind, *rest = CASES[name]
    try:
        folder = tiny_models.make(kind, pathlib.Path(tempfile.mkdtemp(prefix=kind)))
        verdict = check(folder, *rest)
    except Exception as error:
        verdict = f"WRONG: {type(error).__name__}: {str(error)[:1000]}"
    print(f"RESULT {name}: {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
    os._exit(not verdict.startswith("ok"))


main()
