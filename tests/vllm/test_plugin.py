"""What the plugin replaces, when it refuses, and why host arrays are copied; without a server."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import types

import jax
import numpy as np
import pytest
import xla_gpu.vllm_xla
from server import environment, run, vllm_command
from xla_gpu.vllm_xla import _encoder, _names, _replace, _sampling
from xla_gpu.vllm_xla._names import UnsupportedError


@pytest.fixture
def module(tmp_path, monkeypatch):
    """module(text): a module of this text, by a name of its own."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text, name="some_release_of_tpu_inference"):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return make


# ---- Refusals ------------------------------------------------------------------------------------


def test_the_installed_pair_is_known():
    _names.check()


@pytest.mark.parametrize("package", ["tpu-inference", "vllm-tpu"])
def test_another_release_is_refused_by_name(monkeypatch, package):
    known = dict.fromkeys(_names.PACKAGES, "0.32.0")
    monkeypatch.setattr(_names, "installed", lambda name: (known | {package: "0.33.1"})[name])
    with pytest.raises(UnsupportedError, match=f"{package} 0.33.1 is installed.*{package}==0.32.0"):
        _names.check()


def test_two_releases_at_once_are_refused(monkeypatch):
    versions = {"tpu-inference": "0.31.0", "vllm-tpu": "0.32.0"}
    monkeypatch.setattr(_names, "installed", versions.get)
    with pytest.raises(UnsupportedError, match="vllm-tpu 0.32.0 is installed.*vllm-tpu==0.31.0"):
        _names.check()


def test_a_missing_package_is_refused(monkeypatch):
    monkeypatch.setattr(_names, "installed", lambda name: None)
    with pytest.raises(UnsupportedError, match="tpu-inference is not installed"):
        _names.check()


def test_vllm_stops_with_our_words_at_another_release(checkpoint, tmp_path):
    """Not with a TPU's error later: vLLM itself passes over a platform that fails to be found."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "real = m.version\n"
        "m.version = lambda name: '0.33.0' if name == 'tpu-inference' else real(name)\n"
    )
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    done = run(*vllm_command(), "serve", checkpoint("llama"), PYTHONPATH=path)
    assert done.returncode != 0
    assert "tpu-inference 0.33.0 is installed; it knows 0.31.0 and 0.32.0" in done.stderr


def test_the_scheduler_knows_which_runner_it_has(checkpoint):
    """Where Triton works (on GPUs) vLLM takes it for its own second one, and it fails."""
    program = """
import sys
import vllm.config.vllm as config
from vllm.engine.arg_utils import EngineArgs

