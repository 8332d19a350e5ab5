"""What docs/vllm.md says is served, over HTTP; all of it: tests/gpu/vllm_suite.py http.

Llama and Qwen3 are in test_serving.py, Gemma 3 in test_speculation.py. Qwen2's own
defaults ask for a repetition penalty.
"""

from __future__ import annotations

import concurrent.futures
import os

import forms
import pytest
import step_program

HERE = (
    "qwen3moe",
    "gptoss mxfp4",
    "qwen3moe fp8",
    "llama dp2",
    "qwen3moe tp2",
    "qwen3moe ep2",
    "qwen2",
)


@pytest.fixture(scope="module")
def served(checkpoint, tmp_path_factory):
    """served(name): what came of it; two are served at once, as a start keeps one core busy."""
    names = [name for name in HERE if forms.FORMS[name].devices <= forms.devices()]
    for name in names:
        checkpoint.reference(forms.FORMS[name].checkpoint)
    folder = tmp_path_factory.mktemp("forms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", f"{forms.TWO_OF_THE_CPU} {os.environ.get('XLA_FLAGS', '')}")
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            found = {name: pool.submit(forms.served, name, checkpoint, folder) for name in names}

    def get(name):
        return found[name].result() if name in found else pytest.skip("there is one device")

    return get


@pytest.mark.parametrize("name", HERE)
def test_200_requests_at_once(served, name):
    assert served(name).faults == {}


@pytest.mark.parametrize("name", ["qwen3moe tp2", "qwen3moe ep2"])
def test_a_step_over_two_devices_leaves_experts_where_they_are(served, name):
    for program in served(name).programs:
        moved = step_program.moved(program)
        assert moved  # sums over devices
        assert max(moved) <= 64 * 256  # hidden states; experts' smallest part is 8 * 64 * 256
