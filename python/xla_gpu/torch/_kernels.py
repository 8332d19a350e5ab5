"""What torch.ops.xla_gpu.* do on CPU and CUDA tensors: calls of the library on their memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_gpu import _ops
from xla_gpu._errors import make_error
from xla_gpu.torch import _schema
from xla_gpu.torch._schema import OpCall

_PLATFORMS = {"cpu": "Host", "cuda": "CUDA"}
# Too large to be copied behind the user's back.
_CACHES = ("kv_cache", "v_cache")


def _ready(call: OpCall) -> list[torch.Tensor]:
    """The arguments, dense and row-major, all on one device; else an error that names one."""
    device = call.args[0].device
    ready = []
    for name, tensor in zip(call.names, call.args, strict=True):
        if tensor.device != device:
            raise make_error(
                3,
                f"{call.op}: {name} {_schema.describe(tensor)} is on {tensor.device} but "
                f"{call.names[0]} is on {device}; all arguments must be on one device",
            )
        if tensor.layout != torch.strided:
            raise make_error(
                3, f"{call.op}: {name} is {tensor.layout}; it must be dense (torch.strided)"
            )
        if tensor.is_neg():
            tensor = tensor.resolve_neg()
        if not tensor.is_contiguous():
            if name in _CACHES:
                raise make_error(
                    3,
                    f"{call.op}: {name} {_schema.describe(tensor)} has strides "
                    f"{tuple(tensor.stride())}; a cache must be contiguous, since a call does "
                    "not copy it (call .contiguous() once, when it is made)",
                )
            tensor = tensor.contiguous()
        ready.append(tensor)
    return ready


def run(call: OpCall, results: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """Runs a call on its arguments' device; `results`: where they go (in place), else new ones."""
    specs = _schema.specs_of(call)
    args = _ready(call)
    device = args[0].device
    platform = _PLATFORMS[device.type]
    inferred = _ops.infer(call.op, platform, specs, call.attrs)
    made: list[torch.Tensor] = list(results or ())
    for spec in inferred[len(made) :]:
        made.append(torch.empty(spec.shape, dtype=_schema.TORCH_DTYPES[spec.dtype], device=device))
    stream = torch.cuda.current_stream(device).cuda_stream if platform == "CUDA" else 0
    _ops.run(
        call.op,
        platform,
        [_ops.TensorRef(s, t.data_ptr()) for s, t in zip(specs, args, strict=True)],
        [_ops.TensorRef(s, t.data_ptr()) for s, t in zip(inferred, made, strict=True)],
        call.attrs,
        stream,
    )
    return made


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
    call = _schema.update_call(key, value, kv_cache, slot_mapping, v_cache=v_cache, **kwargs)
    k, v = run(call)
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
    call = _schema.update_call(key, value, kv_cache, slot_mapping, v_cache=v_cache, **kwargs)
    run(call, [kv_cache] if v_cache is None else [kv_cache, v_cache])
