"""ragged_paged_attention_v3 and its head_dim-64 variant for JAX, by the TPU kernels' signatures."""

from __future__ import annotations

import functools
import math
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xla_gpu._errors import make_error
from xla_gpu.jax import _primitive
from xla_gpu.jax._attention import (
    _array,
    _flag,
    _number,
    _out_dtype_name,
)

# What the TPU's head_dim-64 kernel gives masked logits.
DEFAULT_MASK_VALUE = -0.7 * float(jnp.finfo(jnp.dtype("float32")).max)
# A masked logit so low that it weighs nothing beside any other: masked keys are left out exactly.
_HIGHEST_MASK_VALUE = -1e4


def packed_kv_cache_shape(
    total_num_pages: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    kv_dtype: Any,
    *,
    side_by_side: bool = False,
) -> tuple[int, int, int, int, int]:
    """The shape of a packed cache, as the TPU kernels' `get_kv_cache_shape` gives it.

    Args:
      total_num_pages: pages in the cache.
      page_size: tokens a page.
      num_kv_heads: heads of keys and values.
      head_dim: their width.
      kv_dtype: the cache's dtype.
      side_by_side: the cache of `ragged_paged_attention_hd64`.
    """
    packing = 4 // jnp.dtype(kv_dtype).itemsize
    heads = num_kv_heads if side_by_side else 2 * num_kv_heads
    width = 2 * head_dim if side_by_side else -(-head_dim // 128) * 128
    return (total_num_pages, page_size, -(-heads // packing), packing, width)


def ragged_paged_attention_v3(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    kv_cache: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    distribution: jax.Array,
    *,
    use_causal_mask: bool = True,
    update_kv_cache: bool = True,
    skip_kv_mask: bool = False,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    out_dtype: Any = None,
    mask_value: float | None = None,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    chunk_prefill_size: int | None = None,
    d_block_sizes: tuple[int, int, int, int] | None = None,
    p_block_sizes: tuple[int, int, int, int] | None = None,
    m_block_sizes: tuple[int, int, int, int] | None = None,
    vmem_limit_bytes: int | None = None,
    debug_mode: bool = False,
    disable_bounds_checks: bool = True,
    disable_semaphore_checks: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Writes new keys and values into a packed cache and attends over it, in one call.

    The signature of tpu-inference's `kernels.ragged_paged_attention.v3.kernel`
    (`ragged_paged_attention`, 0.32.0): code written for TPUs runs unchanged. The cache is updated
    in place where it is donated or a temporary of the program, else on a copy. Only the slots of
    new tokens are written, never the padding of heads or head_dim. Rows of no sequence are 0, as
    are those before a sequence's first token (kv_len < query_len), whose keys are not written; a
    sequence with an index that cannot be meant gives NaN rows and never writes outside the cache.

    Args:
      queries: f32, bf16 or f16 [max_num_tokens, num_q_heads, head_dim], all sequences one after
        the other; head_dim up to 256.
      keys: [max_num_tokens, num_kv_heads, head_dim] of the cache's dtype (fp8: quantised by the
        caller), of the same tokens.
      values: as keys.
      kv_cache: f32, bf16, f16, float8_e4m3fn or float8_e5m2 [total_num_pages, page_size,
        align(2 * num_kv_heads, packing) / packing, packing, align(head_dim, 128)] with packing =
        32 / bits (`packed_kv_cache_shape`); of the merged head axis, K is on even, V on odd places.
      kv_lens: i32 [max_num_seqs], tokens in the cache, the new ones included.
      page_indices: i32 [max_num_seqs * pages_per_seq], page numbers.
      cu_q_lens: i32 [max_num_seqs + 1], first query row of each sequence.
      distribution: i32 [3], ends of the decoding, the prefilling and all sequences; only the last
        one matters here.
      use_causal_mask: False lets every query see its sequence's whole context.
      update_kv_cache: False writes nothing: the cache holds the new tokens already (layers that
        share a cache).
      skip_kv_mask: no effect; with use_causal_mask an error, as on TPUs.
      sm_scale: factor of the logits.
      sliding_window: keys that a query sees, itself included; None for all.
      soft_cap: logits become soft_cap * tanh(logits / soft_cap); None for none.
      out_dtype: float32, bfloat16 or float16; None for the queries'. Sums are in f32 always.
      mask_value: no effect (masked keys are left out exactly); at most -1e4 or None.
      q_scale: rounds queries / q_scale to the cache's dtype first; the logits get the factor back.
      k_scale: the keys are stored value * k_scale.
      v_scale: the values are stored value * v_scale.
      chunk_prefill_size: no effect, as all that follow: the TPU's tuning and debugging.
      d_block_sizes: no effect.
      p_block_sizes: no effect.
      m_block_sizes: no effect.
      vmem_limit_bytes: no effect.
      debug_mode: no effect.
      disable_bounds_checks: no effect: indices are always checked.
      disable_semaphore_checks: no effect.

    Returns:
      (out [max_num_tokens, num_q_heads, head_dim], the updated kv_cache).

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    op = "ragged_paged_attention_v3"
    causal = _flag(op, "use_causal_mask", use_causal_mask)
    if causal and _flag(op, "skip_kv_mask", skip_kv_mask):
        raise make_error(
            3,
            f"{op}: skip_kv_mask is True with use_causal_mask True; allowed is one of them "
            "(skip_kv_mask=False is always right)",
        )
    return _call(
        op,
        (queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution),
        None,
        ("interleaved", causal, _flag(op, "update_kv_cache", update_kv_cache), out_dtype),
        (sm_scale, sliding_window, soft_cap, mask_value, q_scale),
        (k_scale, v_scale),
    )


def ragged_paged_attention_hd64(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    kv_cache: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    distribution: jax.Array,
    attention_sink: jax.Array | None = None,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = DEFAULT_MASK_VALUE,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    chunk_prefill_size: int | None = None,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
    debug_mode: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """ragged_paged_attention_v3 for head_dim 64, with attention sinks.

    The signature of tpu-inference's `kernels.ragged_paged_attention.v3.kernel_hd64`
    (`ragged_paged_attention_hd64`, 0.32.0).

    Args:
      queries: as ragged_paged_attention_v3's, with head_dim 64.
      keys: as there.
      values: as there.
      kv_cache: [total_num_pages, page_size, align(num_kv_heads, packing) / packing, packing, 128],
        K and V of a head in the two halves of a row (`packed_kv_cache_shape(side_by_side=True)`).
      kv_lens: as there.
      page_indices: as there.
      cu_q_lens: as there.
      distribution: as there.
      attention_sink: f32 [num_q_heads], one more logit a head in the softmax's denominator.
      sm_scale: as there.
      sliding_window: as there.
      soft_cap: as there.
      mask_value: as there.
      q_scale: as there.
      k_scale: as there.
      v_scale: as there.
      chunk_prefill_size: no effect, as all that follow: the TPU's tuning and debugging.
      num_kv_pages_per_block: no effect.
      num_queries_per_block: no effect.
      vmem_limit_bytes: no effect.
      debug_mode: no effect.

    Returns:
      (out [max_num_tokens, num_q_heads, 64] of the queries' dtype, the updated kv_cache).

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    return _call(
        "ragged_paged_attention_hd64",
        (queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution),
        attention_sink,
        ("side_by_side", True, True, None),
        (sm_scale, sliding_window, soft_cap, mask_value, q_scale),
        (k_scale, v_scale),
    )


_NAMES = (
    "queries",
    "keys",
    "values",
    "kv_cache",
    "kv_lens",
    "page_indices",
    "cu_q_lens",
    "distribution",
)


def _call(
    op: str,
    tensors: tuple[Any, ...],
    attention_sink: Any,
    static: tuple[str, bool, bool, Any],
    options: tuple[Any, ...],
    scales: tuple[Any, Any],
) -> tuple[jax.Array, jax.Array]:
    args = [_array(op, name, value) for name, value in zip(_NAMES, tensors, strict=True)]
    try:
        attrs, q_scale = _attrs(op, static, options)
    except TypeError:  # an array, which has no hash: let the check say so
        attrs, q_scale = _attrs.__wrapped__(op, static, options)
    if q_scale is not None:
        args[0] = _round_queries(args[0], args[3].dtype, q_scale)
    optional_args = []
    if attention_sink is not None:
        optional_args.append("attention_sink")
        args.append(_array(op, "attention_sink", attention_sink))
    for name, value in zip(("k_scale", "v_scale"), scales, strict=True):
        if value is not None:
            optional_args.append(name)
            number = float(_number(op, name, value, numbers.Real, "a Python number or None"))
            if not math.isfinite(number):
                raise make_error(3, f"{op}: {name} is {number}; it must be finite, or None")
            args.append(np.full((1,), number, np.float32))
    out, cache = _primitive.of("ragged_paged_attention_v3")(args, tuple(optional_args), attrs)
    return out, cache


@functools.lru_cache(maxsize=1024, typed=True)  # typed: True is no window of 1
def _attrs(op: str, static: tuple[str, bool, bool, Any], options: tuple[Any, ...]) -> Any:
    """The checked attributes, and q_scale; kept, since eager calls repeat them."""
    layout, causal, update, out_dtype = static
    sm_scale, window, soft_cap, mask_value, q_scale = options
    real = functools.partial(_number, op, kind=numbers.Real, allowed="a Python number or None")
    scale = float(_number(op, "sm_scale", sm_scale, numbers.Real, "a Python number"))
    if q_scale is not None:
        q_scale = float(real("q_scale", q_scale))
        if not 0 < q_scale < math.inf:
            raise make_error(
                3, f"{op}: q_scale is {q_scale}; it must be positive and finite, or None"
            )
        scale *= q_scale
    if window is not None:
        window = int(
            _number(op, "sliding_window", window, numbers.Integral, "a Python int or None")
        )
        if window <= 0:
            raise make_error(
                3, f"{op}: sliding_window is {window}; it must be positive, or None for no window"
            )
    if soft_cap is not None:
        soft_cap = abs(float(real("soft_cap", soft_cap)))  # the cap is symmetric
        if soft_cap == 0.0:
            raise make_error(3, f"{op}: soft_cap is 0; it must not be, or None for no cap")
    if mask_value is not None and not real("mask_value", mask_value) <= _HIGHEST_MASK_VALUE:
        raise make_error(
            3,
            f"{op}: mask_value is {mask_value}; masked keys are left out exactly, which stands for "
            f"values up to {_HIGHEST_MASK_VALUE:g}, or None",
        )
    return (
        ("cache_layout", layout),
        ("out_dtype", _out_dtype_name(op, out_dtype)),
        ("sliding_window", window or 0),
        ("sm_scale", scale),
        ("soft_cap", soft_cap or 0.0),
        ("update_kv_cache", update),
        ("use_causal_mask", causal),
    ), q_scale


def _round_queries(queries: Any, cache_dtype: Any, q_scale: float) -> Any:
    """Queries over q_scale, as numbers of the cache's dtype: the TPU kernel rounds twice, too."""
    divisor = float(np.asarray(q_scale, queries.dtype))
    limits = jnp.finfo(cache_dtype)
    scaled = _round_to(queries.astype(jnp.float32) / divisor, queries.dtype)
    scaled = jnp.clip(scaled, float(limits.min), float(limits.max))
    return _round_to(scaled, cache_dtype).astype(queries.dtype)


def _round_to(x: Any, dtype: Any) -> Any:
    """f32 numbers rounded to those of `dtype`, still f32.

    XLA may leave out a conversion to a narrow dtype and back (excess precision), and old releases
    round to fp8 by way of f16.
    """
    if dtype == jnp.float32:
        return x
    info = jnp.finfo(dtype)
    rounded = jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=info.nmant)
    if dtype == jnp.bfloat16:  # subnormal only where f32 is
        return rounded
    unit = float(info.smallest_subnormal)
    subnormal = jnp.abs(x) < float(info.smallest_normal)
    return jnp.where(subnormal, jnp.round(x / unit) * unit, rounded)
