"""A server of Llama and Qwen3 models in JAX alone: continuous batching, streams over HTTP.

    python examples/jax/serve_llama.py FOLDER
    curl localhost:8000/v1/completions -d '{"prompt": "Once upon a time", "stream": true}'

FOLDER is a model as Hugging Face keeps it: config.json, *.safetensors and, for prompts that are
text instead of token numbers, tokenizer.json (read by the package `tokenizers`). On the CPU or one
GPU. Here is HTTP; the model is in llama.py, the making of batches in llama_engine.py, both beside
this file, and docs/decode-loop.md explains them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http
import itertools
import json
import pathlib
import random
import signal
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import llama
from llama_engine import Engine, Sequence

MAX_BODY = 2 << 20
DTYPES = ("float32", "bfloat16", "float16")
WORDS = {int: "an integer", float: "a number", bool: "true or false"}
FIELDS = {  # of a completion, besides its prompt: type, default, least, most
    "max_tokens": (int, 16, 1, 1 << 31),
    "temperature": (float, 1.0, 0, 100),
    "top_p": (float, 1.0, 0, 1),
    "seed": (int, None, 0, (1 << 32) - 1),
    "stream": (bool, False, False, True),
    "ignore_eos": (bool, False, False, True),
    "return_token_ids": (bool, False, False, True),
}


class RefusedError(Exception):
    """A request that gets an error for an answer."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


