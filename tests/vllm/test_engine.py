"""vLLM's engine in one process, through the plugin: what servers are not started for."""

from __future__ import annotations

import json
import pathlib
import sys

import load
import pytest
import tiny_images
import tiny_models
from asked import asks_of
from forms import ASKING, FORMS, IN_THE_ENGINE, TWO_OF_THE_CPU, compared
from server import QUICK, run

REQUESTS = load.mixed_requests(60, seed=9, longest=70, most=24)
DOZEN = REQUESTS[:12]


@pytest.fixture(scope="module")
def printed(checkpoint):
    """What engine_program.py prints: the tokens of each case, and what vLLM says to others."""
    names = {form.checkpoint for form in FORMS.values()} - set(tiny_models.FAMILIES)
    for name in (*names, "llama3 eagle3", "glm4moe mtp", "qwen3tied dflash"):
        checkpoint(name)
    tiny_images.make_gemma3_config(checkpoint.folder / "gemma3 images")
    program = pathlib.Path(__file__).parent / "engine_program.py"
    command = [sys.executable, program, checkpoint.folder, json.dumps(REQUESTS)]
    done = run(
        *command,
        seconds=1800,
        JAX_DEFAULT_MATMUL_PRECISION="highest",
        XLA_FLAGS=f"{TWO_OF_THE_CPU} {QUICK}",
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    cases = [json.loads(text) for word, _, text in lines if word == "CASE"]
    (said,) = [json.loads(text) for word, _, text in lines if word == "SAID"]
    return dict(cases), said


@pytest.fixture
def tokens(printed):
    return printed[0]


OTHERS = {
    "ours": "llama64",
    "plain hd64": "llama64",
    "plain": "llama",
    "several steps": "qwen3moe",
}


WORDS = [case for case in IN_THE_ENGINE if case not in tiny_images.KINDS]


@pytest.mark.parametrize("case", [*WORDS, *OTHERS])
def test_tokens_are_transformers_own(tokens, reference, case):
    form = FORMS[OTHERS.get(case, case)]
    if form.devices > 1 and case not in tokens:
        pytest.skip("there is one device")
    requests = REQUESTS[: len(tokens[case])]
    assert len(requests) >= 12
    asks = {"asks": asks_of(requests)} if case in ASKING else {}
    assert compared(form, reference(form.checkpoint), requests, tokens[case], **asks)[1] == []


def test_with_our_output_zeroed_they_are_not(tokens, reference):
    wrong = load.wrong(reference("llama64"), DOZEN, tokens["zeroed"])
    assert len(wrong) == len(DOZEN)


@pytest.mark.parametrize("kind", tiny_images.KINDS)
def test_images(tokens, reference, kind):
    requests = tiny_images.requests(6)
    assert load.wrong(reference(kind), requests, tokens[kind]) == []
    # With the images of another request they would not be.
    ((prompt, _), _), ((_, other), _) = requests[1], requests[4]
    assert reference(kind).first_differences([((prompt, other), tokens[kind][1])]) != [None]


def test_fp8_cache(tokens, reference):
    """The same numbers from the same rounded keys and values; and rounded they are."""
    assert tokens["fp8 cache"] == tokens["fp8 cache, plain"]
    assert load.wrong(reference("llama"), DOZEN, tokens["fp8 cache"]) != []


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("chunks", "attention in chunks of 64 tokens is unknown to tpu-inference"),
        ("images", "words of an image that see each other are unknown to tpu-inference"),
        ("latent attention", "multi-head latent attention (MLA) is a TPU kernel"),
        ("delta nets", "of state-space and linear-attention layers tpu-inference has gated delta"),
        ("quantization", "quantization 'fp8' of a checkpoint that is not quantized"),
        ("gptq", "quantization 'auto_gptq' has no class in tpu-inference"),
        ("4 bits", "compressed-tensors with integer weights and activations of 16 bits"),
        ("speculation", "speculation 'draft_model' is not known to tpu-inference"),
        ("dflash", "speculation 'dflash' needs tied embeddings and a flax model"),
        ("several steps", "several decode steps in one program"),
        ("decode", "decode_context_parallel_size is 2"),
        ("prefill", "prefill_context_parallel_size is 2"),
        ("logprobs", "logprobs_mode is 'raw_logits'"),
        ("embeds", "enable_prompt_embeds came"),
        ("processors", "logits_processors came"),
    ],
)
def test_what_only_tpus_run_is_refused(printed, asked, answer):
    assert f"xla_gpu.vllm_xla: {answer}" in printed[1][asked]
