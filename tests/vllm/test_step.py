"""What is replaced of a step's host part: its inputs, logits and tokens; without a server."""

from __future__ import annotations

import dataclasses
import importlib
import types

import jax
import numpy as np
import pytest
from test_plugin import on_a_boundary
from xla_gpu.vllm_xla import _inputs, _step

# ---- A step's inputs -----------------------------------------------------------------------------

MESH = jax.make_mesh((1,), ("data",), devices=jax.devices("cpu")[:1])
EVERYWHERE = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec())
LAYOUT = types.SimpleNamespace(keys=("ids", "lengths"), sizes=(4, 2))


PLAIN = dict(
    uses_mrope=False,
    lora_config=None,
    phase_based_profiler=None,
    aggregated_stats_logger=None,
    kv_cache_config=types.SimpleNamespace(has_mamba_layers=False, kv_cache_groups=["one"]),
    model_fn=types.SimpleNamespace(takes_words=False),
)


def refused(*args, **kwargs):
    raise AssertionError("this goes to the device by itself")


def prepare(original):
    """A _prepare_inputs that does as tpu-inference's, with `original` for what is replaced."""
    device_array = _inputs._not_yet(original)
    unpack = _inputs._views_or_compiled(lambda blob, layout: dict.fromkeys(layout.keys, blob[:2]))
    substitute = _inputs._substituted_later(original)

    def prepare_inputs(self, scheduler_output):
        positions = device_array(MESH, self.positions, sharding="its own")
        distribution, blob = device_array(MESH, (self.distribution, self.blob))
        parts = unpack(blob, LAYOUT)
        attention = Attention(parts["lengths"], positions)
        ids = substitute(self, parts["ids"], self.last, *scheduler_output.substitution)
        logits = parts["lengths"]
        rest = (None, 7, "r", 8, "t", 9, {"positions": positions})
        return (ids, distribution, attention, self.temperatures, logits, *rest)

    return _inputs._prepared_at_once(prepare_inputs)


@pytest.fixture
def runner():
    return types.SimpleNamespace(
        mesh=MESH,
        dp_size=1,
        speculative_config=None,
        pcp_preprocessor=None,
        positions=on_a_boundary(4),
        distribution=np.array([1, 2, 3], np.int32),
        blob=on_a_boundary(6),
        last=jax.device_put(np.array([50, 60, 70], np.int32), MESH.devices.flat[0]),
        temperatures=np.array([0.5, -1.0], np.float32),
        input_batch=types.SimpleNamespace(num_reqs=2),
        **PLAIN,
    )


def scheduled(at, of, tokens=9, **more):
    substitution = np.array(at, int), np.array(of, int)
    more = dict(scheduled_new_reqs=[], finished_req_ids=set()) | more
    return types.SimpleNamespace(
        total_num_scheduled_tokens=tokens,
        num_scheduled_tokens={"a": tokens},
        substitution=substitution,
        **more,
    )


@pytest.mark.parametrize(
    ("at", "of", "ids"), [([], [], [0, 1, 2, 3]), ([3, 1], [0, 2], [0, 70, 2, 50])]
)
def test_a_steps_inputs_go_to_the_device_in_one_array_and_the_batchs_in_another(
    runner, at, of, ids
):
    runner.blob[:], runner.positions[:] = range(6), range(10, 14)
    done = prepare(refused)(runner, scheduled(at, of))
    runner.blob[:], runner.positions[:] = 99, 99  # the runner prepares the next step
    assert [isinstance(x, jax.Array) for x in jax.tree.leaves(done)].count(True) == 7
    assert done[0].tolist() == ids
    assert done[2].block_tables.tolist() == done[11]["positions"].tolist() == [10, 11, 12, 13]
    assert done[2].seq_lens.tolist() == done[4].tolist() == [4, 5]
    assert done[1].tolist() == [1, 2, 3]
    assert done[3].tolist() == [0.5, -1.0]
    assert done[5:11] == (None, 7, "r", 8, "t", 9)


