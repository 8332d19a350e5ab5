"""Many requests at once, and how many of their answers are transformers' own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from completions import Client
from tiny_models import Reference, random_prompt

Request = tuple[list[int], int]  # prompt, tokens wanted


def mixed_requests(
    number: int, seed: int, *, longest: int = 90, most: int = 24, shared: int = 0
) -> list[Request]:
    """Requests of mixed lengths; with `shared`, half of them begin with the same words."""
    choose = random.Random(seed)
    start = random_prompt(shared, seed)
    requests = []
    for i in range(number):
        prompt = random_prompt(choose.randint(1, longest), seed * 10_000 + i)
        prompt = (start if i % 2 else []) + prompt
        requests.append((prompt, choose.randint(1, most)))
    return requests


async def answers(server: Client, requests: Iterable[Request]) -> list[list[int]]:
    """The tokens of all requests, sent together; every third is read as a stream."""

    async def one(i: int, prompt: list[int], count: int) -> list[int]:
        if i % 3:
            return await server.tokens(prompt, count)
        return [token async for piece in server.stream(prompt, count) for token in piece]

    return await asyncio.gather(*(one(i, *request) for i, request in enumerate(requests)))


def wrong(reference: Reference, requests: list[Request], tokens: list[list[int]]) -> list[str]:
    """A line for each request whose answer is not transformers' own."""
    prompts = [prompt for prompt, _ in requests]
    places = reference.first_differences(list(zip(prompts, tokens, strict=True)))
    lines = []
    for i, ((prompt, count), got, at) in enumerate(zip(requests, tokens, places, strict=True)):
        if len(got) != count:
            lines.append(f"request {i}: {len(got)} tokens, {count} were asked for")
        elif at is not None:
            lines.append(f"request {i}: token {at} of {count} after {len(prompt)} words differs")
    return lines
