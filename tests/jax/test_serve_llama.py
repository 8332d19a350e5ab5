"""examples/jax/serve_llama.py over HTTP, as clients see it: every greedy token is the model's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import types
import urllib.request

import pytest
import tiny_llama
from completions import greedy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_llama import random_requests

sys.path.insert(0, str(tiny_llama.EXAMPLES))
import serve_llama

pytestmark = pytest.mark.xdist_group("serve_llama")  # one server for all


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
def test_any_body_is_read_or_refused(body):
    engine = types.SimpleNamespace(config=types.SimpleNamespace(vocab=256), most_tokens=128)
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
def server(llama_checkpoint, tmp_path_factory):
    """A third of the pages that its 16 sequences need."""
    log = tmp_path_factory.mktemp("server") / "log"
    options = "--max-model-len 128 --max-num-seqs 16 --max-num-batched-tokens 48"
    options += " --page-size 8 --num-pages 40"
    with tiny_llama.serve(llama_checkpoint("llama3"), log, *options.split()) as server:
        yield server


@pytest.fixture
def reference(llama_checkpoint):
    return tiny_llama.Reference(llama_checkpoint("llama3"))


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


SMALL = ["--dummy-weights", "--max-num-seqs", "2", "--max-num-batched-tokens", "8"]


def test_a_long_answer_ends_with_its_client_and_with_the_server(tmp_path):
    config = tiny_llama.SIZES | {"max_position_embeddings": 1 << 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with tiny_llama.serve(tmp_path, tmp_path / "log", *SMALL) as server:

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
        ([*SMALL, "--port", "70000"], "port must be 0-65535"),
    ],
)
def test_a_start_that_fails_says_why(tmp_path, options, words):
    assert words in failed_start(tmp_path, tiny_llama.SIZES, *options)


@pytest.mark.parametrize("dtype", ["auto", "float8_e4m3fn"])
def test_a_dtype_that_the_server_has_not_is_refused(tmp_path, dtype):
    said = failed_start(tmp_path, {**tiny_llama.SIZES, "dtype": dtype})
    assert f"config.json: dtype is '{dtype}'; allowed: float32, bfloat16, float16, or" in said


def failed_start(folder, config, *options):
    """What a server says that ends before it serves."""
    (folder / "config.json").write_text(json.dumps(config))
    command = [sys.executable, tiny_llama.EXAMPLES / "serve_llama.py", folder, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return done.stderr
