"""What is replaced of the tokens' sampling, held against tpu-inference's own; without a server."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import types

import jax
import numpy as np
import pytest
from test_step import loaded, logits_of, refused
from xla_gpu.vllm_xla import _sampling, _step


@dataclasses.dataclass
class Metadata:
    do_sampling: bool = False
    logprobs: bool = False


def sampling(monkeypatch, asynchronous, partial):
    """tpu-inference's runner after a step of "a", "b" and "c", that of the second not whole."""
    module = importlib.import_module("tpu_inference.runner.tpu_runner")
    state = importlib.import_module("tpu_inference.runner.input_batch").CachedRequestState

    def sample(rng, mesh, logits, metadata, allow_distributed_sampling=True):
        assert logits.dtype == np.float32
        drawn = jax.random.randint(rng, (len(logits),), 0, 9) if metadata.do_sampling else 0
        return logits.argmax(-1).astype(np.int32) + drawn, logits

    monkeypatch.setattr(module, "sample", sample)
    runner, names = object.__new__(module.TPUModelRunner), list("abc")
    plain = dict.fromkeys(
        ("mm_features", "sampling_params", "pooling_params", "generator", "lora_request")
    )
    vars(runner).update(
        vars(loaded()),
        requests={
            name: state(
                req_id=name,
                prompt_token_ids=[1] * (5 + (partial and name == "b")),
                block_ids=([],),
                num_computed_tokens=4,
                output_token_ids=[],
                **plain,
            )
            for name in names
        },
        input_batch=types.SimpleNamespace(
            num_reqs=3,
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            num_computed_tokens_cpu=np.array([4, 4, 4, 0], np.int32),
            num_tokens_no_spec=np.array([5, 5 + partial, 5, 0], np.int32),
            num_tokens=np.array([5, 5 + partial, 5, 0], np.int32),
            token_ids_cpu=np.zeros((4, 9), np.int32),
            num_prompt_logprobs={},
            generators={},
        ),
        scheduler_config=types.SimpleNamespace(async_scheduling=asynchronous),
        model_config=types.SimpleNamespace(logprobs_mode="raw_logprobs", max_logprobs=1),
        maybe_forbid_compile=contextlib.nullcontext(),
        aux_output_worker=None,
        _pre_async_results=None,
        max_model_len=9,
    )
    return runner


def two_steps(runner, how, metadata, logits, selector=None):
    """What _sample_from_logits returns and leaves; between its calls "a" makes way for "d"."""
    batch, kept = runner.input_batch, []
    for step in range(2):
        if step:
            runner.requests["d"] = dataclasses.replace(runner.requests.pop("a"), req_id="d")
            batch.req_ids = ["d", "b", "c"]
            batch.req_id_to_index = {name: i for i, name in enumerate(batch.req_ids)}
            for state in runner.requests.values():
                state.num_computed_tokens += 1
            batch.num_computed_tokens_cpu[:3] += 1
        number = dict.fromkeys(batch.req_ids, 1)
        scheduled = types.SimpleNamespace(
            num_scheduled_tokens=number,
            total_num_scheduled_tokens=3,
            scheduled_spec_decode_tokens={},
        )
        output = how(runner, scheduled, 1, metadata, 3, 4, logits, 6, None, "kv", selector, 4)
        if hasattr(output, "get_output"):
            before = runner._pre_async_results
            kept.append([before.placeholder_req_id_to_index, before.req_ids])
            kept.append([before.discard_sampled_tokens_req_indices])
            output = output.get_output()
        kept += output.req_ids, output.req_id_to_index, output.sampled_token_ids
        kept.append(output.kv_connector_output)
        kept += ([*state.output_token_ids] for state in runner.requests.values())
        arrays = batch.token_ids_cpu, batch.num_tokens_no_spec, batch.num_tokens
        kept += (array.tolist() for array in arrays)
    kept.append(jax.random.key_data(runner.rng_params_for_sampling).tolist())
    return kept


