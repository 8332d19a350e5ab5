"""PyTorch/XLA on the compatibility plugin: needs torch 2.9 and torch_xla 2.9.

On a machine with an NVIDIA GPU over its CUDA plugin, else over xla-cpu-pjrt.
"""

import importlib
import importlib.util

from fixtures import histogram  # noqa: F401

if importlib.util.find_spec("torch_xla") is not None:
    # Before any module imports torch_xla: it chooses the device.
    importlib.import_module("xla_gpu.torch_xla")
