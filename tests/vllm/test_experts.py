"""The product of rows with their experts' weights."""

from __future__ import annotations

import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AbstractMesh
from xla_gpu.vllm_xla import _experts, _names, _routing

SIZES = np.array([0, 30, 1, 0, 39, 0], np.int32)  # of the groups


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    shapes = {
        "lhs": (SIZES.sum(), 256),
        "rhs": (len(SIZES), 256, 256),
        "bias": (len(SIZES), 1, 256),
    }
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def product(lhs, rhs, bias, first=0):
    """In float64, and which rows are of groups that rhs has."""
    group = np.repeat(np.arange(len(SIZES)), SIZES) - first
    inside = (group >= 0) & (group < len(rhs))
    group = np.where(inside, group, 0)
    return np.einsum("mk,mkn->mn", lhs, rhs[group]) + bias[group, 0], inside


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("first", [None, 0, 1, 4])
def test_rows_times_their_groups_weights(arrays, dtype, first):
    lhs, rhs, bias = (jnp.asarray(array, dtype) for array in arrays.values())
    some = slice(first, None if first is None else first + 2)
    offset = None if first is None else jnp.int32(first)
    with jax.default_matmul_precision("highest"):
        got = jax.jit(_experts.gmm_v2)(lhs, rhs[some], SIZES, None, bias[some], offset)
    lhs, rhs, bias = (np.asarray(array, np.float64) for array in (lhs, rhs, bias))
    want, inside = product(lhs, rhs[some], bias[some], first or 0)
    assert got.dtype == dtype
    tolerance = 2**-7 if dtype == "bfloat16" else 1e-5
    np.testing.assert_allclose(
        np.asarray(got, np.float64)[inside], want[inside], rtol=tolerance, atol=1e-3
    )


@pytest.mark.parametrize("blocks", [1, 8])
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float4_e2m1fn"])
def test_quantized_weights(arrays, dtype, blocks):
    lhs, rhs = (jnp.asarray(arrays[name], "bfloat16") for name in ("lhs", "rhs"))
    rhs = (rhs * (20 if dtype == "int8" else 1)).astype(dtype)
    scale = (
        np.random.default_rng(1).uniform(0.5, 1, (len(SIZES), blocks, 1, 256)).astype(np.float32)
    )
    with jax.default_matmul_precision("highest"):
        got = jax.jit(_experts.gmm_v2)(lhs, rhs, SIZES, jnp.asarray(scale))
    tiles = np.asarray(rhs.astype(jnp.float32), np.float64).reshape(len(SIZES), blocks, -1, 256)
    want, _ = product(
        np.asarray(lhs, np.float64), (tiles * scale).reshape(rhs.shape), 0 * scale[:, 0]
    )
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0.02, atol=0.02 * want.std())


def test_activations_are_of_the_first_half(arrays):
    lhs, rhs = (jnp.asarray(arrays[name], "float32") for name in ("lhs", "rhs"))
    with jax.default_matmul_precision("highest"):
        plain = _experts.gmm_v2(lhs, rhs, SIZES)
        got = _experts.gmm_v2(lhs, rhs, SIZES, fuse_act="silu")
    want = jax.nn.silu(plain[:, :128]) * plain[:, 128:]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("limit", [None, 3.0, 5.0])
def test_gates_have_the_limit_of_their_layer(arrays, limit):
    """Each has a program of its own, though nothing else differs; else tokamax's limit, 10."""
    lhs, rhs = (jnp.asarray(arrays[name], "float32") for name in ("lhs", "rhs"))
    product = jax.jit(_experts.gmm_v2, static_argnames="fuse_act")
    how = {"fuse_act": "silu_and_mul_with_clamp"}
    apply = _routing._with_its_limit(lambda layer: product(lhs, rhs, SIZES, **how))
    with jax.default_matmul_precision("highest"):
        apply(types.SimpleNamespace(swiglu_limit=1.0))
        got = apply(types.SimpleNamespace(swiglu_limit=limit))
        gate, up = jnp.split(product(lhs, rhs, SIZES, fuse_act=None), 2, axis=-1)
    most = limit or 10.0
    want = jax.nn.silu(jnp.minimum(gate, most)) * jnp.clip(up, -most, most)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-3)


def test_an_activation_that_there_is_not_is_told_by_name(arrays):
    lhs, rhs = (jnp.asarray(arrays[name], "float32") for name in ("lhs", "rhs"))
    with pytest.raises(
        _names.UnsupportedError, match="activation is 'relu2'; there are silu, gelu"
    ):
        _experts.gmm_v2(lhs, rhs, SIZES, fuse_act="relu2")


