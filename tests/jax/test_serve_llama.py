"""examples/jax/serve_llama.py: the step and the scheduler alone, then HTTP as clients see it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_llama
from completions import greedy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_llama import random_requests

sys.path.insert(0, str(tiny_llama.EXAMPLES))
import llama
import serve_llama
from llama_engine import Engine, Sequence

pytestmark = pytest.mark.xdist_group("serve_llama")  # one server for all


@pytest.fixture(scope="module", autouse=True)
def exact_products():
    """GPUs round float32 products otherwise."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """checkpoint(kind): the folder of a tiny random model."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = tiny_llama.write(tmp_path_factory.mktemp(kind), **tiny_llama.KINDS[kind])
        return made[kind]

    return get


def load(folder, dtype=jnp.float32):
    config = llama.read_config(folder)
    return config, llama.load_weights(config, llama.open_tensors(folder), dtype)


# ---- The step ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(checkpoint):
    """An engine whose 14 pages are far too few for its 8 sequences."""
    config, weights = load(checkpoint("llama3"))
    return Engine(config, weights, max_len=128, max_seqs=8, budget=24, page_size=8, num_pages=14)


def new_sequence(prompt, count, temperature=0.0, top_p=1.0, seed=0, stop=frozenset()):
    return Sequence(list(prompt), count, temperature, top_p, seed, stop)


def run(engine, sequences):
    """Runs all to their end; the tokens of each."""
    prompts = [len(s.tokens) for s in sequences]
    for sequence in sequences:
        engine.add(sequence)
    while batch := engine.schedule():
        engine.deliver(batch, np.asarray(engine.start(batch)))
    return [s.tokens[n:] for s, n in zip(sequences, prompts, strict=True)]


