"""Runs vLLM's engine on tiny checkpoints without a server; prints the tokens of each case as JSON.

    python engine_program.py FOLDER_OF_CHECKPOINTS REQUESTS.json [CASE...]

One process for all cases: importing vLLM takes longer than all of them. With cases named, for those
alone; the families of tiny_models are cases too, but only by name.
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
import same_inputs
import tiny_images
import tiny_models
import transformers
from xla_gpu.vllm_xla import _attention, _inputs

KERNELS = ("ragged_paged_attention", "ragged_paged_attention_hd64")


def zeroed(kernel):
    """Our kernel with its output zeroed."""

    def call(*args, **kwargs):
        out, cache = kernel(*args, **kwargs)
        return out * 0, cache

    return call


def checked(next_inputs):
    def call(self, runner, scheduler_output):
        written = next_inputs(self, runner, scheduler_output)
        STEPS[written] += 1
        if written:
            same_inputs.check(self, runner, scheduler_output)
        return written

    return call


STEPS = [0, 0]  # others, and those whose inputs were written into those of a step before
_inputs.Inputs.next = checked(_inputs.Inputs.next)

OURS = [getattr(_attention, name) for name in KERNELS]
PLAIN = [getattr(plain_attention, name) for name in KERNELS]
ZEROED = [zeroed(kernel) for kernel in OURS]

# Proposes what followed the last token before.
NGRAM = dict(method="ngram", num_speculative_tokens=3, prompt_lookup_min=1, prompt_lookup_max=2)
DRAFT = dict(method="eagle3", num_speculative_tokens=2)  # and the model, which is named as that
DFLASH = DRAFT | {"method": "dflash"}
IMAGES = {"limit_mm_per_prompt": {"image": 2, "video": 0}, "max_num_batched_tokens": 128}
TWO = {"tensor_parallel_size": 2}
GPTQ = dict(quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=True)
GROUPS = dict(num_bits=4, type="int", strategy="group", group_size=128, symmetric=True)
FOUR_BITS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUPS}},
}
SEVERAL = {"enable_continue_decode": True, "max_decode_steps": 4}

# name: kernels, checkpoint, MODEL_IMPL_TYPE, dtype, options. Mixtures of experts come first: vLLM
# makes their groups of processes with the first engine, if it has one.
CASES = {
    "mixtral": (OURS, "mixtral", "auto", "float32", {}),
    "gpt-oss": (OURS, "gptoss", "auto", "float32", {}),
    "gpt-oss mxfp4": (OURS, "gptoss mxfp4", "auto", "float32", {}),
    "gpt-oss mxfp4, two devices": (OURS, "gptoss mxfp4", "auto", "float32", TWO),
    "gemma 4": (OURS, "gemma4", "vllm", "float32", {}),
    "llama 4": (OURS, "llama4", "vllm", "float32", {}),
    "glm 4": (OURS, "glm4moe", "vllm", "float32", {}),
    "qwen3-moe, experts on two devices": (
        OURS,
        "qwen3moe",
        "auto",
        "float32",
        TWO | {"enable_expert_parallel": True},
    ),
    "qwen3moe awq": (OURS, "qwen3moe awq", "auto", "float32", {}),
    "qwen3moe nvfp4": (OURS, "qwen3moe nvfp4", "auto", "float32", {}),
    "llama nvfp4": (OURS, "llama nvfp4", "auto", "float32", {}),
    "llama awq": (OURS, "llama awq", "auto", "float32", {}),
    "qwen3moe fp8": (OURS, "qwen3moe fp8", "auto", "bfloat16", {}),
    "qwen3moe fp8 blocks": (OURS, "qwen3moe fp8 blocks", "auto", "bfloat16", {}),
    "qwen3moe compressed fp8": (OURS, "qwen3moe compressed fp8", "auto", "float32", {}),
    "llama compressed int8": (OURS, "llama compressed int8", "auto", "float32", {}),
    "ours": (None, "llama64", "auto", "float32", {}),
    "zeroed": (ZEROED, "llama64", "auto", "float32", {}),
    "plain hd64": (PLAIN, "llama64", "auto", "float32", {}),
    "plain": (PLAIN, "llama", "auto", "float32", {}),
    "flax, by vLLM's loader": (OURS, "qwen3", "auto", "float32", {}),
    "window": (OURS, "mistral", "vllm", "float32", {}),
    "fp8 cache": (OURS, "llama", "auto", "float32", {"kv_cache_dtype": "fp8"}),
    "fp8 cache, plain": (PLAIN, "llama", "auto", "float32", {"kv_cache_dtype": "fp8"}),
    "two devices": (OURS, "llama", "auto", "float32", TWO),
    "torchax, two devices": (OURS, "qwen3", "vllm", "float32", TWO),
    "sequences on two devices": (OURS, "llama", "auto", "float32", {"data_parallel_size": 2}),
    "bfloat16": (OURS, "qwen3", "vllm", "bfloat16", {}),
    "gemma 2": (OURS, "gemma2", "vllm", "float32", {}),
    "gemma": (OURS, "gemma3", "vllm", "float32", {}),
    "speculation": (OURS, "llama", "auto", "float32", {"speculative_config": NGRAM}),
    "speculation, torchax": (OURS, "qwen3", "vllm", "float32", {"speculative_config": NGRAM}),
    "images": (OURS, "qwen2_5_vl", "auto", "float32", IMAGES),
    "images, torchax": (OURS, "qwen3_vl", "vllm", "float32", IMAGES),
    "draft model": (OURS, "llama3", "vllm", "float32", {"speculative_config": DRAFT}),
    "dflash": (OURS, "qwen3tied", "auto", "float32", {"speculative_config": DFLASH}),
    # The last: for it tpu-inference changes vLLM's scheduler in the whole process.
    "several steps": (
        OURS,
        "qwen3moe",
        "auto",
        "float32",
        {"async_scheduling": False, "additional_config": SEVERAL},
    ),
}
FAMILIES = {name: (OURS, name, "vllm", "float32", {}) for name in tiny_models.FAMILIES}
# With all requests, as cases named; else a dozen.
MANY = ("mixtral", "gpt-oss", "gpt-oss mxfp4", "qwen3-moe, experts on two devices")


def run(folder: pathlib.Path, requests, kernels, kind, model_impl, dtype, options):
    """The tokens of each request."""
    os.environ["MODEL_IMPL_TYPE"] = os.environ["DRAFT_MODEL_IMPL_TYPE"] = model_impl
    draft = options.get("speculative_config")
    if draft in (DRAFT, DFLASH):
        options = {"speculative_config": draft | {"model": str(folder / draft["method"])}}
    sizes = dict(max_num_seqs=8, max_num_batched_tokens=32, num_gpu_blocks_override=128)
    engine = LLM(
        str(folder / kind),
        dtype=dtype,
        max_model_len=256,
        disable_log_stats=False,
        **sizes | options,
    )
    if kernels is not None:  # else those that the plugin put there
        plain_attention.take(*kernels)
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in requests]
    counts = [count for _, count in requests]
    if kind in tiny_images.KINDS:
        prompts = [
            {"prompt_token_ids": prompt, "multi_modal_data": {"image": images}}
            for prompt, images in tiny_images.requests()
        ]
        counts = [tiny_images.TOKENS] * len(prompts)
    limits = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in counts]
    outputs = engine.generate(prompts, limits, use_tqdm=False)
    if "speculative_config" in options:
        counted = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
        for what in ("num_draft_tokens", "num_accepted_tokens"):
            assert counted[f"vllm:spec_decode_{what}"] > 0, counted
    return [list(output.outputs[0].token_ids) for output in outputs]


def refusals(folder: pathlib.Path) -> dict[str, str]:
    """What vLLM says to configurations that would reach other TPU kernels."""
    model = str(folder / "llama")
    latent, delta = str(folder / "latent"), str(folder / "delta")
    transformers.DeepseekV3Config(architectures=["DeepseekV3ForCausalLM"]).save_pretrained(latent)
    transformers.Qwen3NextConfig(architectures=["Qwen3NextForCausalLM"]).save_pretrained(delta)
    draft = DRAFT | {"model": model, "method": "draft_model"}
    asked = {
        "chunks": dict(model=str(folder / "llama4"), hf_overrides={"attention_chunk_size": 64}),
        "images": dict(model=str(folder / "gemma3 images"), skip_tokenizer_init=True),
        "latent attention": dict(model=latent, skip_tokenizer_init=True),
        "delta nets": dict(model=delta, skip_tokenizer_init=True),
        "quantization": dict(model=model, quantization="fp8"),
        "gptq": dict(model=model, hf_overrides={"quantization_config": GPTQ}),
        "4 bits": dict(model=model, hf_overrides={"quantization_config": FOUR_BITS}),
        "speculation": dict(model=model, speculative_config=draft),
        "dflash": dict(model=model, speculative_config=DFLASH | {"model": str(folder / "dflash")}),
        "several steps": dict(model=model, additional_config=SEVERAL),
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
    named = sys.argv[3:]
    for name, case in (CASES | (FAMILIES if named else {})).items():
        if (named and name not in named) or ("two devices" in name and jax.device_count() < 2):
            continue
        some = requests if named or name in MANY else requests[:12]
        print("CASE", json.dumps([name, run(folder, some, *case)]), flush=True)
    if not named:
        assert STEPS[1] > 0, STEPS
        print("SAID", json.dumps(refusals(folder)), flush=True)
    os._exit(0)  # vLLM's cleaning up expects torch models


main()
