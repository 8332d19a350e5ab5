"""What stands between the product of queries, keys and values and their attention."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torchax
from jax.sharding import Mesh
from torchax.interop import jax_view, torch_view
from tpu_inference.layers.common.quantization import unquantized
from vllm.ir import enable_torch_wrap
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.models.llama import LlamaAttention
from vllm.model_executor.models.mistral import MistralAttention
from vllm.model_executor.models.qwen2 import Qwen2Attention
from vllm.model_executor.models.qwen3 import Qwen3Attention
from vllm.model_executor.models.qwen3_moe import Qwen3MoeAttention
from xla_gpu.vllm_xla import _linear, _rotary

HEAD_DIM, Q_HEADS, KV_HEADS, POSITIONS = 32, 4, 2, 50
COLUMNS = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
KERNEL = 'custom_call_target="xla_gpu_rotary_embedding"'


@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    for kind in LAYERS:
        function = getattr(kind.forward, "__wrapped__", kind.forward)
        monkeypatch.setattr(kind, "forward", function)
    _rotary.queries_and_keys_are_turned_in_one_kernel()


class Product(QKVParallelLinear):
    """The product's result is what comes."""

    def __init__(self, **config):
        torch.nn.Module.__init__(self)
        config = SimpleNamespace(**dict(mesh=mesh(1), fuse_matmuls=True) | config)
        self.quant_method = SimpleNamespace(linear_config=config)

    def forward(self, x):
        return x, None


def mesh(devices):
    return Mesh(np.array(jax.devices()[:devices]), "data")


def embedding(kind, rotary_dim=HEAD_DIM, is_neox_style=True):
    """Without what its constructor asks the engine's configuration for."""
    rotary = kind.__new__(kind)
    torch.nn.Module.__init__(rotary)
    rotary.head_size, rotary.rotary_dim, rotary.base = HEAD_DIM, rotary_dim, 1e4
    rotary.max_position_embeddings, rotary.is_neox_style = POSITIONS, is_neox_style
    rotary.use_aiter = False
    rotary._forward_method = rotary.forward_native  # as on that platform
    return rotary


def layer(product=None, kind=RotaryEmbedding, **how):
    """An attention layer whose attention gives its queries, keys and values side by side."""
    return SimpleNamespace(
        qkv_proj=product or Product(),
        rotary_emb=embedding(kind, **how),
        attn=lambda *qkv: torch.cat(qkv, dim=-1),
        o_proj=lambda x: (x, None),
        head_dim=HEAD_DIM,
        num_heads=Q_HEADS,
        num_kv_heads=KV_HEADS,
        q_size=Q_HEADS * HEAD_DIM,
        kv_size=KV_HEADS * HEAD_DIM,
        do_llama_4_scaling=False,
        qk_norm=False,
    )


def normed(q_epsilon=1e-3, **how):
    """Its heads are normed before."""
    of = layer(**how)
    of.q_norm, of.k_norm = norm(variance_epsilon=q_epsilon), norm()
    return of


def norm(**how):
    """Without what its constructor asks the engine's configuration for."""
    of = RMSNorm.__new__(RMSNorm)
    torch.nn.Module.__init__(of)
    how = dict(variance_epsilon=1e-3, variance_size_override=None, has_weight=True) | how
    vars(of).update(how, pass_weight=how["has_weight"], _forward_method=of.forward_native)
    return of


def operands(of, dtype="bfloat16", tokens=9):
    """Positions, rows, the table and the norms' weights, which programs take as arguments."""
    rng = np.random.default_rng(0)
    qkv = jnp.asarray(rng.normal(size=(tokens, COLUMNS)), dtype)
    table = jnp.asarray(of.rotary_emb._compute_cos_sin_cache().numpy(), dtype)
    norms = jnp.asarray(rng.uniform(0.5, 1.5, (2, HEAD_DIM)), dtype)
    return jnp.asarray(rng.integers(0, POSITIONS, tokens), "int32"), qkv, table, *norms


def called(of, forward):
    def call(*values):
        positions, qkv, of.rotary_emb.cos_sin_cache, *weights = map(torch_view, values)
        if hasattr(of, "q_norm"):
            vars(of.q_norm)["weight"], vars(of.k_norm)["weight"] = weights
        with torchax.default_env(), enable_torch_wrap(False):
            return jax_view(forward(of, positions, qkv))

    return call


def kernels(call, values):
    return jax.jit(call).lower(*values).compile().as_text().count(KERNEL)


