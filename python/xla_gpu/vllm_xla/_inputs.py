"""A step's inputs, which the runner sent array by array: one array of words for each step.

A device_put takes the host 50 to 150 us; a decode step of a few layers takes the device less than
all of those that it had.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xla_gpu.vllm_xla._names import ShardingAxisName, replace

# While _prepare_inputs runs: what _apply_async_token_substitution was asked for, or nothing.
_later: ContextVar[list[Any] | None] = ContextVar("_later", default=None)

_Layout = tuple[tuple[tuple[int, ...], Any], ...]


class Form:
    """How a tree of arrays lies in 32-bit words; one object for each, so that jit finds it."""

    def __init__(self, layout: _Layout, places: tuple[int, ...], treedef: Any) -> None:
        self._layout, self._places, self._treedef = layout, places, treedef

    def tree(self, words: jax.Array, last: jax.Array | None, sharding: NamedSharding) -> Any:
        """The tree, its first array with tokens of `last` where the last words say which.

        Each device cuts its parts of the arrays out of all words, or they would be sent about.
        """
        everywhere = NamedSharding(sharding.mesh, PartitionSpec())
        arrays, end = [], 0
        for shape, dtype in self._layout:
            start, end = end, end + math.prod(shape)
            array = words[start:end].reshape(shape)
            arrays.append(jax.lax.bitcast_convert_type(array, dtype))
        if last is not None:
            arrays[0] = jnp.where(words[end:] < 0, arrays[0], last[words[end:]])
        arrays = jax.lax.with_sharding_constraint(arrays, everywhere)
        arrays = jax.lax.with_sharding_constraint(arrays, sharding)
        return jax.tree.unflatten(self._treedef, [arrays[place] for place in self._places])


_form = functools.cache(Form)


def placing(runner: Any) -> NamedSharding:
    """Where arrays of all tokens or requests are: with data parallelism each device has its own."""
    spec = PartitionSpec(ShardingAxisName.ATTN_DATA) if runner.dp_size > 1 else PartitionSpec()
    return NamedSharding(runner.mesh, spec)


@functools.cache
def _unpacked(sharding: NamedSharding) -> Callable[..., Any]:
    return jax.jit(functools.partial(_unpack, sharding), static_argnames="form")


def _unpack(sharding: NamedSharding, words: jax.Array, last: jax.Array | None, form: Form) -> Any:
    return form.tree(words, last, sharding)


class Packed:
    """The numpy arrays of a tree one after the other, as 32-bit words.

    Arrays are of 32 bits, or of int64, which become int32; equal objects are one. Behind them are
    as many words as the first array has: which token of the step before is in its place, or -1.
    """

    def __init__(self, tree: Any) -> None:
        leaves, treedef = jax.tree.flatten(tree)
        self._starts: dict[int, tuple[int, Any]] = {}
        places: dict[int, int] = {}
        arrays: list[np.ndarray[Any, Any]] = []
        start = 0
        for leaf in leaves:
            if id(leaf) not in places:
                places[id(leaf)] = len(arrays)
                arrays.append(leaf.astype(np.int32) if leaf.dtype == np.int64 else leaf)
                self._starts[id(leaf)] = start, leaf.shape
                start += leaf.size
        self.form = _form(
            tuple((array.shape, array.dtype) for array in arrays),
            tuple(places[id(leaf)] for leaf in leaves),
            treedef,
        )
        self.tokens: int = arrays[0].size
        arrays.append(np.full(self.tokens, -1, np.int32))
        self.words: np.ndarray[Any, Any] = np.concatenate(
            [array.ravel().view(np.int32) for array in arrays]
        )
        self.last: jax.Array | None = None
        self.query_lens: dict[str, int] = {}
        self._source = self.words[start:]

    def view(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Where that array of the tree is, to be written."""
        start, shape = self._starts[id(array)]
        return self.words[start : start + array.size].reshape(shape)

    def take(self, last: jax.Array | None, at: Any = (), of: Any = ()) -> None:
        """Which tokens the first array takes of the step before.

        Args:
          last: those tokens, on the device, or None.
          at: which of the array take one.
          of: which of `last` they take; -1: none.
        """
        self.last = last
        self._source.fill(-1)
        if last is not None:
            self._source[at] = of

    def placed(self, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh) -> Any:
        """A copy of the words that a call takes to each device of the mesh."""
        words = self.words.copy()
        if mesh.size > 1:  # for several devices a call takes longer to place what it is given
            return jax.device_put(words, NamedSharding(mesh, PartitionSpec()))
        return words

    def to_device(self, sharding: NamedSharding) -> Any:
        """The tree, of arrays so placed, sent to each device of the mesh as one new array."""
        return _unpacked(sharding)(self.placed(sharding.mesh), self.last, form=self.form)


