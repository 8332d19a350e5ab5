"""The host's part of a step: what the runner sends and computes array by array, in one call each.

A call of JAX that is not compiled takes the host 50 to 150 us and a device_put as much; a decode
step of a few layers takes the device less than all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xla_gpu.vllm_xla._replace import _replace

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


def to_device(
    mesh: jax.sharding.Mesh, tree: Any, last: jax.Array | None, at: Sequence[int], of: Sequence[int]
) -> Any:
    """The tree with its numpy arrays on each device of the mesh, sent there as one array.

    The array is a new one, so the caller's may change as soon as this returns.

    Args:
      mesh: the devices, each of which gets all of it.
      tree: arrays of 32 bits, or of int64, which become int32; equal objects stay so.
      last: the tokens of the step before, on the device, or None.
      at: which of the tree's first array take tokens of `last`.
      of: which of `last` they take.
    """
    leaves, treedef = jax.tree.flatten(tree)
    places: dict[int, int] = {}
    arrays: list[np.ndarray[Any, Any]] = []
    for leaf in leaves:
        if places.setdefault(id(leaf), len(arrays)) == len(arrays):
            arrays.append(leaf.astype(np.int32) if leaf.dtype == np.int64 else leaf)
    words = [array.ravel().view(np.int32) for array in arrays]
    if last is not None:
        source = np.full(arrays[0].shape, -1, np.int32)
        source[at] = of
        words.append(source)
    layout = tuple((array.shape, array.dtype) for array in arrays)
    packed: Any = np.concatenate(words)
    if mesh.size > 1:  # for several devices a call takes longer to place what it is given
        packed = jax.device_put(packed, NamedSharding(mesh, PartitionSpec()))
    sent = _unpacked_on(mesh)(packed, last, layout=layout)
    return jax.tree.unflatten(treedef, [sent[places[id(leaf)]] for leaf in leaves])


def _prepared_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def prepare(self: Any, scheduler_output: Any) -> Any:
        if self.dp_size > 1 or self.speculative_config or self.pcp_preprocessor is not None:
            return original(self, scheduler_output)
        substitution: list[Any] = [None, (), ()]
        token = _later.set(substitution)
        try:
            prepared = list(original(self, scheduler_output))
        finally:
            _later.reset(token)
        # The token ids first; positions, attention, sampling, which logits, attention once more.
        places = (0, 1, 2, 3, 4, 11)
        sent = to_device(self.mesh, [prepared[i] for i in places], *substitution)
        for i, value in zip(places, sent, strict=True):
            prepared[i] = value
        return tuple(prepared)

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

    The weights are a dict or a tuple of arrays.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._read: list[Any] = []
        self._of_some: Any = None

    def _of(self, weights: Any, hidden_states: Any, lora_metadata: Any) -> tuple[Any, ...]:
        args = hidden_states, lora_metadata
        if lora_metadata is not None or isinstance(hidden_states, jax.core.Tracer):
            return self._function, weights, *args
        if self._of_some is None:
            self._read, self._of_some = _reads(self._function, weights, args)
        return self._of_some, [weights[name] for name in self._read], *args

    def __call__(self, weights: Any, hidden_states: Any, lora_metadata: Any) -> Any:
        function, *args = self._of(weights, hidden_states, lora_metadata)
        return function(*args)

    def lower(self, weights: Any, hidden_states: Any, lora_metadata: Any) -> Any:
        """For its compilation ahead of time."""
        function, *args = self._of(weights, hidden_states, lora_metadata)
        return function.lower(*args)


def _with_short_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_model(self: Any) -> None:
        original(self)
        if hasattr(self.compute_logits_fn, "trace"):
            self.compute_logits_fn = OnlyWhatItReads(self.compute_logits_fn)

    return load_model


def logits_of_few_weights() -> None:
    """A call hands over every weight of the model, 0.7 us each, and logits are made of one or two.

    Step and logits are compiled functions of their own, and each looks at all of its arguments.
    """
    _replace(
        "tpu_inference.runner.tpu_runner:TPUModelRunner", "load_model", "self", _with_short_calls
    )


_as_float32 = jax.jit(lambda logits: logits.astype(jnp.float32))


def _cast_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sample_from_logits(self: Any, *args: Any, **kwargs: Any) -> Any:
        logits, spec_decode_metadata = args[5], args[7]
        if spec_decode_metadata is None:
            args = (*args[:5], _as_float32(logits), *args[6:])
        return original(self, *args, **kwargs)

    return sample_from_logits


def _one_array_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def device_get(arr: Any) -> Any:
        if isinstance(arr, jax.Array) and arr.is_fully_addressable:
            return np.asarray(arr)
        return original(arr)

    return device_get


def tokens_in_short_calls() -> None:
    """Logits are cast by an eager call, and the tokens' copy looked at as a tree, twice a step."""
    _replace(
        "tpu_inference.runner.tpu_runner:TPUModelRunner",
        "_sample_from_logits",
        "self, scheduler_output, attn_metadata, tpu_sampling_metadata, input_ids, hidden_states, "
        "logits, aux_hidden_states, spec_decode_metadata, kv_connector_output, "
        "logits_indices_selector, padded_num_reqs, expert_indices, full_hidden_states, "
        "full_logits, req_ids_dp, padded_num_scheduled_tokens_per_dp_rank",
        _cast_at_once,
    )
    _replace("tpu_inference.utils", "safe_device_get", "arr", _one_array_at_once)
