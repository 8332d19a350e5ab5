"""torch.ops.xla_gpu.*: the ops for PyTorch 2.4 and later.

`import xla_gpu.torch` registers them.
"""

from __future__ import annotations

import torch

from xla_gpu.torch import _kernels, _schema

__all__: list[str] = []

_library = torch.library.Library(_schema.NAMESPACE, "DEF")
for _name, _types in _schema.SCHEMAS.items():
    _library.define(_name + _types)
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, getattr(_kernels, _name), _key)