config.HAS_TRITON = True
print("V2:", EngineArgs(model=sys.argv[1]).create_engine_config().use_v2_model_runner)
"""
    done = run(sys.executable, "-c", program, checkpoint("llama"))
    assert "V2: False" in done.stdout, done.stderr[-3000:]


def test_the_other_runner_is_refused(checkpoint):
    done = run(*vllm_command(), "serve", checkpoint("llama"), VLLM_USE_V2_MODEL_RUNNER="1")
    assert done.returncode != 0
    assert "VLLM_USE_V2_MODEL_RUNNER is '1'" in done.stderr


@pytest.mark.parametrize(
    "asked", [{"logprob_token_ids": [5]}, {"seed": 3}, {"thinking_token_budget": 9}]
)
def test_a_request_for_what_the_sampler_does_not_read_is_refused_by_name(asked):
    from vllm import SamplingParams
    from xla_gpu.vllm_xla.platform import XlaPlatform

    name = next(iter(asked))
    with pytest.raises(_names.VLLMValidationError, match=f"{name} is .* allowed is None"):
        XlaPlatform.validate_request(None, SamplingParams(**asked))


@pytest.mark.parametrize("beside", [{}, {"repetition_penalty": "speculation"}])
@pytest.mark.parametrize("asked", [{}, {"repetition_penalty": 1.2}])
def test_a_models_own_defaults_are_dropped_where_they_are_not_done(
    checkpoint, tmp_path, beside, asked
):
    from vllm.config import ModelConfig

    of_model = {"repetition_penalty": 1.05, "temperature": 0.7, "top_k": 20}
    folder = shutil.copytree(checkpoint("llama"), tmp_path / "llama")
    (folder / "generation_config.json").write_text(json.dumps(of_model))
    model = ModelConfig(str(folder), override_generation_config=dict(asked))
    _sampling.drop_defaults(model, beside)
    # What the server's own options ask for stays, and so is refused.
    want = of_model | asked
    if beside and not asked:
        del want["repetition_penalty"]
    assert model.get_diff_sampling_param() == want


ADJUSTING = dict(
    presence_penalty=0.5,
    frequency_penalty=0.5,
    repetition_penalty=1.05,
    min_p=0.1,
    logit_bias={5: 1.0},
    allowed_token_ids=[5],
    bad_words=["t5"],
    min_tokens=2,
)


@pytest.mark.parametrize(
    ("served", "none"),
    [
        ({}, {}),
        (
            {"speculative_config": "some"},
            {"prompt_logprobs", "structured_outputs", *ADJUSTING},
        ),
        ({"additional_config": {"enable_continue_decode": True}}, ADJUSTING.keys()),
        ({"parts": 2}, ["structured_outputs"]),
        ({"images": {}}, ["prompt_logprobs"]),
        ({"images": {"image": 1, "video": 0}}, ["prompt_logprobs"]),
        ({"images": {"image": 0, "video": 0}}, {}),
    ],
)
def test_requests_that_end_the_engine_or_change_nothing_are_refused_by_name(
    monkeypatch, served, none
):
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from xla_gpu.vllm_xla.platform import XlaPlatform

    config = types.SimpleNamespace(
        sharding_config=types.SimpleNamespace(total_dp_size=served.get("parts", 1)),
        model_config=types.SimpleNamespace(
            is_multimodal_model="images" in served,
            multimodal_config=types.SimpleNamespace(
                limit_per_prompt={
                    kind: types.SimpleNamespace(count=count)
                    for kind, count in served.get("images", {}).items()
                }
            ),
        ),
        speculative_config=served.get("speculative_config"),
        additional_config=served.get("additional_config", {}),
    )
    monkeypatch.setattr(XlaPlatform, "_beside", _sampling.not_beside(config))
    grammar = StructuredOutputsParams(regex="t5*")
    asked = {"prompt_logprobs": 0, "structured_outputs": grammar, "logprobs": 0}
    for name, value in (asked | ADJUSTING).items():
        refused = pytest.raises(_names.VLLMValidationError, match=f"{name} came; .* beside")
        with refused if name in none else contextlib.nullcontext():
            XlaPlatform.validate_request(None, SamplingParams(**{name: value}))


def test_other_requests_are_taken():
    from vllm import PoolingParams, SamplingParams
    from xla_gpu.vllm_xla.platform import XlaPlatform

    some = dict(temperature=0.5, top_p=0.5, top_k=3, stop=["t5"], stop_token_ids=[6], logprobs=2)
    for params in (
        SamplingParams(),
        SamplingParams(n=2, prompt_logprobs=1, **some),
        SamplingParams(min_tokens=5, ignore_eos=True),
        SamplingParams(temperature=0, seed=1),
        PoolingParams(),
    ):
        XlaPlatform.validate_request(None, params)


@pytest.mark.parametrize(
    "text",
    ["", "f = 3", "def f(a): ...", "def f(a, b, c): ...", "def f(b, a): ..."],
)
def test_a_changed_function_is_refused_and_left(module, monkeypatch, text):
    changed = module(text)
    monkeypatch.setitem(_names.REPLACED, changed.__name__, {"f": "a, b"})
    before = dict(vars(changed))
    with pytest.raises(
        UnsupportedError, match=r"should have f\(a, b\) but has.*known are 0\.31\.0"
    ):
        _names.replace(f"{changed.__name__}.f", lambda original: original)
    assert vars(changed) == before


def test_a_function_is_replaced_once(module, monkeypatch):
    some = module("class C:\n    def f(self, a): return a\n")
    monkeypatch.setitem(_names.REPLACED, f"{some.__name__}:C", {"f": "self, a"})
    for _ in range(2):
        _names.replace("C.f", lambda f: lambda self, a: f(self, a) + 1)
    assert some.C().f(1) == 2


def test_a_function_of_other_releases_is_left(module, monkeypatch):
    some = module("def f(a): return a\n")
    monkeypatch.setitem(_names.REPLACED, some.__name__, {"f": {"0.1.0": "a"}})
    _names.replace(f"{some.__name__}.f", lambda f: None)
    assert some.f(1) == 1


@pytest.mark.parametrize("place", ["some_release_of_tpu_inference", "no_module_of_tpu_inference"])
def test_a_missing_name_is_told_with_the_releases(module, monkeypatch, place):
    module("")
    monkeypatch.setitem(_names.TAKEN, place, "g, h")
    with pytest.raises(UnsupportedError, match=rf"{place} should.*tpu-inference 0\.3.*known are"):
        _names.h  # noqa: B018
    monkeypatch.setitem(_names.TAKEN, place, {"0.1.0": "g, h"})
    assert not hasattr(_names, "h")


def test_the_tables_are_those_of_what_is_installed():
    """By the syntax of all modules; scripts/check_vllm_names.py does so with other releases."""
    script = pathlib.Path(__file__).parents[2] / "scripts" / "check_vllm_names.py"
    packages = pathlib.Path(importlib.util.find_spec("tpu_inference").origin).parents[1]
    done = run(sys.executable, script, packages)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tpu-inference {_names.installed('tpu-inference')}: no other names" in done.stdout


@pytest.mark.parametrize("options", ['{"xla_tpu_a": "1", "xla_gpu_b": "2"}', "{}"])
def test_options_that_are_not_the_tpus_are_refused(module, options):
    other = module(f"def options():\n    return {options}\n")
    with pytest.raises(UnsupportedError, match="options of TPUs"):
        _replace._without_options(other.options)


def test_our_signatures_are_the_tpu_kernels_and_a_promise():
    from xla_gpu.vllm_xla import _attention as ours

    for name in ours.__all__:
        _, theirs = _names.parameters(f"attention_interface.{name}")
        _names.expect(ours, name, f"{theirs}, max_query_len")


@pytest.mark.parametrize(
    ("file", "has_gpu", "alone"),
    [
        ("accel0", True, True),
        ("vfio/0", False, True),
        ("vfio/0", True, False),
        ("vfio/vfio", False, False),
        ("accel/accel0", False, False),
    ],
)
def test_a_tpu_machine_is_left_alone(monkeypatch, tmp_path, file, has_gpu, alone):
    monkeypatch.setattr(xla_gpu.vllm_xla.pathlib, "Path", lambda _: tmp_path)
    monkeypatch.setattr(xla_gpu.vllm_xla, "has_gpu", lambda: has_gpu)
    assert xla_gpu.vllm_xla.platform_plugin() == xla_gpu.vllm_xla.PLATFORM
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    assert xla_gpu.vllm_xla.platform_plugin() == (None if alone else xla_gpu.vllm_xla.PLATFORM)


# ---- Host arrays ---------------------------------------------------------------------------------


def on_a_boundary(size):
    """An int32 array that begins on a 64-byte boundary."""
    room = np.zeros(size + 16, np.int32)
    start = -room.ctypes.data // 4 % 16
    return room[start : start + size]


def test_the_runners_buffer_may_change_after_its_transfer():
    """The cause of wrong tokens under load: on the CPU the device's array is the host's buffer."""
    device = jax.devices("cpu")[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    buffer = on_a_boundary(1000)

    def put(tensor, sharding, layout=None, source_mesh=None):
        return jax.device_put(tensor, sharding)

    for place, changed in ((put, True), (_replace._put_copies(put), False)):
        buffer[:] = 1
        (array,) = place((buffer,), sharding)
        array.block_until_ready()
        buffer[:] = 7  # the runner prepares the next step
        assert bool((np.asarray(array) == 7).all()) == changed


# ---- Encoders ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_encoders_attend_within_segments(monkeypatch, parts, causal, biased):
    batch, heads, kv_heads, tokens, size = 2, 4, 2, 64, 8
    monkeypatch.setattr(_encoder, "_LOGITS", batch * heads * tokens * tokens // parts)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(batch, n, tokens, size)) for n in (heads, kv_heads, kv_heads))
    bias = rng.normal(size=(batch, heads, tokens, tokens)) if biased else None
    of = np.sort(rng.integers(0, 3, (batch, tokens)))
    got = _encoder.flash_attention(
        *(x.astype(np.float32) for x in (q, k, v)),
        ab=None if bias is None else bias.astype(np.float32),
        segment_ids=types.SimpleNamespace(q=of, kv=of),
        causal=causal,
        sm_scale=0.3,
    )
    k, v = (np.repeat(x, heads // kv_heads, 1) for x in (k, v))
    logits = 0.3 * np.einsum("bhtd,bhsd->bhts", q, k) + (0 if bias is None else bias)
    mask = of[:, None, :, None] == of[:, None, None, :]
    weights = np.where(mask & np.tri(tokens, dtype=bool) if causal else mask, np.exp(logits), 0)
    want = np.einsum("bhts,bhsd->bhtd", weights / weights.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(got, want, atol=1e-5)


# ---- Quantized checkpoints -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "config", "names", "plain", "quantized"),
    [
        (
            "fp8",
            "VllmFp8Config",
            ["a.0.qkv_proj", "a.1.experts"],
            ["a.1.experts"],
            ["a.10.experts"],
        ),
        (
            "awq",
            "VllmAWQConfig",
            ["visual", "a.1.q", "a.1.k"],
            ["b.visual.c", "a.1.qk"],
            ["a.2.qk"],
        ),
        ("awq", "VllmAWQConfig", ["mlp.gate"], ["a.0.mlp.gate"], ["a.0.mlp.experts"]),
    ],
)
def test_layers_that_a_checkpoint_has_as_floats_are_floats(
    monkeypatch, module, config, names, plain, quantized
):
    """AWQ's names are parts of names, and experts have a method too."""
    _replace.layers_that_are_not_quantized()
    found = importlib.import_module(f"tpu_inference.layers.vllm.quantization.{module}")
    config = object.__new__(getattr(found, config))
    config.ignored_layers = config.modules_to_not_convert = names
    config.packed_modules_mapping = {"qk": ["q", "k"]}
    config.ignored_layers_match_mode = "exact"
    monkeypatch.setattr(
        _names.VllmUnquantizedConfig, "get_quant_method", lambda self, layer, prefix: "floats"
    )
    for kind in (_names.LinearBase, _names.RoutedExperts):
        layer = object.__new__(kind)
        assert {config.get_quant_method(layer, prefix) for prefix in plain} == {"floats"}
        for prefix in quantized:
            with pytest.raises(AttributeError):  # of a layer that has nothing
                config.get_quant_method(layer, prefix)


