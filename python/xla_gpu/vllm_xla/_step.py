"""The host's part of a step: what the runner sends and computes array by array, in one call each.

A call of JAX that is not compiled takes the host 50 to 150 us and a device_put as much; a decode
step of a few layers takes the device less than all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xla_gpu.vllm_xla._replace import _replace
from xla_gpu.vllm_xla._versions import UnsupportedError

# ---- A step's inputs -----------------------------------------------------------------------------

# While _prepare_inputs runs: what _apply_async_token_substitution was asked for, or nothing.
_later: ContextVar[list[Any] | None] = ContextVar("_later", default=None)

_Layout = tuple[tuple[tuple[int, ...], Any], ...]


def _unpack(words: jax.Array, last: jax.Array | None, layout: _Layout) -> list[jax.Array]:
    arrays, end = [], 0
    for shape, dtype in layout:
        start, end = end, end + math.prod(shape)
        array = words[start:end].reshape(shape)
        arrays.append(jax.lax.bitcast_convert_type(array, dtype))
    if last is not None:  # the rest of the words: which of these each token is, or -1
        arrays[0] = jnp.where(words[end:] < 0, arrays[0], last[words[end:]])
    return arrays


@functools.cache
def _unpacked_on(mesh: jax.sharding.Mesh) -> Callable[..., list[jax.Array]]:
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.jit(_unpack, static_argnames="layout", out_shardings=sharding)


class Packed:
    """The numpy arrays of a tree one after the other, as 32-bit words.

    Arrays are of 32 bits, or of int64, which become int32; equal objects are one.
    """

    def __init__(self, tree: Any) -> None:
        leaves, self._treedef = jax.tree.flatten(tree)
        self._places: list[int] = []
        self._starts: dict[int, tuple[int, Any]] = {}
        places: dict[int, int] = {}
        arrays: list[np.ndarray[Any, Any]] = []
        start = 0
        for leaf in leaves:
            place = places.setdefault(id(leaf), len(arrays))
            if place == len(arrays):
                arrays.append(leaf.astype(np.int32) if leaf.dtype == np.int64 else leaf)
                self._starts[id(leaf)] = start, leaf.shape
                start += leaf.size
            self._places.append(place)
        self.words: np.ndarray[Any, Any] = np.concatenate(
            [array.ravel().view(np.int32) for array in arrays]
        )
        self._layout = tuple((array.shape, array.dtype) for array in arrays)

    def view(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Where that array of the tree is, to be written."""
        start, shape = self._starts[id(array)]
        return self.words[start : start + array.size].reshape(shape)

    def to_device(
        self,
        mesh: jax.sharding.Mesh,
        last: jax.Array | None,
        at: Sequence[int] | slice,
        of: Sequence[int],
    ) -> Any:
        """The tree, of arrays on each device of the mesh, sent there as one new array.

        Args:
          mesh: the devices, each of which gets all of it.
          last: the tokens of the step before, on the device, or None.
          at: which of the tree's first array take tokens of `last`.
          of: which of `last` they take; -1: none.
        """
        if last is None:
            packed: Any = self.words.copy()
        else:
            source = np.full(self._layout[0][0], -1, np.int32)
            source[at] = of
            packed = np.concatenate((self.words, source))
        if mesh.size > 1:  # for several devices a call takes longer to place what it is given
            packed = jax.device_put(packed, NamedSharding(mesh, PartitionSpec()))
        sent = _unpacked_on(mesh)(packed, last, layout=self._layout)
        return jax.tree.unflatten(self._treedef, [sent[place] for place in self._places])


def computes_with_inputs(runner: Any) -> bool:
    return bool(
        runner.dp_size > 1 or runner.speculative_config or runner.pcp_preprocessor is not None
    )


# Of what _prepare_inputs returns: the token ids first; positions, attention, sampling, which
# logits, attention once more.
SENT = (0, 1, 2, 3, 4, 11)


