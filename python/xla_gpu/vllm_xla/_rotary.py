"""What stands between the product of queries, keys and values and their attention."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import torch
from jax.sharding import PartitionSpec
from torchax.interop import jax_view, torch_view

from xla_gpu.jax import rotary_embedding
from xla_gpu.vllm_xla import _linear
from xla_gpu.vllm_xla._names import QKVParallelLinear, RMSNorm, RotaryEmbedding, replace


def _computes_as(module: Any, kind: Any) -> bool:
    return getattr(type(module), "forward_native", None) is kind.forward_native


# Set where a product of queries, keys and values is to come as its devices have it.
_as_it_is = contextvars.ContextVar("_as_it_is", default=False)


@contextlib.contextmanager
def _products_as_they_are() -> Iterator[None]:
    token = _as_it_is.set(True)
    try:
        yield
    finally:
        _as_it_is.reset(token)


def _are_shared_by_heads(layer: Any, config: Any) -> bool:
    """Each device of the mesh has some of the heads of queries, of keys and of values."""
    if type(layer.qkv_proj.quant_method).__name__ != "VllmUnquantizedLinearMethod":
        return False
    heads = layer.num_heads, layer.num_kv_heads
    return config.n_shards == config.mesh.size and not any(n % config.n_shards for n in heads)


def _by_heads(config: Any, function: Callable[..., Any], qkv: Any, *whole: Any) -> Any:
    """Of a product's columns that each device has its own."""
    columns, all_of_it = PartitionSpec(None, config.weight_sharding[1]), PartitionSpec()
    return jax.shard_map(
        function,
        mesh=config.mesh,
        in_specs=(columns, *[all_of_it] * len(whole)),
        out_specs=(columns,) * 3,
        check_vma=False,
    )(qkv, *whole)


def _is_ours(layer: Any, positions: torch.Tensor, hidden_states: torch.Tensor) -> bool:
    product, rotary = layer.qkv_proj, layer.rotary_emb
    config = getattr(getattr(product, "quant_method", None), "linear_config", None)
    return (
        isinstance(product, QKVParallelLinear)  # not one that LoRA wraps
        and config is not None
        and config.fuse_matmuls
        and (config.mesh.size == 1 or _are_shared_by_heads(layer, config))
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


def _never(layer: Any) -> bool:
    return False


def _always(layer: Any) -> bool:
    return True


# By layer, whether heads are normed there; None where something else is done too.
_NORMED: dict[str, Callable[[Any], bool | None]] = {
    "LlamaAttention": _never,
    "MistralAttention": lambda layer: None if layer.do_llama_4_scaling else False,
    "Qwen2Attention": lambda layer: bool(layer.qk_norm),
    "Qwen3Attention": _always,
    "Qwen3MoeAttention": _always,
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
        config = self.qkv_proj.quant_method.linear_config
        each = config.n_shards if config.mesh.size > 1 else 1
        with _products_as_they_are():
            qkv, _ = self.qkv_proj(hidden_states)
        summed = _linear.sums(qkv)
        if summed:
            summed["out_dtype"] = jax_view(qkv).dtype
        x = summed.pop("x", jax_view(qkv))
        epsilon = norms[0].variance_epsilon if norms else 0.0

        def turn(x: Any, positions: Any, table: Any, *weights: Any) -> Any:
            how = dict(zip(("q_norm", "k_norm"), weights), epsilon=epsilon) if weights else {}
            return rotary_embedding(
                x,
                positions,
                table,
                q_heads=self.num_heads // each,
                kv_heads=self.num_kv_heads // each,
                interleaved=not self.rotary_emb.is_neox_style,
                **how,
                **summed,
            )

        whole = positions, self.rotary_emb.cos_sin_cache, *(norm.weight for norm in norms)
        if each > 1:
            turn = functools.partial(_by_heads, config, turn)
        turned = turn(x, *map(jax_view, whole))
        output: torch.Tensor = self.o_proj(self.attn(*map(torch_view, turned)))[0]
        return output

    return forward


def _whole_of_one_shard(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def split(sharded_tensor: Any, split_sizes: Any, n_shards: int) -> Any:
        whole = sum(split_sizes) == sharded_tensor.shape[-1]
        if whole and (n_shards == 1 or _as_it_is.get()):
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
