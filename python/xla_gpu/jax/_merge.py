"""Partial attention results, of disjoint sets of keys, become the result over all keys."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from xla_gpu._errors import InvalidArgumentError, at_callers_line
from xla_gpu.jax._functions import array

AxisName: TypeAlias = Hashable | tuple[Hashable, ...]


@at_callers_line
def merge_attention_states(
    outs: Sequence[ArrayLike] | jax.Array,
    lses: Sequence[ArrayLike] | jax.Array,
    axis_name: AxisName | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Joins what `paged_attention(..., return_lse=True)` gave over disjoint sets of keys.

    Of use where keys lie on several devices (a long sequence's pages dealt over a mesh axis), or
    are attended to in several calls (a prefix that sequences share; a chunk's own keys). Each part
    weighs exp(lse): section 2.2 of FlashInfer (https://arxiv.org/abs/2501.01005). A sink belongs
    to one part alone (-inf as the others' sinks).

    Args:
      outs: the parts of this device, each [tokens, q_heads, head_dim] in f32, bf16 or f16; f32
        (`out_dtype`) loses nothing. A sequence of arrays, or one array with the parts in front.
      lses: the natural logarithms of their denominators, each f32 [tokens, q_heads]. -inf is a row
        that saw nothing, NaN one of an invalid sequence, which makes the row NaN. inf, beyond f32,
        outweighs all that is less; of two such parts nothing tells the weights: the row is NaN.
      axis_name: the mesh axis or axes, as of jax.lax.psum, over which the parts of all devices are
        joined too, by all-reduces: one with a place for each device's part while that is small (a
        decode step), else two of the size of one part. None for this device's alone.

    Returns:
      out [tokens, q_heads, head_dim] in the dtype of outs, and lse f32 [tokens, q_heads]; the same
      on every device of axis_name.

    Raises:
      ValueError: for wrong shapes or dtypes, while the call is traced.
    """
    out, lse = _stack("outs", outs), _stack("lses", lses)
    if out.ndim != 4 or not jnp.issubdtype(out.dtype, jnp.floating):
        raise InvalidArgumentError(
            f"merge_attention_states: outs is {out.dtype}{list(out.shape)}; allowed are f32, bf16 "
            "or f16 arrays [tokens, q_heads, head_dim], or one with the parts in front"
        )
    if lse.shape != out.shape[:3] or lse.dtype != jnp.float32:
        raise InvalidArgumentError(
            f"merge_attention_states: lses is {lse.dtype}{list(lse.shape)}; beside outs of "
            f"{list(out.shape)} it must be float32{list(out.shape[:3])}"
        )
    dtype = out.dtype
    if axis_name is None:
        merged, top = _merge(out, lse)
        return merged.astype(dtype), top
    devices = lax.psum(1, axis_name)
    if devices * out[0].size <= _SMALL:
        merged, top = _merge(*_of_all_devices(*_merge(out, lse), axis_name, devices))
    else:
        merged, top = _merge(out, lse, axis_name)
    return merged.astype(dtype), top


# Numbers of all devices together (1 MiB) up to which an all-reduce takes the time of a small one:
# 24 us for 16 KiB on two H200, where 1 MiB crosses NVLink in 3.
_SMALL = 1 << 18


def _merge(
    out: jax.Array, lse: jax.Array, axis_name: AxisName | None = None
) -> tuple[jax.Array, jax.Array]:
    """The parts in front joined, and those of all devices of the axis; out in f32."""
    top, parts = lse.max(0), len(out)
    if axis_name is not None:
        top, parts = lax.pmax(top, axis_name), parts * lax.psum(1, axis_name)
    # The largest weight, at which no sum of so many parts leaves f32 unless one of them does.
    unit = 0.5 ** (parts - 1).bit_length()
    # exp(-inf - 0) is 0 in a row that nobody saw; -inf - -inf would be NaN, as inf - inf is.
    weights = jnp.exp(lse - jnp.where(jnp.isneginf(top), 0.0, top))
    weights = unit * jnp.where(jnp.isposinf(lse), 1.0, weights)
    total = weights.sum(0)
    summed = (weights[..., None] * out).sum(0)
    if axis_name is not None:
        total, summed = lax.psum((total, summed), axis_name)
    merged = jnp.where(total[..., None] == 0, 0, summed / total[..., None])
    rivals = jnp.isposinf(top) & (total > unit)
    merged = jnp.where(rivals[..., None], jnp.nan, merged)
    return merged, top + jnp.log(total / unit)


def _of_all_devices(
    out: jax.Array, lse: jax.Array, axis_name: AxisName, devices: int
) -> tuple[jax.Array, jax.Array]:
    """Each device's out and lse, on all of them: one all-reduce of parts in places of their own."""
    part = jnp.concatenate([out, lse[..., None]], -1)
    places = jnp.zeros((devices, *part.shape), part.dtype)
    places = lax.dynamic_update_index_in_dim(places, part, lax.axis_index(axis_name), 0)
    places = lax.psum(places, axis_name)
    return places[..., :-1], places[..., -1]


def _stack(name: str, parts: Sequence[ArrayLike] | jax.Array) -> jax.Array:
    if not isinstance(parts, list | tuple):
        return jnp.asarray(array("merge_attention_states", name, parts))
    if not parts:
        raise InvalidArgumentError(f"merge_attention_states: {name} is empty; allowed is 1 or more")
    arrays = [array("merge_attention_states", f"{name}[{i}]", part) for i, part in enumerate(parts)]
    shapes = [one.shape for one in arrays]
    if len(set(shapes)) > 1:
        raise InvalidArgumentError(
            f"merge_attention_states: {name} have the shapes {shapes}; they must be equal"
        )
    return jnp.stack(arrays)
