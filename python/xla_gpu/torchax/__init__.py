"""torch.ops.xla_gpu.* on torchax tensors, eager and under torchax's jit.

`import xla_gpu.torchax` teaches them to torchax: each call becomes the call of the same op in
xla_gpu.jax, so a compiled program holds one custom call for it, on CPUs and NVIDIA GPUs.
"""

from __future__ import annotations

from xla_gpu.torchax import _dispatch

__all__: list[str] = []

_dispatch.register()