@pytest.mark.parametrize(
    "other",
    [
        {"speculative_config": "ngram"},
        {"pcp_preprocessor": "one"},
        {"dp_size": 2, "uses_mrope": True},
    ],
)
def test_a_step_that_computes_with_its_inputs_keeps_its_transfers(runner, other):
    vars(runner).update(other)
    with pytest.raises(AssertionError, match="by itself"):
        prepare(refused)(runner, scheduled([0], [0]))


class Decoding:
    """A runner of three requests (of at most four) in a step of a token for each."""

    def __init__(self, **other):
        self.mesh, self.calls = MESH, 0
        self.dp_size, self.speculative_config, self.pcp_preprocessor = 1, None, None
        self.scheduler_config = types.SimpleNamespace(async_scheduling=True)
        self._pre_async_results = types.SimpleNamespace(
            next_tokens=jax.device_put(np.array([50, 60, 70], np.int32), MESH.devices.flat[0]),
            next_tokens_in_tpu=None,
            placeholder_req_id_to_index={"a": 2, "c": 0},
        )
        self.pages = np.arange(8, dtype=np.int32).reshape(4, 2)
        table = types.SimpleNamespace(get_cpu_tensor=lambda: self.pages)
        self.input_batch = types.SimpleNamespace(
            num_reqs=3,
            req_ids=["a", "b", "c"],
            block_table=[table],
            num_computed_tokens_cpu=np.array([3, 5, 8, 0], np.int32),
            num_prompt_tokens=np.array([2, 5, 1, 0], np.int32),
            token_ids_cpu=np.arange(80, dtype=np.int32).reshape(4, 20),
        )
        vars(self).update(PLAIN | other)
        self.prepare = _inputs._prepared_at_once(Decoding.prepare_inputs)

    def step(self, **more):
        """One more token; what `prepare` returns, as lists."""
        self.input_batch.num_computed_tokens_cpu[:3] += 1
        self.pages += 1
        prepared = self.prepare(self, scheduled((), (), **dict(tokens=3) | more))
        ids, positions, attention, _, logits, *_ = prepared
        assert isinstance(logits, jax.Array)
        if isinstance(ids, _inputs.Packed):
            ids, positions, attention, _ = ids.to_device(EVERYWHERE)
        assert isinstance(positions, jax.Array)
        return [x.tolist() for x in (ids, positions, attention.seq_lens, attention.block_tables)]

    def prepare_inputs(self, scheduler_output):
        self.calls += 1
        computed = self.input_batch.num_computed_tokens_cpu
        ids = self.input_batch.token_ids_cpu[np.arange(4), computed].copy()
        of = self._pre_async_results.placeholder_req_id_to_index
        at = [i for i, name in enumerate(self.input_batch.req_ids) if name in of]
        substitute = _inputs._substituted_later(refused)
        ids = substitute(self, ids, self._pre_async_results.next_tokens, at, [*of.values()])
        attention = Attention(computed + 1, self.pages.ravel().copy())
        positions, logits = computed.copy(), np.arange(4, dtype=np.int32)
        return ids, positions, attention, None, logits, *range(6), positions


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Attention:
    seq_lens: np.ndarray
    block_tables: np.ndarray


def test_the_same_batchs_next_step_is_written_into_the_last_ones_words():
    words = types.SimpleNamespace(takes_words=True)
    runner, other = Decoding(model_fn=words), Decoding(uses_mrope=True)
    for _ in range(3):
        now, want = runner.step(), other.step()
        for got, wanted, count in zip(now, want, (3, 3, 3, 6), strict=True):
            assert got[:count] == wanted[:count]
        assert now[0][:3] == [70, 20 + now[1][1], 50]
    assert (runner.calls, other.calls) == (1, 3)


def changed_batch(runner):
    runner.input_batch.req_ids = ["a", "c", "b"]


def a_chunk(runner):
    runner.input_batch.num_computed_tokens_cpu[1] += 2


