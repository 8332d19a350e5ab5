"""What stands between the product of queries, keys and values and their attention."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torchax.interop import jax_view, torch_view

from xla_gpu.jax import rotary_embedding
from xla_gpu.vllm_xla._names import QKVParallelLinear, RotaryEmbedding, replace


def _is_ours(layer: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> bool:
    product, rotary = layer.qkv_proj, layer.rotary_emb
    config = getattr(getattr(product, "quant_method", None), "linear_config", None)
    return (
        isinstance(product, QKVParallelLinear)  # not one that LoRA wraps
        and config is not None
        and config.mesh.size == 1
        and config.fuse_matmuls
        and getattr(type(rotary), "forward_native", None) is RotaryEmbedding.forward_native
        and rotary.head_size == layer.head_dim
        and (positions.ndim, hidden_states.ndim) == (1, 2)
        and positions.dtype == torch.int32
    )


def _turned_in_one_kernel(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def forward(self: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        if not _is_ours(self, positions, hidden_states):
            return original(self, positions, hidden_states)
        qkv, _ = self.qkv_proj(hidden_states)
        turned = rotary_embedding(
            *map(jax_view, (qkv, positions, self.rotary_emb.cos_sin_cache)),
            q_heads=self.num_heads,
            kv_heads=self.num_kv_heads,
            interleaved=not self.rotary_emb.is_neox_style,
        )
        output: torch.Tensor = self.o_proj(self.attn(*map(torch_view, turned)))[0]
        return output

    return forward


def queries_and_keys_are_turned_in_one_kernel() -> None:
    """XLA makes a kernel of each of the queries and the keys, and one that copies the values."""
    replace("LlamaAttention.forward", _turned_in_one_kernel)
