"""What requests ask to be done to their logits, without a server, held against asked.py."""

from __future__ import annotations

import random
import types

import asked
import jax
import numpy as np
import pytest
import torch
from xla_gpu.vllm_xla import _logits

WORDS, AT_ONCE = 256, 8


def parameters(asks):
    from vllm import SamplingParams

    params = SamplingParams(**asks)
    params._bad_words_token_ids = [asked.numbers(text) for text in asks.get("bad_words", ())]
    params._all_stop_token_ids.add(asked.END)
    return params


class Runner:
    """What is read of a runner, whose requests come, stay out of some steps, and go."""

    def __init__(self, mesh, asynchronous):
        self.mesh, self.max_num_reqs, self.asynchronous = mesh, AT_ONCE, asynchronous
        self._pre_async_results = None
        self.requests = {}
        self.input_batch = types.SimpleNamespace(
            req_id_to_index={},
            token_ids_cpu=np.zeros((AT_ONCE, 9_000), np.int32),
            num_prompt_tokens=np.zeros(AT_ONCE, np.int32),
            num_tokens_no_spec=np.zeros(AT_ONCE, np.int32),
        )

    def place(self, names):
        batch = self.input_batch
        batch.req_id_to_index = {name: row for row, name in enumerate(names)}
        for row, name in enumerate(names):
            request = self.requests[name]
            known = request.prompt + request.output_token_ids
            batch.token_ids_cpu[row, : len(known)] = known
            batch.num_prompt_tokens[row] = len(request.prompt)
            batch.num_tokens_no_spec[row] = len(known)

    def make(self, tokens):
        """Each of these requests has made a token, which is known later."""
        self._pre_async_results = tokens
        for name in tokens:
            self.requests[name].output_token_ids.append(0)
        if not self.asynchronous:
            self._modify_prev_results()
            self._pre_async_results = None

    def _modify_prev_results(self):
        batch = self.input_batch
        for name, token in self._pre_async_results.items():
            self.requests[name].output_token_ids[-1] = token
            if (row := batch.req_id_to_index.get(name)) is not None:
                batch.token_ids_cpu[row, batch.num_tokens_no_spec[row] - 1] = token


def step(new=(), finished=(), resumed=()):
    return types.SimpleNamespace(
        scheduled_new_reqs=list(new),
        finished_req_ids=set(finished),
        scheduled_cached_reqs=types.SimpleNamespace(resumed_req_ids=set(resumed)),
    )


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("devices", [(1, 1), (1, 2), (2, 1)])  # of data, of words
def test_logits_are_as_vllm_defines_them(devices, asynchronous):
    """Of requests that come and go and move, with prompts in parts, preempted ones among them."""
    some = jax.devices("cpu")[: devices[0] * devices[1]]
    if len(some) < devices[0] * devices[1]:
        pytest.skip("there is one device")
    mesh = jax.sharding.Mesh(np.reshape(some, devices), ("data", "model"))
    runner, choose = Runner(mesh, asynchronous), random.Random(5)
    these = _logits.Asked(runner)
    rng = np.random.default_rng(5)
    number, out, changed = 0, [], 0
    for _ in range(60):
        known = [*runner.requests]
        finished = [name for name in known if len(runner.requests[name].output_token_ids) > 12]
        for name in finished:
            del runner.requests[name]
        new = []
        while len(runner.requests) < AT_ONCE and choose.random() < 0.7:
            asks = asked.ASKS[number % len(asked.ASKS)]
            prompt = rng.integers(3, WORDS, choose.choice([1, 9, 40, 5000])).tolist()
            runner.requests[f"r{number}"] = types.SimpleNamespace(
                prompt=prompt, output_token_ids=[], asks=asks, partial=choose.randint(0, 2)
            )
            new.append(types.SimpleNamespace(req_id=f"r{number}", sampling_params=parameters(asks)))
            number += 1
        fresh = [request.req_id for request in new]
        names = [name for name in runner.requests if name in fresh or choose.random() < 0.9]
        choose.shuffle(names)
        if runner._pre_async_results:  # of one that stays out the scheduler sends the tokens
            for name, token in runner._pre_async_results.items():
                if name in runner.requests and name not in names:
                    runner.requests[name].output_token_ids[-1] = token
            runner._pre_async_results = {
                name: token for name, token in runner._pre_async_results.items() if name in names
            }
        these.note(step(new, finished, set(names) & set(out)))
        out = [name for name in runner.requests if name not in names]
        runner.place(names)
        selector = None if devices[0] == 1 else choose.sample(range(AT_ONCE), len(names))
        adjust = these.of_step(selector)
        raw = rng.normal(size=(AT_ONCE, WORDS)).astype(np.float32)
        logits = raw if adjust is None else np.asarray(adjust(jax.numpy.asarray(raw), None))
        tokens = {}
        for row, name in enumerate(names):
            request = runner.requests[name]
            place = row if selector is None else selector[row]
            args = request.prompt, request.output_token_ids, request.asks
            want = asked.adjusted(torch.tensor(raw[place]), *args).numpy()
            np.testing.assert_allclose(logits[place], want, rtol=1e-5, atol=1e-5)
            changed += bool((want != raw[place]).any())
            if request.partial:
                request.partial -= 1
            else:
                tokens[name] = int(logits[place].argmax())
        for place in set(range(AT_ONCE)) - set(selector or range(len(names))):
            np.testing.assert_array_equal(logits[place], raw[place])
        runner.make(tokens)
        runner.place(names)
    assert number > 30
    assert changed > 200
    these.note(step(finished=runner.requests))
    assert these.of_step(None) is None
    assert len(these._free) == AT_ONCE