@pytest.mark.parametrize("kind", tiny_llama.KINDS)
def test_logits_of_chunks_and_decodes_are_the_models(checkpoint, kind):
    """Two sequences, in chunks that begin and end anywhere in pages that lie anywhere."""
    config, weights = load(checkpoint(kind))
    ids = np.random.default_rng(0).integers(3, 256, (2, 41))
    want = tiny_llama.Reference(checkpoint(kind)).logits(ids)
    tables = np.array([[5, 0, 9], [2, 7, 4]], np.int32)
    shape = (10, 16, 2 * config.kv_heads, config.head_dim)
    caches = [jnp.full(shape, jnp.nan) for _ in range(config.layers)]
    step = jax.jit(lambda *args: llama.forward(config, *args), donate_argnums=1)
    read = np.zeros(2, np.int32)
    for chunk in ((13, 1), (1, 18), (20, 1), (1, 20), (6, 1)):
        new = np.array(chunk, np.int32)
        places = [(s, p) for s in range(2) for p in range(read[s], read[s] + new[s])]
        owner, positions = np.array(places, np.int32).T
        read += new
        batch = llama.Batch(
            tokens=ids[owner, positions],
            positions=positions,
            slots=tables[owner, positions // 16] * 16 + positions % 16,
            lens=read,
            tables=tables,
            starts=np.cumsum([0, *new], dtype=np.int32),
            num_seqs=np.array([2], np.int32),
            temperature=np.zeros(2, np.float32),
            top_p=np.ones(2, np.float32),
            seeds=np.zeros(2, np.uint32),
        )
        logits, caches = step(weights, caches, batch)
        np.testing.assert_allclose(logits, want[[0, 1], read - 1], rtol=1e-3, atol=1e-4)
    assert (read == 41).all()


def test_bfloat16_is_near(checkpoint):
    config, weights = load(checkpoint("llama"), jnp.bfloat16)
    prompt = random_requests(1, seed=3, longest=40, most=1)[0][0]
    engine = Engine(config, weights, max_seqs=1, budget=64, num_pages=8)
    (token,) = run(engine, [new_sequence(prompt, 1)])[0]
    logits = tiny_llama.Reference(checkpoint("llama")).logits(np.array([prompt]))[0, -1]
    assert logits.max() - logits[token] < 0.1  # their deviation is above 1
    assert all(cache.dtype == jnp.bfloat16 for cache in engine.caches)


def test_the_program_calls_ours_and_copies_no_cache(engine):
    shape = ",".join(map(str, engine.caches[0].shape))
    for program in engine.programs.values():
        text = program.as_text()
        for target in ("xla_gpu_update_kv_cache", "xla_gpu_paged_attention"):
            assert text.count(f'custom_call_target="{target}"') == len(engine.caches)
        assert f"f32[{shape}]" in text
        assert not re.search(rf"= f32\[{shape}\]\S* (copy|copy-start|transpose|fusion)\(", text)
        memory = program.memory_analysis()
        assert memory.alias_size_in_bytes >= sum(cache.nbytes for cache in engine.caches)


def test_caches_stay_where_they_are(engine):
    before = [cache.unsafe_buffer_pointer() for cache in engine.caches]
    run(engine, [new_sequence(range(3, 40), 5)])
    assert [cache.unsafe_buffer_pointer() for cache in engine.caches] == before


# ---- Sampling ------------------------------------------------------------------------------------


def draws(logits, temperature, top_p, number):
    """How often each token is drawn."""
    seeds = np.arange(number, dtype=np.uint32)
    batch = llama.Batch(*[None] * 10)._replace(
        lens=np.full(number, 7, np.int32),
        temperature=np.full(number, temperature, np.float32),
        top_p=np.full(number, top_p, np.float32),
        seeds=seeds,
    )
    rows = jnp.tile(jnp.asarray(logits, jnp.float32), (number, 1))
    return np.bincount(jax.jit(llama.sample)(rows, batch), minlength=len(logits))


@pytest.mark.parametrize(
    "temperature, top_p, kept", [(1.0, 1.0, 5), (0.7, 1.0, 5), (1.0, 0.75, 2), (2.0, 0.5, 2)]
)
def test_tokens_are_drawn_as_often_as_they_should(temperature, top_p, kept):
    logits = np.log([0.05, 0.5, 0.1, 0.3, 0.05])
    p = np.exp(logits / temperature)
    p[np.argsort(-p)[kept:]] = 0
    p /= p.sum()
    counts = draws(logits, temperature, top_p, 20_000)
    assert np.abs(counts - 20_000 * p).max() < 5 * np.sqrt(20_000 * 0.25)
    assert (counts[p == 0] == 0).all()


@pytest.mark.parametrize("temperature, top_p", [(0, 1), (1, 0), (1e-30, 1), (0, 0)])
def test_the_likeliest_alone(temperature, top_p):
    assert draws([1.0, 3.0, 2.0], temperature, top_p, 50).tolist() == [0, 50, 0]


def test_a_seed_gives_the_same_tokens_in_another_batch(engine):
    alone = run(engine, [new_sequence([5, 6, 7], 12, temperature=1.0, seed=9)])[0]
    others = [new_sequence([9] * n, 12, temperature=2.0, seed=n) for n in (1, 15, 30)]
    among = run(engine, [*others, new_sequence([5, 6, 7], 12, temperature=1.0, seed=9)])
    assert among[-1] == alone
    assert len({tuple(tokens) for tokens in among}) == 4


# ---- The scheduler -------------------------------------------------------------------------------


def check(engine, batch):
    """What must hold before each step."""
    held = [page for s in engine.running for page in s.table[: s.pages]]
    assert sorted(held + engine.free) == list(range(engine.num_pages))  # each page has one owner
    assert sum(n for _, n in batch) <= engine.budget
    assert len(engine.running) <= engine.max_seqs
    for sequence, n in batch:
        assert sequence in engine.running
        assert sequence.read + n <= len(sequence.tokens) <= sequence.pages * engine.page_size
    decodes = {s for s in engine.running if len(s.tokens) - s.read == 1}
    assert decodes <= {s for s, _ in batch}  # none waits for a prompt
    assert not any(s.pages or s.read for s in engine.waiting)
    assert batch or not (engine.running or engine.waiting)


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_arrivals_and_departures(checkpoint, engine, seed):
    """Random requests come, some are cancelled, pages run out; all others get the right tokens."""
    choose = random.Random(seed)
    reference = tiny_llama.Reference(checkpoint("llama3"))
    requests = random_requests(60, seed, longest=60, most=40)
    coming, came = list(requests), []
    before = engine.preemptions
    while True:
        while coming and choose.random() < 0.4:
            came.append(new_sequence(*coming.pop()))
            engine.add(came[-1])
        batch = engine.schedule()
        check(engine, batch)
        if not batch and not coming:
            break
        if batch:
            tokens = engine.start(batch)
            if choose.random() < 0.1:
                engine.end(choose.choice(came), "cancelled")  # in the midst of a step
            engine.deliver(batch, np.asarray(tokens))
    assert engine.preemptions > before
    assert len(engine.free) == engine.num_pages
    assert not any(s.pages or s.read for s in came)
    done = [s for s in came if s.finish == "length"]
    assert {s.finish for s in came} == {"length", "cancelled"} and len(done) > 20
    asked = [(s.tokens[: -s.made], s.made) for s in done]
    assert reference.wrong(asked, [s.tokens[-s.made :] for s in done]) == []


def test_a_stop_token_ends_a_sequence(engine):
    free = run(engine, [new_sequence([5, 6, 7], 12)])[0]
    stopped = new_sequence([5, 6, 7], 12, stop=frozenset([free[4]]))
    assert run(engine, [stopped])[0] == free[: free.index(free[4]) + 1]
    assert stopped.finish == "stop"


# ---- The checkpoint ------------------------------------------------------------------------------


WRONG_CONFIGS = {
    "architectures": (["GptOssForCausalLM"], r"architectures is \['GptOssForCausalLM'\]"),
    "hidden_act": ("gelu", "hidden_act is 'gelu'; allowed: .*silu"),
    "rope_scaling": ({"rope_type": "yarn"}, "rope_type is 'yarn'; allowed: default, llama3"),
    "quantization_config": ({"quant_method": "fp8"}, "quantization_config is"),
    "intermediate_size": (128, r"mlp.gate_proj.weight is F32 of \[256, 256\]; allowed: .*\[128"),
    "num_hidden_layers": (3, "has the tensor model.layers.2"),
}


@pytest.mark.parametrize("name", WRONG_CONFIGS)
def test_a_checkpoint_that_is_not_served(tmp_path, name):
    value, message = WRONG_CONFIGS[name]
    folder = tiny_llama.write(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda data: data[:-1000], "ends before model.layers.1.* does"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1", "is no safetensors file"),
        (lambda data: b"", "is no safetensors file"),
    ],
)
def test_a_damaged_checkpoint(tmp_path, damage, message):
    (file,) = tiny_llama.write(tmp_path, tie_word_embeddings=True).glob("*.safetensors")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_configs_as_transformers_5_writes_them(tmp_path):
    config = tiny_llama.SIZES | {"dtype": "bfloat16"}
    theta = config.pop("rope_theta")
    config["rope_parameters"] = tiny_llama.LLAMA3 | {"rope_theta": theta}
    (tmp_path / "config.json").write_text(json.dumps(config))
    new = llama.read_config(tmp_path)
    old = tiny_llama.SIZES | {"rope_scaling": tiny_llama.LLAMA3}
    (tmp_path / "config.json").write_text(json.dumps(old))
    np.testing.assert_array_equal(new.frequencies, llama.read_config(tmp_path).frequencies)
    assert new.dtype == "bfloat16"