def a_prompt(runner):
    runner.input_batch.num_prompt_tokens[0] = 9


def several_steps_on_the_device(runner):
    runner._pre_async_results.next_tokens_in_tpu = "some"


@pytest.mark.parametrize(
    ("change", "more"),
    [
        (changed_batch, {}),
        (a_chunk, {}),
        (a_prompt, {}),
        (several_steps_on_the_device, {}),
        (None, {"tokens": 4}),
        (None, {"scheduled_new_reqs": ["a"]}),
        (None, {"finished_req_ids": {"d"}}),
    ],
)
def test_another_batch_is_prepared_anew(change, more):
    runner = Decoding()
    runner.step()
    if change:
        change(runner)
    runner.step(**more)
    assert runner.calls == 2


def test_int64_becomes_int32_on_the_device():
    packed = _inputs.Packed((np.array([[1, -2]], np.int64),))
    (array,) = packed.to_device(EVERYWHERE)
    assert (array.dtype, array.tolist()) == (np.int32, [[1, -2]])


def test_a_blob_on_the_device_is_split_as_before():
    blob = jax.device_put(np.arange(6, dtype=np.int32), MESH.devices.flat[0])
    buffer = importlib.import_module("tpu_inference.utils")
    layout = buffer.DeviceBufferMetadata(keys=LAYOUT.keys, sizes=LAYOUT.sizes)
    before = vars(buffer.DeviceBuffer)["unpack_arrays"]
    split = _inputs._views_or_compiled(getattr(before, "__func__", before))(blob, layout)
    assert {key: part.tolist() for key, part in split.items()} == {
        "ids": [0, 1, 2, 3],
        "lengths": [4, 5],
    }


# ---- Logits and tokens ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [dict, tuple])
def test_logits_are_asked_with_the_weights_they_read(kind):
    @jax.jit
    def logits(weights, hidden, lora):
        head, bias = (weights["head"], weights["bias"]) if kind is dict else weights[1:]
        return jax.nn.relu(hidden @ head + bias) if lora is None else hidden

    weights = {n: np.full((2, 2), i, np.float32) for i, n in enumerate(("body", "head", "bias"))}
    weights = kind(weights if kind is dict else weights.values())
    read, _ = _step._reads(logits, weights, (np.ones((1, 2), np.float32), None))
    assert read == (["bias", "head"] if kind is dict else [1, 2])
    ask = _step.OnlyWhatItReads(logits)
    for _ in range(2):
        assert ask(weights, np.ones((1, 2), np.float32), None).tolist() == [[4, 4]] * 2
        weights = jax.tree.map(jax.numpy.asarray, weights)
    assert len(jax.tree.leaves(ask.lower(weights, np.ones((1, 2)), None).in_avals)) == 3
    newer = jax.tree.map(lambda w: -w, weights)  # after a reload: not those it was compiled with
    assert ask(newer, np.ones((1, 2), np.float32), None).tolist() == [[0, 0]] * 2
    assert ask(weights, np.ones((1, 2), np.float32), 1.0).tolist() == [[1, 1]]
    traced = jax.jit(lambda w, x: ask(w, x, None))(weights, np.ones((1, 2), np.float32))
    assert traced.tolist() == [[4, 4]] * 2


def loaded(compiled=True, **other):
    """A runner after load_model, whose logits are hidden states and a weight added."""
    runner = types.SimpleNamespace(
        mesh=MESH,
        dp_size=1,
        speculative_config=None,
        pcp_preprocessor=None,
        lora_config=None,
        is_multimodal_model=False,
        is_pooling_model=False,
        enable_continue_decode=False,
        is_first_rank=True,
        is_last_rank=True,
        num_reqs_paddings=[2, 4],
        state_leaves=(np.float32(1), np.float32(2)),
        input_batch=types.SimpleNamespace(num_prompt_logprobs={}),
        rng_params_for_sampling=jax.random.key(3),
        _select_from_array_fn=lambda array, indices, mesh, pcp_size: array[indices],
    )

    def load_model(self):
        self.model_fn = jax.jit(lambda weights: weights)
        self.compute_logits_fn = jax.jit(logits) if compiled else logits

    def logits(weights, hidden, lora):
        return hidden + weights[0]

    vars(runner).update(other)
    _step._with_short_calls(load_model)(runner)
    return runner


