"""What requests ask to be done to their logits, by vLLM's definitions and transformers' class."""

from __future__ import annotations

from typing import Any

import torch
import transformers

END = 1  # the tokenizer's eos
WHOLE = [*range(3, 10), *range(30, 100)]  # of others' texts it takes the first letters for t1, t2


def numbers(text: str) -> list[int]:
    """The numbers of the words t5, t6, ..."""
    return [int(word[1:]) for word in text.split()]


def adjusted(
    logits: torch.Tensor, prompt: list[int], made: list[int], asks: dict[str, Any]
) -> torch.Tensor:
    """A row of logits, after a prompt and the tokens made of it; asks: as OpenAI's API has it."""
    logits = logits.clone()
    if allowed := asks.get("allowed_token_ids"):
        others = torch.ones(len(logits), dtype=torch.bool)
        others[allowed] = False
        logits[others] = -torch.inf
    for *before, last in map(numbers, asks.get("bad_words", ())):
        if len(before) <= len(made) and made[len(made) - len(before) :] == before:
            logits[last] = -torch.inf
    if len(made) < asks.get("min_tokens", 0):
        logits[[END, *asks.get("stop_token_ids", ())]] = -torch.inf
    for word, bias in asks.get("logit_bias", {}).items():
        logits[word] += bias
    repetition = asks.get("repetition_penalty", 1.0)
    known = torch.tensor([prompt + made])
    if repetition != 1:
        of = transformers.RepetitionPenaltyLogitsProcessor(repetition)
        logits = of(known, logits[None])[0]
    counts = torch.bincount(torch.tensor(made, dtype=torch.long), minlength=len(logits))
    logits = logits - asks.get("frequency_penalty", 0.0) * counts
    return logits - asks.get("presence_penalty", 0.0) * (counts > 0)


# Of requests in one batch; most change most of the tokens of a model that is random.
ASKS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.8, "frequency_penalty": 0.6},
    {},
    {"allowed_token_ids": list(range(3, 256, 5))},
    {"repetition_penalty": 0.7, "presence_penalty": -0.5, "logprobs": 1},
    {"logit_bias": {word: 1.5 - word % 4 for word in range(3, 90)}},
    {},
    {"min_tokens": 6, "stop_token_ids": list(range(4, 256, 2))},
    {"bad_words": [f"t{word}" for word in WHOLE]},
    {"bad_words": ["t50 t50", "t50 t51 t50"], "logit_bias": {50: 100, 51: 50}},
    {
        "repetition_penalty": 1.2,
        "frequency_penalty": -0.3,
        "logit_bias": {50: 2, 51: 100, 53: -100},
        "bad_words": [f"t{word}" for word in WHOLE[::2]],
        "allowed_token_ids": list(range(40, 140)),
    },
]


def asks_of(requests: list[tuple[list[int], int]]) -> list[dict[str, Any]]:
    """What each of the requests (prompt, tokens wanted) asks; none ends before it has them."""
    asks = [ASKS[i % len(ASKS)] for i in range(len(requests))]
    return [
        one | {"min_tokens": count} if "min_tokens" in one else one
        for one, (_, count) in zip(asks, requests, strict=True)
    ]