def test_end_tokens_of_the_generation_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_llama.SIZES))
    assert llama.read_config(tmp_path).eos == {1}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert llama.read_config(tmp_path).eos == {7, 9}


# ---- HTTP ----------------------------------------------------------------------------------------


class Bytes:
    """A tokenizer whose tokens are bytes, of which characters take up to four."""

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")


@pytest.mark.parametrize("text", ["", "plain", "grün — 漢字 🙂🙂 \u0301", "\ufffd kept"])
def test_text_comes_in_whole_characters(text):
    shown = serve_llama.Text(Bytes())
    data = text.encode()
    pieces = [shown.add(byte, i == len(data) - 1) for i, byte in enumerate(data)]
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.integers(0, 300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=5,
)
FIELDS = st.sampled_from(["prompt", "model", *serve_llama.FIELDS]) | st.text(max_size=3)


@given(body=st.dictionaries(FIELDS, VALUES) | VALUES)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_body_is_read_or_refused(engine, body):
    try:
        prompt, fields = serve_llama.Server(engine, None, "tiny").read_completion(
            json.dumps(body).encode()
        )
    except serve_llama.RefusedError as e:
        assert e.body["error"]["message"] and json.dumps(e.body)
    else:
        assert prompt == body["prompt"] and fields.keys() == serve_llama.FIELDS.keys()
        assert engine.most_tokens >= len(prompt) + fields["max_tokens"]


