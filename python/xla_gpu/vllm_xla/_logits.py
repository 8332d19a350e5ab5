"""What requests ask to be done to their logits, as vLLM does it: penalties, biases, words, min_p.

tpu-inference's sampler knows the temperature, top_k and top_p alone. Steps without such a request
are as they were; the programs of others are compiled when they are first needed, those of penalties
that a model's generation_config.json asks for at the start.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xla_gpu.vllm_xla._names import ShardingAxisName

# While tokens of such requests are sampled: what makes other logits of (logits, temperatures).
adjusting: ContextVar[Callable[..., jax.Array] | None] = ContextVar("adjusting", default=None)

_PENALTIES = {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}
_WRITES = 4096  # words that a call notes of new requests
_FEWEST_BIASES = 256  # a call's, which are padded to powers of two
_NOTHING = -2  # of a row of the counts that is to be written anew


def _biased(logits: Any, biases: Any) -> Any:
    """Of (row, word, bias), -inf for a word that may not come; inf: it is of those that may."""
    rows, words = biases[:2]
    values = jax.lax.bitcast_convert_type(biases[2], jnp.float32)
    allowing = values == jnp.inf
    biased = logits.at[rows, words].add(jnp.where(allowing, 0, values), mode="drop")
    allowed = jnp.zeros(logits.shape, jnp.int8).at[rows, words].max(allowing, mode="drop")
    chosen = jnp.zeros((len(logits), 1), jnp.int8).at[rows, 0].max(allowing, mode="drop")
    biased = jnp.where(allowed < chosen, -jnp.inf, biased)
    # A grammar may leave none but the words that end a request too early.
    return jnp.where((biased > -jnp.inf).any(1, keepdims=True), biased, logits)


def _noted(counts: Any, kept: Any, words: Any) -> Any:
    """The counts with new requests' words: twice how often each was made, and one if in the prompt.

    Rows are kept or cleared; words are (row, word, 1) of a prompt, (row, word, 2) of an answer.
    """
    return (counts * kept[:, None]).at[words[0], words[1]].add(words[2], mode="drop")


def _penalized(everywhere: Any, counts: Any, logits: Any, rows: Any) -> tuple[Any, Any]:
    """The counts with the last words, and logits; rows say where of the counts, word, penalties."""
    penalties = jax.lax.bitcast_convert_type(rows[2:], jnp.float32)
    repetition, frequency, presence = penalties[:, :, None]
    # Else devices that have rows of their own note those, and add up all counts.
    of, words = jax.lax.with_sharding_constraint(rows[:2], everywhere)
    counts = counts.at[of, words].add(2, mode="drop")
    seen = counts.at[rows[0]].get(mode="fill", fill_value=0)
    made = seen >> 1
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(seen > 0, repeated, logits)
    return counts, logits - frequency * made - presence * (made > 0)


def _likely(logits: Any, temperatures: Any, min_p: Any) -> Any:
    """Without words less likely than min_p times the likeliest; top_k and top_p come after it."""
    least = logits.max(1) + temperatures * jnp.log(min_p)
    least = jnp.where(temperatures > 0, least, -jnp.inf)  # greedy rows have -1
    return jnp.where(logits < least[:, None], -jnp.inf, logits)


class _Programs:
    """Those of a mesh: logits are where tpu-inference has them, words' counts with the words."""

    def __init__(self, mesh: jax.sharding.Mesh) -> None:
        data, words = ShardingAxisName.MLP_DATA, ShardingAxisName.MLP_TENSOR
        self.logits = logits = NamedSharding(mesh, PartitionSpec(data, words))
        self.counts = counts = NamedSharding(mesh, PartitionSpec(None, words))
        self._everywhere = everywhere = NamedSharding(mesh, PartitionSpec())
        self.biased = jax.jit(_biased, out_shardings=logits)
        self.noted = jax.jit(_noted, out_shardings=counts, donate_argnums=0)
        self.penalized = jax.jit(
            functools.partial(_penalized, everywhere),
            out_shardings=(counts, logits),
            donate_argnums=0,
        )
        self.likely = jax.jit(_likely, out_shardings=logits)

    def placed(self, array: np.ndarray[Any, Any]) -> Any:
        """What a call takes to each device."""
        several = self._everywhere.mesh.size > 1
        return jax.device_put(array, self._everywhere) if several else array


