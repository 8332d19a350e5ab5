"""torch.ops.xla_gpu.*: the ops for PyTorch 2.4 and later.

`import xla_gpu.torch` registers them.
"""

from __future__ import annotations

from xla_gpu.torch import _registration

__all__: list[str] = []

_library = _registration.register()
