"""What is replaced of a step's host part: its inputs, logits and tokens; without a server."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
import types

import jax
import numpy as np
import pytest
import same_inputs
from test_plugin import on_a_boundary
from xla_gpu.vllm_xla import _inputs, _step

# ---- A step's inputs -----------------------------------------------------------------------------

MESH = jax.make_mesh((1, 1), ("data", "model"), devices=jax.devices("cpu")[:1])
EVERYWHERE = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec())
LAYOUT = types.SimpleNamespace(keys=("ids", "lengths"), sizes=(4, 2))


# Of a runner on one device that does nothing special.
PLAIN = dict(
    mesh=MESH,
    dp_size=1,
    speculative_config=None,
    pcp_preprocessor=None,
    is_pooling_model=False,
    enable_continue_decode=False,
    uses_mrope=False,
    lora_config=None,
    phase_based_profiler=None,
    aggregated_stats_logger=None,
    kv_cache_config=types.SimpleNamespace(has_mamba_layers=False, kv_cache_groups=["one"]),
    model_fn=types.SimpleNamespace(takes_words=False),
)


def refused(*args, **kwargs):
    raise AssertionError("this goes to the device by itself")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Attention:
    seq_lens: np.ndarray
    block_tables: np.ndarray


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
        positions=on_a_boundary(4),
        distribution=np.array([1, 2, 3], np.int32),
        blob=on_a_boundary(6),
        last=jax.device_put(np.array([50, 60, 70], np.int32), MESH.devices.flat[0]),
        temperatures=np.array([0.5, -1.0], np.float32),
        input_batch=types.SimpleNamespace(num_reqs=2),
        num_tokens_paddings=[16],
        num_reqs_paddings=[4],
        attn_num_reqs_paddings=[4],
        **PLAIN | {"uses_mrope": True},
    )


def scheduled(at, of):
    substitution = np.array(at, int), np.array(of, int)
    return types.SimpleNamespace(
        total_num_scheduled_tokens=9, num_scheduled_tokens={"a": 9}, substitution=substitution
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


def decoding(groups=1, **other):
    """tpu-inference's runner of at most 4 requests and 8 tokens, as far as its inputs need it."""
    _inputs.inputs_in_one_transfer()
    batches = importlib.import_module("tpu_inference.runner.input_batch")
    runners = importlib.import_module("tpu_inference.runner.tpu_runner")
    runner = object.__new__(runners.TPUModelRunner)
    sizes = dict(max_num_reqs=4, max_model_len=64, max_num_batched_tokens=8, vocab_size=100)
    batch = batches.InputBatch(**sizes, pin_memory=False, block_sizes=[16] * groups)
    groups = [types.SimpleNamespace(layer_names=[f"layer {i}"]) for i in range(groups)]
    caches = types.SimpleNamespace(has_mamba_layers=False, kv_cache_groups=groups)
    vars(runner).update(
        PLAIN
        | dict(
            scheduler_config=types.SimpleNamespace(async_scheduling=True),
            max_num_reqs=4,
            attn_max_num_seqs=4,
            device_buffer=importlib.import_module("tpu_inference.utils").DeviceBuffer(),
            positions_cpu=np.zeros(8, np.int32),
            mrope_positions_cpu=np.zeros((3, 8), np.int64),
            arange_cpu=np.arange(8),
            kv_cache_config=caches,
            input_batch=batch,
            _pre_async_results=None,
        )
        | other
    )
    for what, paddings in dict(num_tokens=[2, 4, 8], num_reqs=[2, 4], attn_num_reqs=[4]).items():
        setattr(runner, f"{what}_paddings", paddings)
        setattr(runner, f"{what}_paddings_per_dp", paddings)
    return runner


def some_step(runner, rng, most=2):
    """Puts some requests into the batch; what is scheduled for them, at most so much for each."""
    batch, count = runner.input_batch, rng.integers(1, 5)
    names = [str(name) for name in rng.permutation(9)[:count]]
    scheduled = dict(zip(names, rng.integers(1, most + 1, count).tolist(), strict=True))
    batch._req_ids, batch.req_id_to_index = names, {name: i for i, name in enumerate(names)}
    arrays = batch.num_computed_tokens_cpu, batch.num_prompt_tokens, batch.token_ids_cpu
    arrays += batch.top_k_cpu, *(batch.block_table[i].get_cpu_tensor() for i in groups_of(runner))
    for array in arrays:
        array[:] = rng.integers(0, 60, array.shape)
    for array in batch.temperature_cpu, batch.top_p_cpu:
        array[:] = rng.random(array.shape)
    batch.random_reqs = set(names[: rng.integers(3)])
    batch.num_logprobs = {names[0]: 1} if rng.integers(2) else {}
    tokens = jax.device_put(np.arange(50, 54, dtype=np.int32), MESH.devices.flat[0])
    runner._pre_async_results = None
    if rng.integers(4):
        runner._pre_async_results = types.SimpleNamespace(
            next_tokens=tokens,
            next_tokens_in_tpu=None,
            placeholder_req_id_to_index={
                name: int(rng.integers(4))
                for name, number in scheduled.items()
                if number == 1 and rng.integers(2)
            },
        )
    return types.SimpleNamespace(
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={},
    )