def test_the_loop_takes_no_memory_for_each_expert():
    """As jax.lax.ragged_dot does: a copy of the rows for each."""
    lhs, rhs = jnp.zeros((512, 256)), jnp.zeros((64, 256, 256))
    sizes = jnp.full(64, 8, jnp.int32)
    compiled = jax.jit(_experts.gmm_v2).lower(lhs, rhs, sizes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * lhs.nbytes


def test_our_arguments_are_the_tpu_kernels():
    ours = set(inspect.signature(_experts.gmm_v2).parameters)
    _, theirs = _names.parameters("linear.gmm_v2")
    assert ours <= set(theirs.split(", "))


def theirs(layer, x, gating_output, weights, moe_backend, mesh, extra_backend_kwargs):
    """What tpu-inference makes of a layer, with experts that multiply by their numbers."""
    score = jax.nn.sigmoid if layer.scoring_func == "sigmoid" else jax.nn.softmax
    scores = score(gating_output)
    bias = extra_backend_kwargs.get("e_score_correction_bias")
    experts = jax.lax.top_k(scores if bias is None else scores + bias, layer.top_k)[1]
    weights = jnp.take_along_axis(scores, experts, -1)
    if layer.renormalize:
        weights /= weights.sum(-1, keepdims=True)
    return (weights * (1 + experts)).sum(-1, keepdims=True) * x


@pytest.mark.parametrize("scoring_func", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("groups", "factor"), [(1, 1.0), (1, 2.5), (4, 1.0), (4, 2.5)])
def test_tokens_go_to_the_experts_that_vllm_says(scoring_func, renormalize, biased, groups, factor):
    from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import grouped_topk

    rng = np.random.default_rng(0)
    x, logits = (rng.normal(size=(50, n)).astype(np.float32) for n in (3, 16))
    bias = rng.normal(size=16).astype(np.float32) if biased else None
    how = dict(renormalize=renormalize, scoring_func=scoring_func, routed_scaling_factor=factor)
    layer = types.SimpleNamespace(
        top_k=3,
        use_grouped_topk=groups > 1,
        num_expert_group=groups,
        topk_group=2,
        custom_routing_function=None,
        apply_router_weight_on_input=False,
        **how,
    )
    more = {"other": 1} | ({"e_score_correction_bias": jnp.asarray(bias)} if biased else {})
    apply = _routing._routed_as_the_model_says(theirs)
    got = apply(layer, *map(jnp.asarray, (x, logits)), 0, 1, 2, extra_backend_kwargs=more)
    groups = dict(num_expert_group=groups, topk_group=min(groups, 2))
    bias = None if bias is None else torch.from_numpy(bias)
    with torch.compiler.set_stance("force_eager"):
        weights, experts = grouped_topk(
            *map(torch.from_numpy, (x, logits)), 3, e_score_correction_bias=bias, **groups, **how
        )
    want = (weights * (1 + experts)).sum(-1, keepdim=True).numpy() * x
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert more["other"] == 1


@pytest.mark.parametrize("top_k", [1, 2])
def test_weights_on_the_input_are_those_of_one_expert(top_k):
    layer = types.SimpleNamespace(
        top_k=top_k,
        use_grouped_topk=False,
        custom_routing_function=None,
        apply_router_weight_on_input=True,
        renormalize=False,
        scoring_func="softmax",
        routed_scaling_factor=1.0,
    )
    apply = _routing._routed_as_the_model_says(
        lambda layer, x, gating_output, extra_backend_kwargs: x
    )
    x, logits = jnp.ones((2, 3)), jnp.log(jnp.array([[1.0, 3.0], [4.0, 1.0]]))
    if top_k == 1:
        got = apply(layer, x, gating_output=logits, extra_backend_kwargs={})
        np.testing.assert_allclose(got, [[0.75] * 3, [0.8] * 3], rtol=1e-6)
    else:
        with pytest.raises(_names.UnsupportedError, match="2 experts .* on their input"):
            apply(layer, x, gating_output=logits, extra_backend_kwargs={})


@pytest.mark.parametrize(
    ("data", "told"), [(1, {"other": 1, "num_valid_tokens": 5}), (2, {"other": 1})]
)
def test_padding_is_told_where_all_rows_are_of_one_device(data, told):
    """Else the count is that of the last device, and others' tokens would lose their experts."""

    def moe_apply(layer, x, gating_output, weights, moe_backend, mesh, extra_backend_kwargs):
        return extra_backend_kwargs

    apply = _routing._without_the_count_of_one_device(moe_apply)
    mesh = AbstractMesh((data, 2), ("data", "model"))
    given = {"other": 1, "num_valid_tokens": 5}
    assert apply(None, None, None, None, None, mesh=mesh, extra_backend_kwargs=given) == told
    assert given == {"other": 1, "num_valid_tokens": 5}
