"""The PJRT plugin under PyTorch/XLA: which it is, what it runs on, handlers into it."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from torch_xla.experimental import plugins

from xla_gpu import _lib, _register
from xla_gpu._errors import XlaGpuError, make_error
from xla_gpu.torch_xla._device import DEVICE

_HOW = (
    f"set PJRT_DEVICE={DEVICE}, or import xla_gpu.torch_xla before torch_xla, and xla_gpu's plugin "
    "runs a stock XLA plugin for PyTorch/XLA"
)


def plugin_path() -> str:
    """The path of the plugin that runs (or will run) PyTorch/XLA's computations.

    Raises:
      XlaGpuError (FAILED_PRECONDITION): if PyTorch/XLA runs on its built-in CPU client, which
        takes no handlers, or on a device without a plugin.
    """
    device = os.environ.get("PJRT_DEVICE", "")
    plugin = plugins._plugin_registry.get(device.upper())
    if plugin is None:
        raise XlaGpuError(
            f"PyTorch/XLA runs on PJRT_DEVICE={device or '(unset)'}, whose client takes no "
            f"custom-call handlers; {_HOW}",
            9,
        )
    return os.path.realpath(plugin.library_path())


@functools.cache
def _platform_of(path: str) -> str:
    lib = _lib.load()
    function = lib.xla_gpu_pjrt_platform
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)]
    platform = ctypes.c_char_p()
    _lib.check(function(None, path.encode(), ctypes.byref(platform)))
    assert platform.value is not None  # a Status of success comes with a name
    return platform.value.decode()


def platform() -> str:
    """What PyTorch/XLA runs on here, by XLA's name: "CUDA" or "Host"."""
    return _platform_of(plugin_path())


def register_handler(name: str, handler: Any, platform: str, api_version: int) -> str:
    """Registers a handler in the plugin; gives the target name under which XLA knows it.

    That is `name`; or, where XLA has another handler of that name already and cannot replace it,
    `name` with a number.
    """
    path = plugin_path()
    target, number = name, 1
    while True:
        try:
            _register.register(
                target, handler, platform=platform, api_version=api_version, pjrt_plugin=path
            )
            return target
        except XlaGpuError as e:
            if e.code != 6:
                raise make_error(e.code, _with_remedy(str(e), platform, path)) from None
        number += 1
        target = f"{name}.{number}"


def _with_remedy(message: str, platform: str, path: str) -> str:
    """What a user of PyTorch/XLA can do where the message is the plugin's."""
    if "would never be called there" in message:
        runs_on = _platform_of(path)
        return (
            f"{message}; register for '{runs_on}' a handler that works there, or run where the "
            f"plugin is for {'a CPU' if runs_on == 'CUDA' else 'an NVIDIA GPU'} "
            "(XLA_GPU_PJRT_PLUGIN names one; xla-gpu doctor lists them)"
        )
    return message