class Inputs:
    """What _prepare_inputs returns for a step, kept for the steps after it.

    While the batch stays as it is, a token for each request, a step's inputs differ from those of
    the step before in tokens, positions, lengths and pages alone. They are written into its words:
    the original takes some 60 calls of numpy.
    """

    def __init__(self, runner: Any, scheduler_output: Any, prepared: Sequence[Any]) -> None:
        self.packed = packed = Packed([prepared[i] for i in SENT])
        self._rest = {i: x for i, x in enumerate(prepared) if i not in SENT}
        batch = runner.input_batch
        self._stays = not (
            scheduler_output.total_num_scheduled_tokens != batch.num_reqs
            or runner.uses_mrope  # the others do more in each step
            or runner.lora_config is not None
            or runner.phase_based_profiler
            or runner.aggregated_stats_logger
            or runner.kv_cache_config.has_mamba_layers
            or not runner.kv_cache_config.kv_cache_groups
        )
        if not self._stays:
            return
        ids, positions, attention = prepared[:3]
        groups = getattr(attention, "groups", (attention,))
        count = batch.num_reqs
        self._requests = list(batch.req_ids[:count])
        self._rows = np.arange(count)
        self._computed = batch.num_computed_tokens_cpu[:count].copy()
        self._ids = packed.view(ids)[:count]
        self._positions = packed.view(positions)[:count]
        self._lengths = packed.view(groups[0].seq_lens)[:count]
        self._pages = []
        for i, group in enumerate(groups):
            pages = batch.block_table[i].get_cpu_tensor()
            here = packed.view(group.block_tables).reshape(-1, pages.shape[1])
            self._pages.append((pages[:count], here[:count]))

    def next(self, runner: Any, scheduler_output: Any) -> list[Any] | None:
        """Makes `packed` the next step's; to_device's arguments, None for another kind of step."""
        if not self._stays:
            return None
        batch, count = runner.input_batch, len(self._requests)
        computed = batch.num_computed_tokens_cpu[:count]
        if (
            scheduler_output.total_num_scheduled_tokens != count
            or batch.num_reqs != count
            or scheduler_output.scheduled_new_reqs
            or scheduler_output.finished_req_ids
            or batch.req_ids[:count] != self._requests
            or not np.array_equal(computed, self._computed + 1)
        ):
            return None
        substitution: list[Any] = [None, (), ()]
        before = runner._pre_async_results if runner.scheduler_config.async_scheduling else None
        if before is not None:
            prompts = batch.num_prompt_tokens[:count]
            if (computed < prompts).any() or before.next_tokens_in_tpu is not None:
                return None
            of = [before.placeholder_req_id_to_index.get(name, -1) for name in self._requests]
            if max(of) >= 0:
                substitution = [before.next_tokens, slice(count), of]
        self._computed[:] = self._positions[:] = computed
        np.add(computed, 1, out=self._lengths)
        self._ids[:] = batch.token_ids_cpu[self._rows, computed]
        for pages, here in self._pages:
            here[:] = pages
        return substitution

    def to_device(self, mesh: jax.sharding.Mesh, *substitution: Any) -> tuple[Any, ...]:
        """What _prepare_inputs would return."""
        sent = self.packed.to_device(mesh, *substitution)
        prepared = self._rest | dict(zip(SENT, sent, strict=True))
        return tuple(prepared[i] for i in range(len(prepared)))


def on_the_host(original: Callable[..., Any], runner: Any, scheduler_output: Any) -> Any:
    """What _prepare_inputs returns, nothing of it sent, and the arguments of `Packed.to_device`."""
    substitution: list[Any] = [None, (), ()]
    token = _later.set(substitution)
    try:
        return list(original(runner, scheduler_output)), substitution
    finally:
        _later.reset(token)


def _prepared_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def prepare(self: Any, scheduler_output: Any) -> Any:
        if computes_with_inputs(self):
            return original(self, scheduler_output)
        inputs: Inputs | None = vars(self).get("inputs_of_last_step")
        substitution = inputs and inputs.next(self, scheduler_output)
        if not (inputs and substitution):
            prepared, substitution = on_the_host(original, self, scheduler_output)
            inputs = self.inputs_of_last_step = Inputs(self, scheduler_output, prepared)
        return inputs.to_device(self.mesh, *substitution)

    return prepare


