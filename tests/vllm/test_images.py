"""The tower of a model that sees images, beside transformers'; without an engine."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from tpu_inference.layers.common import attention_interface
from tpu_inference.models.jax import qwen2_5_vl
from xla_gpu.vllm_xla import _encoder, _replace

PATCH = 14
GRIDS = (4, 8), (8, 6), (40, 4)  # patches, of which 2 x 2 are a word


@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    monkeypatch.setattr(attention_interface, "flash_attention", _encoder.flash_attention)
    for owner, name in (
        (qwen2_5_vl, "apply_rotary_pos_emb_vision"),
        (qwen2_5_vl.Qwen2_5_VisionRotaryEmbedding, "__call__"),
        (qwen2_5_vl.Qwen2_5_VisionPatchMerger, "__init__"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    _replace.images_of_qwen2_5_vl()


def tower(model: torch.nn.Module, config, dtype: str):
    """tpu-inference's, with the weights of transformers'."""
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((1, 1), ("data", "model"), auto, devices=jax.devices("cpu")[:1])
    settings = types.SimpleNamespace(hf_config=config, dtype=jnp.dtype(dtype))
    vllm_config = types.SimpleNamespace(model_config=settings, additional_config={})
    with jax.set_mesh(mesh):
        made = qwen2_5_vl.Qwen2_5_VisionTransformer(vllm_config, nnx.Rngs(0), mesh)
    names = {"qkv": "qkv_proj", "mlp.0": "mlp_fc1", "mlp.2": "mlp_fc2"}
    for name, value in model.state_dict().items():
        for theirs, flax in names.items():
            name = name.replace(f".{theirs}.", f".{flax}.")
        *path, kind = name.split(".")
        layer = made
        for part in path:
            layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
        if kind == "bias":
            layer.bias[...] = jnp.asarray(value.numpy(), dtype)
        elif value.ndim == 1:
            layer.scale[...] = jnp.asarray(value.numpy(), dtype)
        else:  # [out, in, ...]
            turned = value.movedim((0, 1), (-1, -2))
            layer.kernel[...] = jnp.asarray(turned.numpy(), dtype)
    return made


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-5), ("bfloat16", 0.02)])
def test_tower_is_transformers(reference, dtype, error):
    """Words of images, to the type's precision: by the deviation of what is wrong."""
    model = reference("qwen2_5_vl").model
    theirs = model.model.visual
    ours = tower(theirs, model.config, dtype)
    for height, width in GRIDS:
        generator = torch.Generator().manual_seed(height)
        patches = torch.randn(height * width, 3 * 2 * PATCH**2, generator=generator)
        with torch.inference_mode():
            expected = theirs(patches, grid_thw=torch.tensor([(1, height, width)])).pooler_output
        with jax.default_matmul_precision("highest"):
            words = ours(jnp.asarray(patches.numpy(), dtype), ((1, height, width),))
        assert words.dtype == dtype
        wrong = np.asarray(words, "float32") - expected.numpy()
        assert wrong.std() < error * expected.numpy().std()