# ---- Devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("visible", "own"), [(None, "2,3"), ("7,5,3,1,0", "3,1")])
@pytest.mark.parametrize(("number", "here"), [(1, None), (1, 1), (5, 1)])  # 5: on another machine
def test_each_part_of_the_requests_has_gpus_of_its_own(monkeypatch, visible, own, number, here):
    from xla_gpu.vllm_xla.worker import _keep_own_gpus

    config = types.SimpleNamespace(
        sharding_config=types.SimpleNamespace(total_devices=2),
        parallel_config=types.SimpleNamespace(
            data_parallel_index=number, data_parallel_rank_local=here
        ),
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    _keep_own_gpus(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == own
    with pytest.raises(
        UnsupportedError, match=rf"2 GPUs, its numbers are \[2, 3\], and .* is {own}"
    ):
        _keep_own_gpus(config)


@pytest.mark.parametrize(("visible", "own"), [(None, "4,1"), ("7,5,3,1,0", "0,5")])
def test_an_engine_has_the_gpus_that_device_ids_gives_it(monkeypatch, visible, own):
    from xla_gpu.vllm_xla.worker import _keep_own_gpus

    config = types.SimpleNamespace(
        sharding_config=types.SimpleNamespace(total_devices=2),
        parallel_config=types.SimpleNamespace(
            data_parallel_index=1, data_parallel_rank_local=1, assigned_physical_gpu_ids=[4, 1]
        ),
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    _keep_own_gpus(config)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == own
    config.sharding_config.total_devices = 3
    with pytest.raises(UnsupportedError, match=r"3 GPUs, its numbers are \[4, 1\]"):
        _keep_own_gpus(config)


# ---- Steps ---------------------------------------------------------------------------------------


def test_a_request_that_comes_back_has_its_tokens(monkeypatch):
    """Also the one that the runner notes 0 for until it is there."""
    from xla_gpu.vllm_xla.worker import XlaWorker

    monkeypatch.setattr(XlaWorker.__base__, "execute_model", lambda self, output: output)
    worker = object.__new__(XlaWorker)
    state = types.SimpleNamespace(num_prompt_tokens=2, output_token_ids=[7, 0])
    noted = []
    asked = types.SimpleNamespace(note=noted.append)
    worker.model_runner = types.SimpleNamespace(requests={"a": state}, asked=asked)
    back = types.SimpleNamespace(all_token_ids={"a": [1, 2, 7, 9]})
    output = types.SimpleNamespace(scheduled_cached_reqs=back)
    assert worker.execute_model(output) is output
    assert state.output_token_ids == [7, 9]
    assert noted == [output]