def alone(asks, raw, temperatures=None):
    """The logits of a request that is alone, and has made no word."""
    mesh = jax.sharding.Mesh(np.reshape(jax.devices("cpu")[:1], (1, 1)), ("data", "model"))
    runner = Runner(mesh, False)
    these = _logits.Asked(runner)
    runner.requests["a"] = types.SimpleNamespace(prompt=[5], output_token_ids=[])
    these.note(step([types.SimpleNamespace(req_id="a", sampling_params=parameters(asks))]))
    runner.place(["a"])
    return np.asarray(these.of_step(None)(raw, temperatures))


def test_words_that_are_far_less_likely_than_the_likeliest_are_left_out():
    raw = np.random.default_rng(1).normal(size=(3, WORDS)).astype(np.float32)
    temperatures = np.array([0.5, -1, -1], np.float32)
    logits = alone({"temperature": 0.5, "min_p": 0.2}, raw, temperatures)
    likelihood = torch.softmax(torch.tensor(raw[0]) / 0.5, -1).numpy()
    left_out = likelihood < 0.2 * likelihood.max()
    assert 0 < left_out.sum() < WORDS - 1
    np.testing.assert_array_equal(logits[0], np.where(left_out, -np.inf, raw[0]))
    np.testing.assert_array_equal(logits[1:], raw[1:])  # and of a step without sampled rows none
    np.testing.assert_array_equal(alone({"temperature": 0.5, "min_p": 0.2}, raw), raw)


def test_a_grammars_end_comes_before_as_many_tokens_as_were_asked_for():
    raw = np.full((2, WORDS), -np.inf, np.float32)
    raw[:, asked.END] = 3
    np.testing.assert_array_equal(alone({"min_tokens": 5}, raw), raw)


def test_penalties_that_a_model_asks_for_are_compiled_before_they_come(caplog):
    mesh = jax.sharding.Mesh(np.reshape(jax.devices("cpu")[:1], (1, 1)), ("data", "model"))
    runner, asks = Runner(mesh, False), {}
    runner.model_config = types.SimpleNamespace(get_diff_sampling_param=lambda: asks)
    runner.vocab_size, runner.num_reqs_paddings = WORDS + 1, [2, AT_ONCE]
    these = _logits.Asked(runner)
    assert [*these.ahead()] == []
    asks |= {"repetition_penalty": 1.1}
    with jax.log_compiles(), caplog.at_level("WARNING"):
        for program, *args in these.ahead():
            program.lower(*args).compile()
        assert "Compiling jit(_noted)" in caplog.text
        caplog.clear()
        request = types.SimpleNamespace(prompt=[5, 6], output_token_ids=[])
        runner.requests["a"] = request
        new = types.SimpleNamespace(req_id="a", sampling_params=parameters(asks))
        these.note(step([new]))
        for rows in (2, 2, AT_ONCE):
            runner.place(["a"])
            logits = np.ones((rows, WORDS + 1), np.float32)
            logits = jax.device_put(logits, _logits._programs(mesh).logits)
            got = np.asarray(these.of_step(None)(logits, None))
            want = asked.adjusted(torch.ones(WORDS + 1), [5, 6], request.output_token_ids, asks)
            np.testing.assert_allclose(got[0], want.numpy(), rtol=1e-6)
            runner.make({"a": 9})
        assert "jit(_" not in caplog.text
