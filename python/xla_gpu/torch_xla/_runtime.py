"""The PJRT plugin under PyTorch/XLA: what it runs on, handlers into it."""

from __future__ import annotations

import functools
from typing import Any

from xla_gpu import _register, torch_xla_plugin
from xla_gpu._errors import StatusCode, XlaGpuError, make_error


@functools.cache
def _plugin() -> dict[str, Any]:
    return torch_xla_plugin.plugin_info()


def _stock_plugin() -> str:
    """The path of the stock plugin that runs (or will run) PyTorch/XLA's computations."""
    device = torch_xla_plugin.device()
    if device != torch_xla_plugin.DEVICE:
        raise XlaGpuError(
            f"PyTorch/XLA runs on PJRT_DEVICE={device or '(unset)'}, whose client this library can "
            f"register no handlers in; start with PJRT_DEVICE={torch_xla_plugin.DEVICE}, or import "
            "xla_gpu.torch_xla before torch_xla",
            StatusCode.FAILED_PRECONDITION,
        )
    return str(_plugin()["path"])


def platform() -> str:
    """What PyTorch/XLA runs on here, by XLA's name: "CUDA" or "Host".

    Raises:
      XlaGpuError: PyTorch/XLA runs on another device than XLA_GPU, or there is no stock plugin.
    """
    _stock_plugin()
    return str(_plugin()["platform"])


def ops_platform() -> str:
    """`platform`, where this library's ops can be called; else the error that says why not."""
    where = platform()
    if _plugin()["problem"]:
        raise XlaGpuError(
            f"the ops cannot be called here: {_plugin()['problem']}", StatusCode.FAILED_PRECONDITION
        )
    return where


def register_handler(name: str, handler: Any, platform: str, api_version: int) -> str:
    """Registers a handler in the plugin; gives the target name under which XLA knows it.

    That is `name`; or, where XLA has another handler of that name already and cannot replace it,
    `name` with a number.
    """
    path = _stock_plugin()
    target, number = name, 1
    while True:
        try:
            _register.register(
                target, handler, platform=platform, api_version=api_version, pjrt_plugin=path
            )
            return target
        except XlaGpuError as e:
            if e.code != StatusCode.ALREADY_EXISTS:
                raise make_error(e.code, _with_remedy(str(e))) from None
        number += 1
        target = f"{name}.{number}"


def _with_remedy(message: str) -> str:
    """What a user of PyTorch/XLA can do where the message is the plugin's."""
    if "would never be called there" not in message:
        return message
    runs_on, needed = ("CUDA", "a CPU") if platform() == "CUDA" else ("Host", "an NVIDIA GPU")
    return (
        f"{message}; register for '{runs_on}' a handler that works there, or run on {needed} "
        "(XLA_GPU_PJRT_PLUGIN names the plugin; xla-gpu doctor lists them)"
    )
