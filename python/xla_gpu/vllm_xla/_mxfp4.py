"""Experts' mxfp4 weights as 8-bit floats with few scales, all values exact.

An mxfp4 value is one of 16 (e2m1) times a power of two for each 32 values along the inner
dimension. float8_e4m3fn has the 16 times any of 15 powers of two. So as long as the powers within
a column are near each other, the column needs one scale, and grouped_matmul multiplies it at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torchax.interop import torch_view

from xla_gpu.vllm_xla._names import (
    FusedMoEWeights,
    MoEActivation,
    ShardingAxisName,
    UnsupportedError,
    get_mesh_shape_product,
    process_moe_weights,
    shard_moe_weights,
    t2j,
)
from xla_gpu.vllm_xla._weights import taken

BLOCK = 32  # values that share a power of two
STAGE = 64  # of the inner dimension: the kernel for Hopper takes blocks of its multiples
_TOP = 8  # the greatest value of a scale is scaled to 2^8 or 1.5 * 2^8, which e4m3 has
_BIAS = 127  # of the powers of two
_LEAST = -126  # of float32's that are normal
_NONE = -(2**15)  # the exponent of 0

_processed = jax.jit(
    process_moe_weights,
    static_argnames=("moe_backend", "w13_reorder_size", "w13_interleave"),
)


@functools.partial(jax.jit, static_argnames="count")
def _scaled(
    packed: jax.Array, powers: jax.Array, count: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The floats with `count` scales along the inner dimension, these, and whether all is exact.

    Args:
      packed: two values a byte, the lower bits first, u8[experts, columns, inner / 2].
      powers: of each 32, with their bias, u8[experts, columns, inner / 32].
      count: divides inner / 32.

    Returns:
      float8_e4m3fn[experts, columns, inner], f32[experts, columns, count], bool.
    """
    bits = jnp.stack([packed & 15, packed >> 4], -1).reshape(*powers.shape, BLOCK)
    half, exponent = bits & 1, bits >> 1 & 3
    values = jnp.where(exponent > 0, (2 + half) << exponent, 2 * half).astype(jnp.float32) / 4
    values = jnp.where(bits < 8, values, -values)
    powers = powers.astype(jnp.int32) - _BIAS
    most = jnp.abs(values).max(-1)  # its exponent is floor(log2(most)): 6 is 1.5 * 2^2
    tops = jnp.where(most > 0, powers + jnp.frexp(most)[1] - 1, _NONE)
    tops = tops.reshape(*powers.shape[:2], count, -1).max(-1)
    scales = jnp.where(tops == _NONE, 0, jnp.maximum(tops - _TOP, _LEAST))
    shifts = powers - jnp.repeat(scales, powers.shape[-1] // count, axis=-1)
    wanted = values * jnp.ldexp(1.0, jnp.clip(shifts, -30, 30))[..., None]
    floats = wanted.astype(jnp.float8_e4m3fn)
    exact = jnp.all(floats.astype(jnp.float32) == wanted)
    inner = powers.shape[-1] * BLOCK
    return floats.reshape(*powers.shape[:2], inner), jnp.ldexp(1.0, scales), exact


def _counts(inner: int, shards: int) -> list[int]:
    """Of scales along the inner dimension, the fewest first; each shard has its own, or all one."""
    blocks = inner // BLOCK
    counts = [n for n in range(1, blocks + 1) if blocks % n == 0 and (n == 1 or n % shards == 0)]
    return [n for n in counts if n in (1, blocks) or inner // n % STAGE == 0]


def float8(packed: jax.Array, powers: jax.Array, shards: int = 1) -> tuple[jax.Array, jax.Array]:
    """What _scaled returns for as few scales as keep every value.

    Raises:
      UnsupportedError: where none do, as shards end within a block.
    """
    for count in _counts(powers.shape[-1] * BLOCK, shards):
        floats, scales, exact = _scaled(packed, powers, count)
        if exact:
            return floats, scales
    raise UnsupportedError(
        f"xla_gpu.vllm_xla: mxfp4 weights of very different size, {powers.shape[-1]} blocks of "
        f"{BLOCK} for {shards} devices; --enable-expert-parallel leaves each expert whole"
    )


class _ZerosFromTheKernel(TorchFunctionMode):  # type: ignore[misc]
    """While it is entered, torch.zeros of bytes are pages that nothing has written yet."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.zeros and kwargs.get("dtype") is torch.uint8:
            return torch.from_numpy(np.zeros(args, np.uint8))
        return function(*args, **kwargs)


def room_untouched(original: Callable[..., None]) -> Callable[..., None]:
    """In the place of VllmMxfp4MoEMethod.create_weights, which writes zeros for the whole model."""

    @functools.wraps(original)
    def create_weights(*args: Any, **kwargs: Any) -> Any:
        with _ZerosFromTheKernel():
            return original(*args, **kwargs)

    return create_weights


def loaded(original: Callable[..., None]) -> Callable[..., None]:
    """In the place of VllmMxfp4MoEMethod.process_weights_after_loading."""

    @functools.wraps(original)
    def process_weights_after_loading(self: Any, layer: Any) -> None:
        axes = None if layer.use_ep else ShardingAxisName.MLP_TENSOR
        shards = get_mesh_shape_product(self.mesh, axes)

        def take(name: str) -> jax.Array:
            param = getattr(layer, name)
            delattr(layer, name)
            array = taken(param)
            if array is None:  # of scales and biases, or where devices cannot share the experts
                array = t2j(param, use_dlpack=False)
            return array

        def weights(name: str, shards: int) -> dict[str, jax.Array | None]:
            floats, scales = float8(take(f"{name}_weight"), take(f"{name}_weight_scale"), shards)
            bias = take(f"{name}_bias") if layer.moe_config.has_bias else None
            return {f"{name}_weight": floats, f"{name}_weight_scale": scales, f"{name}_bias": bias}

        # The second product's inner dimension is what devices share.
        both = FusedMoEWeights(**weights("w13", 1), **weights("w2", shards))
        both = _processed(
            both,
            moe_backend=self.moe_backend,
            w13_reorder_size=shards,
            w13_interleave=layer.activation == MoEActivation.SWIGLUOAI,
        )
        both = torch_view(shard_moe_weights(both, self.moe_backend, self.mesh))
        for name, value in vars(both).items():
            if value is not None:
                setattr(layer, name, Parameter(value, requires_grad=False))

    return process_weights_after_loading