def groups_of(runner):
    return range(len(runner.kv_cache_config.kv_cache_groups))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("most", [1, 2])
def test_a_next_steps_inputs_are_written_into_those_of_one_of_its_size(monkeypatch, groups, most):
    rng, written = np.random.default_rng(0), []
    next_inputs = _inputs.Inputs.next

    def checked(inputs, runner, scheduler_output):
        written.append(next_inputs(inputs, runner, scheduler_output))
        same_inputs.check(inputs, runner, scheduler_output)
        return written[-1]

    monkeypatch.setattr(_inputs.Inputs, "next", checked)
    runner = decoding(groups, model_fn=types.SimpleNamespace(takes_words=True))
    for _ in range(60):
        packed, *_ = runner._prepare_inputs(some_step(runner, rng, most))
        ids, positions, attention, _ = packed.to_device(EVERYWHERE)
        assert ids.shape == positions.shape
        assert len(getattr(attention, "groups", [0])) == groups
    assert len(written) >= 54
    assert all(written)


@pytest.mark.parametrize("other", [{}, {"logprobs": True}, {"tokens": 2}, {"random": True}])
def test_what_stays_stays_on_the_device(other):
    runner, rng = decoding(), np.random.default_rng(1)
    step = some_step(runner, rng)
    runner.input_batch.random_reqs, runner.input_batch.num_logprobs = set(), {}
    runner._pre_async_results = None
    for _ in range(2):
        before = runner._prepare_inputs(step)
    if "logprobs" in other:
        runner.input_batch.num_logprobs = {"r": 1}
    if "random" in other:
        runner.input_batch.random_reqs = {"r"}
    if "tokens" in other:  # the same in all, otherwise divided
        names = list(step.num_scheduled_tokens)
        numbers = list(step.num_scheduled_tokens.values())[::-1]
        assert numbers != numbers[::-1]
        step.num_scheduled_tokens = dict(zip(names, numbers, strict=True))
    now = runner._prepare_inputs(step)
    assert (now[4] is before[4]) == ("tokens" not in other)
    assert (now[3] is before[3]) == (other.keys() <= {"tokens"})
    last = np.cumsum([*step.num_scheduled_tokens.values()]) - 1
    assert now[4].tolist()[: len(last)] == last.tolist()
    assert (now[3].logprobs, now[3].do_sampling) == ("logprobs" in other, "random" in other)


@pytest.mark.parametrize(
    "other",
    [
        {"is_pooling_model": True},
        {"enable_continue_decode": True},
        {"aggregated_stats_logger": types.SimpleNamespace(log=print)},
    ],
)
def test_a_runner_that_does_more_prepares_each_step(monkeypatch, other):
    calls = []
    make = _inputs.on_the_host
    monkeypatch.setattr(_inputs, "on_the_host", lambda *args: calls.append(1) or make(*args))
    monkeypatch.setattr(
        importlib.import_module("tpu_inference.runner.utils"),
        "get_batch_composition_stats",
        lambda *args: "some",
    )
    runner, rng = decoding(**other, batch_counter=0), np.random.default_rng(2)
    step = some_step(runner, rng)
    for _ in range(3):
        runner._prepare_inputs(step)
    assert len(calls) == 3


def test_several_tokens_after_a_token_on_the_device_are_prepared_as_before():
    """tpu-inference stops there."""
    runner, rng = decoding(), np.random.default_rng(3)
    step = some_step(runner, rng)
    runner._pre_async_results = None
    runner._prepare_inputs(step)
    name = next(name for name, number in step.num_scheduled_tokens.items() if number > 1)
    runner.input_batch.num_prompt_tokens[:] = 0
    runner._pre_async_results = types.SimpleNamespace(
        next_tokens=None, next_tokens_in_tpu=None, placeholder_req_id_to_index={name: 0}
    )
    with pytest.raises(AssertionError, match="Expected 1 token"):
        runner._prepare_inputs(step)


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


def logits_by_a_weight(weights, hidden, lora):
    return hidden + weights[0]


COMPUTES = jax.jit(logits_by_a_weight)


