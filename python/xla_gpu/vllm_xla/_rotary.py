"""What stands between the product of queries, keys and values and their attention."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torchax.interop import jax_view, torch_view

from xla_gpu.jax import rotary_embedding
from xla_gpu.vllm_xla import _linear
from xla_gpu.vllm_xla._names import QKVParallelLinear, RMSNorm, RotaryEmbedding, replace


def _computes_as(module: Any, kind: Any) -> bool:
    return getattr(type(module), "forward_native", None) is kind.forward_native


def _is_ours(layer: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> bool:
    product, rotary = layer.qkv_proj, layer.rotary_emb
    config = getattr(getattr(product, "quant_method", None), "linear_config", None)
    return (
        isinstance(product, QKVParallelLinear)  # not one that LoRA wraps
        and config is not None
        and config.mesh.size == 1
        and config.fuse_matmuls
        and _computes_as(rotary, RotaryEmbedding)
        and rotary.head_size == layer.head_dim
        and (positions.ndim, hidden_states.ndim) == (1, 2)
        and positions.dtype == torch.int32
    )


def _are_ours(*norms: Any) -> bool:
    return (
        all(_computes_as(norm, RMSNorm) and norm.has_weight for norm in norms)
        and all(norm.variance_size_override is None for norm in norms)
        and len({(norm.variance_epsilon, norm.weight.dtype) for norm in norms}) == 1
    )


# By layer, whether heads are normed there; None where something else is done too.
_NORMED: dict[str, Callable[[Any], bool | None]] = {
    "LlamaAttention": lambda layer: False,
    "MistralAttention": lambda layer: None if layer.do_llama_4_scaling else False,
    "Qwen2Attention": lambda layer: bool(layer.qk_norm),
    "Qwen3Attention": lambda layer: True,
    "Qwen3MoeAttention": lambda layer: True,
}


def _in_one_kernel(
    is_normed: Callable[[Any], bool | None], original: Callable[..., torch.Tensor]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        normed = is_normed(self)
        norms = (self.q_norm, self.k_norm) if normed else ()
        ours = normed is not None and _is_ours(self, positions, hidden_states)
        if not ours or (norms and not _are_ours(*norms)):
            return original(self, positions, hidden_states)
        how = dict(zip(("q_norm", "k_norm"), (jax_view(norm.weight) for norm in norms)))
        if norms:
            how["epsilon"] = norms[0].variance_epsilon
        qkv, _ = self.qkv_proj(hidden_states)
        summed = _linear.sums(qkv)
        if summed:
            how |= dict(summed, out_dtype=jax_view(qkv).dtype)
        turned = rotary_embedding(
            how.pop("x", jax_view(qkv)),
            *map(jax_view, (positions, self.rotary_emb.cos_sin_cache)),
            q_heads=self.num_heads,
            kv_heads=self.num_kv_heads,
            interleaved=not self.rotary_emb.is_neox_style,
            **how,
        )
        output: torch.Tensor = self.o_proj(self.attn(*map(torch_view, turned)))[0]
        return output

    return forward


def _whole_of_one_shard(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def split(sharded_tensor: Any, split_sizes: Any, n_shards: int) -> Any:
        if n_shards == 1 and sum(split_sizes) == sharded_tensor.shape[-1]:
            return [sharded_tensor]
        return original(sharded_tensor, split_sizes, n_shards)

    return split


def queries_and_keys_are_turned_in_one_kernel() -> None:
    """XLA makes a kernel of each of the queries and the keys, and one that copies the values.

    Of Qwen3's heads, which are normed before, it makes more. A product that is not quantized was
    taken apart and put together again as it was, for which XLA makes one too.
    """
    name = "slice_sharded_tensor_for_concatenation"
    replace(f"unquantized.{name}", _whole_of_one_shard)
    for layer, is_normed in _NORMED.items():
        replace(f"{layer}.forward", functools.partial(_in_one_kernel, is_normed))
