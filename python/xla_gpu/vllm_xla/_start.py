"""The start: an engine's programs compile side by side, and none that is not called.

tpu-inference lowers each program for each padded size, compiles it and calls it once with made-up
arrays, before the first request comes. What is replaced here was done by one core of many.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from xla_gpu.vllm_xla import _names
from xla_gpu.vllm_xla._attention import max_query_len
from xla_gpu.vllm_xla._inputs import computes_with_inputs
from xla_gpu.vllm_xla._names import device_array, replace, to_jax_dtype
from xla_gpu.vllm_xla._step import Sampling, Step, rows_of_states

# While caches are made without memory; nothing is compiled then.
_shapes_alone: ContextVar[bool] = ContextVar("_shapes_alone", default=False)


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
        runner = self.runner
        if runner.is_last_rank and not (runner.is_pooling_model or runner.lora_config):
            self._precompile_select_from_array()
            self._precompile_compute_logits()
        original(self)
        for program, *args in runner.asked.ahead():
            self._run_compilation("penalties", program, *args, compile_only=True)

    return precompile_sampling


@contextlib.contextmanager
def _while(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _of_states(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def precompile(self: Any) -> None:
        runner = self.runner
        sizes = {rows_of_states(runner, size) for size in runner.num_tokens_paddings}
        with _while(runner, "num_tokens_paddings", sorted(sizes)):
            original(self)

    return precompile


def _of_all_states(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def precompile(self: Any) -> None:
        runner = self.runner  # whose LogitsOfRows has the others
        sizes = runner.num_reqs_paddings[-1 if rows_of_states(runner, 0) else 0 :]
        with _while(runner, "num_reqs_paddings", sizes):
            original(self)

    return precompile


def _once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def precompile(self: Any) -> None:
        done = vars(self).setdefault("_precompiled_by", set())
        if original not in done and not _shapes_alone.get():
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
        if isinstance(fn, Sampling):
            how = {k: v for k, v in kwargs.items() if k != "logprobs"}
            done = vars(self).setdefault("_sampled", [])
            if how in done:
                return
            done.append(how)
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


def _as_shapes(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def allocator(cache_shape: Any, cache_dtype: Any, sharding: Any) -> Callable[[], Any]:
        if not _shapes_alone.get():
            allocate: Callable[[], Any] = original(cache_shape, cache_dtype, sharding)
            return allocate
        return lambda: jax.ShapeDtypeStruct(cache_shape, cache_dtype, sharding=sharding)

    return allocator


@contextlib.contextmanager
def before_there_are_caches(runner: Any) -> Iterator[None]:
    """Caches that are made within take memory at its end, when all programs are compiled.

    Steps take longest to compile and are the first; what they leave of the threads is the others'.
    """
    manager = runner.compilation_manager
    if (
        _names.SKIP_JAX_PRECOMPILE
        or runner.model_config.enforce_eager
        or manager._compile_executor is None
        or not runner.model_fn.takes_words
        or runner.vllm_config.kv_transfer_config is not None
    ):
        yield
        return
    token = _shapes_alone.set(True)
    try:
        yield
    finally:
        _shapes_alone.reset(token)
    with jax.set_mesh(runner.mesh):
        manager._precompile_backbone_text_only()
        steps, manager._warmup_tasks = manager._warmup_tasks, []
        manager._precompile_sampling()
        manager._precompile_gather_logprobs()
        manager._precompile_structured_decoding()
        with _while(runner, "kv_caches", []):
            manager._flush_compilations()
    manager._warmup_tasks = steps  # called with the caches
    runner.kv_caches = jax.tree.map(
        lambda cache: jnp.zeros(cache.shape, cache.dtype, device=cache.sharding), runner.kv_caches
    )


def _sent_from_the_host(_: Callable[..., Any]) -> Callable[..., Any]:
    def dummy(
        self: Any, shape: tuple[int, ...], dtype: Any, sharding: NamedSharding | None = None
    ) -> jax.Array:
        ones = np.ones(shape, to_jax_dtype(dtype))
        array: jax.Array = device_array(self.runner.mesh, ones, sharding=sharding)
        return array

    return dummy


def _made(makes: list[Callable[..., Any]], original: Callable[..., Any]) -> Callable[..., Any]:
    return functools.reduce(lambda function, make: make(function), makes, original)


def programs_side_by_side() -> None:
    """Each kind of program was waited for before the next was lowered, and steps never lowered.

    A torchax step was compiled twice, since it was lowered without an argument that calls have.
    Tokens of the step before are put in by the function that unpacks a step's inputs, so that
    tpu-inference's for it, dozens of programs, is not called. Made-up arrays were a program each.
    Products with all words' embeddings are tried out with copies of these, as many at a time as
    there are threads: that is done before the caches take the memory, as sampling is. It was waited
    for before the steps were; of caches these want the shapes alone.
    """
    for name, *makes in (
        ("_precompile_backbone_text_only", _once),
        ("_precompile_select_from_array", _of_states, _once),
        ("_precompile_compute_logits", _of_all_states, _once),
        ("_precompile_sampling", _and_logits, _once),
        ("_precompile_gather_logprobs", _of_states, _once),
        ("_precompile_structured_decoding", _once),
        ("_flush_compilations", _at_the_end),
        ("capture_model", _then_waited_for),
        ("_run_compilation", _with_all_arguments),
        ("_precompile_substitute_placeholder_token", _only_if_called),
        ("_create_dummy_tensor", _sent_from_the_host),
    ):
        replace(f"CompilationManager.{name}", functools.partial(_made, makes))
    replace("kv_cache._get_kv_cache_allocator", _as_shapes)
