"""What stands between the product of queries, keys and values and their attention."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torchax
from jax.sharding import Mesh
from torchax.interop import jax_view, torch_view
from vllm.model_executor.layers.linear import QKVParallelLinear
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.models.llama import LlamaAttention
from xla_gpu.vllm_xla import _rotary

HEAD_DIM, Q_HEADS, KV_HEADS, POSITIONS = 32, 4, 2, 50
COLUMNS = (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
KERNEL = 'custom_call_target="xla_gpu_rotary_embedding"'


@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    function = LlamaAttention.forward
    monkeypatch.setattr(LlamaAttention, "forward", getattr(function, "__wrapped__", function))
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
    )


def operands(of, dtype="bfloat16", tokens=9):
    """Positions, rows and the table, which the layer's programs take as arguments."""
    rng = np.random.default_rng(0)
    qkv = jnp.asarray(rng.normal(size=(tokens, COLUMNS)), dtype)
    table = jnp.asarray(of.rotary_emb._compute_cos_sin_cache().numpy(), dtype)
    return jnp.asarray(rng.integers(0, POSITIONS, tokens), "int32"), qkv, table


def called(of, forward=None):
    def call(*values):
        positions, qkv, of.rotary_emb.cos_sin_cache = map(torch_view, values)
        with torchax.default_env():
            return jax_view((forward or LlamaAttention.forward)(of, positions, qkv))

    return call


def kernels(call, values):
    return jax.jit(call).lower(*values).compile().as_text().count(KERNEL)


@pytest.mark.parametrize("how", [{}, dict(is_neox_style=False), dict(rotary_dim=16)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_one_kernel_gives_what_vllms_layer_does(dtype, how):
    of = layer(**how)
    values = operands(of, dtype)
    got = jax.jit(called(of))(*values)
    want = jax.jit(called(of, LlamaAttention.forward.__wrapped__))(*values)
    assert got.dtype == want.dtype == dtype
    tolerance = 4 * float(jnp.finfo(dtype).eps)  # theirs may round products as well
    np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (got, want)), 0, tolerance)
    v = slice(COLUMNS - KV_HEADS * HEAD_DIM, None)
    np.testing.assert_array_equal(got[:, v], values[1][:, v])
    assert kernels(called(of), values) == 1


class Wrapped(torch.nn.Module):
    """As LoRA wraps a product."""

    def __init__(self):
        super().__init__()
        self.base_layer = Product()

    def forward(self, x):
        return self.base_layer(x)


class Another(RotaryEmbedding):
    def forward_native(self, positions, query, key):
        return super().forward_native(positions, query, key)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layer(Product(mesh=mesh(2))),
        lambda: layer(Product(fuse_matmuls=False)),
        lambda: layer(Wrapped()),
        lambda: layer(kind=Another),
    ],
    ids=["devices", "three products", "LoRA", "another rotary embedding"],
)
def test_others_are_vllms(make):
    of = make()
    values = operands(of)
    got = jax.jit(called(of))(*values)
    want = jax.jit(called(of, LlamaAttention.forward.__wrapped__))(*values)
    np.testing.assert_array_equal(got, want)
    assert kernels(called(of), values) == 0