async def read_request(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    """Method, path and body."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        raise RefusedError("the header is longer than 64 KiB", status=431) from None
    first, *lines = head.split("\r\n")
    method, path, *_ = [*first.split(" "), ""]
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise RefusedError("a body comes with its Content-Length, in one piece", status=411)
    if len(length) > 9 or int(length) > MAX_BODY:
        raise RefusedError(f"the body has {length[:20]} bytes; allowed: {MAX_BODY}", status=413)
    return method, path, await reader.readexactly(int(length))


def respond(writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
    text = json.dumps(body).encode()
    writer.write(
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode()
        + text
    )


async def until_closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass


class Text:
    """The text of tokens as they come; a character may take several."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.tokens, self.begin, self.shown = tokenizer, [], 0, 0

    def add(self, token: int, last: bool) -> str:
        if self.tokenizer is None:
            return ""
        self.tokens.append(token)
        before = self.tokenizer.decode(self.tokens[self.begin : self.shown])
        now = self.tokenizer.decode(self.tokens[self.begin :])
        if now.endswith("\ufffd") and not last:
            return ""
        self.begin, self.shown = self.shown, len(self.tokens)
        return now[len(before) :]


class Server:
    """Answers OpenAI's completion requests, one a connection."""

    def __init__(self, engine: Engine, tokenizer: Any, name: str) -> None:
        self.engine, self.tokenizer, self.name = engine, tokenizer, name
        self.connections: set[asyncio.Task] = set()
        self.numbers = itertools.count()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(task := asyncio.current_task())
        # Clients that go away, or send no whole request in a minute, get no answer.
        gone = (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError)
        try:
            with contextlib.suppress(*gone):
                try:
                    request = await asyncio.wait_for(read_request(reader), 60)
                    await self.answer(*request, reader, writer)
                except RefusedError as e:
                    respond(writer, e.status, e.body)
                await writer.drain()
        finally:
            writer.close()
            self.connections.discard(task)

    async def answer(self, method: str, path: str, body: bytes, reader, writer) -> None:
        paths = {"/health": "GET", "/v1/completions": "POST"}
        if path not in paths:
            raise RefusedError(f"path is {path[:80]}; allowed: {', '.join(paths)}", status=404)
        if method != paths[path]:
            raise RefusedError(f"method is {method[:80]}; allowed: {paths[path]}", status=405)
        if method == "POST":
            await self.complete(body, reader, writer)
        else:
            respond(writer, 200, self.engine.state())

    def read_completion(self, body: bytes) -> tuple[list[int], dict[str, Any]]:
        """The prompt's tokens and the FIELDS."""
        try:
            asked = json.loads(body)
        except (ValueError, RecursionError) as e:
            raise RefusedError(f"the body is no JSON: {e}") from None
        if not isinstance(asked, dict):
            raise RefusedError("the body is no JSON object")

        def refused(name: str, allowed: str) -> RefusedError:
            came = json.dumps(asked.get(name))
            came = came if len(came) <= 80 else f"{came[:80]}..."
            return RefusedError(f"{name} is {came}; allowed: {allowed}", name)

        for name in asked:
            if name not in (*FIELDS, "prompt", "model", "user"):
                raise refused(name, f"no field but prompt, model, user, {', '.join(FIELDS)}")
        fields = {}
        for name, (kind, default, least, most) in FIELDS.items():
            value = fields[name] = default if asked.get(name) is None else asked[name]
            kinds = (int, float) if kind is float else (kind,)
            if value is not None and not (type(value) in kinds and least <= value <= most):
                limits = "" if kind is bool else f" from {least} to {most}"
                raise refused(name, WORDS[kind] + limits)
        if asked.get("model") not in (None, self.name):
            raise refused("model", self.name)
        prompt, vocab = asked.get("prompt"), self.engine.config.vocab
        if isinstance(prompt, str) and self.tokenizer is not None:
            try:
                prompt = self.tokenizer.encode(prompt).ids
            except (TypeError, UnicodeError):
                raise refused("prompt", "text in Unicode") from None
        if not isinstance(prompt, list) or not all(
            type(token) is int and 0 <= token < vocab for token in prompt
        ):
            text = "text, or " if self.tokenizer else ""
            raise refused("prompt", f"{text}a list of token numbers below {vocab}")
        if not prompt:
            raise refused("prompt", "at least one token")
        both, most = len(prompt) + fields["max_tokens"], self.engine.most_tokens
        if both > most:
            message = f"prompt has {len(prompt)} tokens and max_tokens is {fields['max_tokens']}"
            message += f", {both} together; allowed: {most}"
            raise RefusedError(message, "prompt" if len(prompt) >= most else "max_tokens")
        return prompt, fields

    async def complete(self, body: bytes, reader, writer) -> None:
        prompt, asked = self.read_completion(body)
        seed = random.getrandbits(32) if asked["seed"] is None else asked["seed"]
        sampling = {"temperature": asked["temperature"], "top_p": asked["top_p"], "seed": seed}
        stop = frozenset() if asked["ignore_eos"] else self.engine.config.eos
        sequence = Sequence(list(prompt), asked["max_tokens"], stop=stop, **sampling)
        envelope = {"id": f"cmpl-{next(self.numbers)}", "object": "text_completion"}
        envelope |= {"created": int(time.time()), "model": self.name}

        def choices(text: str, tokens: list[int], finish: str | None) -> dict[str, Any]:
            choice = {"index": 0, "text": text, "finish_reason": finish}
            ids = {"token_ids": tokens} if asked["return_token_ids"] else {}
            return {**envelope, "choices": [choice | ids]}

        self.engine.add(sequence)
        gone = asyncio.ensure_future(until_closed(reader))
        gone.add_done_callback(lambda _: self.engine.end(sequence, "cancelled"))
        try:
            if asked["stream"]:
                head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream"
                writer.write(f"{head}\r\n\r\n".encode())
            text, whole, tokens, finish = Text(self.tokenizer), "", [], None
            while finish is None:
                token, finish = await sequence.events.get()
                if token is None:  # its client is gone, or the server stops
                    raise RefusedError(f"the request was {finish}", status=503)
                piece = text.add(token, finish is not None)
                whole += piece
                tokens.append(token)
                if asked["stream"]:
                    writer.write(event(choices(piece, [token], finish)))
                    await writer.drain()
        except RefusedError as e:
            if not asked["stream"]:
                raise
            writer.write(event(e.body))
        else:
            counts = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
            if asked["stream"]:
                writer.write(b"data: [DONE]\n\n")
            else:
                respond(writer, 200, choices(whole, tokens, finish) | {"usage": counts})
        finally:
            gone.cancel()


def event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


async def serve(server: Server, host: str, port: int) -> None:
    """Until SIGINT or SIGTERM, or a step fails."""
    engine, loop = server.engine, asyncio.get_running_loop()
    steps = loop.create_task(engine.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, steps.cancel)
    try:
        listening = await asyncio.start_server(server.connection, host, port)
    except (OSError, OverflowError) as e:
        sys.exit(f"serve_llama: {e}")
    port = listening.sockets[0].getsockname()[1]
    size = f"{engine.num_pages} pages of {engine.page_size} tokens on {jax.devices()[0]}"
    print(f"{server.name} on http://{host}:{port}, {size}", flush=True)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await steps
    finally:
        listening.close()
        for sequence in [*engine.running, *engine.waiting]:
            engine.end(sequence, "ended, as the server stops")
        if server.connections:
            await asyncio.wait(server.connections, timeout=5)


def open_tokenizer(folder: pathlib.Path) -> Any:
    try:
        import tokenizers
    except ImportError:
        return None
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.no_truncation()  # files have what their models were trained with
    tokenizer.no_padding()
    return tokenizer


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    option = parser.add_argument
    option("folder", type=pathlib.Path, help="config.json, *.safetensors, tokenizer.json")
    option("--host", default="127.0.0.1")
    option("--port", type=int, default=8000, help="0: a free one")
    option("--dtype", choices=DTYPES, help="config.json's if not given")
    option("--dummy-weights", action="store_true", help="random ones, without *.safetensors")
    option("--max-model-len", type=positive, help="tokens of prompt and answer; the model's")
    option("--max-num-seqs", type=positive, default=64, help="in one step")
    option("--max-num-batched-tokens", type=positive, default=512, help="in one step")
    option("--page-size", type=positive, default=16)
    option("--num-pages", type=positive, help="most of a GPU's memory, or 1 GiB")
    given = parser.parse_args()
    try:
        config = llama.read_config(given.folder)
        if (named := given.dtype or config.dtype) not in DTYPES:
            allowed = f"{', '.join(DTYPES)}, or one of them by --dtype"
            raise ValueError(f"config.json: dtype is {named!r}; allowed: {allowed}")
        dtype = jnp.dtype(named)
        dummy = given.dummy_weights
        tensors = llama.random_tensors(dtype) if dummy else llama.open_tensors(given.folder)
        weights = llama.load_weights(config, tensors, dtype)
        engine = Engine(
            config,
            weights,
            max_len=given.max_model_len,
            max_seqs=given.max_num_seqs,
            budget=given.max_num_batched_tokens,
            page_size=given.page_size,
            num_pages=given.num_pages,
        )
        tokenizer = open_tokenizer(given.folder)
    except (OSError, ValueError) as e:
        sys.exit(f"serve_llama: {e}")
    name = given.folder.resolve().name
    asyncio.run(serve(Server(engine, tokenizer, name), given.host, given.port))


if __name__ == "__main__":
    main()
