"""Under which platform a handler is to be registered: what is accepted, what helps otherwise."""

import ctypes
import importlib.util
import pathlib

import pytest

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("PyTorch/XLA is not installed (make test-torch)", True)

HAS_GPU = pathlib.Path("/dev/nvidiactl").exists()

import xla_gpu.torch_xla  # before torch_xla: it chooses the device

# isort: split
import torch
import torch_xla
import xla_gpu
from xla_gpu.torch_xla import platform, plugin_info, register_custom_call_target

NAMES = {"CUDA": ["CUDA", "cuda", "GPU", "gpu"], "Host": ["Host", "cpu"]}
OTHER = {"CUDA": "Host", "Host": "CUDA"}


def call(target, api_version):
    a = torch.ones(3, device=torch_xla.device())
    (result,) = torch_xla._XLAC._xla_custom_call(
        [a, a], target, [[3]], [torch.float32], False, "", api_version, {}
    )
    return result.cpu().tolist()


def test_the_platform_is_the_plugins():
    assert platform() == plugin_info()["platform"] == ("CUDA" if HAS_GPU else "Host")


@pytest.mark.parametrize("name", [*NAMES["CUDA"], *NAMES["Host"]])
def test_every_name_of_the_platform_works(name):
    handler = xla_gpu.handler("simple_add", platform=platform())
    target = f"find_platform_{name}"
    if name in NAMES[platform()]:
        register_custom_call_target(target, handler, name, 4)
        assert call(target, 4) == [2, 2, 2]
        return
    with pytest.raises(ValueError) as raised:
        register_custom_call_target(target, handler, name, 4)
    message = str(raised.value)
    assert f"runs on {platform()}, so a handler for platform '{OTHER[platform()]}' would" in message
    assert f"register for '{platform()}'" in message and "XLA_GPU_PJRT_PLUGIN" in message


@pytest.mark.parametrize("name", ["ROCM", "Cuda", "XLA_GPU", "xla:0", "", None])
def test_other_names_are_refused(name):
    handler = xla_gpu.handler("simple_add", platform=platform())
    with pytest.raises(ValueError, match=r"platform is .*; allowed are Host, cpu, CUDA, cuda"):
        register_custom_call_target("find_platform_wrong", handler, name, 4)


def test_a_missing_registration_says_what_to_do():
    with pytest.raises(LookupError) as raised:
        call("NobodyRegisteredThis", 1)
    assert (
        "register_custom_call_target('NobodyRegisteredThis', handler, "
        f"'{platform()}', api_version=1)" in str(raised.value)
    )


def test_a_typed_handler_called_as_untyped_says_what_to_do():
    handler = xla_gpu.handler("simple_add", platform=platform())
    register_custom_call_target("find_platform_typed", handler, platform(), 4)
    for version in (1, 2, 3):
        with pytest.raises(ValueError, match="call it with api_version=4, or register a handler"):
            call("find_platform_typed", version)
    assert call("find_platform_typed", 4) == [2, 2, 2]


@pytest.mark.skipif(HAS_GPU, reason="the CUDA plugin takes untyped handlers")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_untyped_handlers_on_the_cpu_are_refused(version):
    function = ctypes.CDLL(None).strlen  # any function: it is never called
    with pytest.raises(NotImplementedError) as raised:
        register_custom_call_target("find_platform_untyped", function, "Host", version)
    message = str(raised.value)
    assert f"takes typed FFI handlers only (FFI 0.2), not API version {version}" in message
    assert "api_version 4" in message


@pytest.mark.skipif(not HAS_GPU, reason="the CPU plugin takes no untyped handlers")
def test_an_untyped_handler_called_as_typed_says_what_to_do():
    handler = xla_gpu.handler("simple_add", platform="CUDA", api_version=1)
    register_custom_call_target("find_platform_legacy", handler, "CUDA")
    with pytest.raises(ValueError, match="call it with api_version=1, or register a handler"):
        call("find_platform_legacy", 4)


@pytest.mark.parametrize("version", [0, 5, None, True, "4"])
def test_versions_that_do_not_exist(version):
    with pytest.raises(ValueError, match=r"api_version is .*; allowed are 1, 2, 3"):
        register_custom_call_target("find_platform_version", 1, platform(), version)