@pytest.fixture(scope="module")
def server(checkpoint, tmp_path_factory):
    """A third of the pages that its 16 sequences need."""
    log = tmp_path_factory.mktemp("server") / "log"
    options = "--max-model-len 128 --max-num-seqs 16 --max-num-batched-tokens 48"
    options += " --page-size 8 --num-pages 40"
    with tiny_llama.serve(checkpoint("llama3"), log, *options.split()) as server:
        yield server


@pytest.fixture
def reference(checkpoint):
    return tiny_llama.Reference(checkpoint("llama3"))


def health(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=30) as answer:
        return json.load(answer)


def idle(server):
    """The state, when nothing runs or waits any more."""
    deadline = time.monotonic() + 30
    while (state := health(server))["running"] or state["waiting"]:
        assert time.monotonic() < deadline, state
        time.sleep(0.05)
    assert state["free_pages"] == state["pages"]
    return state


async def answers(server, requests):
    """The tokens of all requests, sent together; every third is read as a stream."""

    async def one(i, prompt, count):
        if i % 3:
            return await server.tokens(prompt, count)
        return [token async for piece in server.stream(prompt, count) for token in piece]

    return await asyncio.gather(*(one(i, *request) for i, request in enumerate(requests)))


def test_60_requests_at_once(server, reference):
    requests = random_requests(60, seed=1, longest=70, most=50)
    tokens = asyncio.run(answers(server, requests))
    assert reference.wrong(requests, tokens) == []
    assert len({token for answer in tokens for token in answer}) > 100  # no model of one word
    state = idle(server)
    assert state["preemptions"] > 0
    assert state["steps"] < sum(map(len, tokens)) / 3  # they ran together


def test_clients_that_go_away_give_their_pages_back(server, reference):
    async def leave_stream(prompt):
        async for _ in server.stream(prompt, 90):
            return

    async def leave(prompt, seconds):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.tokens(prompt, 120), seconds)

    requests = random_requests(20, seed=2, longest=50, most=40)

    async def all_together():
        leaving = [leave_stream([7 + i] * 20) for i in range(10)]
        leaving += [leave([8], 0.01 * i) for i in range(1, 4)]
        return (await asyncio.gather(answers(server, requests), *leaving))[0]

    tokens = asyncio.run(all_together())
    assert reference.wrong(requests, tokens) == []
    idle(server)


BAD = {  # body, the field it names, words of the message
    "no JSON": ('{"prompt": [5', None, "the body is no JSON"),
    "deep JSON": ("[" * 100_000, None, "the body is no JSON"),
    "a list": ("[5]", None, "no JSON object"),
    "no prompt": ({}, "prompt", "allowed: a list of token numbers below 256"),
    "text without a tokenizer": (greedy("text", 4), "prompt", 'prompt is "text"'),
    "text and numbers": ({"prompt": ["t5", 7]}, "prompt", 'prompt is ["t5", 7]'),
    "empty prompt": (greedy([], 4), "prompt", "at least one token"),
    "unknown token": (greedy([5, 256], 4), "prompt", "[5, 256]"),
    "negative token": (greedy([5, -7], 4), "prompt", "[5, -7]"),
    "true for a token": (greedy([5, True], 4), "prompt", "[5, true]"),
    "long prompt": (greedy([5] * 128, 4), "prompt", "has 128 tokens and max_tokens is 4"),
    "too many tokens": (greedy([5], 128), "max_tokens", "129 together; allowed: 128"),
    "negative max_tokens": (greedy([5], -1), "max_tokens", "-1; allowed: an integer from 1"),
    "max_tokens in words": (greedy([5], "many"), "max_tokens", '"many"'),
    "huge max_tokens": (greedy([5], 10**30), "max_tokens", "allowed: an integer"),
    "cold": (greedy([5], 4, temperature=-1), "temperature", "-1; allowed: a number from 0 to 100"),
    "no number": (greedy([5], 4, temperature=float("nan")), "temperature", "NaN"),
    "top_p": (greedy([5], 4, top_p=1.5), "top_p", "1.5; allowed: a number from 0 to 1"),
    "stream": (greedy([5], 4, stream="yes"), "stream", '"yes"; allowed: true or false'),
    "seed": (greedy([5], 4, seed=2**32), "seed", "allowed: an integer from 0 to 4294967295"),
    "another model": (greedy([5], 4, model="elsewhere"), "model", '"elsewhere"'),
    "several answers": (greedy([5], 4, n=2), "n", "n is 2; allowed: no field but"),
}


