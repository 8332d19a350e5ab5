"""PyTorch/XLA with this library: the device XLA_GPU, on a stock PJRT plugin.

Importing this makes the device known to torch_xla and its default, unless PJRT_DEVICE names
another; import it before the first use of a device. An installed package does not need the import
for the device: `PJRT_DEVICE=XLA_GPU python script.py` finds it by its entry point.
"""

from __future__ import annotations

import os
import sys

if "torch_xla" not in sys.modules:  # its import would choose the CPU, aloud
    os.environ.setdefault("PJRT_DEVICE", "XLA_GPU")

from xla_gpu import torch_xla_plugin

torch_xla_plugin.register()

plugin_info = torch_xla_plugin.plugin_info

__all__ = ["plugin_info"]
