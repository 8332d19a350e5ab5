"""paged_attention, ragged_paged_attention and update_kv_cache for JAX."""

from __future__ import annotations

import functools
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xla_gpu import _ops
from xla_gpu._errors import make_error
from xla_gpu.jax import _primitive
from xla_gpu.jax._primitive import Attrs

# An array; or a Python number, which becomes a compile-time constant.
Scalar = float | jax.Array | np.ndarray
KvCache = jax.Array | tuple[jax.Array, jax.Array]


def _number(op: str, name: str, value: Any, kind: type[numbers.Number], allowed: str) -> Any:
    """A compile-time number, or the error that says what came instead."""
    if isinstance(value, bool) or not isinstance(value, kind):
        came = (
            f"{type(value).__name__} {value!r}"
            if not isinstance(value, jax.Array)
            else ("an array: it is fixed when the call is compiled (mark it static in jax.jit)")
        )
        raise make_error(3, f"{op}: {name} is {came}; allowed is {allowed}")
    return value


def _flag(op: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise make_error(
            3, f"{op}: {name} is {type(value).__name__} {value!r}; allowed are True and False"
        )
    return bool(value)


def _float_array(op: str, name: str, value: Any, size: int) -> Any:
    """f32 [n]: a Python number fills `size` elements, a 0-d array becomes [1]."""
    if isinstance(value, numbers.Real):
        return np.full((size,), value, np.float32)
    array = _array(op, name, value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise make_error(3, f"{op}: {name} is {_ops.spec_of(array)}; its dtype must be floating")
    if array.ndim == 0:
        array = array.reshape(1)
    return array if array.dtype == jnp.float32 else jnp.asarray(array, jnp.float32)


_array_types: set[type] = set()  # seen by _array: an eager call asks for each argument


def _array(op: str, name: str, value: Any) -> Any:
    if type(value) in _array_types:
        return value
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        _array_types.add(type(value))
        return value
    if isinstance(value, list | tuple | numbers.Number):
        try:
            return np.asarray(value, np.int32) if _all_ints(value) else np.asarray(value)
        except ValueError:
            pass
    raise make_error(3, f"{op}: {name} is {type(value).__name__} {value!r}; it must be an array")


def _all_ints(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_all_ints, value))
    return isinstance(value, numbers.Integral)


def _split_cache(op: str, kv_cache: Any) -> tuple[Any, Any | None]:
    """(kv_cache, v_cache or None) of an array or a (K, V) pair."""
    if isinstance(kv_cache, tuple | list):
        if len(kv_cache) != 2:
            raise make_error(
                3,
                f"{op}: kv_cache is a {type(kv_cache).__name__} of {len(kv_cache)}; allowed is one "
                "array or a pair (K, V)",
            )
        return _array(op, "kv_cache[0]", kv_cache[0]), _array(op, "kv_cache[1]", kv_cache[1])
    return _array(op, "kv_cache", kv_cache), None


def _out_dtype_name(op: str, dtype: Any) -> str:
    if dtype is None:
        return ""
    try:
        return _ops.NUMPY_DTYPE_NAMES[jnp.dtype(dtype).name]
    except (TypeError, KeyError):
        raise make_error(
            3, f"{op}: out_dtype is {dtype!r}; allowed are float32, bfloat16 and float16"
        ) from None


def paged_attention(
    query: jax.Array,
    kv_cache: KvCache,
    context_lens: jax.Array,
    block_tables: jax.Array,
    query_start_loc: jax.Array,
    num_seqs: jax.Array | int,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    *,
    sinks: Scalar | None = None,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
    causal: bool = True,
    return_lse: bool = False,
    out_dtype: Any = None,
) -> jax.Array | tuple[jax.Array, jax.Array]:
    """Attention of a ragged batch over a paged KV cache: prefill, decode or both in one call.

    Query i of a sequence stands at pos = context_len - query_len + i and sees keys k <= pos; with a
    window only those with pos - k < sliding_window. Rows that belong to no sequence are 0,
    and so are rows that see no key, as before the first token where context_len < query_len. A
    sequence with an index that cannot be meant (a negative length, a page outside the cache, ...)
    gives NaN rows, the others are untouched. Softmax and sums are in f32 or better.

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
      sinks: f32 [q_heads], one more logit a head in the softmax's denominator.
      k_scale: f32 [1] or [kv_heads], factor of the stored keys (fp8 caches).
      v_scale: as k_scale, of the stored values.
      causal: False lets every query see the whole context.
      return_lse: also return the log-sum-exp of each row's logits.
      out_dtype: float32, bfloat16 or float16; None for query's.

    Returns:
      out [tokens, q_heads, head_dim]; with return_lse, (out, lse) with lse f32 [tokens, q_heads]
      (natural log; where a row sees nothing the sink's logit, -inf without sinks).

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    op = "paged_attention"
    cache, v_cache = _split_cache(op, kv_cache)
    args = [
        _array(op, "query", query),
        cache,
        _array(op, "context_lens", context_lens),
        _array(op, "block_tables", block_tables),
        _array(op, "query_start_loc", query_start_loc),
        np.full((1,), num_seqs, np.int32)
        if isinstance(num_seqs, int)
        else _array(op, "num_seqs", num_seqs),
    ]
    optional_args = []
    if v_cache is not None:
        optional_args.append("v_cache")
        args.append(v_cache)
    if sinks is not None:
        q_heads = args[0].shape[1] if args[0].ndim == 3 else 1
        optional_args.append("sinks")
        args.append(_float_array(op, "sinks", sinks, q_heads))
    for name, value in (("k_scale", k_scale), ("v_scale", v_scale)):
        if value is not None:
            optional_args.append(name)
            args.append(_float_array(op, name, value, 1))
    options = (scale, sliding_window, soft_cap, causal, return_lse, out_dtype)
    try:
        attrs = _attention_attrs(*options)
    except TypeError:  # an array, which has no hash: let the check say so
        attrs = _attention_attrs.__wrapped__(*options)
    results = _primitive.of("paged_attention")(args, tuple(optional_args), attrs)
    return (results[0], results[1]) if return_lse else results[0]


@functools.lru_cache(maxsize=1024, typed=True)  # typed: True is no window of 1
def _attention_attrs(
    scale: Any, sliding_window: Any, soft_cap: Any, causal: Any, return_lse: Any, out_dtype: Any
) -> Attrs:
    """The checked attributes; kept, since eager calls repeat them."""
    op = "paged_attention"
    return (
        ("causal", _flag(op, "causal", causal)),
        ("out_dtype", _out_dtype_name(op, out_dtype)),
        ("return_lse", _flag(op, "return_lse", return_lse)),
        ("scale", float(_number(op, "scale", scale, numbers.Real, "a Python number"))),
        ("sliding_window", _optional_window(op, sliding_window)),
        ("soft_cap", _optional_cap(op, soft_cap)),
    )


def _optional_window(op: str, window: int | None) -> int:
    if window is None:
        return 0
    return int(_number(op, "sliding_window", window, numbers.Integral, "a Python int or None"))


def _optional_cap(op: str, cap: float | None) -> float:
    if cap is None:
        return 0.0
    return float(_number(op, "soft_cap", cap, numbers.Real, "a Python number or None"))


def ragged_paged_attention(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> jax.Array:
    """The TPU kernel's signature (jax.experimental.pallas.ops.tpu.ragged_paged_attention, v2).

    Code written for TPUs runs unchanged: this is paged_attention with the interleaved cache. The
    TPU's block sizes, vmem_limit_bytes and mask_value (masked logits are left out exactly) are
    accepted and have no effect.

    Args:
      q: [max_num_batched_tokens, num_q_heads, head_dim].
      kv_pages: [total_num_pages, page_size, 2 * num_kv_heads, head_dim], K on even heads.
      kv_lens: i32 [max_num_seqs].
      page_indices: i32 [max_num_seqs, pages_per_seq].
      cu_q_lens: i32 [max_num_seqs + 1].
      num_seqs: i32 [1].
      sm_scale: as paged_attention's scale.
      sliding_window: as paged_attention's.
      soft_cap: as paged_attention's.
      mask_value: no effect.
      k_scale: as paged_attention's.
      v_scale: as paged_attention's.
      num_kv_pages_per_block: no effect.
      num_queries_per_block: no effect.
      vmem_limit_bytes: no effect.

    Returns:
      The attention's output, shape and dtype of q.

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    del mask_value, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes
    if isinstance(kv_pages, tuple | list) or getattr(kv_pages, "ndim", 4) != 4:
        raise make_error(
            3,
            "ragged_paged_attention: kv_pages must be one array [pages, page_size, 2 * kv_heads, "
            "head_dim]; paged_attention takes the other layouts",
        )
    return paged_attention(
        q,
        kv_pages,
        kv_lens,
        page_indices,
        cu_q_lens,
        num_seqs,
        sm_scale,
        sliding_window,
        soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
    )


def update_kv_cache(
    key: jax.Array,
    value: jax.Array,
    kv_cache: KvCache,
    slot_mapping: jax.Array,
    *,
    k_scale: Scalar | None = None,
    v_scale: Scalar | None = None,
) -> KvCache:
    """Writes the keys and values of new tokens into their slots of a paged cache.

    In place where the cache is donated (jax.jit(..., donate_argnums=...)) or is a temporary of the
    program, else on a copy, as JAX's functional rules ask.

    Args:
      key: f32, bf16 or f16 [tokens, kv_heads, head_dim].
      value: as key.
      kv_cache: any layout of paged_attention's; its dtype may differ from key's.
      slot_mapping: i32 or i64 [tokens], page * page_size + offset in the page. A negative slot or
        one past the last is skipped: nothing is written.
      k_scale: f32 [1] or [kv_heads]: fp8 caches store key / k_scale, saturated.
      v_scale: as k_scale, of the values.

    Returns:
      The updated cache: an array, or a pair where a pair came.

    Raises:
      ValueError: for wrong shapes or dtypes, while the call is traced.
    """
    op = "update_kv_cache"
    cache, v_cache = _split_cache(op, kv_cache)
    args = [
        _array(op, "key", key),
        _array(op, "value", value),
        cache,
        _array(op, "slot_mapping", slot_mapping),
    ]
    optional_args = []
    for name, optional in (("v_cache", v_cache), ("k_scale", k_scale), ("v_scale", v_scale)):
        if optional is not None:
            optional_args.append(name)
            args.append(optional if name == "v_cache" else _float_array(op, name, optional, 1))
    results = _primitive.of("update_kv_cache")(args, tuple(optional_args), ())
    return results[0] if v_cache is None else (results[0], results[1])
