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
from vllm.model_executor.layers.activation import SiluAndMul
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
    layers = dict.fromkeys([RMSNorm, SiluAndMul], "forward_native")
    for owner, name in ({linear: "xla_quantized_matmul"} | layers | METHODS).items():
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


@pytest.mark.parametrize(
    ("dtype", "devices", "ours"),
    [("float8_e4m3fn", 1, True), ("bfloat16", 1, False), ("float8_e4m3fn", 2, False)],
)
def test_products_of_quantized_rows_are_not_cut_by_xla(dtype, devices, ours):
    weights = {"norm": jnp.ones(3), "experts": jnp.ones((2, 3, 4), "float8_e4m3fn")}
    weights["layer"] = jnp.ones((3, 4), dtype)
    mesh = Mesh(np.array(jax.devices()[:devices]), "data")
    options = _linear.compiler_options(weights, mesh)
    assert options == ({"xla_gpu_experimental_force_split_k": 1} if ours else {})
    jax.jit(lambda x: x + 1, compiler_options=options)(1)  # a name that XLA has


# ---- Behind a norm -------------------------------------------------------------------------------


def a_norm(weight, **how):
    how = dict(variance_epsilon=1e-3, variance_size_override=None, has_weight=True) | how
    passes = how["has_weight"]
    return SimpleNamespace(
        weight=torch_view(weight), pass_weight=passes, pass_weight_add=True, **how
    )


def a_product(x, weight, scale, method=VllmFp8LinearMethod, devices=1, static=False):
    """What a linear layer with these weights makes of rows."""
    config = SimpleNamespace(
        mesh=Mesh(np.array(jax.devices()[:devices]), "data"),
        weight_sharding=PartitionSpec(None, None),
        fuse_matmuls=True,
        defer_all_reduce=False,
        output_sizes=[weight.shape[1]],
        n_shards=1,
    )
    of = SimpleNamespace(linear_config=config, is_static_input_scheme=static)
    of._apply_fused = types.MethodType(method._apply_fused, of)
    layer = SimpleNamespace(
        weight=torch_view(weight),
        weight_scale=torch_view(scale),
        input_scale=torch_view(jnp.full((), 0.01)),
        _get_name=lambda: "layer",
    )
    return getattr(method, METHODS[method])(of, layer, x, None)


def behind_a_norm(
    devices=1, with_sum=False, between=lambda x: x, method=VllmFp8LinearMethod, static=False, **norm
):
    """A function of rows and of the weights of RMSNorm and of a layer behind it."""

    def call(x, norm_weight, weight, scale):
        x = torch_view(x)
        with torchax.default_env(), enable_torch_wrap(False):
            out = RMSNorm.forward_native(a_norm(norm_weight, **norm), x, x if with_sum else None)
            normed = between(out[0] if with_sum else out)
            return jax_view(a_product(normed, weight, scale, method, devices, static))

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
    ids=", ".join,
)
def test_another_norm_is_its_own(how):
    call, values = behind_a_norm(**how), norm_operands()
    if not how.get("has_weight", True):
        values = values[0], jnp.ones(INNER, "bfloat16"), *values[2:]
    if not how.keys() & {"variance_size_override", "static"}:
        expect_rounded_rows(jax.jit(call)(*values), normed(*values[:2]), *values[2:])
    assert " rsqrt(" in jax.jit(call).lower(*values).compile().as_text()


def summed(between=lambda x, residual: (x, residual), **how):
    """A function of rows and the weights of a product, the norm of its sum with them, another one.

    Returns that product and the sum.
    """

    def call(x, first, first_scale, norm_weight, second, second_scale):
        with torchax.default_env(), enable_torch_wrap(False):
            residual = torch_view(x)
            x, residual = between(a_product(residual, first, first_scale, **how), residual)
            normed, total = RMSNorm.forward_native(a_norm(norm_weight), x, residual)
            out = a_product(normed, second, second_scale, **how)
            return jax_view(out), jax_view(total)

    return call


def summed_operands():
    rng = np.random.default_rng(5)
    x, norm_weight, second, second_scale = norm_operands()
    first = jnp.asarray(rng.normal(size=(INNER, INNER)), "float8_e4m3fn")
    first_scale = jnp.asarray(rng.uniform(0.02, 0.05, INNER), "float32")
    return x, first, first_scale, norm_weight, second, second_scale


def expect_summed(got, x, first, first_scale, norm_weight, second, second_scale):
    out, total = (np.asarray(array, np.float64) for array in got)
    x, first, second = (np.asarray(array, np.float64) for array in (x, first, second))
    want = x @ first * np.asarray(first_scale) + x
    assert np.linalg.norm(total - want) < 0.03 * np.linalg.norm(want)
    want = normed(total, norm_weight) @ second * np.asarray(second_scale)
    assert 0.01 < np.linalg.norm(out - want) / np.linalg.norm(want) < 0.035


