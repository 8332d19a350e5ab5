"""Which experts a token goes to, and with what weights."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from torchax.interop import jax_view, torch_view

from xla_gpu.vllm_xla._names import (
    ShardingAxisName,
    UnsupportedError,
    get_mesh_shape_product,
    replace,
)

_BIAS = "e_score_correction_bias"


class _Routed:
    """A layer, for logits that are those of its tokens' own experts alone."""

    scoring_func = "softmax"

    def __init__(self, layer: Any) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _groups(layer: Any, logits: jax.Array) -> int:
    """Of experts, of which a token may have those of a few alone; 1: of all."""
    groups = layer.num_expert_group if layer.use_grouped_topk else 1
    experts = logits.shape[-1]
    return groups if experts > groups and experts % groups == 0 else 1


def _in_best_groups(layer: Any, scores: jax.Array, groups: int, has_bias: bool) -> jax.Array:
    grouped = scores.reshape(len(scores), groups, -1)
    best = jax.lax.top_k(grouped, 2 if has_bias else 1)[0].sum(-1)
    kept = jax.lax.top_k(best, layer.topk_group)[1]
    inside = jax.nn.one_hot(kept, groups, dtype=bool).any(1)
    return jnp.where(inside[..., None], grouped, -jnp.inf).reshape(scores.shape)


def _chosen(layer: Any, logits: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The weights and numbers of each token's experts, as vLLM's own routers have them."""
    score = jax.nn.sigmoid if layer.scoring_func == "sigmoid" else jax.nn.softmax
    scores = by = score(logits.astype(jnp.float32))
    if bias is not None:
        by = scores + bias
    if (groups := _groups(layer, logits)) > 1:
        by = _in_best_groups(layer, by, groups, bias is not None)
    experts = jax.lax.top_k(by, layer.top_k)[1]
    weights = jnp.take_along_axis(scores, experts, -1)
    if layer.renormalize:
        weights = weights / weights.sum(-1, keepdims=True)
    return weights * layer.routed_scaling_factor, experts


def _routed_as_the_model_says(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def moe_apply(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        layer, x, logits = given["layer"], given["x"], given["gating_output"]
        route, on_input = layer.custom_routing_function, layer.apply_router_weight_on_input
        others = layer.routed_scaling_factor != 1 or _groups(layer, logits) > 1
        if route is None and not on_input and not others:
            return original(**given)
        if layer.scoring_func not in ("softmax", "sigmoid") or (on_input and layer.top_k != 1):
            where = "input" if on_input else "output"
            raise UnsupportedError(
                f"xla_gpu.vllm_xla: {layer.top_k} experts for each token, scores by "
                f"{layer.scoring_func}, weights on their {where}: tpu-inference has no form of it"
            )
        more = dict(given["extra_backend_kwargs"] or {})
        bias = more.pop(_BIAS, None)
        if route is None:
            weights, experts = _chosen(layer, logits, bias)
        else:
            of = torch_view(x), torch_view(logits), layer.top_k, layer.renormalize
            weights, experts = map(jax_view, route(*of))
        # Whose softmax over the chosen ones is weights / sum: the products are linear in it.
        rows = jnp.arange(len(weights))[:, None]
        chosen = jnp.full(logits.shape, -jnp.inf).at[rows, experts].set(jnp.log(weights))
        total = weights.sum(-1, keepdims=True)
        given |= dict(layer=_Routed(layer), gating_output=chosen, extra_backend_kwargs=more)
        if on_input:
            return original(**given | {"x": (x * total).astype(x.dtype)})
        out = original(**given)
        return (out * total).astype(out.dtype)

    return moe_apply


def _without_the_count_of_one_device(original: Callable[..., Any]) -> Callable[..., Any]:
    signature, count = inspect.signature(original), "num_valid_tokens"

    @functools.wraps(original)
    def moe_apply(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        if get_mesh_shape_product(given["mesh"], ShardingAxisName.ATTN_DATA) > 1:
            more = given["extra_backend_kwargs"] or {}
            given["extra_backend_kwargs"] = {k: v for k, v in more.items() if k != count}
        return original(**given)

    return moe_apply


def _with_its_limit(original: Callable[..., Any]) -> Callable[..., Any]:
    from xla_gpu.vllm_xla._experts import swiglu_limit

    @functools.wraps(original)
    def moe_apply(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with swiglu_limit(float(getattr(layer, "swiglu_limit", None) or 0)):
            return original(layer, *args, **kwargs)

    return moe_apply


def as_the_model_says() -> None:
    """tpu-inference takes the greatest scores, whatever else the model says.

    Gemma 4 scales experts in a function of its own, Llama 4 takes sigmoids and weights the experts'
    input; others take experts of a few groups alone, or scale the weights. Which rows are padding,
    and go to one expert, it tells by the last device's count of tokens, as if no other device had
    padding behind tokens of its own. The gates' limit is 10, whatever the model's is.
    """

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        counted = _without_the_count_of_one_device(original)
        return _with_its_limit(_routed_as_the_model_says(counted))

    replace("moe.moe_apply", made)
