"""The simplest use of the ops from PyTorch: no XLA, no JAX, no compiler."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch
import xla_gpu.torch  # registers torch.ops.xla_gpu

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_simple_add(device, dtype):
    a = torch.tensor([1, 2, 3], dtype=dtype, device=device)
    b = torch.tensor([10, 20, 30], dtype=dtype, device=device)
    c = torch.ops.xla_gpu.simple_add(a, b)
    assert c.device == a.device and c.dtype == dtype
    assert c.tolist() == [11, 22, 33]
    assert torch.equal(xla_gpu.torch.simple_add(a, b), c)


@pytest.mark.parametrize("device", DEVICES)
def test_one_decode_step(device):
    """A cache of two pages, one sequence: attention over what was just written."""
    torch.manual_seed(0)
    key, value, query = (torch.randn(3, 1, 8, device=device) for _ in range(3))
    cache = torch.zeros(2, 4, 2, 8, device=device)
    slots = torch.tensor([4, 5, 6], device=device)  # page 1
    torch.ops.xla_gpu.update_kv_cache_(key, value, cache, slots)

    def i32(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    out = torch.ops.xla_gpu.paged_attention(
        query, cache, i32(3), i32(1).reshape(1, 1), i32(0, 3), i32(1), 8**-0.5
    )
    want = torch.nn.functional.scaled_dot_product_attention(
        *(t.transpose(0, 1) for t in (query, key, value)), is_causal=True
    ).transpose(0, 1)
    torch.testing.assert_close(out, want)


def test_no_other_framework_is_imported():
    code = (
        "import sys, torch, xla_gpu.torch; t = torch.ones(2); torch.ops.xla_gpu.simple_add(t, t);"
        "found = {'jax', 'torch_xla', 'torchax'} & set(sys.modules); assert not found, found"
    )
    path = os.pathsep.join([str(pathlib.Path(xla_gpu.__file__).parents[1]), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})
