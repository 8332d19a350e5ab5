"""vLLM's engine in one process, through the plugin: head_dim 64, windows, fp8 caches, bfloat16."""

from __future__ import annotations

import json
import pathlib
import sys

import load
import pytest
from server import run

REQUESTS = load.mixed_requests(12, seed=9, longest=70, most=24)


@pytest.fixture(scope="module")
def printed(checkpoint, tmp_path_factory):
    """What engine_program.py prints: the tokens of each case, and what vLLM says to others."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for kind in ("gemma3", "llama", "llama64", "mistral", "qwen3"):
        (folder / kind).symlink_to(checkpoint(kind))
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
        ("window", "mistral"),
        ("two devices", "llama"),
        ("gemma", "gemma3"),
        ("speculation", "llama"),
        ("speculation, torchax", "qwen3"),
    ],
)
def test_tokens_are_transformers_own(tokens, reference, case, kind):
    if case == "two devices" and case not in tokens:
        pytest.skip("there is one device")
    assert load.wrong(reference(kind), REQUESTS, tokens[case]) == []


def test_with_our_output_zeroed_they_are_not(tokens, reference):
    wrong = load.wrong(reference("llama64"), REQUESTS, tokens["zeroed"])
    assert len(wrong) == len(REQUESTS)


def test_fp8_cache(tokens, reference):
    """The same numbers from the same rounded keys and values; and rounded they are."""
    assert tokens["fp8 cache"] == tokens["fp8 cache, plain"]
    assert load.wrong(reference("llama"), REQUESTS, tokens["fp8 cache"]) != []


def test_bfloat16(tokens, reference):
    """No float32 reference can be met to the last token, but mostly."""
    pairs = zip([prompt for prompt, _ in REQUESTS], tokens["bfloat16"], strict=True)
    first = reference("qwen3").first_differences(list(pairs))
    assert sum(at is None or at > 0 for at in first) > len(REQUESTS) * 2 // 3


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("moe", "mixture-of-experts layers are TPU kernels"),
        ("quantization", "quantization 'fp8' multiplies in TPU kernels"),
        ("speculation", "speculation 'eagle3' has a draft model"),
    ],
)
def test_what_only_tpus_run_is_refused(printed, asked, answer):
    assert f"xla_gpu.vllm_xla: {answer}" in printed[1][asked]
