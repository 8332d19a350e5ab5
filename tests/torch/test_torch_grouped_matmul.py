"""grouped_matmul on torch tensors: eager, compiled, wrong inputs; its benchmark."""

import pathlib
import subprocess
import sys

import pytest
import torch
import xla_gpu.torch

BENCHMARK = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/grouped_matmul.py"


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    lhs, rhs = torch.randn(10, 64).to(dtype), torch.randn(4, 64, 32).to(dtype)
    return lhs, rhs, torch.tensor([3, 0, 5, 1], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_is_the_product_of_each_group(dtype):
    lhs, rhs, sizes = tensors(dtype)
    got = torch.ops.xla_gpu.grouped_matmul(lhs, rhs, sizes, out_dtype=torch.float32)
    want = torch.zeros(10, 32)
    for group, (begin, end) in {0: (0, 3), 2: (3, 8), 3: (8, 9)}.items():
        want[begin:end] = lhs[begin:end].float() @ rhs[group].float()
    torch.testing.assert_close(got, want)


def test_compiled_with_sizes_unknown():
    lhs, rhs, sizes = tensors()
    call = torch.compile(xla_gpu.torch.grouped_matmul, dynamic=True, backend="aot_eager")
    for repeat in (1, 2):
        args = torch.cat([lhs] * repeat), rhs, sizes * repeat
        torch.testing.assert_close(call(*args), xla_gpu.torch.grouped_matmul(*args))


def test_wrong_inputs_are_named():
    lhs, rhs, sizes = tensors()
    with pytest.raises(Exception, match=r"group_sizes is i64\[4\]; its dtype must be i32"):
        xla_gpu.torch.grouped_matmul(lhs, rhs, sizes.long())
    with pytest.raises(Exception, match=r"rhs is f32\[4,3,32\]; it must be \[groups, 64, N\]"):
        xla_gpu.torch.grouped_matmul(lhs, rhs[:, :3].contiguous(), sizes)
    with pytest.raises(Exception, match=r"jax\.lax\.ragged_dot"):
        torch.ops.xla_gpu.grouped_matmul(lhs.requires_grad_(), rhs, sizes).sum().backward()


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="torch has no grouped product")
def test_the_benchmark_runs():
    command = [sys.executable, str(BENCHMARK), "--quick", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("\n") == 2 + 8