def computes_with_inputs(runner: Any) -> bool:
    return bool(
        runner.speculative_config
        or runner.pcp_preprocessor is not None
        or (runner.dp_size > 1 and runner.uses_mrope)  # its positions are split otherwise
    )


# Of what _prepare_inputs returns: the token ids first; positions, attention, attention once more.
STEP = (0, 1, 2, 11)
BATCH = SAMPLING, LOGITS = (3, 4)  # how tokens are sampled, of which rows: they often stay
REQUESTS = 8


class Inputs:
    """What _prepare_inputs returns for steps of one padded size, made for the first of them.

    The original takes some 60 calls of numpy and half a dozen loops over the requests. Tokens,
    positions, lengths and pages of a step after it are written into its words; the rest only where
    the requests have other numbers of tokens.
    """

    def __init__(self, runner: Any, prepared: Sequence[Any], substitution: Any) -> None:
        self.packed = packed = Packed([prepared[i] for i in STEP])
        packed.take(*substitution)
        self.prepared = list(prepared)
        self._scheduled = self._sampling = b""
        self._put(BATCH, Packed([prepared[i] for i in BATCH]).to_device(placing(runner)))
        self._stays = not (
            runner.dp_size > 1  # requests are in the order of their devices
            or runner.uses_mrope  # the others do more in each step
            or runner.lora_config is not None
            or runner.is_pooling_model
            or runner.enable_continue_decode
            or runner.phase_based_profiler
            or runner.aggregated_stats_logger
            or runner.kv_cache_config.has_mamba_layers
            or not runner.kv_cache_config.kv_cache_groups
        )
        if not self._stays:
            return
        ids, positions, attention, _, logits = prepared[:5]
        groups = getattr(attention, "groups", (attention,))
        self._rows_of_logits = Packed(logits)
        self._logits = self._rows_of_logits.view(logits)
        self._ids = packed.view(ids)
        self._positions = packed.view(positions)
        self._lengths = packed.view(groups[0].seq_lens)
        self._starts = packed.view(groups[0].query_start_loc)
        self._distribution = packed.view(groups[0].request_distribution)
        self._pages = [
            packed.view(group.block_tables).reshape(len(groups[0].seq_lens), -1) for group in groups
        ]

    def _put(self, places: Sequence[int], values: Sequence[Any]) -> None:
        for place, value in zip(places, values, strict=True):
            self.prepared[place] = value

    def next(self, runner: Any, scheduler_output: Any) -> bool:
        """Makes `packed` and `prepared` the next step's; False for another kind of step."""
        if not self._stays:
            return False
        batch = runner.input_batch
        count = batch.num_reqs
        names = batch.req_ids[:count]
        tokens = map(scheduler_output.num_scheduled_tokens.__getitem__, names)
        scheduled = np.fromiter(tokens, np.int32, count)
        if scheduled.tobytes() != self._scheduled:
            self._divide(runner, scheduled)
        computed = batch.num_computed_tokens_cpu[:count]
        before = runner._pre_async_results if runner.scheduler_config.async_scheduling else None
        self.packed.take(None)
        if before is not None:
            if before.next_tokens_in_tpu is not None:
                return False
            of = before.placeholder_req_id_to_index
            of = np.fromiter((of.get(name, -1) for name in names), np.int32, count)
            of[computed < batch.num_prompt_tokens[:count]] = -1
            if (scheduled[of >= 0] != 1).any():
                return False
            if of.max() >= 0:
                self.packed.take(before.next_tokens, self._starts[1 : count + 1] - 1, of)
        total = len(self._rows)
        positions = np.add(computed[self._rows], self._offsets, out=self._positions[:total])
        self._ids[:total] = batch.token_ids_cpu[self._rows, positions]
        np.add(computed, scheduled, out=self._lengths[:count])
        for i, pages in enumerate(self._pages):
            pages[:count] = batch.block_table[i].get_cpu_tensor()[:count]
        self._send_sampling(runner, count)
        self.prepared[REQUESTS] = {0: names}
        return True

    def _divide(self, runner: Any, scheduled: np.ndarray[Any, Any]) -> None:
        """Writes what follows from so many tokens of each request."""
        self._scheduled, count, starts = scheduled.tobytes(), len(scheduled), self._starts
        np.cumsum(scheduled, out=starts[1 : count + 1])
        total = starts[count]
        starts[count + 1 :] = total
        self._rows = np.repeat(np.arange(count), scheduled)
        self._offsets = np.arange(total) - starts[self._rows]
        decoding = np.count_nonzero(scheduled <= runner.input_batch.max_decode_tokens)
        self._distribution[:] = decoding, decoding, count
        for array, end in (self._ids, total), (self._positions, total), (self._lengths, count):
            array[end:] = 0
        for pages in self._pages:
            pages[count:] = 0
        self._logits[:count] = starts[1 : count + 1] - 1
        self._logits[count:] = -1
        self.prepared[LOGITS] = self._rows_of_logits.to_device(placing(runner))

    def _send_sampling(self, runner: Any, count: int) -> None:
        """Sends to the device how tokens are sampled, where that has changed."""
        batch = runner.input_batch
        sampling = b"%d" % bool(batch.num_logprobs)
        if not batch.all_greedy:
            arrays = batch.temperature_cpu, batch.top_p_cpu, batch.top_k_cpu
            sampling += b"".join(array[:count].tobytes() for array in arrays)
        if sampling != self._sampling:
            self._sampling = sampling
            make = type(self.prepared[SAMPLING]).from_input_batch
            rows = {0: list(range(count))}
            with _nothing_sent():
                new = make(runner.mesh, batch, len(self._logits), req_indices_dp=rows)
            self.prepared[SAMPLING] = Packed(new).to_device(placing(runner))

    def to_device(self, runner: Any) -> tuple[Any, ...]:
        """What _prepare_inputs would return; for a step that takes words, these."""
        if runner.model_fn.takes_words:
            self._put(STEP, (self.packed, None, None, None))
        else:
            self._put(STEP, self.packed.to_device(placing(runner)))
        return tuple(self.prepared)


