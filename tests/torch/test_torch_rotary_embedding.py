"""rotary_embedding on torch tensors: eager, compiled, wrong inputs."""

import pytest
import torch
import xla_gpu.torch

HEADS = dict(q_heads=3, kv_heads=1)


def operands(tokens=5, dtype=torch.float32):
    torch.manual_seed(0)
    angles = torch.rand(20, 8)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=1)
    positions = torch.randint(20, (tokens,), dtype=torch.int32)
    return torch.randn(tokens, 5 * 16).to(dtype), positions, cos_sin.to(dtype)


def expect_turned(got, qkv, positions, cos_sin, norms=(None, None)):
    cos, sin = cos_sin.float()[positions.long()][:, None].chunk(2, dim=-1)
    q, k, v = qkv.split([3 * 16, 16, 16], dim=1)
    for out, x, norm in zip(got, (q, k), norms, strict=False):
        x = x.float().unflatten(1, (-1, 16))
        if norm is not None:
            x = torch.nn.functional.rms_norm(x, (16,), norm.float(), 1e-3)
        a, b = x.chunk(2, dim=-1)
        want = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(1)
        torch.testing.assert_close(out, want.to(out.dtype))
    assert torch.equal(got[2], v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_queries_and_keys_are_turned(dtype):
    args = operands(dtype=dtype)
    expect_turned(torch.ops.xla_gpu.rotary_embedding(*args, **HEADS), *args)
    norms = torch.rand(2, 16, dtype=dtype)
    how = dict(q_norm=norms[0], k_norm=norms[1], epsilon=1e-3) | HEADS
    expect_turned(xla_gpu.torch.rotary_embedding(*args, **how), *args, norms)


def test_compiled_with_sizes_unknown():
    call = torch.compile(xla_gpu.torch.rotary_embedding, dynamic=True, backend="aot_eager")
    for tokens in (3, 8):
        args = operands(tokens)
        expect_turned(call(*args, **HEADS), *args)


def test_wrong_inputs_are_named():
    qkv, positions, cos_sin = operands()
    with pytest.raises(Exception, match=r"cos_sin is f32\[20,15\]; it must be \[max_positions,"):
        xla_gpu.torch.rotary_embedding(qkv, positions, cos_sin[:, 1:], **HEADS)
