"""What requests ask of the sampler: what it does not read, and what it was told wrongly."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from xla_gpu.vllm_xla._names import init_logger, replace

logger = init_logger("vllm.xla_gpu")

# Of vLLM's SamplingParams, with their defaults: those that change the logits (_logits.py),
_ADJUSTING: dict[str, Any] = dict(
    presence_penalty=0.0,
    frequency_penalty=0.0,
    repetition_penalty=1.0,
    min_p=0.0,
    logit_bias=None,
    allowed_token_ids=None,
    bad_words=[],
    min_tokens=0,
)
# and those that should change tokens or logprobs and change nothing.
_NOT_SAMPLED = ("thinking_token_budget", "logprob_token_ids", "prompt_logprob_token_ids")


def asked(params: Any, name: str) -> bool:
    """Whether a request asks for a parameter: gives another value than the default."""
    return getattr(params, name, None) not in (None, _ADJUSTING.get(name))


def not_sampled(params: Any) -> list[str]:
    """What a request asks for that is not done."""
    found = [name for name in _NOT_SAMPLED if asked(params, name)]
    # tpu-inference refuses it too, with an error that vLLM's server has no words for.
    if asked(params, "seed") and params.sampling_type.name == "RANDOM_SEED":
        found.append("seed")
    return found


def drop_defaults(model: Any, beside: dict[str, str]) -> None:
    """Drops what generation_config.json asks for all requests and `not_beside` says is not done."""
    for name, value in model.get_diff_sampling_param().items():
        given = name in model.override_generation_config
        if name in beside and value != _ADJUSTING[name] and not given:
            logger.warning(
                "xla_gpu: %s=%r of the model's generation_config.json is dropped: there is none "
                "beside %s",
                name,
                value,
                beside[name],
            )
            model.override_generation_config[name] = None


def not_beside(vllm_config: Any) -> dict[str, str]:
    """What a request may not ask for, and because of what: it ended the engine, or went wrong."""
    model, found = vllm_config.model_config, dict[str, str]()
    if vllm_config.sharding_config.total_dp_size > 1:
        found["structured_outputs"] = "data parallelism in one engine"
    if model.is_multimodal_model:
        limits = model.multimodal_config.limit_per_prompt.values()
        if not limits or any(limit.count for limit in limits):
            found["prompt_logprobs"] = "images"
    if vllm_config.speculative_config is not None:
        names = "prompt_logprobs", "structured_outputs", *_ADJUSTING
        found |= dict.fromkeys(names, "speculation")
    if vllm_config.additional_config.get("enable_continue_decode"):
        found |= dict.fromkeys(_ADJUSTING, "several steps in one program")
    return found


def _none_is_not_zero(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_input_batch(mesh: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        asked = input_batch.num_logprobs
        input_batch.num_logprobs = dict.fromkeys(asked, 1)
        try:
            return original(mesh, input_batch, *args, **kwargs)
        finally:
            input_batch.num_logprobs = asked

    return from_input_batch


def logprobs_of_the_token_alone() -> None:
    """A request for 0 logprobs wants the sampled token's, which tpu-inference takes for none.

    All are gathered anyway, and vLLM takes as many as were asked for.
    """
    name = "TPUSupportedSamplingMetadata.from_input_batch"
    replace(name, lambda original: staticmethod(_none_is_not_zero(original)))


def _in_the_order_of_names(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def prepare(self: Any, logits: Any, grammar_output: Any) -> Any:
        names = grammar_output.structured_output_request_ids
        here = filter(
            lambda i: names[i] in self.runner.input_batch.req_id_to_index, range(len(names))
        )
        rows = sorted(here, key=names.__getitem__)
        ordered = dataclasses.replace(
            grammar_output,
            structured_output_request_ids=[names[row] for row in rows],
            grammar_bitmask=grammar_output.grammar_bitmask[rows],
        )
        return original(self, logits, ordered)

    return prepare


def masks_of_grammars_by_request() -> None:
    """tpu-inference sorts requests by name, whose masks are in the scheduler's order.

    With two at once, each had the other's. A mask of one that has left the batch was the next's.
    """
    place = "StructuredDecodingManager.prepare_structured_decoding_input"
    replace(place, _in_the_order_of_names)
