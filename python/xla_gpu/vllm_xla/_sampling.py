"""What requests ask of the sampler: what it does not read, and what it was told wrongly."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from xla_gpu.vllm_xla._names import replace


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