_programs = functools.cache(_Programs)


class _Asks:
    """What a request asks, of its vllm.SamplingParams."""

    def __init__(self, params: Any) -> None:
        self.penalties = [getattr(params, name) for name in _PENALTIES]
        self.penalized = self.penalties != [*_PENALTIES.values()]
        self.min_p = params.min_p
        self._until, self._ends = params.min_tokens, sorted(params.all_stop_token_ids)
        self._bad_words = params.bad_words_token_ids or []
        biases, allowed = params.logit_bias or {}, params.allowed_token_ids or []
        self._words = np.array([*biases, *allowed], np.int32)
        self._values = np.array([*biases.values(), *[np.inf] * len(allowed)], np.float32)
        self.biased = bool(len(self._words) or self._bad_words or (self._until and self._ends))

    def __bool__(self) -> bool:
        return bool(self.penalized or self.min_p or self.biased)

    def biases(self, made: list[int]) -> tuple[Any, Any]:
        """Words and their biases, after those that the request has made."""
        banned = self._ends if len(made) < self._until else []
        banned = banned + [
            last for *before, last in self._bad_words if made[len(made) - len(before) :] == before
        ]
        words, values = self._words, self._values
        if banned:
            words = np.append(words, np.array(banned, np.int32))
            values = np.append(values, np.full(len(banned), -np.inf, np.float32))
        return words, values


