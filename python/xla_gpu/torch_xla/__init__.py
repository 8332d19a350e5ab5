"""The ops for PyTorch/XLA on NVIDIA GPUs and CPUs, and the road for custom calls of your own.

Importing this module gives `torch.ops.xla_gpu.*` their XLA implementations, and PyTorch/XLA back
what it lost: `torch_xla._XLAC._xla_register_custom_call_target` registers handlers again (see
`install`). Where neither PJRT_DEVICE is set nor torch_xla imported yet, the device becomes XLA_GPU,
the compatibility plugin.
"""

from __future__ import annotations

# _device comes first, since it must before torch_xla.
from xla_gpu.torch_xla import _device, _dispatch  # noqa: F401
from xla_gpu.torch_xla._custom_call import custom_call, install, register_custom_call_target
from xla_gpu.torch_xla._runtime import platform

__all__ = ["custom_call", "install", "platform", "register_custom_call_target"]

_dispatch.register()
install()
