"""The device XLA_GPU of PyTorch/XLA: libxla_gpu_pjrt.so as one of its PJRT plugins.

PyTorch/XLA 2.9 has no client for NVIDIA GPUs of its own. It loads PJRT plugins, but the stock CUDA
plugins do not fit it: it aborts at their platform's name, and its argument structs are older than
theirs. libxla_gpu_pjrt.so stands between the two.

torch_xla imports this module by its entry point, in the middle of its own import; so it is no part
of `xla_gpu.torch_xla`, which needs all of torch_xla, and it imports little.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import warnings
from typing import Any

import torch_xla
from torch_xla.experimental import plugins

from xla_gpu import _lib
from xla_gpu._errors import InvalidArgumentError, NotFoundError, StatusCode, XlaGpuError

DEVICE = "XLA_GPU"
PLUGIN_NAME = "libxla_gpu_pjrt.so"
_PJRT_DEVICE = "PJRT_DEVICE"
_PLATFORM = "XLAGPU"  # what libxla_gpu_pjrt.so calls its platform, as torch_xla writes it

# `import torch_xla` chooses a device where the user has not, after it has loaded the entry points.
# So this tells whether the user has, if this module is loaded as one of them or before.
_device_was_chosen = _PJRT_DEVICE in os.environ


@functools.cache
def plugin_path() -> str:
    """The path of libxla_gpu_pjrt.so, which lies beside libxla_gpu.so; NotFoundError without it."""
    path = pathlib.Path(_lib.library_path()).with_name(PLUGIN_NAME)
    if not path.is_file():
        raise NotFoundError(
            f"{path} does not exist; install the wheel again, or run 'make build' in a checkout"
        )
    return str(path)


def plugin_info() -> dict[str, Any]:
    """What the device XLA_GPU runs on; the stock plugin is loaded if it is not loaded yet.

    Returns:
      "path": of the stock PJRT plugin; "platform": "CUDA" or "Host", as `xla_gpu.register` takes
      it; "pjrt": its PJRT version; "problem": why the ops of this library cannot be called there,
      empty if they can.

    Raises:
      XlaGpuError: no stock plugin was found or it cannot be loaded; the message says what to do.
    """
    found: dict[str, Any] = json.loads(_lib.text_of(_lib.load().xla_gpu_pjrt_compat_info))
    return found


def _variable(name: str, allowed: tuple[str, ...] = ()) -> str:
    name = f"XLA_PYTHON_CLIENT_{name}"
    value = os.environ.get(name, "").lower()
    if value and allowed and value not in allowed:
        raise InvalidArgumentError(f"{name} is '{value}'; allowed are {', '.join(allowed)}")
    return value


class XlaGpuPlugin(plugins.DevicePlugin):  # type: ignore[misc]
    """What torch_xla asks of a device; entry point XLA_GPU of the group torch_xla.plugins."""

    def __init__(self) -> None:
        super().__init__()
        # When torch_xla looks for the plugin again it takes a device's name up to its first "_"
        # (torch_xla.runtime.device_type), and so asks for "XLA".
        plugins._plugin_registry.setdefault(DEVICE.split("_")[0], self)

    def library_path(self) -> str:
        """The PJRT plugin that torch_xla loads."""
        return plugin_path()

    def client_create_options(self) -> dict[str, bool | float | str]:
        """How much of the GPU's memory XLA takes, by the variables that JAX users know.

        XLA_PYTHON_CLIENT_PREALLOCATE ("false": as it is needed), XLA_PYTHON_CLIENT_MEM_FRACTION (of
        the whole, 0.75 if unset) and XLA_PYTHON_CLIENT_ALLOCATOR ("platform", "bfc", "cuda_async").

        Raises:
          InvalidArgumentError: a variable's value is none of those.
        """
        if plugin_info()["platform"] != "CUDA":
            return {}
        options: dict[str, bool | float | str] = {}
        if preallocate := _variable("PREALLOCATE", ("true", "false", "1", "0")):
            options["preallocate"] = preallocate in ("true", "1")
        if allocator := _variable("ALLOCATOR", ("default", "platform", "bfc", "cuda_async")):
            options["allocator"] = allocator
        if fraction := _variable("MEM_FRACTION"):
            try:
                options["memory_fraction"] = float(fraction)
            except ValueError:
                raise InvalidArgumentError(
                    f"XLA_PYTHON_CLIENT_MEM_FRACTION is '{fraction}'; it must be a number"
                ) from None
        return options

    def configure_single_process(self) -> None:
        """Nothing: one process sees every device."""


@functools.cache
def _running_device() -> str:
    """The device of torch_xla's client, which is made once and never changes."""
    name, _, _ = torch_xla._XLAC._xla_real_devices(["xla:0"])[0].partition(":")
    return DEVICE if name == _PLATFORM else name


def device() -> str:
    """What torch_xla runs on, or will at its first use of a device, as PJRT_DEVICE names it."""
    if torch_xla._XLAC._xla_runtime_is_initialized():
        return _running_device()
    return os.environ.get(_PJRT_DEVICE, "")


def register() -> None:
    """Makes the device known to torch_xla, and the default where the user has chosen none.

    Raises:
      XlaGpuError: FAILED_PRECONDITION where torch_xla runs on another device already.
    """
    if torch_xla._XLAC._xla_runtime_is_initialized() and device() != DEVICE:
        raise XlaGpuError(
            f"torch_xla has taken the device {device()} already and keeps it while the process "
            "lives: import xla_gpu.torch_xla before torch_xla, or at least before the first use "
            f"of a device; or start the process with PJRT_DEVICE={DEVICE}",
            StatusCode.FAILED_PRECONDITION,
        )
    if DEVICE not in plugins._plugin_registry:
        plugins.use_dynamic_plugins()
        plugins.register_plugin(DEVICE, XlaGpuPlugin())
    if not _device_was_chosen:
        os.environ[_PJRT_DEVICE] = DEVICE
    if device() == "CPU":
        warnings.warn(
            "torch_xla runs on its own CPU client (PJRT_DEVICE=CPU), which calls no custom kernel; "
            "import xla_gpu.torch_xla before torch_xla, or set PJRT_DEVICE=XLA_GPU",
            stacklevel=3,
        )