def terms_taken(text):
    """Whether a kernel's rows are a product's sums, to which it adds the residual."""
    return KERNEL + ", operand_layout_constraints={f32[20,256]{1,0}, bf16[256]{0}, f32[20]" in text


@pytest.mark.parametrize("method", METHODS)
def test_a_sum_is_in_the_same_kernel(method):
    call, values = summed(method=method), summed_operands()
    expect_summed(jax.jit(call)(*values), *values)
    text = jax.jit(call).lower(*values).compile().as_text()
    assert text.count(KERNEL) == 2 and terms_taken(text)
    assert " rsqrt(" not in text and "bf16[20,256]{1,0} add(" not in text


@pytest.mark.parametrize(
    "how",
    [
        dict(between=lambda x, residual: (x + 0, residual)),
        dict(between=lambda x, residual: (x.add_(0), residual)),
        dict(devices=2),
    ],
    ids=", ".join,
)
def test_another_sum_is_its_own(how):
    call, values = summed(**how), summed_operands()
    expect_summed(jax.jit(call)(*values), *values)
    assert not terms_taken(jax.jit(call).lower(*values).compile().as_text())


def test_a_sum_that_was_written_to_stays():
    x, *weights = summed_operands()

    def call(x, first, first_scale, norm_weight, second, second_scale):
        with torchax.default_env(), enable_torch_wrap(False):
            product = a_product(torch_view(x), first, first_scale)
            normed, total = RMSNorm.forward_native(a_norm(norm_weight), product, torch_view(x))
            total.add_(1)
            out = a_product(normed, second, second_scale)
            total.sub_(1)
            return jax_view(out), jax_view(total)

    expect_summed(jax.jit(call)(x, *weights), x, *weights)
    assert not terms_taken(jax.jit(call).lower(x, *weights).compile().as_text())


# ---- Behind an activation ------------------------------------------------------------------------


def gated(between=lambda x: x, **how):
    """A function of rows and the weights of a norm, a product, and one behind its activation."""

    def call(x, norm_weight, gate_up, gate_up_scale, down, down_scale):
        with torchax.default_env(), enable_torch_wrap(False):
            x = RMSNorm.forward_native(a_norm(norm_weight), torch_view(x), None)
            x = between(a_product(x, gate_up, gate_up_scale, **how))
            x = SiluAndMul.forward_native(SimpleNamespace(), x)
            return jax_view(a_product(x, down, down_scale, **how))

    return call


def gated_operands(channels: tuple[int, ...] = (COLUMNS,)):
    rng = np.random.default_rng(3)
    x, norm_weight, gate_up, scale = norm_operands()
    scale = jnp.asarray(rng.uniform(0.02, 0.05, channels), "float32")
    down = jnp.asarray(rng.normal(size=(COLUMNS // 2, 32)), "float8_e4m3fn")
    return x, norm_weight, gate_up, scale, down, jnp.ones(32)


def expect_gated(got, x, norm_weight, gate_up, scale, down, down_scale):
    sums = normed(x, norm_weight) @ np.asarray(gate_up, np.float64) * np.asarray(scale)
    gate, up = np.split(sums, 2, 1)
    want = gate / (1 + np.exp(-gate)) * up @ np.asarray(down, np.float64)
    error = np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)
    assert 0.02 < error < 0.06


def takes_sums(text):
    """Whether the kernel's rows are a product's sums, which it multiplies by the scales."""
    return KERNEL + ", operand_layout_constraints={f32[20,128]" in text


@pytest.mark.parametrize("channels", [(COLUMNS,), ()])
@pytest.mark.parametrize("method", METHODS)
def test_an_activation_is_in_the_same_kernel(method, channels):
    call, values = gated(method=method), gated_operands(channels)
    expect_gated(jax.jit(call)(*values), *values)
    text = jax.jit(call).lower(*values).compile().as_text()
    assert text.count(KERNEL) == 2
    assert " exponential(" not in text and " logistic(" not in text  # no other activation
    assert takes_sums(text) == bool(channels)  # of one scale for all columns the product, rounded


@pytest.mark.parametrize(
    "how",
    [dict(between=lambda x: x + 0), dict(between=lambda x: x.add_(0)), dict(devices=2)],
    ids=", ".join,
)
def test_another_product_is_its_own(how):
    call, values = gated(**how), gated_operands()
    expect_gated(jax.jit(call)(*values), *values)
    assert not takes_sums(jax.jit(call).lower(*values).compile().as_text())
