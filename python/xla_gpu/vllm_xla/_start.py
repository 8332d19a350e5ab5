"""The start: an engine's programs compile side by side, and none that is not called.

tpu-inference lowers each program for each padded size, compiles it and calls it once with made-up
arrays, before the first request comes. What is replaced here was done by one core of many.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from xla_gpu.vllm_xla._attention import max_query_len
from xla_gpu.vllm_xla._inputs import computes_with_inputs
from xla_gpu.vllm_xla._names import device_array, replace, to_jax_dtype
from xla_gpu.vllm_xla._step import Step


def _in_this_process(_: Callable[..., Any]) -> Callable[..., Any]:
    def run(fn: Callable[[], Any]) -> Any:
        return fn()

    return run


def models_are_looked_at_here() -> None:
    """Vllm imports a model's class in a process of its own, which imports vLLM once more before.

    It would keep CUDA from being started, which no import does on this platform.
    """
    replace("registry._run_in_subprocess", _in_this_process)


def _and_logits(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def precompile_sampling(self: Any) -> None:
        original(self)
        runner = self.runner
        if runner.is_last_rank and not (runner.is_pooling_model or runner.lora_config):
            self._precompile_select_from_array()
            self._precompile_compute_logits()

    return precompile_sampling


def _once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def precompile(self: Any) -> None:
        done = vars(self).setdefault("_precompiled_by", set())
        if original not in done:
            done.add(original)
            original(self)

    return precompile


def _at_the_end(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def flush(self: Any) -> None:
        # Before there are caches the memory that they will take is free for what compiling takes.
        # Speculation's made-up logits are too many to be kept until the end.
        runner = self.runner
        if self._compile_executor is None or not runner.kv_caches or runner.speculative_config:
            original(self)

    return flush


def _then_waited_for(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def capture_model(self: Any) -> None:
        original(self)  # at whose end there is no _compile_executor any more
        self._flush_compilations()

    return capture_model


def _with_all_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run_compilation(
        self: Any, name: str, fn: Any, *args: Any, call_kwargs: Any = None, **kwargs: Any
    ) -> None:
        call_kwargs = dict(call_kwargs or {})
        shared = "shared_attention_metadata"
        if shared in kwargs:
            call_kwargs[shared] = kwargs[shared]
        original(self, name, fn, *args, call_kwargs=call_kwargs, **kwargs)
        if not (isinstance(fn, Step) and (promise := fn.promises.get(kwargs["num_tokens"]))):
            return
        warm_up = kwargs.pop("warmup_handler")

        def with_the_promise(*args: Any) -> Any:
            with max_query_len(promise):
                return warm_up(*args)

        kwargs |= dict(max_query_len=promise, warmup_handler=with_the_promise)
        with max_query_len(promise):
            original(self, name, fn, *args, call_kwargs=call_kwargs, **kwargs)

    return run_compilation


def _only_if_called(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def precompile(self: Any) -> None:
        if computes_with_inputs(self.runner):
            original(self)

    return precompile


def _sent_from_the_host(_: Callable[..., Any]) -> Callable[..., Any]:
    def dummy(
        self: Any, shape: tuple[int, ...], dtype: Any, sharding: NamedSharding | None = None
    ) -> jax.Array:
        ones = np.ones(shape, to_jax_dtype(dtype))
        array: jax.Array = device_array(self.runner.mesh, ones, sharding=sharding)
        return array

    return dummy


def programs_side_by_side() -> None:
    """Each kind of program was waited for before the next was lowered, and steps never lowered.

    A torchax step was compiled twice, since it was lowered without an argument that calls have.
    Tokens of the step before are put in by the function that unpacks a step's inputs, so that
    tpu-inference's for it, dozens of programs, is not called. Made-up arrays were a program each.
    Products with all words' embeddings are tried out with copies of these, as many at a time as
    there are threads: that is done before the caches take the memory, as sampling is.
    """
    for name, make in (
        ("_precompile_select_from_array", _once),
        ("_precompile_compute_logits", _once),
        ("_precompile_sampling", _and_logits),
        ("_flush_compilations", _at_the_end),
        ("capture_model", _then_waited_for),
        ("_run_compilation", _with_all_arguments),
        ("_precompile_substitute_placeholder_token", _only_if_called),
        ("_create_dummy_tensor", _sent_from_the_host),
    ):
        replace(f"CompilationManager.{name}", make)