@pytest.mark.parametrize("do_sampling", [True, False])
@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("selector", [None, np.array([2, 0, 3])])  # of several devices' rows
def test_tokens_are_sampled_as_before(monkeypatch, do_sampling, partial, asynchronous, selector):
    """From other logits than those of the logits' call (masked by a grammar)."""
    _step.tokens_in_short_calls()
    runner = importlib.import_module("tpu_inference.runner.tpu_runner").TPUModelRunner
    original = runner._sample_from_logits.__wrapped__
    logits = jax.numpy.eye(4, dtype=jax.numpy.bfloat16)[::-1]
    kept = []
    for make in (lambda _: original, _step._sampled_at_once):
        runner = sampling(monkeypatch, asynchronous, partial)
        kept.append(two_steps(runner, make(refused), Metadata(do_sampling), logits, selector))
    assert kept[0] == kept[1]


def test_greedy_tokens_are_those_of_the_logits_call(monkeypatch):
    runner = sampling(monkeypatch, False, False)
    logits = logits_of(runner)
    monkeypatch.setattr(
        importlib.import_module("tpu_inference.runner.tpu_runner"), "sample", refused
    )
    how = _step._sampled_at_once(refused)
    scheduled = types.SimpleNamespace(num_scheduled_tokens=dict.fromkeys("abc", 1))
    output = how(runner, scheduled, 1, Metadata(), 3, 4, logits, 6, None, None, None, 4)
    assert output.sampled_token_ids == [[0], [0], [0]]
    assert runner._select_from_array_fn.logits is None


@pytest.mark.parametrize(
    ("other", "metadata", "speculation", "dtype"),
    [
        ({}, Metadata(logprobs=True), None, "float32"),
        ({"speculative_config": "ngram"}, Metadata(), None, "float32"),
        ({"speculative_config": "ngram"}, Metadata(), "some", "bfloat16"),
        ({"aux_output_worker": "one"}, Metadata(), None, "float32"),
    ],
)
def test_more_than_tokens_is_sampled_by_the_original(
    monkeypatch, other, metadata, speculation, dtype
):
    runner = sampling(monkeypatch, True, False)
    vars(runner).update(other)
    how = _step._sampled_at_once(lambda self, *args: args)
    logits = jax.numpy.ones((2, 3), jax.numpy.bfloat16)
    args = how(runner, 0, 1, metadata, 3, 4, logits, 6, speculation, 8, None, 4)
    assert args[5].dtype == dtype


@pytest.mark.parametrize(
    ("asked", "said"), [({}, False), ({"a": 0}, True), ({"a": -1, "b": 0}, True), ({"a": 2}, True)]
)
def test_logprobs_of_the_token_alone_are_asked_for_too(asked, said):
    _sampling.logprobs_of_the_token_alone()
    module = importlib.import_module("tpu_inference.layers.jax.sample.sampling_metadata")

    class Batch:
        num_logprobs, all_greedy = dict(asked), True
        max_num_logprobs = module.InputBatch.max_num_logprobs

    mesh, batch = jax.make_mesh((1,), ("data",)), Batch()
    metadata = module.TPUSupportedSamplingMetadata.from_input_batch(mesh, batch, 4, {0: [0]})
    assert metadata.logprobs == said
    assert batch.num_logprobs == asked


def test_each_request_has_the_mask_of_its_own_grammar(monkeypatch):
    """Not that of the request at its place in the order of names, nor of one that has gone."""
    _sampling.masks_of_grammars_by_request()
    module = importlib.import_module("tpu_inference.runner.structured_decoding_manager")
    output = importlib.import_module("vllm.v1.core.sched.output").GrammarOutput
    monkeypatch.setattr(module, "device_array", lambda mesh, arrays: arrays)
    runner = types.SimpleNamespace(
        mesh=None,
        grammar_bitmask_cpu=np.zeros((4, 2), np.int32),
        require_structured_out_cpu=np.zeros((4, 1), bool),
        structured_decode_arange=None,
        input_batch=types.SimpleNamespace(req_id_to_index={"a": 0, "plain": 1, "c": 2, "b": 3}),
    )
    asked = {"c": 30, "gone": 40, "a": 10, "b": 20}
    masks = np.array([[mask, mask + 1] for mask in asked.values()], np.int32)
    manager = module.StructuredDecodingManager(runner)
    require, rows, _ = manager.prepare_structured_decoding_input(
        np.zeros((4, 50)), output(list(asked), masks)
    )
    assert require.ravel().tolist() == [True, False, True, True]
    assert rows.tolist() == [[10, 11], [0, 0], [30, 31], [20, 21]]