def loaded(function=COMPUTES, **other):
    """A runner after load_model, whose logits are hidden states and a weight added."""
    runner = types.SimpleNamespace(
        is_multimodal_model=False,
        is_first_rank=True,
        is_last_rank=True,
        num_reqs_paddings=[2, 4],
        state_leaves=(np.float32(1), np.float32(2)),
        input_batch=types.SimpleNamespace(num_prompt_logprobs={}),
        rng_params_for_sampling=jax.random.key(3),
        _select_from_array_fn=lambda array, indices, mesh, pcp_size: array[indices],
    )
    vars(runner).update(PLAIN | other)
    runner.model_fn, runner.compute_logits_fn = jax.jit(lambda weights: weights), function
    _step.logits_in_one_call(runner)
    return runner


@pytest.mark.parametrize("compiled", [True, False])
def test_a_models_logits_are_replaced_once_it_is_loaded(compiled):
    runner = loaded(COMPUTES if compiled else logits_by_a_weight)
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


@pytest.mark.parametrize("over", [("data", "model"), "model"])  # flax models, and torchax
def test_logits_of_rows_of_several_devices(over):
    """Each device's rows are in its part of the states; no weight goes to another device."""
    if len(jax.devices("cpu")) < 2:
        pytest.skip("there is one device")
    axes = {"axis_types": (jax.sharding.AxisType.Auto,) * 2, "devices": jax.devices("cpu")[:2]}
    mesh = jax.make_mesh((2, 1), ("data", "model"), **axes)

    def put(array, *spec):
        return jax.device_put(array, jax.sharding.NamedSharding(mesh, jax.P(*spec)))

    rng = np.random.default_rng(0)
    states, head = (rng.normal(size=size).astype(np.float32) for size in ((8, 32), (32, 64)))
    placed = jax.jit(
        lambda weights, hidden, lora: hidden @ weights[0],
        out_shardings=jax.sharding.NamedSharding(mesh, jax.P("data", "model")),
    )
    runner = loaded(
        placed,
        mesh=mesh,
        dp_size=2,
        num_reqs_paddings=[4, 8],
        state_leaves=(put(head, None, over),),
    )
    runner._select_from_array_fn._select = importlib.import_module(
        "tpu_inference.runner.tpu_runner"
    ).TPUModelRunner._select_from_array_fn
    args = put(states, "data"), put(np.array([2, 0, 3, -1], np.int32), "data"), mesh
    program = runner._select_from_array_fn.lower(*args).compile().as_text()
    moved = re.findall(r" = \w+\[([\d,]*)\]\S* all-(?:gather|reduce|to-all)", program)
    assert max(math.prod(map(int, dims.split(","))) for dims in moved) <= 4 * 32
    rows = runner._select_from_array_fn(*args)
    want = states[[2, 0, 7, 7]] @ head
    np.testing.assert_allclose(rows.logits, want, atol=1e-5)
    read = _step._as_float32(mesh)(rows.logits)
    assert read.sharding.shard_shape(read.shape) == (2, 64)  # as they are sampled
    np.testing.assert_allclose(read, want, atol=1e-5)
    assert rows.tokens.is_fully_replicated
    assert rows.tokens.tolist() == [*want.argmax(-1), 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("speculation", "selector", "tokens"),
    [
        (None, None, [[4], [], [6]]),
        ("some", None, "as before"),
        (None, np.array([2, 0, 1]), [[6], [], [5]]),
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


def two_devices(runner):
    runner._pre_async_results.next_tokens = jax.numpy.array([9, 7, 9, 8])
    runner._pre_async_results.logits_indices_selector = np.array([1, 3])


@pytest.mark.parametrize(
    "change", [None, changed_place, one_has_left, one_is_new, one_had_none, two_devices]
)
def test_the_last_steps_tokens_are_written(change):
    """As tpu-inference writes them."""
    runner = importlib.import_module("tpu_inference.runner.tpu_runner").TPUModelRunner
    original = getattr(runner._modify_prev_results, "__wrapped__", runner._modify_prev_results)
    kept = []
    for way in (original, _step._written_at_once(refused)):
        sampled = Sampled()
        if change:
            change(sampled)
        way(sampled)
        kept.append(sampled.kept())
    assert kept[0] == kept[1]
    assert kept[0][0]["a"] == [1, 7]


def test_a_request_of_the_same_name_is_not_written_to():
    """tpu-inference stops there as well."""
    sampled = Sampled()
    sampled.requests["b"] = types.SimpleNamespace(output_token_ids=[])
    with pytest.raises(AssertionError):
        _step._written_at_once(refused)(sampled)
