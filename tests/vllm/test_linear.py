"""The product of rows with a dense layer's fp8 weights."""

from __future__ import annotations

import types
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torchax
from jax.sharding import Mesh, PartitionSpec
from torchax.interop import jax_view, torch_view
from tpu_inference.layers.common import linear
from tpu_inference.layers.vllm.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_fp8 import (  # noqa: E501
    VllmCompressedTensorsW8A8Fp8,
)
from tpu_inference.layers.vllm.quantization.fp8 import VllmFp8LinearMethod
from vllm.ir import enable_torch_wrap
from vllm.model_executor.layers.layernorm import RMSNorm
from xla_gpu.vllm_xla import _linear

INNER, COLUMNS = 256, 128
KERNEL = 'custom_call_target="xla_gpu_quantize_rows"'


METHODS = {
    VllmFp8LinearMethod: "apply",
    VllmCompressedTensorsW8A8Fp8: "apply_weights",
}


@pytest.fixture(autouse=True)
def replaced(monkeypatch):
    owners = {linear: "xla_quantized_matmul", RMSNorm: "forward_native"} | METHODS
    for owner, name in owners.items():
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, getattr(function, "__wrapped__", function))
    _linear.rows_are_quantized_in_one_kernel()


def operands(rows: int, dtype: str = "bfloat16", channels: tuple[int, ...] = (COLUMNS,)):
    rng = np.random.default_rng(rows)
    x = jnp.asarray(rng.normal(size=(rows, INNER)), dtype)
    weight = jnp.asarray(rng.normal(size=(INNER, COLUMNS)), "float8_e4m3fn")
    return x, weight, jnp.asarray(rng.uniform(0.5, 1, channels), "float32")


def expect_rounded_rows(got, x, weight, scale):
    """The product of rows rounded to fp8 and nothing else, of which the result is rounded."""
    want = np.asarray(x, np.float64) @ np.asarray(weight, np.float64) * np.asarray(scale)
    error = np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)
    assert 0.01 < error < 0.035


@pytest.mark.parametrize("channels", [(COLUMNS,), ()])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rows", [1, 16, 100])
def test_rows_become_fp8_in_one_kernel(rows, dtype, channels):
    values = operands(rows, dtype, channels)
    got = jax.jit(linear.xla_quantized_matmul)(*values)
    assert got.dtype == dtype
    expect_rounded_rows(got, *values)
    text = jax.jit(linear.xla_quantized_matmul).lower(*values).compile().as_text()
    assert text.count(KERNEL) == 1


@pytest.mark.parametrize("other", ["int8", "e5m2", "blocks", "not quantized"])
def test_other_products_are_tpu_inferences(other):
    x, weight, scale = operands(16)
    if other == "int8":
        weight = (16 * weight.astype("float32")).astype("int8")
    elif other == "e5m2":
        weight = weight.astype("float8_e5m2")
    elif other == "blocks":
        scale = jnp.stack([scale, 2 * scale])
    ours, theirs = linear.xla_quantized_matmul, linear.xla_quantized_matmul.__wrapped__
    values = x, weight, scale, other != "not quantized"
    got, want = (jax.jit(f, static_argnums=3)(*values) for f in (ours, theirs))
    np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(want, np.float32))


# ---- Behind a norm -------------------------------------------------------------------------------


def behind_a_norm(
    devices=1, with_sum=False, between=lambda x: x, method=VllmFp8LinearMethod, static=False, **norm
):
    """A function of rows and of the weights of RMSNorm and of a layer behind it."""
    norm = dict(variance_epsilon=1e-3, variance_size_override=None, has_weight=True) | norm
    before = SimpleNamespace(pass_weight=norm["has_weight"], pass_weight_add=True, **norm)
    layer = SimpleNamespace(_get_name=lambda: "layer")
    config = SimpleNamespace(
        mesh=Mesh(np.array(jax.devices()[:devices]), "data"),
        weight_sharding=PartitionSpec(None, None),
        fuse_matmuls=True,
        defer_all_reduce=False,
        output_sizes=[COLUMNS],
        n_shards=1,
    )
    of = SimpleNamespace(linear_config=config, is_static_input_scheme=static)
    of._apply_fused = types.MethodType(method._apply_fused, of)

    def call(x, norm_weight, weight, scale):
        before.weight, x = torch_view(norm_weight), torch_view(x)
        layer.weight, layer.weight_scale = torch_view(weight), torch_view(scale)
        layer.input_scale = torch_view(jnp.full((), 0.01))
        with torchax.default_env(), enable_torch_wrap(False):
            out = RMSNorm.forward_native(before, x, x if with_sum else None)
            normed = between(out[0] if with_sum else out)
            return jax_view(getattr(method, METHODS[method])(of, layer, normed, None))

    return call


def norm_operands(rows: int = 20, dtype: str = "bfloat16"):
    x, *weight = operands(rows, dtype)
    norm_weight = np.random.default_rng(1).uniform(0.5, 1.5, INNER)
    return x, jnp.asarray(norm_weight, dtype), *weight


def normed(x, weight):
    x = np.asarray(x, np.float64)
    mean = (x * x).mean(1, keepdims=True)
    return x / np.sqrt(mean + 1e-3) * np.asarray(weight, np.float64)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_norm_is_in_the_same_kernel(dtype, with_sum, method):
    x, weight, *rest = values = norm_operands(dtype=dtype)
    call = behind_a_norm(with_sum=with_sum, method=method)
    expect_rounded_rows(jax.jit(call)(*values), normed((1 + with_sum) * x, weight), *rest)
    text = jax.jit(call).lower(*values).compile().as_text()
    assert text.count(KERNEL) == 1
    assert " rsqrt(" not in text  # no other norm


@pytest.mark.parametrize(
    "how",
    [
        dict(between=lambda x: x + 0),
        dict(between=lambda x: x.add_(0)),
        dict(method=VllmCompressedTensorsW8A8Fp8, static=True),
        dict(devices=2),
        dict(has_weight=False),
        dict(variance_size_override=INNER // 2),
    ],
    ids=str,
)
def test_another_norm_is_its_own(how):
    call, values = behind_a_norm(**how), norm_operands()
    if not how.get("has_weight", True):
        values = values[0], jnp.ones(INNER, "bfloat16"), *values[2:]
    if not how.keys() & {"variance_size_override", "static"}:
        expect_rounded_rows(jax.jit(call)(*values), normed(*values[:2]), *values[2:])
    assert " rsqrt(" in jax.jit(call).lower(*values).compile().as_text()
