"""quantize_rows on torch tensors: eager, compiled, wrong inputs."""

import pytest
import torch
import xla_gpu.torch


def expect_near(rows, scale, want):
    assert (rows.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float32)
    torch.testing.assert_close(scale, want.abs().amax(1) / 448)
    torch.testing.assert_close(rows.float() * scale[:, None], want, rtol=0.0626, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_times_their_scales_are_what_came(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(5, 64).to(dtype), torch.rand(64)
    expect_near(*torch.ops.xla_gpu.quantize_rows(x), x.float())
    want = torch.nn.functional.rms_norm(x.float(), (64,), weight, 1e-3)
    expect_near(*xla_gpu.torch.quantize_rows(x, norm_weight=weight, epsilon=1e-3), want)


def test_an_activation_of_a_products_sums():
    torch.manual_seed(0)
    x, of_rows, of_columns = torch.randn(5, 64), torch.rand(5), torch.rand(64)
    got = xla_gpu.torch.quantize_rows(
        x, row_factor=of_rows, column_factor=of_columns, activation="silu_mul"
    )
    gate, up = (x * of_rows[:, None] * of_columns).chunk(2, 1)
    expect_near(*got, torch.nn.functional.silu(gate) * up)


def test_a_sum_is_given_too():
    torch.manual_seed(0)
    x, residual = torch.randn(5, 64), torch.randn(5, 64).bfloat16()
    *quantized, total = torch.ops.xla_gpu.quantize_rows_with_residual(x, residual)
    torch.testing.assert_close(total, (x + residual).bfloat16())
    expect_near(*quantized, x + residual)


def test_compiled_with_sizes_unknown():
    call = torch.compile(xla_gpu.torch.quantize_rows, dynamic=True, backend="aot_eager")
    for rows in (3, 8):
        x = torch.randn(rows, 32)
        for got, want in zip(call(x), xla_gpu.torch.quantize_rows(x), strict=True):
            torch.testing.assert_close(got.float(), want.float())


def test_wrong_inputs_are_named():
    with pytest.raises(Exception, match=r"norm_weight is f32\[3\]; it must be f32\[4\]"):
        xla_gpu.torch.quantize_rows(torch.ones(2, 4), norm_weight=torch.ones(3))
