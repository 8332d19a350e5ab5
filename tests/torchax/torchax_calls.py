"""The ops of torch.ops.xla_gpu on a case's arguments by name, as torchax tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
import xla_gpu.torchax  # noqa: F401
from problems import Static
from torchax import interop

ops = torch.ops.xla_gpu
INDICES = ("context_lens", "block_tables", "query_start_loc", "num_seqs")


def tensors(args: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """torchax tensors of NumPy arrays, ml_dtypes' included."""
    return {name: interop.torch_view(jnp.asarray(array)) for name, array in args.items()}


def zeros(*shape: int, dtype: Any = jnp.float32) -> torch.Tensor:
    """A torchax tensor of zeros."""
    return interop.torch_view(jnp.zeros(shape, dtype))


def ones(*shape: int) -> torch.Tensor:
    """A torchax tensor of f32 ones."""
    return interop.torch_view(jnp.ones(shape))


def i32(*values: int) -> torch.Tensor:
    """A torchax tensor of these i32 values."""
    return interop.torch_view(jnp.array(values, jnp.int32))


def to_numpy(results: Any) -> Any:
    """A tensor's NumPy array; of a tuple, each's."""
    if isinstance(results, tuple):
        return tuple(map(to_numpy, results))
    return None if results is None else np.asarray(results.jax())


def attention(static: Static, args: Mapping[str, torch.Tensor]) -> tuple[Any, Any]:
    """paged_attention of a case: (out, lse or None)."""
    args = dict(args)
    op = ops.paged_attention_with_lse if static.return_lse else ops.paged_attention
    result = op(
        args.pop("query"),
        args.pop("kv_cache"),
        *(args.pop(name) for name in INDICES),
        static.scale,
        static.sliding_window or None,
        static.soft_cap or None,
        causal=static.causal,
        out_dtype=getattr(torch, static.out_dtype) if static.out_dtype else None,
        **args,
    )
    return result if static.return_lse else (result, None)


def update(args: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """update_kv_cache of a case: one cache, or two where v_cache came."""
    args = dict(args)
    key, value, cache = (args.pop(name) for name in ("key", "value", "kv_cache"))
    if "v_cache" in args:
        v_cache, slots = args.pop("v_cache"), args.pop("slot_mapping")
        return ops.update_kv_cache_pair(key, value, cache, v_cache, slots, **args)
    return (ops.update_kv_cache(key, value, cache, args.pop("slot_mapping"), **args),)


def update_in_place(args: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """update_kv_cache_ of a case: the caches that came, as they are afterwards."""
    args = dict(args)
    caches = [args[name] for name in ("kv_cache", "v_cache") if name in args]
    positional = [args.pop(name) for name in ("key", "value", "kv_cache", "slot_mapping")]
    assert ops.update_kv_cache_(*positional, **args) is None
    return tuple(caches)
