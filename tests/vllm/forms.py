"""The families of models and the forms of parallelism that docs/vllm.md says are served.

`served` holds one of them to it: 200 requests at once over HTTP, the compiled step, and that with
our attention's output zeroed the answers are others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import math
import pathlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import load
import tiny_images
import tiny_models
import torch
from checkpoints import Checkpoints
from server import GPUS, Server, serve
from step_program import faults_of_attention

TWO = {"tensor_parallel_size": 2}
TWO_PARTS = {"data_parallel_size": 2}  # of the requests
EXPERTS = {"enable_expert_parallel": True}
# Proposes what followed the last token before; tpu-inference asserts that it is not asynchronous.
NGRAM = {
    "speculative_config": dict(
        method="ngram", num_speculative_tokens=3, prompt_lookup_min=1, prompt_lookup_max=2
    ),
    "async_scheduling": False,
}
# Draft models, checkpoints by name.
EAGLE3 = {
    "speculative_config": dict(method="eagle3", num_speculative_tokens=2, model="llama3 eagle3")
}
DFLASH = {
    "speculative_config": dict(method="dflash", num_speculative_tokens=2, model="qwen3tied dflash")
}
MTP = {"speculative_config": dict(method="mtp", num_speculative_tokens=1, model="glm4moe mtp")}
# Through torchax a step with images compiles some 70 small programs anew: all prompts in few steps.
IMAGES = dict(limit_mm_per_prompt={"image": 2, "video": 0}, max_num_batched_tokens=2048)
IMAGES |= dict(max_num_seqs=200, num_gpu_blocks_override=1006)
ROUNDED = dict(dtype="bfloat16", least=0.75)


@dataclasses.dataclass(frozen=True)
class Form:
    """A checkpoint's name, and how it is served.

    Attributes:
      impl: MODEL_IMPL_TYPE.
      options: vLLM's, as `LLM` has them; of a draft model its checkpoint's name.
      least: the part of the tokens that must be transformers' own. All, but where activations are
        rounded as well, which a rounding before that may turn: in float32 95%, in bfloat16, which
        no float32 can follow, 75%.
    """

    checkpoint: str
    impl: str = "auto"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtype: str = "float32"
    least: float = 1.0

    @property
    def devices(self) -> int:
        parts = ("tensor_parallel_size", "data_parallel_size")
        return math.prod(self.options.get(part, 1) for part in parts)

    def options_with(self, checkpoints: Checkpoints) -> dict[str, Any]:
        """Its options, of a draft model the folder."""
        drafts = self.options.get("speculative_config", {})
        if "model" not in drafts:
            return self.options
        draft = {"speculative_config": drafts | {"model": str(checkpoints(drafts["model"]))}}
        return self.options | draft


# Mixtures of experts come first: vLLM makes their groups of processes with the first engine of a
# process, if it has one.
FORMS = {
    "mixtral": Form("mixtral"),
    "gptoss": Form("gptoss"),
    "gptoss mxfp4": Form("gptoss mxfp4"),
    "gptoss mxfp4 tp2": Form("gptoss mxfp4", options=TWO),
    "gptoss mxfp4 ep2": Form("gptoss mxfp4", options=TWO | EXPERTS),
    "gemma4": Form("gemma4", "vllm"),
    "llama4": Form("llama4", "vllm"),
    "glm4moe": Form("glm4moe", "vllm"),
    "glm4moe mtp": Form("glm4moe", "vllm", MTP),
    "qwen3moe": Form("qwen3moe"),
    "qwen3moe tp2": Form("qwen3moe", options=TWO),
    "qwen3moe ep2": Form("qwen3moe", options=TWO | EXPERTS),
    "qwen3moe dp2": Form("qwen3moe", options=TWO_PARTS),
    "qwen3moe awq": Form("qwen3moe awq"),
    "qwen3moe nvfp4": Form("qwen3moe nvfp4"),
    "qwen3moe fp8": Form("qwen3moe fp8", **ROUNDED),
    "qwen3moe fp8 blocks": Form("qwen3moe fp8 blocks", **ROUNDED),
    "qwen3moe compressed fp8": Form("qwen3moe compressed fp8", least=0.95),
    "llama compressed int8": Form("llama compressed int8", least=0.95),
    "llama nvfp4": Form("llama nvfp4"),
    "llama awq": Form("llama awq"),
    "llama": Form("llama"),
    "llama flax": Form("llama", "flax_nnx"),
    "llama tp2": Form("llama", options=TWO),
    "llama dp2": Form("llama", options=TWO_PARTS),
    "llama ngram": Form("llama", options=NGRAM),
    "llama64": Form("llama64"),
    "llama3 eagle3": Form("llama3", "vllm", EAGLE3),
    "qwen3 flax": Form("qwen3", "flax_nnx"),
    "qwen3tied dflash": Form("qwen3tied", options=DFLASH),
    "qwen3": Form("qwen3", "vllm"),
    "qwen3 tp2": Form("qwen3", "vllm", TWO),
    "qwen3 ngram": Form("qwen3", "vllm", NGRAM),
    "qwen3 bfloat16": Form("qwen3", "vllm", dtype="bfloat16", least=0.95),
    "mistral": Form("mistral", "vllm"),
    "gemma2": Form("gemma2", "vllm"),
    "gemma3": Form("gemma3", "vllm"),
    "gemma3 ngram": Form("gemma3", "vllm", NGRAM),
    "qwen2_5_vl": Form("qwen2_5_vl", options=IMAGES),
    "qwen3_vl": Form("qwen3_vl", "vllm", IMAGES),
    **{name: Form(name, "vllm") for name in tiny_models.FAMILIES},
}
# Those that CI runs in the engine alone (engine_program.py), which takes a tenth of the time.
IN_THE_ENGINE = (
    "mixtral",
    "gptoss",
    "gptoss mxfp4 tp2",
    "gptoss mxfp4 ep2",
    "gemma4",
    "llama4",
    "glm4moe",
    "qwen3moe dp2",
    "qwen3moe awq",
    "qwen3moe nvfp4",
    "qwen3moe fp8 blocks",
    "qwen3moe compressed fp8",
    "llama compressed int8",
    "llama nvfp4",
    "llama awq",
    "mistral",
    "llama tp2",
    "llama dp2",  # one engine over both devices, where a server has one for each
    "qwen3 flax",
    "qwen3 tp2",
    "qwen3 bfloat16",
    "gemma2",
    "llama ngram",
    "qwen3 ngram",
    "llama3 eagle3",
    "glm4moe mtp",
    "qwen3tied dflash",
    "qwen2_5_vl",
    "qwen3_vl",
)

# Of those the ones whose requests ask for other logits there (asked.py).
ASKING = ("llama tp2", "llama dp2", "qwen3 flax")

REQUESTS = load.mixed_requests(200, seed=5, longest=60)
# Elements of a cache of so many blocks are those of no other array.
SIZES = dict(max_model_len=256, max_num_batched_tokens=64, max_num_seqs=16)
SIZES |= dict(num_gpu_blocks_override=134, async_scheduling=True)
ZEROING = dict(worker_extension_cls="plain_attention.Zeroing")
EXACT = {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}  # GPUs round float32 products otherwise
DEVELOPER = {"VLLM_SERVER_DEV_MODE": "1"}  # it has /collective_rpc then
TWO_OF_THE_CPU = "--xla_force_host_platform_device_count=2"  # of XLA_FLAGS


def devices() -> int:
    """How many there are for a form: GPUs, or TWO_OF_THE_CPU."""
    return GPUS or 2


def flags(options: dict[str, Any]) -> list[str]:
    """The options of `LLM` as those of `vllm serve`."""
    found = []
    for name, value in options.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{dashed}" if value else f"--no-{dashed}")
        else:
            found += [f"--{dashed}", value if isinstance(value, str) else json.dumps(value)]
    return found


CHECKED = ("tokens", "HLO", "zeroed")


@dataclasses.dataclass
class Served:
    """What came of a form's requests.

    Attributes:
      own: the part of the tokens that are transformers' own.
      programs: the optimized HLO of the step, one text a size.
      faults: what is not as it should be of the "tokens", of the "HLO" and of those "zeroed", a
        line each; nothing of what is as it should be.
    """

    tokens: int
    own: float
    programs: list[str]
    faults: dict[str, list[str]]
    seconds: float = 0.0

    def __str__(self) -> str:
        said = [f"{len(REQUESTS)} requests, {100 * self.own:.1f}% of {self.tokens} tokens"]
        said += [f"{what} {'FAILED' if what in self.faults else 'ok'}" for what in CHECKED]
        lines = [f"\n  {what}: {line}" for what in self.faults for line in self.faults[what][:5]]
        return f"{', '.join(said)}, {self.seconds:.0f} s{''.join(lines)}"


def served(
    name: str, checkpoints: Checkpoints, folder: pathlib.Path, ahead: bool = False
) -> Served:
    """Serves the form, and holds it to its claims; `ahead`: with every step compiled at the start.

    Tokens are compared, HLO is read, and with our attention's output zeroed answers must be others.
    """
    form, start = FORMS[name], time.monotonic()
    options = flags(SIZES | ZEROING | form.options_with(checkpoints) | {"dtype": form.dtype})
    env = EXACT | DEVELOPER | {"MODEL_IMPL_TYPE": form.impl, "DRAFT_MODEL_IMPL_TYPE": form.impl}
    env |= {} if ahead else {"SKIP_JAX_PRECOMPILE": "1"}
    at = folder / name.replace(" ", "-")  # XLA_FLAGS are parted by spaces
    with serve(checkpoints(form.checkpoint), at, *options, **env) as server:
        server.wait(600)
        found = _held(server, form, checkpoints, at)
    found.seconds = time.monotonic() - start
    return found


def _held(server: Server, form: Form, checkpoints: Checkpoints, at: pathlib.Path) -> Served:
    reference = checkpoints.reference(form.checkpoint)
    requests, answers = REQUESTS, load.answers
    if form.checkpoint in tiny_images.KINDS:
        requests, answers = tiny_images.requests(len(REQUESTS), sizes=1), tiny_images.answers
    tokens = asyncio.run(answers(server, requests))
    (at / "answers.json").write_text(json.dumps(tokens))
    own, wrong = compared(form, reference, requests, tokens)
    if "speculative_config" in form.options:
        counted = server.metrics()
        for what in ("draft", "accepted"):
            if not counted[f"vllm:spec_decode_num_{what}_tokens_total"]:
                wrong.append(f"no token was {what}")
    programs = server.step_programs()
    layers = reference.model.config.get_text_config().num_hidden_layers
    unlike = [line for program in programs for line in faults_of_attention(program, layers)]
    some = [i for i, got in enumerate(tokens) if len(got) >= 8][:16]
    again = functools.partial(answers, server, [requests[i] for i in some])
    same = same_when_zeroed(server, [tokens[i] for i in some], again)
    found = wrong, unlike if programs else ["no program of a step"], same
    faults = {what: lines for what, lines in zip(CHECKED, found, strict=True) if lines}
    return Served(sum(map(len, tokens)), own, programs, faults)


def compared(
    form: Form,
    reference: tiny_models.Reference,
    requests: list[Any],
    tokens: list[list[int]],
    **asks: Any,
) -> tuple[float, list[str]]:
    """The part of the tokens that are transformers' own, and what is wrong with the answers."""
    pairs = [(prompt, got) for (prompt, _), got in zip(requests, tokens, strict=True)]
    ranks = reference.ranks(pairs, **asks)
    own = float((torch.cat(ranks) == 0).float().mean())
    if form.least == 1:
        return own, load.unlike(requests, ranks)
    faults = load.unlike(requests, [0 * rank for rank in ranks])  # their number alone
    if own <= form.least:
        faults.append(f"{own:.3f} of the tokens are transformers' own, not {form.least}")
    return own, faults


def same_when_zeroed(
    server: Server, tokens: list[list[int]], again: Callable[[], Awaitable[list[list[int]]]]
) -> list[str]:
    """Makes our attention return zeros; a line for each answer of again() that stays what it was.

    The answers should have a few tokens each, or some would be the same by chance.
    """

    async def zeroed() -> list[list[int]]:
        status, answer = await server.post({"method": "zero_attention"}, "/collective_rpc")
        assert status == 200, answer
        return await again()

    pairs = zip(tokens, asyncio.run(zeroed()), strict=True)
    kept = [i for i, (before, got) in enumerate(pairs) if got == before]
    return [f"request {i}: the same tokens with our output zeroed" for i in kept]
