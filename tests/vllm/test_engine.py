"""vLLM's engine in one process, through the plugin: what servers are not started for."""

from __future__ import annotations

import functools
import json
import pathlib
import sys

import load
import other_models
import pytest
import tiny_images
import tiny_models
import torch
from server import run

REQUESTS = load.mixed_requests(60, seed=9, longest=70, most=24)
DOZEN = REQUESTS[:12]
# Checkpoints with quantized weights, and how many of the tokens must be those of the same weights
# in float32. fp8 checkpoints run in bfloat16, where what enters a layer is often rounded otherwise.
QUANTIZED = {
    ("qwen3moe", "fp8"): 0.75,
    ("qwen3moe", "fp8 blocks"): 0.75,
    ("qwen3moe", "compressed fp8"): 0.95,
    ("llama", "compressed int8"): 0.95,
}
# case: checkpoint, in float32.
FOUR_BITS = {
    "gpt-oss mxfp4": "gptoss mxfp4",
    "gpt-oss mxfp4, two devices": "gptoss mxfp4",
    "llama awq": "llama awq",
    "llama nvfp4": "llama nvfp4",
    "qwen3moe awq": "qwen3moe awq",
    "qwen3moe nvfp4": "qwen3moe nvfp4",
}


@pytest.fixture(scope="module")
def quantized(checkpoint, tmp_path_factory):
    """quantized(kind, scheme): the folder that other_models.make writes."""
    folders = {}

    def get(kind, scheme):
        if (kind, scheme) not in folders:
            folder = folders[kind, scheme] = tmp_path_factory.mktemp("quantized")
            other_models.make(checkpoint(kind), folder, scheme)
        return folders[kind, scheme]

    return get


