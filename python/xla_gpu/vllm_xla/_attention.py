"""Our kernels under the names and with the arguments of tpu-inference's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from xla_gpu.jax import ragged_paged_attention_hd64, ragged_paged_attention_v3

_P = ParamSpec("_P")
_R = TypeVar("_R")
# While a step is traced, lowered or called: what its calls promise. Every cache of JAX's keeps
# programs of other promises apart, those of functions within the step too.
max_query_len = jax.make_user_context(0)
# While a torchax layer attends: the soft cap of its logits, or 0.
soft_cap = jax.make_user_context(0.0)

_OF_A_STEP = ("kv_lens", "page_indices", "cu_q_lens", "distribution")


def _of_a_step(attention: Callable[_P, _R]) -> Callable[_P, _R]:
    """`attention` with the step's promise, of copies of lengths, pages and counts.

    vLLM brings them in new tensors for each step. XLA records each command that reads a tensor that
    has moved into its CUDA graph anew, and a custom call takes longest of all. The copies, made
    once for all layers, lie in the program's own memory. A plain copy would be optimized away; in
    these a wrong negative number may be -1.
    """
    signature = inspect.signature(attention)

    @functools.wraps(attention)
    def attend(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        bound = signature.bind(*args, **kwargs)
        for name in _OF_A_STEP:
            bound.arguments[name] = jnp.maximum(bound.arguments[name], -1)
        bound.arguments["max_query_len"] = max_query_len.value
        if soft_cap.value:
            bound.arguments["soft_cap"] = soft_cap.value
        return attention(*bound.args, **bound.kwargs)

    return attend


ragged_paged_attention = _of_a_step(ragged_paged_attention_v3)
ragged_paged_attention_hd64 = _of_a_step(ragged_paged_attention_hd64)

__all__ = ["ragged_paged_attention", "ragged_paged_attention_hd64"]
