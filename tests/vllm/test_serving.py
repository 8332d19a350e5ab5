"""`vllm serve` over HTTP: every greedy token must be transformers' own."""

from __future__ import annotations

import asyncio
import functools
import re
import time

import forms
import load
import pytest
from asked import asks_of
from server import serve
from step_program import TARGET, faults_of_attention, promises
from tiny_models import random_prompt

SMALL = ("--dtype", "float32", "--max-model-len", "256", *forms.flags(forms.ZEROING))
EXACT = forms.EXACT | forms.DEVELOPER


@pytest.fixture(scope="module")
def servers(checkpoint, tmp_path_factory):
    """Two servers that start together: Llama by its flax model, Qwen3 by its torchax model."""
    folder = tmp_path_factory.mktemp("servers")
    plain = [*SMALL, "--max-num-batched-tokens", "128", "--no-enable-prefix-caching"]
    # Steps that only decode have up to 24 tokens, which are padded to 32.
    plain += ["--num-gpu-blocks-override", "641", "--max-num-seqs", "24", "--async-scheduling"]
    # A third of what 16 sequences need, and prompts in chunks of at most 16 tokens.
    tight = [*SMALL, "--max-num-batched-tokens", "16", "--enable-prefix-caching"]
    tight += ["--num-gpu-blocks-override", "31", "--max-num-seqs", "16", "--async-scheduling"]
    flax, torchax = ({"MODEL_IMPL_TYPE": impl} for impl in ("flax_nnx", "vllm"))
    with (
        serve(checkpoint("llama"), folder / "llama", *plain, **EXACT, **flax) as llama,
        serve(checkpoint("qwen3"), folder / "qwen3", *tight, **EXACT, **torchax) as qwen3,
    ):
        llama.wait()
        qwen3.wait()
        yield {"llama": llama, "qwen3": qwen3}


@pytest.fixture
def llama(servers):
    return servers["llama"]


@pytest.fixture
def qwen3(servers):
    return servers["qwen3"]


def test_200_requests_at_once(llama, reference):
    requests = load.mixed_requests(200, seed=1)
    tokens = asyncio.run(load.answers(llama, requests))
    assert load.wrong(reference("llama"), requests, tokens) == []
    assert len({token for answer in tokens for token in answer}) > 100  # no model of one word


def test_the_steps_program_calls_ours_and_copies_no_cache(llama, qwen3):
    for server in (llama, qwen3):
        programs = server.step_programs()
        assert programs
        for program in programs:
            assert faults_of_attention(program, layers=2) == []
            # Lengths and pages, which move in every step, are copied, once for all layers.
            calls = [line for line in program.splitlines() if TARGET in line]
            moving = {
                tuple(re.findall(r"%[\w.-]+", line.split("custom-call(")[1])[4:8]) for line in calls
            }
            assert len(moving) == 1
            for name in next(iter(moving)):
                assert not re.search(rf"{re.escape(name)} = \S+ parameter\(", program)
        assert "xla_gpu: vLLM on XLA:" in server.log


def test_200_requests_with_prefix_caching_chunks_and_preemption(qwen3, reference):
    requests = load.mixed_requests(200, seed=2, longest=60, most=100, shared=48)
    tokens = asyncio.run(load.answers(qwen3, requests))
    assert load.wrong(reference("qwen3"), requests, tokens) == []
    counted = qwen3.metrics()
    assert counted["vllm:num_preemptions_total"] > 0
    assert counted["vllm:prefix_cache_hits_total"] > 0


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_200_requests_of_which_some_ask_for_other_logits(servers, reference, kind):
    server = servers[kind]
    requests = load.mixed_requests(200, seed=10, longest=60, most=40, shared=48)
    asks = asks_of(requests)
    tokens = asyncio.run(load.answers(server, requests, asks))
    assert load.wrong(reference(kind), requests, tokens, asks=asks) == []
    others = load.wrong(reference(kind), requests, tokens)  # not so without what they ask
    assert len(others) > 0.9 * sum(
        bool(ask) and count > 4 for ask, (_, count) in zip(asks, requests, strict=True)
    )


def test_words_that_are_far_less_likely_than_the_likeliest_may_be_left_out(llama, reference):
    requests = load.mixed_requests(40, seed=11)
    asks = [{}, {"temperature": 1, "min_p": 0.99999}]
    tokens = asyncio.run(load.answers(llama, requests, asks))
    assert load.wrong(reference("llama"), requests, tokens) == []


def test_bad_requests_get_errors_and_change_no_other(llama, reference):
    requests = load.mixed_requests(40, seed=3)

    async def all_together():
        bad = [llama.post(body) for body in load.MALFORMED.values()]
        return await asyncio.gather(load.answers(llama, requests), *bad)

    tokens, *replies = asyncio.run(all_together())
    for name, (status, answer) in zip(load.MALFORMED, replies, strict=True):
        assert 400 <= status < 500, (name, status, answer)
        assert answer["error"]["message"], name
    assert load.wrong(reference("llama"), requests, tokens) == []


def test_clients_that_go_away_change_no_other(llama, qwen3, reference):
    async def leave(server, seed):
        async for _ in server.stream(random_prompt(20, seed), 200):
            return  # the connection is closed with most of the answer to come

    async def all_together(server, requests):
        leaving = [leave(server, seed) for seed in range(20)]
        return (await asyncio.gather(load.answers(server, requests), *leaving))[0]

    for kind, server in (("llama", llama), ("qwen3", qwen3)):
        requests = load.mixed_requests(40, seed=4)
        tokens = asyncio.run(all_together(server, requests))
        assert load.wrong(reference(kind), requests, tokens) == []
        deadline = time.monotonic() + 30  # what was left is dropped, not computed to its end
        while server.metrics()["vllm:num_requests_running"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_steps_that_only_decode_promise_it_where_shapes_do_not(llama, qwen3):
    """And after all those requests there is none that was compiled later."""
    assert promises(llama.step_programs()) == [(16, 0), (32, 0), (32, 1), (64, 0), (128, 0)]
    assert promises(qwen3.step_programs()) == [(16, 0)]


def test_memory_does_not_grow(llama):
    def some_load(seed):
        asyncio.run(load.answers(llama, load.mixed_requests(100, seed)))
        return llama.memory()

    some_load(5)
    before = some_load(6)
    after = max(some_load(seed) for seed in (7, 8))
    assert after - before < 32 << 20, f"{(after - before) >> 20} MiB more after 200 requests"


def test_with_our_output_zeroed_answers_are_others(llama, qwen3):
    requests = [request for request in load.mixed_requests(40, seed=9) if request[1] >= 8]
    for server in (llama, qwen3):
        tokens = asyncio.run(load.answers(server, requests))
        again = functools.partial(load.answers, server, requests)
        assert forms.same_when_zeroed(server, tokens, again) == []