@pytest.mark.parametrize("compiled", [True, False])
def test_a_models_logits_are_replaced_once_it_is_loaded(compiled):
    runner = loaded(compiled)
    assert runner.compute_logits_fn((np.float32(1),), np.ones(1, np.float32), None).tolist() == [2]
    assert isinstance(runner.compute_logits_fn, _step.OnlyWhatItReads) == compiled
    assert isinstance(runner._select_from_array_fn, _step.LogitsOfRows) == compiled


HIDDEN, ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)[:, ::-1], np.array([2, 0, -1], np.int32)


def logits_of(runner):
    rows = runner._select_from_array_fn(HIDDEN, ROWS, MESH, 1)
    return runner.compute_logits_fn(runner.state_leaves, rows, None)


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"lora_config": "some"},
        {"speculative_config": "ngram"},
        {"input_batch": types.SimpleNamespace(num_prompt_logprobs={"r": 1})},
    ],
)
def test_logits_of_rows(other):
    assert logits_of(loaded(**other)).tolist() == (HIDDEN[ROWS] + 1).tolist()


def test_rows_logits_and_tokens_are_one_call_with_the_weights_they_read():
    runner = loaded()
    lowered = runner._select_from_array_fn.lower(HIDDEN, ROWS, MESH, 1)
    assert len(jax.tree.leaves(lowered.in_avals)) == 3
    logits = logits_of(runner)
    assert runner._select_from_array_fn.logits is logits
    assert runner._select_from_array_fn.tokens.tolist() == [0, 0, 0, 0]


@pytest.fixture
def sampled():
    """sampled(runner, metadata, logits): the logits and metadata that are sampled from, and key."""

    def sample(rng, mesh, logits, tpu_sampling_metadata, allow_distributed_sampling=True):
        return (logits, tpu_sampling_metadata, rng), logits

    sample = _step._of_waiting_logits(sample)

    def sample_from_logits(self, *args):
        metadata, logits = args[2], args[5]
        if metadata.do_sampling:
            self.rng_params_for_sampling, rng = jax.random.split(self.rng_params_for_sampling)
        else:
            rng = self.rng_params_for_sampling
        if args[7] is None:
            logits = logits.astype(np.float32)
        tokens, _ = sample(rng, self.mesh, logits, metadata, allow_distributed_sampling=False)
        logits.astype(np.float32)
        return tokens

    def call(how, runner, metadata, logits, speculation=None):
        return how(sample_from_logits)(runner, 0, 1, metadata, 3, 4, logits, 6, speculation, 8)

    return call


@dataclasses.dataclass
class Metadata:
    do_sampling: bool = False
    logprobs: bool = False


def test_greedy_tokens_are_those_of_the_logits_call(sampled):
    runner = loaded()
    logits = logits_of(runner)
    assert sampled(_step._sampled_at_once, runner, Metadata(), logits).tolist() == [0, 0, 0, 0]
    assert runner._select_from_array_fn.logits is None


@pytest.mark.parametrize("do_sampling", [True, False])
@pytest.mark.parametrize("logprobs", [True, False])
@pytest.mark.parametrize("speculation", [None, "some"])
def test_sampling_is_as_before(sampled, do_sampling, logprobs, speculation):
    """From other logits than those (masked by a grammar), or as the metadata asks."""
    wanted = Metadata(do_sampling, logprobs)
    logits = jax.numpy.ones((2, 3), jax.numpy.bfloat16)
    runners = loaded(), loaded()
    before, now = (
        sampled(how, runner, wanted, logits, speculation)
        for how, runner in zip((lambda f: f, _step._sampled_at_once), runners, strict=True)
    )
    assert now[0].dtype == before[0].dtype
    assert now[1] == before[1] == wanted
    assert now[2] == before[2]
    assert runners[0].rng_params_for_sampling == runners[1].rng_params_for_sampling


