"""Gemma 3 over HTTP with speculation by n-grams: every greedy token must be transformers' own."""

import asyncio
import json

import load
import pytest
from server import serve

NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
NGRAM |= {"prompt_lookup_min": 1, "prompt_lookup_max": 2}


@pytest.fixture(scope="module")
def server(checkpoint, tmp_path_factory):
    options = ["--dtype", "float32", "--max-model-len", "256", "--max-num-batched-tokens", "64"]
    options += ["--num-gpu-blocks-override", "96", "--max-num-seqs", "16"]
    options += ["--speculative-config", json.dumps(NGRAM)]
    exact = {"JAX_DEFAULT_MATMUL_PRECISION": "highest", "MODEL_IMPL_TYPE": "vllm"}
    folder = tmp_path_factory.mktemp("server")
    with serve(checkpoint("gemma3"), folder / "gemma3", *options, **exact) as running:
        running.wait()
        yield running


def test_200_requests_at_once(server, reference):
    requests = load.mixed_requests(200, seed=3)
    tokens = asyncio.run(load.answers(server, requests))
    assert load.wrong(reference("gemma3"), requests, tokens) == []
    counted = server.metrics()
    drafted, accepted = (
        counted[f"vllm:spec_decode_num_{what}_tokens_total"] for what in ("draft", "accepted")
    )
    assert drafted > accepted > 0
    # Steps that only verify drafts have up to 16 * 4 tokens, and none was compiled later.
    assert server.promises() == [(16, 0), (32, 0), (32, 4), (64, 0), (64, 4)]