@contextlib.contextmanager
def _nothing_sent() -> Iterator[list[Any]]:
    """What would go to the device stays on the host; the list becomes arguments of Packed.take."""
    substitution: list[Any] = [None]
    token = _later.set(substitution)
    try:
        yield substitution
    finally:
        _later.reset(token)


def on_the_host(original: Callable[..., Any], runner: Any, scheduler_output: Any) -> Any:
    """What _prepare_inputs returns, nothing of it sent, and the arguments of `Packed.take`."""
    with _nothing_sent() as substitution:
        return list(original(runner, scheduler_output)), substitution


def _prepared_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def prepare(self: Any, scheduler_output: Any) -> Any:
        if computes_with_inputs(self):
            prepared = original(self, scheduler_output)
        else:
            kept = vars(self).setdefault("inputs_of_padded_sizes", {})
            size = _padded_sizes(self, scheduler_output)
            inputs: Inputs | None = kept.get(size)
            if not (inputs and inputs.next(self, scheduler_output)):
                inputs = kept[size] = Inputs(self, *on_the_host(original, self, scheduler_output))
            prepared = inputs.to_device(self)
        ids, _, attention, *_ = prepared
        lengths_in = ids if isinstance(ids, Packed) else attention
        lengths_in.query_lens = scheduler_output.num_scheduled_tokens  # which the lengths are of
        return prepared

    return prepare


def _padded_sizes(runner: Any, scheduler_output: Any) -> tuple[int, ...]:
    """Of tokens, of requests in logits and in attention: all that arrays' shapes follow from."""
    count = runner.input_batch.num_reqs
    sizes = (
        (runner.num_tokens_paddings, scheduler_output.total_num_scheduled_tokens),
        (runner.num_reqs_paddings, count),
        (runner.attn_num_reqs_paddings, count),
    )
    return tuple(bisect.bisect_left(paddings, number) for paddings, number in sizes)


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
    for speculation, which computes with them.
    """
    replace("tpu_runner.device_array", _not_yet)
    replace("sampling_metadata.device_array", _not_yet)
    replace("DeviceBuffer.unpack_arrays", _views_or_compiled)
    replace("TPUModelRunner._apply_async_token_substitution", _substituted_later)
    replace("TPUModelRunner._prepare_inputs", _prepared_at_once)
