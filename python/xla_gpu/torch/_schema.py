"""The schemas of torch.ops.xla_gpu.*, and what each call means to the library.

A call of a torch op becomes an `OpCall`: the library's op, its arguments in order, its attributes.
Every backend (CPU, CUDA, fake, XLA, JAX under torchax) begins with the functions here, so that they
accept the same calls and refuse the others with the same words.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from xla_gpu import _ops
from xla_gpu._errors import make_error

NAMESPACE = "xla_gpu"

_ATTENTION = (
    "(Tensor query, Tensor kv_cache, Tensor context_lens, Tensor block_tables, "
    "Tensor query_start_loc, Tensor num_seqs, float scale, int? sliding_window=None, "
    "float? soft_cap=None, *, Tensor? v_cache=None, Tensor? sinks=None, Tensor? k_scale=None, "
    "Tensor? v_scale=None, bool causal=True, ScalarType? out_dtype=None)"
)
# Name -> schema. In place and functional forms have names of their own, since an overload that
# does not match costs an exception a call.
SCHEMAS = {
    "simple_add": "(Tensor a, Tensor b) -> Tensor",
    "paged_attention": f"{_ATTENTION} -> Tensor",
    "paged_attention_with_lse": f"{_ATTENTION} -> (Tensor, Tensor)",
    "update_kv_cache": "(Tensor key, Tensor value, Tensor kv_cache, Tensor slot_mapping, *, "
    "Tensor? k_scale=None, Tensor? v_scale=None) -> Tensor",
    "update_kv_cache_pair": "(Tensor key, Tensor value, Tensor kv_cache, Tensor v_cache, "
    "Tensor slot_mapping, *, Tensor? k_scale=None, Tensor? v_scale=None) -> (Tensor, Tensor)",
    "update_kv_cache_": "(Tensor key, Tensor value, Tensor(a!) kv_cache, Tensor slot_mapping, *, "
    "Tensor(b!)? v_cache=None, Tensor? k_scale=None, Tensor? v_scale=None) -> ()",
}

# torch's dtypes -> the library's names.
DTYPES = {
    getattr(torch, torchs): ours
    for ours, torchs in _ops.NUMPY_NAMES.items()
    if hasattr(torch, torchs)
}
TORCH_DTYPES = {ours: torchs for torchs, ours in DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class OpCall:
    """One call of an op of the library.

    Attributes:
      op: the library's name, "paged_attention".
      names: of the arguments, in the order of `args`.
      args: the tensors, absent optional ones left out.
      attrs: every attribute by name, `optional_args` among them where optional arguments came.
    """

    op: str
    names: tuple[str, ...]
    args: tuple[torch.Tensor, ...]
    attrs: dict[str, _ops.AttrValue]


def describe(tensor: torch.Tensor) -> str:
    """The type of a tensor as messages write it: "bf16[8,32,128]"."""
    dtype = DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return f"{dtype}[{','.join(map(str, tensor.shape))}]"


def spec_of(op: str, name: str, tensor: torch.Tensor) -> _ops.TensorSpec:
    """The library's type of a tensor; InvalidArgumentError for a dtype that it does not know."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise make_error(
            3, f"{op}: {name} is {describe(tensor)}; {tensor.dtype} has no counterpart in XLA"
        )
    return _ops.TensorSpec(dtype, tuple(tensor.shape))


def specs_of(call: OpCall) -> list[_ops.TensorSpec]:
    """The types of a call's arguments."""
    return [spec_of(call.op, n, t) for n, t in zip(call.names, call.args, strict=True)]


def simple_add_call(a: torch.Tensor, b: torch.Tensor) -> OpCall:
    """The call that torch.ops.xla_gpu.simple_add stands for."""
    return OpCall("simple_add", ("a", "b"), (a, b), {})


def attention_call(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    *,
    v_cache: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    causal: bool = True,
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
) -> OpCall:
    """The call that paged_attention and, with return_lse, paged_attention_with_lse stand for.

    Raises:
      InvalidArgumentError: for attributes that cannot be right, or sinks or scales that are not of
        a floating dtype. Shapes and dtypes are checked by the library (`infer`).
    """
    op = "paged_attention"
    optional = {
        "v_cache": v_cache,
        "sinks": _float_vector(op, "sinks", sinks),
        "k_scale": _float_vector(op, "k_scale", k_scale),
        "v_scale": _float_vector(op, "v_scale", v_scale),
    }
    return _call(
        op,
        {
            "query": query,
            "kv_cache": kv_cache,
            "context_lens": context_lens,
            "block_tables": block_tables,
            "query_start_loc": query_start_loc,
            "num_seqs": num_seqs.reshape(1) if num_seqs.ndim == 0 else num_seqs,
        },
        optional,
        {
            "causal": bool(causal),
            "out_dtype": _out_dtype_name(op, out_dtype),
            "return_lse": return_lse,
            "scale": _finite(op, "scale", scale),
            "sliding_window": _window(op, sliding_window),
            "soft_cap": 0.0 if soft_cap is None else _finite(op, "soft_cap", soft_cap),
        },
    )


def update_call(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    v_cache: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> OpCall:
    """The call that update_kv_cache, update_kv_cache_pair and update_kv_cache_ stand for.

    Raises:
      InvalidArgumentError: for scales that are not of a floating dtype.
    """
    op = "update_kv_cache"
    return _call(
        op,
        {"key": key, "value": value, "kv_cache": kv_cache, "slot_mapping": slot_mapping},
        {
            "v_cache": v_cache,
            "k_scale": _float_vector(op, "k_scale", k_scale),
            "v_scale": _float_vector(op, "v_scale", v_scale),
        },
        {},
    )


def _call(
    op: str,
    required: dict[str, torch.Tensor],
    optional: dict[str, torch.Tensor | None],
    attrs: dict[str, Any],
) -> OpCall:
    given = {name: tensor for name, tensor in optional.items() if tensor is not None}
    if given:
        attrs["optional_args"] = ",".join(given)
    tensors = {**required, **given}
    return OpCall(op, tuple(tensors), tuple(tensors.values()), attrs)


def _float_vector(op: str, name: str, tensor: torch.Tensor | None) -> torch.Tensor | None:
    """f32 of rank 1 from any floating tensor of rank 0 or 1 (frameworks keep scales as 0-d)."""
    if tensor is None:
        return None
    if not tensor.dtype.is_floating_point:
        raise make_error(3, f"{op}: {name} is {describe(tensor)}; its dtype must be floating")
    if tensor.ndim == 0:
        tensor = tensor.reshape(1)
    return tensor if tensor.dtype == torch.float32 else tensor.to(torch.float32)


def _out_dtype_name(op: str, dtype: torch.dtype | None) -> str:
    if dtype is None:
        return ""
    name = DTYPES.get(dtype)
    if name not in ("f32", "bf16", "f16"):
        raise make_error(
            3,
            f"{op}: out_dtype is {dtype}; allowed are torch.float32, torch.bfloat16, "
            "torch.float16 and None (the query's)",
        )
    return name


def _finite(op: str, name: str, value: float) -> float:
    if not math.isfinite(value):
        raise make_error(3, f"{op}: {name} is {value}; it must be a finite number")
    return float(value)


def _window(op: str, window: int | None) -> int:
    if window is None:
        return 0
    if not 0 <= window < 1 << 63:
        raise make_error(
            3, f"{op}: sliding_window is {window}; it must be at least 1, or None for no window"
        )
    return int(window)
