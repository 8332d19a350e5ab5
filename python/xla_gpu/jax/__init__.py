"""The ops for JAX 0.4.38 and later, on CPUs and NVIDIA GPUs.

Each is one primitive that lowers to one custom call; they work under jit, scan, remat, shard_map,
jit over sharded arrays and jax.export.
"""

from __future__ import annotations

import pathlib
from typing import Any

import jax
from jax.extend import source_info_util

from xla_gpu import _schema
from xla_gpu.jax import _functions, _kernels  # noqa: F401  (else in a kernel's first call)
from xla_gpu.jax._attention import paged_attention, ragged_paged_attention, update_kv_cache
from xla_gpu.jax._merge import merge_attention_states
from xla_gpu.jax._ragged_v3 import (
    packed_kv_cache_shape,
    ragged_paged_attention_hd64,
    ragged_paged_attention_v3,
)

__all__ = [
    "deserialize",
    "export_checks",
    "merge_attention_states",
    "packed_kv_cache_shape",
    "paged_attention",
    "ragged_paged_attention",
    "ragged_paged_attention_hd64",
    "ragged_paged_attention_v3",
    "register_all",
    "simple_add",
    "update_kv_cache",
]

# An HLO dump names the user's line, not ours.
source_info_util.register_exclusion(str(pathlib.Path(__file__).parent))


def __getattr__(name: str) -> Any:
    """An op without a function of its own has one that its schema makes."""
    if name.startswith("_") or name not in _schema.schemas():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _functions.function(name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *_schema.schemas()})


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """The `disabled_checks` with which jax.export accepts this library's custom calls.

    JAX promises stability for its own custom calls only, so an export that holds others must name
    them: all ops, and all kernels that this process has made so far. The process that runs the
    exported program loads it by `xla_gpu.jax.deserialize`.
    """
    from jax import export

    known = [*_schema.schemas().values(), *_schema.defined()]
    targets = dict.fromkeys(op.target for op in known)
    return [export.DisabledSafetyCheck.custom_call(target) for target in targets]


def deserialize(data: bytes | bytearray) -> jax.export.Exported:
    """`jax.export.deserialize`, with the ops and kernels that the program holds registered here.

    Kernels of the user's travel in the program as sources or machine code; libraries and functions
    do not (an error when the program is exported).

    Raises:
      InvalidArgumentError: for a kernel that this library cannot read.
    """
    from jax import export

    from xla_gpu.jax import _exported

    exported = export.deserialize(bytearray(data))
    register_all()
    _exported.register(exported)
    return exported


def register_all() -> None:
    """Registers every op of the library in JAX, for programs that were not lowered here.

    Programs built from the functions of this module need no such call.
    """
    from xla_gpu.jax import _registration

    for op in _schema.schemas().values():
        for platform in op.platforms:
            _registration.register_op(op.name, platform)