@pytest.mark.parametrize(
    ("speculation", "selector", "tokens"),
    [
        (None, None, [[4], [], [6]]),
        ("some", None, "as before"),
        (None, [0, 1, 2], "as before"),
    ],
)
def test_tokens_are_copied_to_the_host(speculation, selector, tokens):
    get = _step._as_one_array(lambda *args: "as before")
    padded = jax.numpy.arange(4, 12)
    assert get("runner", speculation, padded, selector, [1], 3) == tokens


class Sampled:
    """A runner of requests "a" and "b" with zeros for their last tokens, which are 7 and 8."""

    def __init__(self, **other):
        self.requests = {
            name: types.SimpleNamespace(output_token_ids=[1, 0], req_id=name) for name in "ab"
        }
        self.input_batch = types.SimpleNamespace(
            req_ids=["a", "b"],
            req_id_to_index={"a": 0, "b": 1},
            num_tokens_no_spec=np.array([3, 5, 0], np.int32),
            num_tokens=np.array([3, 5, 0], np.int32),
            token_ids_cpu=np.zeros((3, 6), np.int32),
        )
        results = importlib.import_module("tpu_inference.runner.tpu_runner").AsyncPreResults
        self._pre_async_results = results(
            **dict(
                req_ids=["a", "b"],
                next_tokens=jax.numpy.array([7, 8, 9, 9]),
                request_seq_lens=[(0, self.requests["a"], 3), (1, self.requests["b"], 5)],
                discard_sampled_tokens_req_indices=[],
                placeholder_req_id_to_index={},
                scheduler_output=types.SimpleNamespace(scheduled_spec_decode_tokens={}),
            )
            | other
        )
        self.max_model_len = 6

    def kept(self):
        states = {name: state.output_token_ids for name, state in self.requests.items()}
        batch = self.input_batch
        numbers = batch.token_ids_cpu, batch.num_tokens_no_spec, batch.num_tokens
        return states, [array.tolist() for array in numbers]


def changed_place(runner):
    runner.input_batch.req_ids = ["b", "a"]
    runner.input_batch.req_id_to_index = {"b": 0, "a": 1}


def one_has_left(runner):
    runner.input_batch.req_ids, runner.input_batch.req_id_to_index = ["a"], {"a": 0}


def one_is_new(runner):
    runner.input_batch.req_ids = ["a", "c"]
    runner.input_batch.req_id_to_index = {"a": 0, "c": 1}


def one_had_none(runner):
    results = runner._pre_async_results
    results.discard_sampled_tokens_req_indices = [1]
    del results.request_seq_lens[1]


@pytest.mark.parametrize("change", [None, changed_place, one_has_left, one_is_new, one_had_none])
def test_the_last_steps_tokens_are_written(change):
    """As tpu-inference writes them, which is asked where the batch has changed."""
    runner = importlib.import_module("tpu_inference.runner.tpu_runner").TPUModelRunner
    original = getattr(runner._modify_prev_results, "__wrapped__", runner._modify_prev_results)
    asked, kept = [], []
    for way in (original, _step._written_at_once(lambda self: (asked.append(1), original(self)))):
        sampled = Sampled()
        if change:
            change(sampled)
        way(sampled)
        kept.append(sampled.kept())
    assert kept[0] == kept[1]
    assert bool(asked) == (change is not None)
    assert kept[0][0]["a"] == [1, 7]


def test_a_request_of_the_same_name_is_not_written_to():
    """tpu-inference stops there."""
    sampled, asked = Sampled(), []
    sampled.requests["b"] = types.SimpleNamespace(output_token_ids=[])
    _step._written_at_once(asked.append)(sampled)
    assert asked == [sampled]
