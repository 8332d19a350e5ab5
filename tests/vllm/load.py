"""Many requests at once, and how many of their answers are transformers' own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from completions import Client, greedy
from tiny_models import Reference, random_prompt

Request = tuple[list[int], int]  # prompt, tokens wanted

MALFORMED = {
    "no JSON": '{"prompt": [5',
    "no prompt": "{}",
    "prompt of text and numbers": {"prompt": ["t5", 7]},
    "empty prompt": greedy([], 4),
    "unknown word": greedy([5, 9_999], 4),
    "negative word": greedy([5, -7], 4),
    "negative length": greedy([5], -1),
    "length that is no number": greedy([5], "many"),
    "another model": greedy([5], 4, model="elsewhere"),
    "temperature below zero": greedy([5], 4, temperature=-1),
    "what is not sampled": greedy([5], 4, thinking_token_budget=5),
    "a word that is not": greedy([5], 4, allowed_token_ids=[9_999]),
    "seed": greedy([5], 4, temperature=1, seed=3),
    "too long": greedy(random_prompt(300, 0), 4),
}


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


async def answer(server: Client, request: Request, stream: bool, **more: Any) -> list[int]:
    """The tokens of a request, read at once or as a stream."""
    if not stream:
        return await server.tokens(*request, **more)
    return [token async for piece in server.stream(*request, **more) for token in piece]


async def answers(
    server: Client, requests: Iterable[Request], asks: Sequence[dict[str, Any]] = ({},)
) -> list[list[int]]:
    """The tokens of all requests, sent together; every third is read as a stream.

    `asks` are what they ask besides, in turns.
    """
    together = (
        answer(server, request, i % 3 == 0, **asks[i % len(asks)])
        for i, request in enumerate(requests)
    )
    return await asyncio.gather(*together)


def wrong(
    reference: Reference, requests: list[Request], tokens: list[list[int]], **asks: Any
) -> list[str]:
    """A line for each request whose answer is not transformers' own."""
    pairs = [(prompt, got) for (prompt, _), got in zip(requests, tokens, strict=True)]
    return unlike(requests, reference.ranks(pairs, **asks))


def unlike(requests: list[Request], ranks: list[torch.Tensor]) -> list[str]:
    """The same, of the tokens' ranks."""
    lines = []
    for i, ((_, count), rank) in enumerate(zip(requests, ranks, strict=True)):
        if len(rank) != count:
            lines.append(f"request {i}: {len(rank)} tokens, {count} were asked for")
        elif len(at := rank.nonzero()):
            lines.append(f"request {i}: token {int(at[0])} of {count} differs")
    return lines
