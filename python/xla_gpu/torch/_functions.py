"""The ops as Python functions of torch tensors, with conveniences where an op has a skin here."""

from __future__ import annotations

import functools
import numbers
import textwrap
from collections.abc import Callable
from typing import Any

import torch

from xla_gpu import _schema as _schemas
from xla_gpu._errors import make_error
from xla_gpu.torch import _kernels, _schema
from xla_gpu.torch._registration import bump_versions, is_plain

_ops = torch.ops.xla_gpu
_is_compiling = torch.compiler.is_compiling
_function_modes = torch._C._len_torch_function_stack
_tracing = torch._C._get_tracing_state
_profiling = torch.autograd._profiler_enabled

_TYPES = {"bool": bool, "int": int, "float": float, "string": str, "dtype": torch.dtype}

# A tensor; or a Python number.
Scalar = float | torch.Tensor
KvCache = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def _is_ordinary(run: _kernels.Kernel, tensors: _kernels.Tensors) -> bool:
    """Whether torch's dispatcher would do nothing but call the kernel; that costs microseconds.

    Anything that watches or changes calls (a mode, a trace, the profiler, autograd, a subclass)
    goes through the dispatcher.
    """
    return (
        is_plain(run, tensors)
        and (tensors[0].is_cpu or tensors[0].is_cuda)
        and _function_modes() == 0
        and not _profiling()
        and _tracing() is None
    )


def _show(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:100]


def _no_tensor(op: str, name: str, value: Any) -> Exception:
    return make_error(3, f"{op}: {name} is {_show(value)}; it must be a torch.Tensor")


