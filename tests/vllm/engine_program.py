"""Runs vLLM's engine on tiny checkpoints without a server; prints the tokens of each case as JSON.

    python engine_program.py FOLDER_OF_CHECKPOINTS REQUESTS.json

One process for all cases: importing vLLM takes longer than all of them.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", SKIP_JAX_PRECOMPILE="1")

from vllm import LLM, SamplingParams  # noqa: I001  first: it chooses the platform
from vllm.engine.arg_utils import EngineArgs

import jax
import plain_attention
from xla_gpu.vllm_xla import _attention

KERNELS = ("ragged_paged_attention", "ragged_paged_attention_hd64")


def zeroed(kernel):
    """Our kernel with its output zeroed."""

    def call(*args, **kwargs):
        out, cache = kernel(*args, **kwargs)
        return out * 0, cache

    return call


OURS = [getattr(_attention, name) for name in KERNELS]
PLAIN = [getattr(plain_attention, name) for name in KERNELS]
ZEROED = [zeroed(kernel) for kernel in OURS]

# Proposes what followed the last token before.
NGRAM = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_min=1, prompt_lookup_max=2)
DRAFT = dict(method="eagle3", num_speculative_tokens=2)

# name: kernels, checkpoint, MODEL_IMPL_TYPE, dtype, options
CASES = {
    "ours": (None, "llama64", "auto", "float32", {}),
    "zeroed": (ZEROED, "llama64", "auto", "float32", {}),
    "plain hd64": (PLAIN, "llama64", "auto", "float32", {}),
    "plain": (PLAIN, "llama", "auto", "float32", {}),
    "window": (OURS, "mistral", "vllm", "float32", {}),
    "fp8 cache": (OURS, "llama", "auto", "float32", {"kv_cache_dtype": "fp8"}),
    "fp8 cache, plain": (PLAIN, "llama", "auto", "float32", {"kv_cache_dtype": "fp8"}),
    "two devices": (OURS, "llama", "auto", "float32", {"tensor_parallel_size": 2}),
    "bfloat16": (OURS, "qwen3", "vllm", "bfloat16", {}),
    "gemma": (OURS, "gemma3", "vllm", "float32", {}),
    "speculation": (OURS, "llama", "auto", "float32", {"speculative_config": NGRAM}),
    "speculation, torchax": (OURS, "qwen3", "vllm", "float32", {"speculative_config": NGRAM}),
}


SMALL_MOE = dict(
    architectures=["Qwen3MoeForCausalLM"],
    model_type="qwen3_moe",
    hidden_size=64,
    intermediate_size=64,
    moe_intermediate_size=64,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=64,
    num_experts=4,
    num_experts_per_tok=2,
    num_hidden_layers=2,
    max_position_embeddings=128,
    vocab_size=256,
)


def run(folder: pathlib.Path, requests, kernels, kind, model_impl, dtype, options):
    """The tokens of each request."""
    os.environ["MODEL_IMPL_TYPE"] = model_impl
    engine = LLM(
        str(folder / kind),
        dtype=dtype,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=32,
        num_gpu_blocks_override=128,
        disable_log_stats=False,
        **options,
    )
    if kernels is not None:  # else those that the plugin put there
        plain_attention.take(*kernels)
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in requests]
    limits = [
        SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for _, count in requests
    ]
    outputs = engine.generate(prompts, limits, use_tqdm=False)
    if "speculative_config" in options:
        counted = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
        for what in ("num_draft_tokens", "num_accepted_tokens"):
            assert counted[f"vllm:spec_decode_{what}"] > 0, counted
    return [list(output.outputs[0].token_ids) for output in outputs]


def refusals(folder: pathlib.Path) -> dict[str, str]:
    """What vLLM says to configurations that would reach other TPU kernels."""
    moe = folder / "moe"
    moe.mkdir()
    (moe / "config.json").write_text(json.dumps(SMALL_MOE))
    draft = DRAFT | {"model": str(folder / "llama")}
    asked = {
        "moe": dict(model=str(moe), skip_tokenizer_init=True),
        "quantization": dict(model=str(folder / "llama"), quantization="fp8"),
        "speculation": dict(model=str(folder / "llama"), speculative_config=draft),
    }
    said = {}
    for name, options in asked.items():
        try:
            EngineArgs(**options).create_engine_config()
        except Exception as e:
            said[name] = str(e)
    return said


def main() -> None:
    folder, requests = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
    for name, case in CASES.items():
        if name == "two devices" and jax.device_count() < 2:
            continue
        print("CASE", json.dumps([name, run(folder, requests, *case)]), flush=True)
    print("SAID", json.dumps(refusals(folder)), flush=True)
    os._exit(0)  # vLLM's cleaning up expects torch models


main()
