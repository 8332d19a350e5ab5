"""A client of OpenAI's completions over HTTP, of many requests at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any


class Client:
    """Requests to a server at `port` of this machine."""

    port: int
    log = ""  # what the server has printed

    async def post(self, body: Any, path: str = "/v1/completions") -> tuple[int, Any]:
        """The status and the answer, of a body that is text as it is."""
        text = body if isinstance(body, str) else json.dumps(body)
        async with self._open(text, path) as (parts, status):
            answer = b"".join([part async for part in parts])
        try:
            return status, json.loads(answer)
        except ValueError:
            return status, answer.decode(errors="replace")

    async def tokens(self, prompt: list[int], count: int, **more: Any) -> list[int]:
        """Greedy tokens; AssertionError with the server's words if it refuses."""
        status, answer = await self.post(greedy(prompt, count, **more))
        assert status == 200, answer
        return answer["choices"][0]["token_ids"]

    async def stream(self, prompt: list[int], count: int, **more: Any) -> AsyncIterator[list[int]]:
        """As `tokens`, in the pieces in which the server sends them."""
        body = json.dumps(greedy(prompt, count, stream=True, **more))
        async with self._open(body, "/v1/completions") as (parts, status):
            assert status == 200
            rest = b""
            async for part in parts:
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        event = json.loads(line[6:])
                        assert "choices" in event, f"{event}\n{self.log[-6000:]}"
                        for choice in event["choices"]:
                            if choice.get("token_ids"):
                                yield choice["token_ids"]

    @contextlib.asynccontextmanager
    async def _open(self, text: str, path: str) -> AsyncIterator[tuple]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            body = text.encode()
            head = (
                f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            status = int((await reader.readline()).split()[1])
            headers = {}
            while line := (await reader.readline()).strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            yield _parts(reader, headers), status
        finally:
            writer.close()


async def _parts(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    """An answer's body, by its length, in chunks, or to the connection's end."""
    if "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).strip() or b"0", 16):
            yield await reader.readexactly(size)
            await reader.readline()
    else:
        while part := await reader.read(1 << 16):
            yield part


def greedy(prompt: list[int], count: int, **more: Any) -> dict[str, Any]:
    """The body of a request whose answer holds the numbers of `count` greedy tokens."""
    wanted = dict(max_tokens=count, temperature=0, ignore_eos=True, return_token_ids=True)
    return dict(prompt=prompt) | wanted | more
