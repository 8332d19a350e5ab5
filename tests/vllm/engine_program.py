"""Runs vLLM's engine on tiny checkpoints without a server; prints the tokens of each case as JSON.

    python engine_program.py FOLDER_OF_CHECKPOINTS REQUESTS.json

One process for all cases: importing vLLM takes longer than all of them.
"""

from __future__ import annotations

import gc
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
import transformers
from asked import asks_of
from checkpoints import Checkpoints
from forms import ASKING, EAGLE3, FORMS, IN_THE_ENGINE, Form
from xla_gpu.vllm_xla import _attention, _inputs

KERNELS = ("ragged_paged_attention", "ragged_paged_attention_hd64")


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
ZEROED = [plain_attention.zeroed(kernel) for kernel in OURS]

FP8_CACHE = Form("llama", options={"kv_cache_dtype": "fp8"})
GPTQ = dict(quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=True)
GROUPS = dict(num_bits=4, type="int", strategy="group", group_size=128, symmetric=True)
FOUR_BITS = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUPS}},
}
SEVERAL = {"enable_continue_decode": True, "max_decode_steps": 4}

CASES = {name: (OURS, FORMS[name]) for name in IN_THE_ENGINE} | {
    "ours": (None, FORMS["llama64"]),
    "zeroed": (ZEROED, FORMS["llama64"]),
    "plain hd64": (PLAIN, FORMS["llama64"]),
    "plain": (PLAIN, FORMS["llama"]),
    "fp8 cache": (OURS, FP8_CACHE),
    "fp8 cache, plain": (PLAIN, FP8_CACHE),
    # The last: for it tpu-inference changes vLLM's scheduler in the whole process.
    "several steps": (
        OURS,
        Form("qwen3moe", options={"async_scheduling": False, "additional_config": SEVERAL}),
    ),
}
MANY = ("mixtral", "gptoss")  # with all requests, else a dozen


def run(checkpoints: Checkpoints, requests, kernels, form, asks):
    """The tokens of each request."""
    os.environ["MODEL_IMPL_TYPE"] = os.environ["DRAFT_MODEL_IMPL_TYPE"] = form.impl
    options = form.options_with(checkpoints)
    sizes = dict(max_num_seqs=8, max_num_batched_tokens=32, num_gpu_blocks_override=128)
    engine = LLM(
        str(checkpoints(form.checkpoint)),
        dtype=form.dtype,
        max_model_len=256,
        disable_log_stats=False,
        **sizes | options,
    )
    if kernels is not None:  # else those that the plugin put there
        plain_attention.take(*kernels)
    if form.checkpoint in tiny_images.KINDS:
        requests = tiny_images.requests(6)
        prompts = [
            {"prompt_token_ids": prompt, "multi_modal_data": {"image": images}}
            for (prompt, images), _ in requests
        ]
    else:
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in requests]
    counts = [count for _, count in requests]
    plain = dict(temperature=0, ignore_eos=True)
    limits = [
        SamplingParams(max_tokens=count, **plain, **ask)
        for count, ask in zip(counts, asks, strict=False)  # images have fewer
    ]
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
    draft = EAGLE3["speculative_config"] | {"model": model, "method": "draft_model"}
    dflash = FORMS["qwen3tied dflash"].options_with(Checkpoints(folder))
    asked = {
        "chunks": dict(model=str(folder / "llama4"), hf_overrides={"attention_chunk_size": 64}),
        "images": dict(model=str(folder / "gemma3 images"), skip_tokenizer_init=True),
        "latent attention": dict(model=latent, skip_tokenizer_init=True),
        "delta nets": dict(model=delta, skip_tokenizer_init=True),
        "quantization": dict(model=model, quantization="fp8"),
        "gptq": dict(model=model, hf_overrides={"quantization_config": GPTQ}),
        "4 bits": dict(model=model, hf_overrides={"quantization_config": FOUR_BITS}),
        "speculation": dict(model=model, speculative_config=draft),
        "dflash": dict(model=model, **dflash),
        "several steps": dict(model=model, additional_config=SEVERAL),
        "decode": dict(model=model, tensor_parallel_size=4, decode_context_parallel_size=2),
        "prefill": dict(model=model, prefill_context_parallel_size=2),
        "logprobs": dict(model=model, logprobs_mode="raw_logits"),
        "embeds": dict(model=model, enable_prompt_embeds=True),
        "processors": dict(model=model, logits_processors=["some.module:Processor"]),
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
    collect, gc.collect = gc.collect, lambda generation=2: 0  # vLLM asks six times for each engine
    for name, (kernels, form) in CASES.items():
        if form.devices > jax.device_count():
            continue
        some = requests if name in MANY else requests[:12]
        asks = asks_of(some) if name in ASKING else [{}] * len(some)
        tokens = run(Checkpoints(folder), some, kernels, form, asks)
        print("CASE", json.dumps([name, tokens]), flush=True)
        collect()
    assert STEPS[1] > 0, STEPS
    print("SAID", json.dumps(refusals(folder)), flush=True)
    os._exit(0)  # vLLM's cleaning up expects torch models


main()