class Asked:
    """What the requests of a runner ask, and on the device how often each has had each word.

    A request that leaves the batch, preempted perhaps, is noted anew when it comes back.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._asks: dict[str, _Asks] = {}
        # Of the counts, which are made when they are first needed: by request its row, those of
        # none, of each row how many words were made that it has, and its request's penalties.
        self._counts: Any = None
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._made: Any = None
        self._penalties: Any = None

    def ahead(self) -> Iterator[tuple[Any, ...]]:
        """Programs and their arguments, of penalties that the model asks for all requests."""
        runner = self._runner
        if not _PENALTIES.keys() & runner.model_config.get_diff_sampling_param().keys():
            return
        programs, size, words = _programs(runner.mesh), runner.max_num_reqs, runner.vocab_size
        counts = jax.ShapeDtypeStruct((size, words), jnp.int32, sharding=programs.counts)
        some = np.ones(size, np.int32), np.zeros((3, _WRITES), np.int32)
        yield programs.noted, counts, *map(programs.placed, some)
        for rows in runner.num_reqs_paddings:
            logits = jax.ShapeDtypeStruct((rows, words), jnp.float32, sharding=programs.logits)
            given = programs.placed(np.zeros((5, rows), np.int32))
            yield programs.penalized, counts, logits, given

    def note(self, scheduler_output: Any) -> None:
        """Of each step, before the runner sees it."""
        finished, new = scheduler_output.finished_req_ids, scheduler_output.scheduled_new_reqs
        for name in finished:
            self._asks.pop(name, None)
        for request in new:
            asks = request.sampling_params and _Asks(request.sampling_params)
            if asks:
                self._asks[request.req_id] = asks
                if request.sampling_params.allowed_token_ids:  # InputBatch ends with an error
                    request.sampling_params = copy.copy(request.sampling_params)
                    request.sampling_params.allowed_token_ids = None
        if self._rows:
            self._forget(finished)
            self._forget(request.req_id for request in new)
            self._forget(scheduler_output.scheduled_cached_reqs.resumed_req_ids)

    def _forget(self, names: Iterable[str]) -> None:
        rows = [self._rows.pop(name) for name in names if name in self._rows]
        if rows:
            self._free += rows
            self._made[rows] = _NOTHING

    def of_step(self, selector: Any) -> Callable[..., jax.Array] | None:
        """What `adjusting` is to be for a step, of whose rows the selector says where they are."""
        if not self._asks:
            return None
        runner = self._runner
        index = runner.input_batch.req_id_to_index
        names = [name for name in self._asks if name in index]
        self._forget(self._rows.keys() - names)
        if not names:
            return None
        if runner._pre_async_results is not None:
            # Waited for in each step, by now with this one's model on the device: not a bubble.
            runner._modify_prev_results()
            runner._pre_async_results = None
        rows = np.array([index[name] for name in names])
        places = rows if selector is None else np.asarray(selector)[rows]
        return functools.partial(self._adjusted, names, rows, places)

    def _adjusted(
        self, names: list[str], rows: Any, places: Any, logits: jax.Array, temperatures: Any
    ) -> jax.Array:
        programs = _programs(self._runner.mesh)
        asks = [self._asks[name] for name in names]
        if any(one.biased for one in asks):
            biases = programs.placed(self._biases(names, places, len(logits)))
            logits = programs.biased(logits, biases)
        some = [i for i, one in enumerate(asks) if one.penalized]
        if some:
            logits = self._penalize([names[i] for i in some], rows[some], places[some], logits)
        if temperatures is not None and any(one.min_p for one in asks):
            min_p = np.zeros(len(logits), np.float32)
            min_p[places] = [one.min_p for one in asks]
            logits = programs.likely(logits, temperatures, programs.placed(min_p))
        return logits

    def _biases(self, names: list[str], places: Any, size: int) -> Any:
        """Of (row, word, bias), those that pad it of no row."""
        found = []
        for name, place in zip(names, places, strict=True):
            if self._asks[name].biased:
                words, values = self._asks[name].biases(
                    self._runner.requests[name].output_token_ids
                )
                found.append([np.full(len(words), place, np.int32), words, values.view(np.int32)])
        biases = np.concatenate(found, axis=1)
        room = max(_FEWEST_BIASES, 1 << (biases.shape[1] - 1).bit_length())
        return np.pad(biases, ((0, 0), (0, room - biases.shape[1])), constant_values=size)

    def _penalize(self, names: list[str], rows: Any, places: Any, logits: jax.Array) -> jax.Array:
        runner, programs = self._runner, _programs(self._runner.mesh)
        batch, size = runner.input_batch, runner.max_num_reqs
        if self._counts is None:
            self._counts = jnp.zeros((size, logits.shape[1]), jnp.int32, device=programs.counts)
            self._free = [*range(size)]
            self._made = np.full(size, _NOTHING)
            self._penalties = np.empty((3, size), np.float32)
        for name in names:
            if name not in self._rows:
                self._rows[name] = row = self._free.pop()
                self._penalties[:, row] = self._asks[name].penalties
        of = np.array([self._rows[name] for name in names])
        ends = batch.num_tokens_no_spec[rows]
        made = ends - batch.num_prompt_tokens[rows]
        more = made - self._made[of]
        self._made[of] = made
        if len(new := np.flatnonzero((more < 0) | (more > 1))):
            self._note_words(of[new], rows[new])
            more[new] = 0
        given = np.zeros((5, len(logits)), np.int32)
        given[:2] = [[size], [logits.shape[1]]]  # no row, no word
        given[0, places] = of
        given[1, places[more > 0]] = batch.token_ids_cpu[rows, ends - 1][more > 0]
        penalties = given[2:].view(np.float32)
        penalties[0] = 1
        penalties[:, places] = self._penalties[:, of]
        given = programs.placed(given)
        self._counts, logits = programs.penalized(self._counts, logits, given)
        return logits

    def _note_words(self, of: Any, rows: Any) -> None:
        """All words there are of the batch's rows, the prompts' once."""
        batch, programs, found = self._runner.input_batch, _programs(self._runner.mesh), []
        for place, row in zip(of, rows, strict=True):
            start, end = batch.num_prompt_tokens[row], batch.num_tokens_no_spec[row]
            known = batch.token_ids_cpu[row, :end]
            for words, value in (np.unique(known[:start]), 1), (known[start:], 2):
                found.append([np.full_like(words, place), words, np.full_like(words, value)])
        words = np.concatenate(found, axis=1)
        for start in range(0, words.shape[1], _WRITES):
            kept = np.ones(len(self._made), np.int32)
            if not start:
                kept[of] = 0
            some = words[:, start : start + _WRITES]
            some = np.pad(some, ((0, 0), (0, _WRITES - some.shape[1])), constant_values=len(kept))
            kept, some = programs.placed(kept), programs.placed(some)
            self._counts = programs.noted(self._counts, kept, some)