def test_bad_requests_name_what_is_wrong_and_change_no_other(server, reference):
    requests = random_requests(10, seed=3, longest=50, most=20)

    async def all_together():
        bad = [server.post(body) for body, _, _ in BAD.values()]
        return await asyncio.gather(answers(server, requests), *bad)

    tokens, *replies = asyncio.run(all_together())
    for (name, (_, param, words)), (status, answer) in zip(BAD.items(), replies, strict=True):
        assert (status, answer["error"]["param"]) == (400, param), (name, answer)
        assert words in answer["error"]["message"], name
    assert reference.wrong(requests, tokens) == []


RAW = {  # bytes, status
    "another path": (b"GET /v2 HTTP/1.1\r\n\r\n", 404),
    "another method": (b"DELETE /health HTTP/1.1\r\n\r\n", 405),
    "no length": (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
    "odd length": (b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 411),
    "long body": (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", 413),
    "long header": (b"GET /health HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
    "noise": (bytes(range(256)) + b"\r\n\r\n", 404),
    "not UTF-8": (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n\xff\xfe", 400),
    "nothing": (b"", None),
    "half a header": (b"GET /hea", None),
    "half a body": (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", None),
}


@pytest.mark.parametrize("name", RAW)
def test_what_is_no_request(server, name):
    data, status = RAW[name]
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1 << 16)
    assert answer.split(b" ")[1:2] == ([str(status).encode()] if status else [])
    assert server.process.poll() is None
    idle(server)


def test_sampling_options_reach_the_step(server):
    async def all_together():
        asked = [{"seed": 1}, {"seed": 1}, {"seed": 2}, {"top_p": 0}, {"temperature": 0}]
        options = ({"temperature": 1.5} | one for one in asked)
        return await asyncio.gather(*(server.tokens([5, 6, 7], 20, **one) for one in options))

    one, again, other, narrow, cold = asyncio.run(all_together())
    assert one == again != other
    assert narrow == cold != one


def test_a_long_answer_ends_with_its_client_and_with_the_server(checkpoint, tmp_path):
    config = tiny_llama.SIZES | {"max_position_embeddings": 1 << 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = ["--dummy-weights", "--max-num-seqs", "2", "--max-num-batched-tokens", "8"]

    with tiny_llama.serve(tmp_path, tmp_path / "log", *options) as server:

        async def left():
            await server.stream([5], 60_000).__anext__()

        async def interrupted():
            asked = asyncio.ensure_future(server.post(greedy([5], 60_000)))
            stream = server.stream([5], 60_000)
            await stream.__anext__()
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(AssertionError, match="the server stops"):
                async for _ in stream:
                    pass
            return await asked

        asyncio.run(left())
        assert idle(server)["steps"] < 60_000
        status, answer = asyncio.run(interrupted())
        assert status == 503 and "the server stops" in answer["error"]["message"]
        assert server.process.wait(20) == 0
        assert "Traceback" not in server.log


@pytest.mark.parametrize(
    "options, words",
    [
        ([], "no *.safetensors here has the tensor model.embed_tokens.weight"),
        (["--dummy-weights", "--max-num-batched-tokens", "8"], "at least the 64 sequences"),
        (["--dummy-weights", "--max-model-len", "513"], "allowed: the model's 512"),
        (["--num-pages", "0"], "0 is not above 0"),
        (["--dummy-weights", "--port", "70000"], "port must be 0-65535"),
    ],
)
def test_a_start_that_fails_says_why(tmp_path, options, words):
    (tmp_path / "config.json").write_text(json.dumps(tiny_llama.SIZES))
    command = [sys.executable, tiny_llama.EXAMPLES / "serve_llama.py", tmp_path, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert words in done.stderr and "Traceback" not in done.stderr
