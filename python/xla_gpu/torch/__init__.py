"""The ops for PyTorch 2.4 and later: torch.ops.xla_gpu.* on CPU and CUDA tensors.

Importing this module registers them; they work eagerly, under torch.compile and in CUDA graphs. The
functions here are the same ops with the conveniences of xla_gpu.jax: a cache as a pair (K, V), a
number of sequences or a scale as a Python number, return_lse.
"""

from __future__ import annotations

from xla_gpu.torch import _registration

# First: the functions look the ops up.
_library = _registration.register()

from xla_gpu.torch._functions import (  # noqa: E402
    GENERATED,
    paged_attention,
    update_kv_cache,
    update_kv_cache_,
)

globals().update(GENERATED)

__all__ = ["paged_attention", "update_kv_cache", "update_kv_cache_", *GENERATED]