def _not_yet(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def device_array(mesh: Any, *args: Any, sharding: Any = None, **kwargs: Any) -> Any:
        if _later.get() is not None:
            return args[0]
        return original(mesh, *args, sharding=sharding, **kwargs)

    return device_array


def _views_or_compiled(original: Callable[..., Any]) -> Callable[..., Any]:
    compiled = jax.jit(original, static_argnums=1)

    @functools.wraps(original)
    def unpack_arrays(blob: Any, metadata: Any) -> Any:
        if _later.get() is None:
            return compiled(blob, metadata)
        parts = np.split(blob, np.cumsum(metadata.sizes)[:-1])
        return dict(zip(metadata.keys, parts, strict=True))

    return unpack_arrays


def _substituted_later(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def substitute(
        self: Any,
        input: Any,
        next_tokens_in_tpu: Any,
        token_in_tpu_cur_input_indices: Any,
        token_in_tpu_pre_next_tokens_indices: Any,
    ) -> Any:
        at, of = token_in_tpu_cur_input_indices, token_in_tpu_pre_next_tokens_indices
        later = _later.get()
        if later is None:
            return original(self, input, next_tokens_in_tpu, at, of)
        if len(at):
            later[:] = next_tokens_in_tpu, at, of
        return input

    return substitute


def inputs_in_one_transfer() -> None:
    """A step's inputs are 8 arrays in 4 transfers, split and given the last tokens by eager calls.

    While they are prepared, what would go to the device stays on the host (all of it was written
    there), and then goes in one array, which one compiled function takes apart. The old way stays
    for data parallelism, whose arrays are split over devices, and speculation, which computes.
    """
    runner, sampling = "tpu_inference.runner.tpu_runner", "tpu_inference.layers.jax.sample"
    for module in (runner, f"{sampling}.sampling_metadata"):
        _replace(module, "device_array", "mesh, args, sharding, kwargs", _not_yet)
    _replace(
        "tpu_inference.utils:DeviceBuffer", "unpack_arrays", "blob, metadata", _views_or_compiled
    )
    _replace(
        f"{runner}:TPUModelRunner",
        "_apply_async_token_substitution",
        "self, input, next_tokens_in_tpu, token_in_tpu_cur_input_indices, "
        "token_in_tpu_pre_next_tokens_indices",
        _substituted_later,
    )
    _replace(
        f"{runner}:TPUModelRunner", "_prepare_inputs", "self, scheduler_output", _prepared_at_once
    )


# ---- The step ------------------------------------------------------------------------------------


class Step:
    """A flax model's step, which looked for its compiled function in every call.

    It is chosen by the shardings of the caches, which stay. `lower` lets steps of all sizes be
    compiled side by side, as those of torchax models are.
    """

    def __init__(self, model_fn: Callable[..., Any]) -> None:
        """Of what tpu-inference's model loader makes.

        Raises:
          UnsupportedError: where it is not made as in the known releases.
        """
        self._resolve: Any = inspect.getclosurevars(model_fn).nonlocals.get("_resolve_step_fn")
        if self._resolve is None:
            raise UnsupportedError(
                f"xla_gpu.vllm_xla: {model_fn.__module__}.{model_fn.__qualname__} should call "
                "_resolve_step_fn but does not; this tpu-inference is not the release that pip "
                "installed, or was patched"
            )
        self._compiled: Any = None

    def _of(self, args: tuple[Any, ...]) -> Any:
        if self._compiled is None:
            self._compiled = self._resolve(args[1], True)
        return self._compiled

    def __call__(self, *args: Any, shared_attention_metadata: Any = None) -> Any:
        return self._of(args)(*args)

    def lower(self, *args: Any, shared_attention_metadata: Any = None) -> Any:
        """For its compilation ahead of time."""
        return self._of(args).lower(*args)


# ---- Logits and tokens ---------------------------------------------------------------------------


def _reads(function: Any, weights: Any, args: Any) -> tuple[list[Any], Callable[..., Any]]:
    """Which weights function(weights, *args) reads, by name or index, and itself for those only."""
    names = sorted(weights) if isinstance(weights, dict) else range(len(weights))
    jaxpr = function.trace(weights, *args).jaxpr.jaxpr
    used = {id(var) for eqn in jaxpr.eqns for var in eqn.invars} | set(map(id, jaxpr.outvars))
    read = [name for name, var in zip(names, jaxpr.invars, strict=False) if id(var) in used]
    shapes = {name: (weights[name].shape, weights[name].dtype) for name in names}

    @jax.jit
    def of_some(some: list[jax.Array], *args: Any) -> Any:
        every = {name: jnp.zeros(*shapes[name]) for name in names if name not in read}
        every |= zip(read, some, strict=True)
        return function(every if isinstance(names, list) else tuple(map(every.get, names)), *args)

    return read, of_some


class OnlyWhatItReads:
    """A compiled function(weights, hidden_states, lora_metadata), handed the weights it reads.

    The weights are a dict or a tuple of arrays. Of `LogitsOfRows` it is asked what they have.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._read: list[Any] = []
        self._of_some: Any = None

    def of_some(self, weights: Any, hidden_states: Any) -> Any:
        """Itself as a function(those of the weights that it reads, hidden_states, None)."""
        if self._of_some is None:
            self._read, self._of_some = _reads(self._function, weights, (hidden_states, None))
        return self._of_some

    def read(self, weights: Any) -> list[Any]:
        """The weights that it reads."""
        return [weights[name] for name in self._read]

    def _of(self, weights: Any, hidden_states: Any, lora_metadata: Any) -> tuple[Any, ...]:
        if lora_metadata is not None or isinstance(hidden_states, jax.core.Tracer):
            return self._function, weights, hidden_states, lora_metadata
        function = self.of_some(weights, hidden_states)
        return function, self.read(weights), hidden_states, lora_metadata

    def __call__(self, weights: Any, hidden_states: Any, lora_metadata: Any) -> Any:
        if isinstance(hidden_states, LogitsOfRows):
            return hidden_states.logits
        function, *args = self._of(weights, hidden_states, lora_metadata)
        return function(*args)

    def lower(self, weights: Any, hidden_states: Any, lora_metadata: Any) -> Any:
        """For its compilation ahead of time."""
        function, *args = self._of(weights, hidden_states, lora_metadata)
        return function.lower(*args)


class LogitsOfRows:
    """The runner's _select_from_array_fn, which computes the rows' logits and greedy tokens too."""

    logits: Any = None  # of the last call
    tokens: Any = None

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._select = runner._select_from_array_fn
        self._compiled: Any = None

    def _compile(self, array: Any, indices: Any) -> None:
        runner = self._runner
        rows = jax.ShapeDtypeStruct((*indices.shape, *array.shape[1:]), array.dtype)
        function = runner.compute_logits_fn.of_some(runner.state_leaves, rows)
        replicated = NamedSharding(runner.mesh, PartitionSpec())

        @jax.jit
        def logits_of_rows(weights: Any, array: Any, indices: Any) -> tuple[Any, Any]:
            logits = function(weights, array[indices], None)
            tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            return logits, jax.lax.with_sharding_constraint(tokens, replicated)

        self._compiled = logits_of_rows

    def _args(self, array: Any, indices: Any) -> tuple[Any, ...]:
        if self._compiled is None:
            self._compile(array, indices)
        runner = self._runner
        return runner.compute_logits_fn.read(runner.state_leaves), array, indices

    def __call__(self, array: Any, indices: Any, mesh: Any, pcp_size: int = 1) -> Any:
        if self._runner.input_batch.num_prompt_logprobs:  # which need those of all rows
            return self._select(array, indices, mesh, pcp_size)
        args = self._args(array, indices)
        self.logits, self.tokens = self._compiled(*args)
        return self

    def lower(self, array: Any, indices: Any, mesh: Any, pcp_size: int = 1) -> Any:
        """For its compilation ahead of time."""
        args = self._args(array, indices)
        return self._compiled.lower(*args)


def _with_short_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_model(self: Any) -> None:
        original(self)
        if not hasattr(self.model_fn, "lower"):
            self.model_fn = Step(self.model_fn)
        if hasattr(self.compute_logits_fn, "trace"):
            self.compute_logits_fn = OnlyWhatItReads(self.compute_logits_fn)
            if not (computes_with_inputs(self) or self.lora_config):
                self._select_from_array_fn = LogitsOfRows(self)

    return load_model


def logits_in_one_call() -> None:
    """A call hands over every weight of the model, 0.7 us each, and logits are made of one or two.

    Step and logits are compiled functions of their own, and each looks at all of its arguments.
    The rows before them and the greatest after them were two more calls.
    """
    _replace(
        "tpu_inference.runner.tpu_runner:TPUModelRunner", "load_model", "self", _with_short_calls
    )


_as_float32 = jax.jit(lambda logits: logits.astype(jnp.float32))
_split = jax.jit(lambda key: tuple(jax.random.split(key)))


class _Logits:
    """Logits that are sampled from, and nothing else: what is done to them waits for that."""

    def __init__(self, logits: jax.Array, tokens: jax.Array | None, metadata: Any) -> None:
        self.logits, self.tokens, self.metadata = logits, tokens, metadata

    def astype(self, _: Any) -> _Logits:
        return self


def _sampled_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sample_from_logits(self: Any, *args: Any, **kwargs: Any) -> Any:
        metadata, logits, spec_decode_metadata = args[2], args[5], args[7]
        if spec_decode_metadata is not None:
            return original(self, *args, **kwargs)
        if metadata.logprobs:
            return original(self, *args[:5], _as_float32(logits), *args[6:], **kwargs)
        rows = self._select_from_array_fn
        greedy = isinstance(rows, LogitsOfRows) and rows.logits is logits
        waiting = _Logits(logits, rows.tokens if greedy else None, metadata)
        if greedy:
            rows.logits = rows.tokens = None
        if metadata.do_sampling:  # as if not: the original takes apart the keys of two eagerly
            key, self.rng_params_for_sampling = _split(self.rng_params_for_sampling)
            metadata = dataclasses.replace(metadata, do_sampling=False)
        output = original(self, *args[:2], metadata, *args[3:5], waiting, *args[6:], **kwargs)
        if waiting.metadata.do_sampling:
            self.rng_params_for_sampling = key
        return output

    return sample_from_logits


def _of_waiting_logits(original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def sample(
        rng: Any,
        mesh: Any,
        logits: Any,
        tpu_sampling_metadata: Any,
        allow_distributed_sampling: bool = True,
    ) -> Any:
        if isinstance(logits, _Logits):
            tpu_sampling_metadata = logits.metadata
            if not tpu_sampling_metadata.do_sampling and logits.tokens is not None:
                return logits.tokens, logits
            logits = _as_float32(logits.logits)
        return original(
            rng,
            mesh,
            logits,
            tpu_sampling_metadata,
            allow_distributed_sampling=allow_distributed_sampling,
        )

    return sample


def _one_array_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def device_get(arr: Any) -> Any:
        if isinstance(arr, jax.Array) and arr.is_fully_addressable:
            return np.asarray(arr)
        return original(arr)

    return device_get


def tokens_in_short_calls() -> None:
    """Around the tokens are eager casts, a key split and taken apart, and a copy seen as a tree."""
    runner = "tpu_inference.runner.tpu_runner"
    _replace(
        f"{runner}:TPUModelRunner",
        "_sample_from_logits",
        "self, scheduler_output, attn_metadata, tpu_sampling_metadata, input_ids, hidden_states, "
        "logits, aux_hidden_states, spec_decode_metadata, kv_connector_output, "
        "logits_indices_selector, padded_num_reqs, expert_indices, full_hidden_states, "
        "full_logits, req_ids_dp, padded_num_scheduled_tokens_per_dp_rank",
        _sampled_at_once,
    )
    _replace(
        runner,
        "sample",
        "rng, mesh, logits, tpu_sampling_metadata, allow_distributed_sampling",
        _of_waiting_logits,
    )
    _replace("tpu_inference.utils", "safe_device_get", "arr", _one_array_at_once)
