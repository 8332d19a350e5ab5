"""paged_attention, update_kv_cache and simple_add as Python functions of torch tensors."""

from __future__ import annotations

import numbers
from typing import Any

import torch

from xla_gpu._errors import make_error
from xla_gpu.torch import _kernels
from xla_gpu.torch._registration import bump_versions, is_plain

_ops = torch.ops.xla_gpu
_is_compiling = torch.compiler.is_compiling
_function_modes = torch._C._len_torch_function_stack
_tracing = torch._C._get_tracing_state
_profiling = torch.autograd._profiler_enabled

# A tensor; or a Python number.
Scalar = float | torch.Tensor
KvCache = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


def _is_ordinary(run: _kernels.Kernel, tensors: _kernels.Tensors) -> bool:
    """Whether torch's dispatcher would do nothing but call the kernel; that costs microseconds.

    Anything that watches or changes calls (a mode, a trace, the profiler, autograd, a subclass)
    goes through the dispatcher.
    """
    if _is_compiling():
        return False
    return (
        is_plain(run, tensors)
        and (tensors[0].is_cpu or tensors[0].is_cuda)
        and _function_modes() == 0
        and not _profiling()
        and _tracing() is None
    )


def _show(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:100]


def _tensor(op: str, name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    raise make_error(3, f"{op}: {name} is {_show(value)}; it must be a torch.Tensor")


def _split_cache(op: str, kv_cache: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    if isinstance(kv_cache, torch.Tensor):
        return kv_cache, None
    if isinstance(kv_cache, (tuple, list)):
        if len(kv_cache) == 2:
            return (
                _tensor(op, "kv_cache[0]", kv_cache[0]),
                _tensor(op, "kv_cache[1]", kv_cache[1]),
            )
        raise make_error(
            3,
            f"{op}: kv_cache is a {type(kv_cache).__name__} of {len(kv_cache)}; allowed is one "
            "tensor or a pair (K, V)",
        )
    return _tensor(op, "kv_cache", kv_cache), None


def _vector(op: str, name: str, value: Any, size: int, like: torch.Tensor) -> torch.Tensor | None:
    """A tensor as it is; a number fills an f32 tensor of `size` on the device of `like`."""
    if value is None or isinstance(value, torch.Tensor):
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return torch.full((size,), float(value), dtype=torch.float32, device=like.device)
    return _tensor(op, name, value)


def _number(op: str, name: str, value: Any, kind: type, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        came = "a tensor" if isinstance(value, torch.Tensor) else _show(value)
        raise make_error(3, f"{op}: {name} is {came}; allowed is {allowed}")


def simple_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise a + b, the smallest op of the library (torch.ops.xla_gpu.simple_add).

    Args:
      a: f32, bf16, f16 or i32, any shape.
      b: as a.

    Raises:
      ValueError: for another dtype, or shapes or dtypes that differ.
    """
    _tensor("simple_add", "a", a)
    _tensor("simple_add", "b", b)
    return _ops.simple_add(a, b)


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
        and _is_ordinary(_attention, args)
    ):
        options = (scale, sliding_window, soft_cap, True, None, (), bool(return_lse))
        return (_attention_lse if return_lse else _attention)(args, options)
    return _general_attention(
        args,
        (scale, sliding_window, soft_cap),
        {"sinks": sinks, "k_scale": k_scale, "v_scale": v_scale},
        {"causal": causal, "out_dtype": out_dtype},
        return_lse,
    )


_attention, _attention_lse = _kernels.attention_kernel, _kernels.attention_lse_kernel


def _general_attention(
    args: tuple[Any, ...],
    numbers_given: tuple[Any, Any, Any],
    optional: dict[str, Any],
    options: dict[str, Any],
    return_lse: Any,
) -> Any:
    """paged_attention with all its checks and conversions, by the dispatcher."""
    op = "paged_attention"
    query, kv_cache, *indices, num_seqs = args
    kv_cache, v_cache = _split_cache(op, kv_cache)
    _tensor(op, "query", query)
    if isinstance(num_seqs, int) and not isinstance(num_seqs, bool):
        num_seqs = torch.full((1,), num_seqs, dtype=torch.int32, device=query.device)
    for name, value in zip(_INDICES, (*indices, num_seqs)):
        _tensor(op, name, value)
    scale, sliding_window, soft_cap = numbers_given
    _number(op, "scale", scale, numbers.Real, "a Python number")
    if sliding_window is not None:
        _number(op, "sliding_window", sliding_window, numbers.Integral, "a Python int or None")
    if soft_cap is not None:
        _number(op, "soft_cap", soft_cap, numbers.Real, "a Python number or None")
    for name, value in (("causal", options["causal"]), ("return_lse", return_lse)):
        if not isinstance(value, bool):
            raise make_error(3, f"{op}: {name} is {_show(value)}; allowed are True and False")
    out_dtype = options["out_dtype"]
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise make_error(3, f"{op}: out_dtype is {_show(out_dtype)}; allowed is a torch.dtype")
    q_heads = query.shape[1] if query.ndim == 3 else 1
    given = {
        "v_cache": v_cache,
        "sinks": _vector(op, "sinks", optional["sinks"], q_heads, query),
        "k_scale": _vector(op, "k_scale", optional["k_scale"], 1, query),
        "v_scale": _vector(op, "v_scale", optional["v_scale"], 1, query),
    }
    call = (query, kv_cache, *indices, num_seqs, scale, sliding_window, soft_cap)
    target = _ops.paged_attention_with_lse if return_lse else _ops.paged_attention
    return target(*call, **given, **options)


_INDICES = ("context_lens", "block_tables", "query_start_loc", "num_seqs")


def _update_args(
    op: str,
    key: Any,
    value: Any,
    kv_cache: Any,
    slot_mapping: Any,
    k_scale: Any,
    v_scale: Any,
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None, dict[str, Any]]:
    cache, v_cache = _split_cache(op, kv_cache)
    for name, tensor in (("key", key), ("value", value), ("slot_mapping", slot_mapping)):
        _tensor(op, name, tensor)
    scales = {}
    if k_scale is not None:
        scales["k_scale"] = _vector(op, "k_scale", k_scale, 1, cache)
    if v_scale is not None:
        scales["v_scale"] = _vector(op, "v_scale", v_scale, 1, cache)
    return (key, value, cache, slot_mapping), v_cache, scales


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
    op = "update_kv_cache"
    args, v_cache, scales = _update_args(op, key, value, kv_cache, slot_mapping, k_scale, v_scale)
    if v_cache is None:
        return _ops.update_kv_cache(*args, **scales)
    return _ops.update_kv_cache_pair(*args[:3], v_cache, args[3], **scales)


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
    op = "update_kv_cache_"
    args, v_cache, scales = _update_args(op, key, value, kv_cache, slot_mapping, k_scale, v_scale)
    if not _is_compiling():
        kernel, tensors, names = _kernels.update_in_place_inputs(*args, v_cache=v_cache, **scales)
        if _is_ordinary(kernel, tensors):
            kernel(tensors, names)
            bump_versions(kernel, tensors)
            return
    _ops.update_kv_cache_(*args, v_cache=v_cache, **scales)