@pytest.fixture(scope="module")
def four_bits(checkpoint, tmp_path_factory):
    """four_bits(name): the folder of a checkpoint with weights of 4 bits, "quantized" and "floats".

    The size of gpt-oss's experts is no multiple of 128, half of it none of 64.
    """

    @functools.cache
    def get(name):
        kind, scheme = name.split()
        folder = tmp_path_factory.mktemp(scheme)
        if scheme == "mxfp4":
            plain = tiny_models.make(kind, folder / "plain", intermediate_size=192)
            other_models.make_mxfp4(plain, folder)
        else:
            make = {"awq": other_models.make_awq, "nvfp4": other_models.make_nvfp4}[scheme]
            make(checkpoint(kind), folder)
        return folder

    return get


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """images(kind): the folder that tiny_images.make writes."""
    return functools.cache(lambda kind: tiny_images.make(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope="module")
def printed(checkpoint, quantized, four_bits, images, tmp_path_factory):
    """What engine_program.py prints: the tokens of each case, and what vLLM says to others."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind in tiny_models.KINDS:
        (folder / kind).symlink_to(checkpoint(kind))
    for kind, scheme in QUANTIZED:
        (folder / f"{kind} {scheme}").symlink_to(quantized(kind, scheme) / "quantized")
    for name in set(FOUR_BITS.values()):
        (folder / name).symlink_to(four_bits(name) / "quantized")
    other_models.make_draft(checkpoint("llama3"), folder / "eagle3")
    other_models.make_dflash(checkpoint("qwen3tied"), folder / "dflash")
    tiny_images.make_gemma3_config(folder / "gemma3 images")
    for kind in tiny_images.KINDS:
        (folder / kind).symlink_to(images(kind))
    program = pathlib.Path(__file__).parent / "engine_program.py"
    command = [sys.executable, program, folder, json.dumps(REQUESTS)]
    done = run(
        *command,
        seconds=600,
        JAX_DEFAULT_MATMUL_PRECISION="highest",
        XLA_FLAGS="--xla_force_host_platform_device_count=2",  # of the CPU
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    cases = [json.loads(text) for word, _, text in lines if word == "CASE"]
    (said,) = [json.loads(text) for word, _, text in lines if word == "SAID"]
    return dict(cases), said


@pytest.fixture
def tokens(printed):
    return printed[0]


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("ours", "llama64"),
        ("plain hd64", "llama64"),
        ("plain", "llama"),
        ("flax, by vLLM's loader", "qwen3"),
        ("window", "mistral"),
        ("two devices", "llama"),
        ("torchax, two devices", "qwen3"),
        ("sequences on two devices", "llama"),
        ("gemma 2", "gemma2"),
        ("gemma", "gemma3"),
        ("gemma 4", "gemma4"),
        ("speculation", "llama"),
        ("speculation, torchax", "qwen3"),
        ("draft model", "llama3"),
        ("dflash", "qwen3tied"),
        ("mixtral", "mixtral"),
        ("gpt-oss", "gptoss"),
        ("llama 4", "llama4"),
        ("glm 4", "glm4moe"),
        ("qwen3-moe, experts on two devices", "qwen3moe"),
        ("several steps", "qwen3moe"),
    ],
)
def test_tokens_are_transformers_own(tokens, reference, case, kind):
    if "two devices" in case and case not in tokens:
        pytest.skip("there is one device")
    requests = REQUESTS[: len(tokens[case])]
    assert len(requests) >= 12
    assert load.wrong(reference(kind), requests, tokens[case]) == []


def test_with_our_output_zeroed_they_are_not(tokens, reference):
    wrong = load.wrong(reference("llama64"), DOZEN, tokens["zeroed"])
    assert len(wrong) == len(DOZEN)


def same_tokens(reference, tokens):
    """How many of the dozen's tokens are the reference's own."""
    pairs = zip([prompt for prompt, _ in DOZEN], tokens, strict=True)
    ranks = torch.cat(reference.ranks(list(pairs)))
    return float((ranks == 0).float().mean())


@pytest.mark.parametrize(("kind", "scheme"), QUANTIZED)
def test_quantized_weights(tokens, quantized, kind, scheme):
    floats = tiny_models.Reference(quantized(kind, scheme) / "floats")
    other_models.round_activations(floats.model, scheme)
    assert same_tokens(floats, tokens[f"{kind} {scheme}"]) > QUANTIZED[kind, scheme]


@pytest.mark.parametrize("case", FOUR_BITS)
def test_weights_of_4_bits_are_exact(tokens, four_bits, case):
    if "two devices" in case and case not in tokens:
        pytest.skip("there is one device")
    requests = REQUESTS[: len(tokens[case])]
    assert len(requests) >= 12
    floats = tiny_models.Reference(four_bits(FOUR_BITS[case]) / "floats")
    assert load.wrong(floats, requests, tokens[case]) == []


@pytest.mark.parametrize(
    ("case", "kind"),
    [("images", "qwen2_5_vl"), ("images, torchax", "qwen3_vl")],
)
def test_images(tokens, images, case, kind):
    reference = tiny_images.Reference(images(kind))
    requests = tiny_images.requests()
    gaps = [
        reference.gap(*request, got) for request, got in zip(requests, tokens[case], strict=True)
    ]
    assert max(gaps) < tiny_models.TIE
    # With the images of another request they would not be.
    (prompt, seen), other = requests[1], requests[4][1]
    assert reference.gap(prompt, seen, tokens[case][1]) < tiny_models.TIE
    assert reference.gap(prompt, other, tokens[case][1]) > tiny_models.TIE


def test_fp8_cache(tokens, reference):
    """The same numbers from the same rounded keys and values; and rounded they are."""
    assert tokens["fp8 cache"] == tokens["fp8 cache, plain"]
    assert load.wrong(reference("llama"), DOZEN, tokens["fp8 cache"]) != []


def test_bfloat16(tokens, reference):
    """No float32 reference can be met to the last token, but mostly."""
    assert same_tokens(reference("qwen3"), tokens["bfloat16"]) > 0.95


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
    ],
)
def test_what_only_tpus_run_is_refused(printed, asked, answer):
    assert f"xla_gpu.vllm_xla: {answer}" in printed[1][asked]
