"""examples/jax/serve_llama.py with checkpoints that transformers has written: its own tokens."""

from __future__ import annotations

import asyncio
import json

import load
import numpy as np
import pytest
import tiny_llama
import tokenizers
import torch
import transformers
from completions import greedy

OPTIONS = ["--max-model-len", "128", "--max-num-seqs", "16", "--max-num-batched-tokens", "32"]
TIGHT = ["--num-pages", "24"]  # of the 128 that 16 sequences could have


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def server(kind, checkpoint, tmp_path_factory):
    log = tmp_path_factory.mktemp("example") / "log"
    with tiny_llama.serve(checkpoint(kind), log, *OPTIONS, *TIGHT) as server:
        yield server


def test_60_requests_at_once(server, kind, reference):
    requests = load.mixed_requests(60, seed=11, longest=70, most=50)
    tokens = asyncio.run(load.answers(server, requests))
    assert load.wrong(reference(kind), requests, tokens) == []


def test_text_in_and_out(server, kind, checkpoint):
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint(kind) / "tokenizer.json"))
    body = greedy("t8 t120 t3", 12, stream=True)

    async def both():
        numbers = await server.tokens(tokenizer.encode("t8 t120 t3").ids, 12)
        return numbers, await server.post(body)

    numbers, (status, answer) = asyncio.run(both())
    assert status == 200
    lines = [line[6:] for line in answer.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines]
    assert [choice["token_ids"] for choice in choices] == [[number] for number in numbers]
    assert "".join(choice["text"] for choice in choices) == tokenizer.decode(numbers)
    assert [choice["finish_reason"] for choice in choices] == [None] * 11 + ["length"]


@pytest.mark.parametrize("kind", tiny_llama.KINDS)
def test_the_float64_model_is_transformers(kind, tmp_path):
    """That by which tests/jax/test_serve_llama.py goes, where transformers is not installed."""
    folder = tiny_llama.write(tmp_path, **tiny_llama.KINDS[kind])
    ids = np.random.default_rng(0).integers(3, 256, (2, 150))
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    model = getattr(transformers, name).from_pretrained(folder).eval()
    with torch.inference_mode():
        own = model(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(tiny_llama.Reference(folder).logits(ids), own, rtol=1e-3, atol=1e-4)
