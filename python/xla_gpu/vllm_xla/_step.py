"""The host's part of a step: what the runner computes in many calls, in one each.

A call of JAX that is not compiled takes the host 50 to 150 us; a decode step of a few layers takes
the device less than all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xla_gpu.vllm_xla._attention import max_query_len
from xla_gpu.vllm_xla._inputs import Form, Packed, computes_with_inputs, placing
from xla_gpu.vllm_xla._linear import compiler_options
from xla_gpu.vllm_xla._logits import Asked, adjusting
from xla_gpu.vllm_xla._names import ShardingAxisName, replace, unexpected

# ---- The step ------------------------------------------------------------------------------------


@functools.cache
def _padded_on(mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.jit(_padded, static_argnums=1, out_shardings=sharding)


def _padded(tokens: Any, size: int) -> jax.Array:
    return jnp.pad(tokens, (0, size - len(tokens)))


@dataclasses.dataclass
class _Lowered:
    """What is compiled, in another thread perhaps, with the promise that it was lowered with.

    JAX keeps it by that, and would compile it again for a call with the promise.
    """

    lowered: jax.stages.Lowered
    promise: int

    def compile(self) -> jax.stages.Compiled:
        with max_query_len(self.promise):
            return self.lowered.compile()


class Step:
    """A model's step, which takes its inputs as one array of words.

    It was a call of its own that took them apart, and the names of all weights were sorted for each
    step. A flax model's looked for its compiled function in each call, by the shardings of the
    caches, which stay. `lower` lets steps of all sizes be compiled side by side.
    """

    def __init__(self, model_fn: Any, runner: Any) -> None:
        """Of what tpu-inference's model loader makes.

        Raises:
          UnsupportedError: where it is not made as in the known releases.
        """
        self._function = model_fn if hasattr(model_fn, "lower") else None
        self._resolve: Any = None
        if self._function is None:
            self._resolve = inspect.getclosurevars(model_fn).nonlocals.get("_resolve_step_fn")
            if self._resolve is None:
                raise unexpected(
                    f"{model_fn.__module__}.{model_fn.__qualname__} should call _resolve_step_fn "
                    "but does not"
                )
        self._runner = runner
        self._compiled: Any = None
        # What else reads a step's inputs on the device, or gives it other ones.
        self.takes_words = not (
            computes_with_inputs(runner)
            or runner.lora_config
            or runner.is_multimodal_model
            or runner.is_pooling_model
            or runner.enable_continue_decode
            or not (runner.is_first_rank and runner.is_last_rank)
        )

    @functools.cached_property
    def promises(self) -> dict[int, int]:
        """By padded tokens, how many of a request a step has at most that only decodes.

        Without the sizes that it cannot have, and those in which there is room for a token of each
        request: the op takes these for decode by their shapes.
        """
        runner = self._runner
        sizes, room = runner.num_tokens_paddings, runner.max_num_reqs
        speculation = runner.speculative_config
        most = 1 + (speculation.num_speculative_tokens if speculation else 0)
        return {
            size: most
            for smaller, size in zip([0, *sizes], sizes, strict=False)
            if smaller < room * most and room < size
        }

    def _promise(self, args: tuple[Any, ...]) -> int:
        """What attention may be promised of this step's queries; 0: nothing, as of made-up ones."""
        inputs, attention, _, positions = args[2:6]
        packed = isinstance(inputs, Packed)
        lengths = getattr(inputs if packed else attention, "query_lens", None)
        if not lengths:
            return 0
        promise = self.promises.get(inputs.tokens if packed else positions.shape[-1], 0)
        return promise if promise and max(lengths.values()) <= promise else 0

    def _compile(self, weights: Any, caches: Any, shared: bool) -> None:
        function = self._function or self._resolve(caches, True)
        if not self.takes_words:
            self._compiled = function
            return
        runner = self._runner
        places = placing(runner)
        names = tuple(weights) if isinstance(weights, dict) else ()
        self._weights = operator.itemgetter(*names) if names else tuple
        as_kept = jax.tree.map(lambda cache: cache.sharding, caches)
        as_rows = NamedSharding(runner.mesh, PartitionSpec(ShardingAxisName.ATTN_DATA, None))

        @functools.partial(
            jax.jit,
            donate_argnums=1,
            static_argnums=(4, 5),
            out_shardings=(as_kept, None, None, None),
            compiler_options=compiler_options(weights, runner.mesh),
        )
        def step(weights: Any, caches: Any, words: Any, last: Any, form: Form, rest: Any) -> Any:
            ids, positions, attention, shared_attention = form.tree(words, last, places)
            more = {"shared_attention_metadata": shared_attention} if shared else {}
            weights = dict(zip(names, weights, strict=True)) if names else weights
            out = function(weights, caches, ids, attention, None, positions, *rest, **more)
            caches, hidden, *others = out
            if size := rows_of_states(runner, len(hidden)) - len(hidden):
                hidden = jnp.pad(hidden, ((0, size), (0, 0)))
                hidden = jax.lax.with_sharding_constraint(hidden, as_rows)
            return caches, hidden, *others

        self._compiled = step
        self._none = _padded_on(runner.mesh)(np.zeros(0, np.int32), runner.num_reqs_paddings[-1])

    def _call(self, args: tuple[Any, ...], shared: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        weights, caches, inputs, attention, _, positions, *rest = args
        if self._compiled is None:
            self._compile(weights, caches, self._function is not None)
        if not self.takes_words:
            return args, {"shared_attention_metadata": shared} if self._function else {}
        if not isinstance(inputs, Packed):  # made-up ones, to compile it
            zeros: dict[int, Any] = {}
            inputs = Packed(
                jax.tree.map(
                    lambda x: zeros.setdefault(id(x), np.zeros(x.shape, x.dtype)),
                    [inputs, positions, attention, shared],
                )
            )
        runner, last = self._runner, inputs.last
        if last is None:
            last = self._none
        elif last.shape != self._none.shape or not last.is_fully_replicated:
            last = _padded_on(runner.mesh)(last, self._none.size)
        words = inputs.placed(runner.mesh)
        return (self._weights(weights), caches, words, last, inputs.form, tuple(rest)), {}

    def __call__(self, *args: Any, shared_attention_metadata: Any = None) -> Any:
        promise = self._promise(args)
        args, kwargs = self._call(args, shared_attention_metadata)
        if not promise:
            return self._compiled(*args, **kwargs)
        with max_query_len(promise):
            return self._compiled(*args, **kwargs)

    def lower(self, *args: Any, shared_attention_metadata: Any = None) -> Any:
        """For its compilation ahead of time."""
        args, kwargs = self._call(args, shared_attention_metadata)
        return _Lowered(self._compiled.lower(*args, **kwargs), max_query_len.value)


def _of_a_token_each(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` as a program of several decode steps calls it, while it is traced."""

    @functools.wraps(step)
    def call(*args: Any, **kwargs: Any) -> Any:
        with max_query_len(1):
            return step(*args, **kwargs)

    return call


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

    @property
    def unplaced(self) -> Callable[..., Any]:
        """The function as it is traced, without where its logits go."""
        return self._function.__wrapped__  # type: ignore[no-any-return]

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


def _over_data(weight: Any) -> bool:
    """Whether devices that have rows of their own share a weight: flax models' of logits."""
    return ShardingAxisName.MLP_DATA in jax.tree.leaves(tuple(weight.sharding.spec))


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
        ask = runner.compute_logits_fn
        function, words = ask.of_some(runner.state_leaves, rows), None
        replicated = NamedSharding(runner.mesh, PartitionSpec())
        if runner.dp_size > 1 and any(map(_over_data, ask.read(runner.state_leaves))):
            # Each device computes its words' logits of all rows: for all words' of its own rows
            # XLA would gather the weights.
            function = OnlyWhatItReads(jax.jit(ask.unplaced)).of_some(runner.state_leaves, rows)
            words = NamedSharding(runner.mesh, PartitionSpec(None, ShardingAxisName.VOCAB))

        @jax.jit
        def logits_of_rows(weights: Any, array: Any, indices: Any) -> tuple[Any, Any]:
            if runner.dp_size > 1:  # indices are of each device's own rows
                chosen = self._select(array, indices, runner.mesh)
            else:
                chosen = array[indices]
            if words:
                chosen = jax.lax.with_sharding_constraint(chosen, replicated)
            logits = function(weights, chosen, None)
            if words:
                logits = jax.lax.with_sharding_constraint(logits, words)
            tokens = jnp.argmax(logits, axis=-1).astype(jnp.int32)
            tokens = _padded(tokens, runner.num_reqs_paddings[-1])  # as the next step takes them
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


def rows_of_states(runner: Any, tokens: int) -> int:
    """Of the hidden states of a step of so many padded tokens: as many as requests, or more.

    Logits are a program for each number of rows and of states that they are taken from.
    """
    padded = isinstance(runner._select_from_array_fn, LogitsOfRows)
    if not padded or runner.dp_size > 1 or not runner.model_fn.takes_words:
        return tokens
    requests: int = runner.num_reqs_paddings[-1]
    return max(tokens, requests)


def logits_in_one_call(runner: Any) -> None:
    """Of a runner that has loaded its model: the step, and what makes its logits, are ours.

    A call hands over every weight of the model, 0.7 us each, and logits are made of one or two.
    Step and logits are compiled functions of their own, and each looks at all of its arguments.
    The rows before them and the greatest after them were two more calls.
    """
    runner.asked = Asked(runner)
    runner.model_fn = Step(runner.model_fn, runner)
    if runner.enable_continue_decode and not runner.speculative_config:
        runner.model.step_fn_no_options = _of_a_token_each(runner.model.step_fn_no_options)
    if hasattr(runner.compute_logits_fn, "trace"):
        runner.compute_logits_fn = OnlyWhatItReads(runner.compute_logits_fn)
        if not (computes_with_inputs(runner) or runner.lora_config):
            runner._select_from_array_fn = LogitsOfRows(runner)


@functools.cache
def _as_float32(mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """Of logits, which it puts where tpu-inference has them."""
    spec = PartitionSpec(ShardingAxisName.MLP_DATA, ShardingAxisName.MLP_TENSOR)
    return jax.jit(lambda x: x.astype(jnp.float32), out_shardings=NamedSharding(mesh, spec))


_split = jax.jit(lambda key: tuple(jax.random.split(key)))


def _next_tokens(runner: Any, metadata: Any, logits: jax.Array, sample: Any) -> jax.Array:
    """Those of the logits' rows, sampled as the metadata asks."""
    rows = runner._select_from_array_fn
    tokens: jax.Array | None = None
    if isinstance(rows, LogitsOfRows) and rows.logits is logits:
        tokens = rows.tokens
        rows.logits = rows.tokens = None
    key = runner.rng_params_for_sampling
    if metadata.do_sampling:
        runner.rng_params_for_sampling, key = _split(key)
    elif tokens is not None and adjusting.get() is None:
        return tokens
    logits = _as_float32(runner.mesh)(logits)
    tokens, _ = sample(key, runner.mesh, logits, metadata, allow_distributed_sampling=True)
    return tokens


class Sampling:
    """sample, compiled once for tokens with and without logprobs, which it does not compute.

    These are of the logits as they are before it makes of them what requests ask.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        functools.update_wrapper(self, function)

    def _metadata(self, metadata: Any) -> Any:
        # The array has another shape with logprobs, that JAX's cache on disk keeps them apart.
        return dataclasses.replace(metadata, logprobs=False, _cache_collision_dummy=None)

    def __call__(self, rng: Any, mesh: Any, logits: Any, metadata: Any, **how: bool) -> Any:
        if adjust := adjusting.get():
            logits = adjust(logits, metadata.temperature)
        return self._function(rng, mesh, logits, self._metadata(metadata), **how)

    def lower(self, rng: Any, mesh: Any, logits: Any, metadata: Any, **how: bool) -> Any:
        """For its compilation ahead of time."""
        return self._function.lower(rng, mesh, logits, self._metadata(metadata), **how)


def _sampled_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    from xla_gpu.vllm_xla._names import (
        AsyncPreResults,
        AsyncTPUModelRunnerOutput,
        ModelRunnerOutput,
        sample,
    )

    def sample_plainly(self: Any, *args: Any, **kwargs: Any) -> Any:
        scheduler_output, metadata, logits, batch = args[0], args[2], args[5], self.input_batch
        spec_decode_metadata, kv_connector_output, selector = args[7:10]
        if spec_decode_metadata is not None:
            return original(self, *args, **kwargs)
        if (
            metadata.logprobs
            or batch.num_prompt_logprobs
            or batch.generators
            or self.speculative_config
            or self.aux_output_worker is not None
        ):
            logits = _as_float32(self.mesh)(logits)
            return original(self, *args[:5], logits, *args[6:], **kwargs)
        tokens = _next_tokens(self, metadata, logits, sample)
        tokens.copy_to_host_async()
        if self._pre_async_results is not None:
            self._modify_prev_results()
        count, scheduled = batch.num_reqs, scheduler_output.num_scheduled_tokens
        names = batch.req_ids[:count]
        partial, of, places = [], [], {}  # in the tokens, which are in the devices' order
        for row, name in enumerate(names):
            state = self.requests[name]
            made = state.output_token_ids
            length = state.num_prompt_tokens + len(made)
            if state.num_computed_tokens + scheduled[name] < length:
                partial.append(row)  # the prompt is not computed to its end
                continue
            assert length < self.max_model_len
            made.append(0)  # in the place of the token until it is here
            of.append((row, state, length))
            places[name] = row if selector is None else selector[row]
        known = batch.num_tokens_no_spec[:count]
        known[[row for row, *_ in of] if partial else slice(None)] += 1
        batch.num_tokens[:count] = known
        self._pre_async_results = AsyncPreResults(
            req_ids=names,
            next_tokens=tokens,
            request_seq_lens=of,
            discard_sampled_tokens_req_indices=partial,
            placeholder_req_id_to_index=places,
            logits_indices_selector=selector,
            scheduler_output=scheduler_output,
        )
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index=batch.req_id_to_index.copy(),
            kv_connector_output=kv_connector_output,
        )
        result = AsyncTPUModelRunnerOutput(output, tokens, count, partial, selector, runner=self)
        if self.scheduler_config.async_scheduling:
            return result
        self._modify_prev_results()
        self._pre_async_results = None
        return result.get_output()

    @functools.wraps(original)
    def sample_from_logits(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = adjusting.set(self.asked.of_step(args[9]))
        try:
            return sample_plainly(self, *args, **kwargs)
        finally:
            adjusting.reset(token)

    return sample_from_logits


def _of_rows(tokens: Any, selector: Any, count: int) -> np.ndarray[Any, Any]:
    """The tokens of the batch's rows; with data parallelism the selector says where they are."""
    return np.asarray(tokens)[slice(count) if selector is None else selector]


def _as_one_array(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def host_extract_sampled_tokens(
        runner: Any,
        spec_decode_metadata: Any,
        sampled_output: Any,
        logits_indices_selector: Any,
        discard_sampled_tokens_req_indices: Any,
        num_reqs: int,
    ) -> list[list[int]]:
        discarded = discard_sampled_tokens_req_indices
        if spec_decode_metadata is not None:
            args = spec_decode_metadata, sampled_output, logits_indices_selector
            tokens: list[list[int]] = original(runner, *args, discarded, num_reqs)
            return tokens
        tokens = _of_rows(sampled_output, logits_indices_selector, num_reqs).reshape(-1, 1).tolist()
        for i in discarded:
            tokens[i].clear()
        return tokens

    return host_extract_sampled_tokens


def _written_at_once(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def modify_prev_results(self: Any) -> None:
        before, batch = self._pre_async_results, self.input_batch
        if before.spec_decode_metadata is not None or before.is_continue_decode:
            original(self)
            return
        selector, count = before.logits_indices_selector, len(before.req_ids)
        tokens = _of_rows(before.next_tokens, selector, count).tolist()
        rows, theirs = [], []
        for i, state, _ in before.request_seq_lens:
            name = before.req_ids[i]
            row = batch.req_id_to_index.get(name)
            if row is not None:  # else it has left the batch
                assert state is self.requests[name]
                state.output_token_ids[-1] = tokens[i]
                rows.append(row)
                theirs.append(tokens[i])
        batch.token_ids_cpu[rows, batch.num_tokens_no_spec[rows] - 1] = theirs

    return modify_prev_results


def tokens_in_short_calls() -> None:
    """Around the tokens are eager casts, a key split and taken apart, and a copy seen as a tree.

    With asynchronous scheduling those of the step before take the place of zeros, one by one; where
    each request of the batch has one, they are written in one assignment.
    """
    sampling = functools.cache(Sampling)  # one for all
    for module in ("sampling", "compilation_manager", "tpu_runner"):
        replace(f"{module}.sample", sampling)
    replace("TPUModelRunner._sample_from_logits", _sampled_at_once)
    replace("utils.host_extract_sampled_tokens", _as_one_array)
    replace("TPUModelRunner._modify_prev_results", _written_at_once)