ROTARY = [{}, dict(is_neox_style=False), dict(rotary_dim=16)]
LAYERS = {
    LlamaAttention: layer,
    MistralAttention: layer,
    Qwen2Attention: layer,
    Qwen3Attention: normed,
    Qwen3MoeAttention: normed,
}


@pytest.mark.parametrize("how", ROTARY, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", LAYERS)
def test_one_kernel_gives_what_vllms_layer_does(kind, dtype, how):
    of = LAYERS[kind](**how)
    values = operands(of, dtype)
    got = jax.jit(called(of, kind.forward))(*values)
    want = jax.jit(called(of, kind.forward.__wrapped__))(*values)
    assert got.dtype == want.dtype == dtype
    tolerance = 4 * float(jnp.finfo(dtype).eps)  # theirs may round norms and products as well
    got, want = (np.asarray(x, np.float32) for x in (got, want))
    np.testing.assert_allclose(got, want, tolerance, tolerance)
    v = slice(COLUMNS - KV_HEADS * HEAD_DIM, None)
    np.testing.assert_array_equal(got[:, v], np.asarray(values[1][:, v], np.float32))
    assert kernels(called(of, kind.forward), values) == 1


def test_an_fp8_products_scales_are_in_the_same_kernel():
    of = layer()
    positions, qkv, *rest = operands(of)
    rng = np.random.default_rng(1)
    sums, of_rows, of_columns = (
        jnp.asarray(rng.normal(size=size), "float32") for size in (qkv.shape, 9, COLUMNS)
    )

    def call(forward, sums, of_rows, of_columns):
        def product(x):
            scaled = torch_view((sums * of_rows[:, None] * of_columns).astype("bfloat16"))
            _linear._say(scaled, x=sums, row_factor=of_rows, column_factor=of_columns)
            return scaled, None

        of.qkv_proj.forward = product
        return called(of, forward)(positions, qkv, *rest)

    values = sums, of_rows, of_columns
    got, want = (
        np.asarray(jax.jit(functools.partial(call, f))(*values), np.float32)
        for f in (LlamaAttention.forward, LlamaAttention.forward.__wrapped__)
    )
    np.testing.assert_allclose(got, want, 0.02, 0.02 * np.abs(want).max())
    text = (
        jax.jit(functools.partial(call, LlamaAttention.forward)).lower(*values).compile().as_text()
    )
    assert KERNEL + f", operand_layout_constraints={{f32[9,{COLUMNS}]" in text


def test_a_product_of_one_device_is_not_taken_apart():
    split = unquantized.slice_sharded_tensor_for_concatenation
    x = jnp.arange(24).reshape(2, 12)
    (whole,) = split(x, [6, 4, 2], 1)
    assert whole is x
    for sizes, shards in (([6, 4, 2], 2), ([6, 4], 1)):
        for got, want in zip(
            split(x, sizes, shards), split.__wrapped__(x, sizes, shards), strict=True
        ):
            np.testing.assert_array_equal(got, want)


class Wrapped(torch.nn.Module):
    """As LoRA wraps a product."""

    def __init__(self):
        super().__init__()
        self.base_layer = Product()

    def forward(self, x):
        return self.base_layer(x)


def scaled():
    """Its queries are scaled by their positions."""
    of = layer()
    of.do_llama_4_scaling = True
    of._get_llama_4_attn_scale = lambda positions: (1 + positions[:, None]).to(torch.bfloat16)
    return of


class Another(RotaryEmbedding):
    def forward_native(self, positions, query, key):
        return super().forward_native(positions, query, key)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (LlamaAttention, lambda: layer(Product(mesh=mesh(2)))),
        (LlamaAttention, lambda: layer(Product(fuse_matmuls=False))),
        (LlamaAttention, lambda: layer(Wrapped())),
        (LlamaAttention, lambda: layer(kind=Another)),
        (Qwen3Attention, lambda: normed(kind=Another)),
        (Qwen3Attention, lambda: normed(q_epsilon=1e-2)),
        (MistralAttention, scaled),
    ],
    ids=["devices", "three products", "LoRA", "another", "normed, another", "epsilons", "scaled"],
)
def test_others_are_vllms(kind, make):
    of = make()
    values = operands(of)
    got = jax.jit(called(of, kind.forward))(*values)
    want = jax.jit(called(of, kind.forward.__wrapped__))(*values)
    np.testing.assert_array_equal(got, want)
    assert kernels(called(of, kind.forward), values) == 0
