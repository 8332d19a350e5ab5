"""ragged_paged_attention_v3 and its head_dim-64 variant for JAX, by the TPU kernels' signatures."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from xla_gpu import _given, _schema
from xla_gpu._errors import InvalidArgumentError, at_callers_line
from xla_gpu.jax import _primitive
from xla_gpu.jax._functions import arrays, attribute, attributes, keep

# What the TPU's head_dim-64 kernel gives masked logits.
DEFAULT_MASK_VALUE = -0.7 * float(jnp.finfo(jnp.dtype("float32")).max)
# A masked logit so low that it weighs nothing beside any other: masked keys are left out exactly.
_HIGHEST_MASK_VALUE = -1e4


def packed_kv_cache_shape(
    total_num_pages: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    kv_dtype: DTypeLike,
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

    Raises:
      ValueError: for a negative size, and a dtype of which no whole number fills 32 bits.
    """
    op = "packed_kv_cache_shape"
    sizes = {"total_num_pages": total_num_pages, "page_size": page_size}
    sizes |= {"num_kv_heads": num_kv_heads, "head_dim": head_dim}
    for name, size in sizes.items():
        if not _given.is_int(size) or size < 0:
            raise InvalidArgumentError(f"{op}: {name} is {size!r}; it must be an int, 0 or more")
    try:
        packing = 4 // jnp.dtype(kv_dtype).itemsize
    except TypeError:
        packing = 0
    if packing == 0:
        raise InvalidArgumentError(
            f"{op}: kv_dtype is {kv_dtype!r}; allowed are dtypes of 8, 16 and 32 bits"
        )
    heads = num_kv_heads if side_by_side else 2 * num_kv_heads
    width = 2 * head_dim if side_by_side else -(-head_dim // 128) * 128
    return (total_num_pages, page_size, -(-heads // packing), packing, width)


@at_callers_line
def ragged_paged_attention_v3(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    kv_cache: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    distribution: ArrayLike,
    *,
    use_causal_mask: bool = True,
    update_kv_cache: bool = True,
    skip_kv_mask: bool = False,
    sm_scale: float | None = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    out_dtype: DTypeLike | None = None,
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
    max_query_len: int = 0,
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
        the other; head_dim up to 512.
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
      sm_scale: factor of the logits; None for head_dim ** -0.5.
      sliding_window: keys that a query sees, itself included, at least 1; None for all.
      soft_cap: logits become soft_cap * tanh(logits / soft_cap), of either sign but not 0, for
        which None stands.
      out_dtype: float32, bfloat16 or float16; None for the queries'. Sums are in f32 always.
      mask_value: no effect (masked keys are left out exactly); at most -1e4 or None.
      q_scale: rounds queries / q_scale to the cache's dtype first; the logits get the factor back.
      k_scale: the keys are stored value * k_scale.
      v_scale: the values are stored value * v_scale.
      chunk_prefill_size: no effect, as all that follow but the last: the TPU's tuning and
        debugging. Indices are always checked.
      max_query_len: query rows that a sequence has at most, an int, 0 for unknown: a promise that
        makes decode faster on a GPU. Where a sequence has more, results are right and the call is
        slow. Not an argument of the TPU kernel.

    Returns:
      (out [max_num_tokens, num_q_heads, head_dim], the updated kv_cache).

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    op = "ragged_paged_attention_v3"
    return _call(
        op,
        (queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution, None),
        {"k_scale": k_scale, "v_scale": v_scale},
        cache_layout="interleaved",
        use_causal_mask=use_causal_mask,
        skip_kv_mask=skip_kv_mask,
        update_kv_cache=update_kv_cache,
        out_dtype=out_dtype,
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        mask_value=mask_value,
        q_scale=q_scale,
        max_query_len=max_query_len,
    )


@at_callers_line
def ragged_paged_attention_hd64(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    kv_cache: ArrayLike,
    kv_lens: ArrayLike,
    page_indices: ArrayLike,
    cu_q_lens: ArrayLike,
    distribution: ArrayLike,
    attention_sink: ArrayLike | None = None,
    *,
    sm_scale: float | None = 1.0,
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
    max_query_len: int = 0,
) -> tuple[jax.Array, jax.Array]:
    """ragged_paged_attention_v3 for head_dim 64, with attention sinks.

    The signature of tpu-inference's `kernels.ragged_paged_attention.v3.kernel_hd64`
    (`ragged_paged_attention_hd64`, 0.32.0).

    Args, where they are not ragged_paged_attention_v3's:
      queries: [max_num_tokens, num_q_heads, 64].
      kv_cache: [total_num_pages, page_size, align(num_kv_heads, packing) / packing, packing, 128],
        K and V of a head in the two halves of a row (`packed_kv_cache_shape(side_by_side=True)`).
      attention_sink: f32 [num_q_heads], one more logit a head in the softmax's denominator.

    Returns:
      (out [max_num_tokens, num_q_heads, 64] of the queries' dtype, the updated kv_cache).

    Raises:
      ValueError: for wrong shapes, dtypes or attributes, while the call is traced.
    """
    op = "ragged_paged_attention_hd64"
    if getattr(attention_sink, "dtype", jnp.float32) != jnp.float32:  # as on TPUs
        came = _primitive.spec_of(op, "attention_sink", attention_sink)
        raise InvalidArgumentError(f"{op}: attention_sink is {came}; its dtype must be f32")
    tensors = (queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution)
    return _call(
        op,
        (*tensors, attention_sink),
        {"k_scale": k_scale, "v_scale": v_scale},
        cache_layout="side_by_side",
        sm_scale=sm_scale,
        sliding_window=sliding_window,
        soft_cap=soft_cap,
        mask_value=mask_value,
        q_scale=q_scale,
        max_query_len=max_query_len,
    )


_OP = "ragged_paged_attention_v3"


def _call(
    op: str, tensors: tuple[Any, ...], scales: dict[str, Any], *, sm_scale: Any, **options: Any
) -> tuple[jax.Array, jax.Array]:
    """The call of tensors and scales, in the schema's order; errors begin with `op`."""
    primitive = _primitive.of(_OP)
    queries, *rest = arrays(op, primitive, tensors)
    if sm_scale is None:  # here, for q_scale multiplies it
        sm_scale = max((1, *getattr(queries, "shape", ())[-1:])) ** -0.5
    jitted, q_scale = _jitted(op, primitive.environment(), sm_scale=sm_scale, **options)
    # What is wrong with others the library says.
    if q_scale is not None and _is_floating(queries) and _is_floating(rest[2]):
        queries = _round_queries(queries, rest[2].dtype, q_scale)
    rest += [_scale(op, name, value) for name, value in scales.items()]
    out, cache = jitted(queries, *rest)
    return out, cache


def _is_floating(array: Any) -> bool:
    return array is not None and jnp.issubdtype(array.dtype, jnp.floating)


def _scale(op: str, name: str, value: Any) -> Any:
    if value is None:
        return None
    number = _checked(op, name, value, like="soft_cap")
    if not math.isfinite(number):
        raise InvalidArgumentError(f"{op}: {name} is {number}; it must be finite, or None")
    return np.full((1,), number, np.float32)


def _checked(op: str, name: str, value: Any, like: str = "") -> Any:
    """The value of an attribute, or of a parameter that is not one but of the type of one."""
    (attr,) = (attr for attr in _schema.schema(_OP).attrs if attr.name == (like or name))
    return attribute(op, dataclasses.replace(attr, name=name), value)


@keep
def _jitted(
    op: str,
    environment: tuple[bytes | None, ...],
    mask_value: Any,
    q_scale: Any,
    skip_kv_mask: Any = False,
    **options: Any,
) -> tuple[Any, float | None]:
    """The call with checked attributes, and q_scale."""
    attrs = dict(attributes(_OP, op, **options))
    skip = _checked(op, "skip_kv_mask", skip_kv_mask, like="use_causal_mask")
    if skip and attrs["use_causal_mask"]:
        raise InvalidArgumentError(
            f"{op}: skip_kv_mask is True with use_causal_mask True; allowed is one of them "
            "(skip_kv_mask=False is always right)"
        )
    if q_scale is not None:
        q_scale = _checked(op, "q_scale", q_scale, like="soft_cap")
        if not 0 < q_scale < math.inf:
            raise InvalidArgumentError(
                f"{op}: q_scale is {q_scale}; it must be positive and finite, or None"
            )
        attrs["sm_scale"] *= q_scale
    if "soft_cap" in attrs:
        attrs["soft_cap"] = abs(attrs["soft_cap"])  # the cap is symmetric
    if mask_value is None:
        mask_value = -math.inf
    if not _checked(op, "mask_value", mask_value, like="soft_cap") <= _HIGHEST_MASK_VALUE:
        raise InvalidArgumentError(
            f"{op}: mask_value is {mask_value}; masked keys are left out exactly, which stands for "
            f"values up to {_HIGHEST_MASK_VALUE:g}, or None"
        )
    return _primitive.of(_OP).jitted(tuple(attrs.items()), environment), q_scale


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
