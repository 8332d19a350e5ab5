"""PyTorch/XLA with this library: the device XLA_GPU, the ops on it, custom calls of your own.

Importing this makes the device known to torch_xla, and its default unless PJRT_DEVICE names another
(import it before torch_xla then, or at least before the first use of a device). It gives
`torch.ops.xla_gpu.*` their XLA implementations, and `torch_xla._XLAC` its
`_xla_register_custom_call_target` back (see `install`). An installed package does not need the
import for the device alone: `PJRT_DEVICE=XLA_GPU python script.py` finds it by its entry point.
"""

from __future__ import annotations

import os
import sys

if "torch_xla" not in sys.modules:  # its import would choose the CPU, aloud
    os.environ.setdefault("PJRT_DEVICE", "XLA_GPU")

import torch_xla  # noqa: F401  loads torch_xla_plugin by its entry point: not while that loads

# isort: split
from xla_gpu import torch_xla_plugin
from xla_gpu.torch_xla import _dispatch
from xla_gpu.torch_xla._custom_call import custom_call, install, register_custom_call_target
from xla_gpu.torch_xla._runtime import platform

torch_xla_plugin.register()
_dispatch.register()
install()

plugin_info = torch_xla_plugin.plugin_info

__all__ = ["custom_call", "install", "platform", "plugin_info", "register_custom_call_target"]