def _split_cache(op: str, kv_cache: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    if isinstance(kv_cache, torch.Tensor):
        return kv_cache, None
    if not isinstance(kv_cache, (tuple, list)):
        raise _no_tensor(op, "kv_cache", kv_cache)
    if len(kv_cache) != 2:
        raise make_error(
            3,
            f"{op}: kv_cache is a {type(kv_cache).__name__} of {len(kv_cache)}; allowed is one "
            "tensor or a pair (K, V)",
        )
    for i, part in enumerate(kv_cache):
        if not isinstance(part, torch.Tensor):
            raise _no_tensor(op, f"kv_cache[{i}]", part)
    return tuple(kv_cache)


def _tensors(
    form: _schema.Form, given: dict[str, Any], sizes: dict[str, int]
) -> dict[str, torch.Tensor]:
    """The tensors that come, by their names in the op; a number fills a vector of `sizes` (1)."""
    given["kv_cache"], given["v_cache"] = _split_cache(form.name, given["kv_cache"])
    tensors: dict[str, torch.Tensor] = {}
    for arg in form.op.args:
        value = given[arg.name]
        if value is None and arg.optional:
            continue
        if not isinstance(value, torch.Tensor):
            number = numbers.Real if "f32" in arg.dtypes else numbers.Integral
            if not arg.vector or not isinstance(value, number) or isinstance(value, bool):
                raise _no_tensor(form.name, arg.name, value)
            dtype, device = _schema.TORCH_DTYPES[arg.dtypes[0]], given["kv_cache"].device
            value = torch.full((sizes.get(arg.name, 1),), value, dtype=dtype, device=device)
        tensors[arg.name] = value
    return tensors


def _check_attributes(op: _schemas.Op, attrs: dict[str, Any]) -> None:
    """What torch's dispatcher would take for something else, or refuse in words of its own."""
    for attr in op.attrs:
        value = attrs[attr.name]
        expected = _TYPES[attr.type]
        if type(value) is expected or (value is None and attr.none_is_default):
            continue
        if expected is torch.dtype or isinstance(value, torch.Tensor):
            allowed = "a torch.dtype" if expected is torch.dtype else "a Python number"
            raise make_error(3, f"{op.name}: {attr.name} is {_show(value)}; allowed is {allowed}")
        _schemas.attribute(op.name, attr, value, _schema.dtype_name)


def _call(name: str, args: dict[str, Any]) -> Any:
    """The torch op of this name."""
    if not _is_compiling():
        kernel, tensors, options = _kernels.INPUTS[name](**args)
        if _is_ordinary(kernel, tensors):
            result = kernel(tensors, options)
            bump_versions(kernel, tensors)
            return result
    return getattr(_ops, name)(**args)


def paged_attention(
    query: torch.Tensor,
    kv_cache: KvCache,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_seqs: torch.Tensor | int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    *,
    sinks: Scalar | None = None,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
    causal: bool = True,
    return_lse: bool = False,
    out_dtype: torch.dtype | None = None,
    batch_invariant: bool | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of a ragged batch over a paged KV cache: prefill, decode or both in one call.

    Query i of a sequence stands at pos = context_len - query_len + i and sees keys k <= pos; with a
    window only those with pos - k < sliding_window. Rows that belong to no sequence are 0,
    and so are rows that see no key, as before the first token where context_len < query_len. A
    sequence with an index that cannot be meant (a negative length, a page outside the cache, ...)
    gives NaN rows, the others are untouched. Softmax and sums are in f32 or better. On CUDA: on the
    current stream, without synchronisation, and capturable in a CUDA graph after one call of the
    same types.

    Args:
      query: bf16, f16 or f32 [tokens, q_heads, head_dim], all sequences one after the other.
      kv_cache: [pages, page_size, 2 * kv_heads, head_dim] with K on even heads and V on odd; or a
        pair (K, V) of [pages, page_size, kv_heads, head_dim]; or [2, pages, page_size, kv_heads,
        head_dim]. bf16, f16, f32, float8_e4m3fn or float8_e5m2. q_heads is a multiple of kv_heads.
      context_lens: i32 [max_seqs], tokens in the cache, the new ones included.
      block_tables: i32 [max_seqs, max_pages], page numbers.
      query_start_loc: i32 [max_seqs + 1], first query row of each sequence.
      num_seqs: i32 [1], sequences in use (the rest is padding); or a Python int.
      scale: factor of the logits, e.g. head_dim ** -0.5; -1e20 to 1e20.
      sliding_window: keys that a query sees, itself included; None for all.
      soft_cap: logits become soft_cap * tanh(logits / soft_cap), 1e-20 to 1e20; None for none.
      sinks: f32 [q_heads], one more logit a head in the softmax's denominator; or a number.
      k_scale: f32 [1] or [kv_heads], or a number: factor of the stored keys (fp8 caches).
      v_scale: as k_scale, of the stored values.
      causal: False lets every query see the whole context.
      return_lse: also return the log-sum-exp of each row's logits.
      out_dtype: torch.float32, bfloat16 or float16; None for query's.
      batch_invariant: a sequence's bits do not depend on what else is in the batch; None for what
        XLA_GPU_BATCH_INVARIANT says at the first call of these types.

    Returns:
      out [tokens, q_heads, head_dim]; with return_lse, (out, lse) with lse f32 [tokens, q_heads]
      (natural log; where a row sees nothing the sink's logit, -inf without sinks).

    Raises:
      ValueError: for wrong shapes, dtypes, devices or attributes.
      NotImplementedError: in backward; the op has no gradient.
    """
    args = (query, kv_cache, context_lens, block_tables, query_start_loc, num_seqs)
    if (  # the call of a serving loop, with nothing to convert
        sinks is None
        and k_scale is None
        and v_scale is None
        and type(scale) is float
        and (sliding_window is None or type(sliding_window) is int)
        and (soft_cap is None or type(soft_cap) is float)
        and causal is True
        and out_dtype is None
        and batch_invariant is None
        and not _is_compiling()
        and _is_ordinary(_attention, args)
    ):
        options = (scale, sliding_window, soft_cap, *_DEFAULTS)
        return (_attention_lse if return_lse else _attention)(args, options)
    form = _schema.FORMS["paged_attention"]
    names = (*form.required, "sinks", "k_scale", "v_scale")
    given = dict(zip(names, (*args, sinks, k_scale, v_scale)))
    attrs = {
        "scale": scale,
        "sliding_window": sliding_window,
        "soft_cap": soft_cap,
        "causal": causal,
        "return_lse": return_lse,
        "out_dtype": out_dtype,
        "batch_invariant": batch_invariant,
    }
    q_heads = query.shape[1] if isinstance(query, torch.Tensor) and query.ndim == 3 else 1
    tensors = _tensors(form, given, {"sinks": q_heads})
    _check_attributes(form.op, attrs)
    name = "paged_attention_with_lse" if attrs.pop("return_lse") else "paged_attention"
    return _call(name, {**tensors, **attrs})


_attention = _kernels.kernel(_schema.FORMS["paged_attention"], ())
_attention_lse = _kernels.kernel(_schema.FORMS["paged_attention_with_lse"], ())
# Of the attributes that are given by name only.
_DEFAULTS = tuple(
    None if attr.none_is_default else attr.default
    for attr in _attention.form.attrs
    if attr.keyword_only
)


def _update_tensors(name: str, *given: Any) -> dict[str, torch.Tensor]:
    names = ("key", "value", "kv_cache", "slot_mapping", "k_scale", "v_scale")
    return _tensors(_schema.FORMS[name], dict(zip(names, given)), {})


def update_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: KvCache,
    slot_mapping: torch.Tensor,
    *,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
) -> KvCache:
    """A copy of a paged cache with the keys and values of new tokens in their slots.

    Args:
      key: f32, bf16 or f16 [tokens, kv_heads, head_dim].
      value: as key.
      kv_cache: any layout of paged_attention's; its dtype may differ from key's.
      slot_mapping: i32 or i64 [tokens], page * page_size + offset in the page. A negative slot or
        one past the last is skipped: nothing is written.
      k_scale: f32 [1] or [kv_heads], or a number: fp8 caches store key / k_scale, saturated.
      v_scale: as k_scale, of the values.

    Returns:
      The updated cache: a tensor, or a pair where a pair came.

    Raises:
      ValueError: for wrong shapes, dtypes or devices.
    """
    given = (key, value, kv_cache, slot_mapping, k_scale, v_scale)
    tensors = _update_tensors("update_kv_cache", *given)
    return _call("update_kv_cache_pair" if "v_cache" in tensors else "update_kv_cache", tensors)


def update_kv_cache_(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: KvCache,
    slot_mapping: torch.Tensor,
    *,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
) -> None:
    """As update_kv_cache, in place: writes into the cache and nothing else.

    Raises:
      ValueError: for wrong shapes, dtypes or devices, or where key, value or slot_mapping share
        memory with the cache.
    """
    name = "update_kv_cache_"
    _call(name, _update_tensors(name, key, value, kv_cache, slot_mapping, k_scale, v_scale))


# ---- Of ops without a function here --------------------------------------------------------------


def _generated(form: _schema.Form) -> Callable[..., Any]:
    """The torch op as a function with a signature and a docstring."""
    positional, named = form.parameters
    names = ", ".join(f"{p.name}={p.name}" for p in positional + named)
    function = _kernels.define(form, f"return op({names})", op=getattr(_ops, form.name))
    returned = [r for r in form.results if not (form.in_place and r.alias_of)]
    written = [r for r in form.results if r not in returned]
    sections = {
        "Args": [(a.name, f"{', '.join(a.dtypes)} {a.doc}") for a in form.args]
        + [(a.name, a.doc) for a in form.attrs],
        "Updates in place": [(r.alias_of, r.doc) for r in written],
        "Returns": [(r.name, r.doc) for r in returned],
    }
    lines = [f"{form.op.doc} (torch.ops.xla_gpu.{form.name})"]
    for title, entries in sections.items():
        if entries:
            lines += ["", f"{title}:", *(f"  {name}: {doc}." for name, doc in entries)]
    wrap = functools.partial(textwrap.fill, width=96, subsequent_indent="    ")
    function.__doc__ = "\n".join(map(wrap, lines))
    function.__module__ = "xla_gpu.torch"
    return function


GENERATED = {
    name: _generated(form) for name, form in _schema.FORMS.items() if form.op.name not in globals()
}
