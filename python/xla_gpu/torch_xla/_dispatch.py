"""torch.ops.xla_gpu.* on XLA tensors: each call is one typed custom call in the HLO."""

from __future__ import annotations

import functools
from typing import Any

import torch

from xla_gpu import _ops
from xla_gpu import _schema as _schemas
from xla_gpu._errors import make_error
from xla_gpu.torch import _schema
from xla_gpu.torch._schema import OpCall
from xla_gpu.torch_xla import _custom_call, _hlo, _runtime

Attrs = tuple[tuple[str, _ops.AttrValue], ...]


@functools.lru_cache(maxsize=4096)
def _hlo_call(
    op: str, platform: str, specs: tuple[_ops.TensorSpec, ...], names: tuple[str, ...], attrs: Attrs
) -> _hlo.CustomCall:
    """The checked call; ValueError with the library's message."""
    results = _ops.infer(op, platform, specs, dict(attrs))
    return _hlo.CustomCall(
        _schemas.schema(op).target,
        specs,
        tuple(r.spec for r in results),
        api_version=4,
        backend_config=_hlo.attributes_text(dict(attrs)),
        aliases=tuple((i, r.alias_of) for i, r in enumerate(results) if r.alias_of is not None),
    )


def run(call: OpCall) -> list[torch.Tensor]:
    """A call on XLA tensors: its results, the work space last on CUDA."""
    for name, tensor in zip(call.names, call.args, strict=True):
        if tensor.device != call.args[0].device:
            raise make_error(
                3,
                f"{call.op}: {name} {_schema.describe(tensor)} is on {tensor.device} but "
                f"{call.names[0]} is on {call.args[0].device}; all arguments must be on one device",
            )
    platform = _runtime.ops_platform()
    specs = tuple(_schema.specs_of(call))
    hlo_call = _hlo_call(call.op, platform, specs, call.names, tuple(sorted(call.attrs.items())))
    return _custom_call.emit(hlo_call, call.args)


# ---- The ops' implementations for the dispatch key XLA -------------------------------------------


def simple_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return run(_schema.simple_add_call(a, b))[0]


def paged_attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    return run(_schema.attention_call(*args, **kwargs))[0]


def paged_attention_with_lse(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse, *_ = run(_schema.attention_call(*args, **kwargs, return_lse=True))
    return out, lse


def update_kv_cache(*args: Any, **kwargs: Any) -> torch.Tensor:
    return run(_schema.update_call(*args, **kwargs))[0]


def update_kv_cache_pair(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = run(_schema.update_call(key, value, kv_cache, slot_mapping, v_cache=v_cache, **kwargs))
    return k, v


def update_kv_cache_(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    v_cache: torch.Tensor | None = None,
    **kwargs: Any,
) -> None:
    """In place: XLA tensors are values, so the cache gets the updated one.

    The call shares its result's buffer with the argument's, and PyTorch/XLA donates the buffer of
    a tensor that is overwritten: nothing is copied.
    """
    if v_cache is None:
        new = torch.ops.xla_gpu.update_kv_cache(key, value, kv_cache, slot_mapping, **kwargs)
        kv_cache.copy_(new)
        return
    new_k, new_v = torch.ops.xla_gpu.update_kv_cache_pair(
        key, value, kv_cache, v_cache, slot_mapping, **kwargs
    )
    kv_cache.copy_(new_k)
    v_cache.copy_(new_v)


_library = torch.library.Library(_schema.NAMESPACE, "IMPL")


@functools.cache
def register() -> None:
    """Gives the ops their XLA implementations, once."""
    for name in _schema.SCHEMAS:
        if name != "update_kv_cache_":
            _library.impl(name, globals()[name], "XLA")
    # XLA tensors are functional: torch turns in-place ops on them into functional ones, but only
    # its own. This key comes before XLA's, and only for such tensors.
    _library.impl("update_kv_cache_", update_kv_cache_, "Functionalize")
