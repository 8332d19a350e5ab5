"""external_kernel(convention="ffi") on torch's tensors: a handler that was written for XLA."""

import pytest
import torch
import xla_gpu
import xla_gpu.torch
from xla_gpu import _lib


def test_a_handler_runs_on_tensors():
    add = xla_gpu.external_kernel(
        _lib.handler_address("simple_add", "Host", 4),
        convention="ffi",
        platform="Host",
        arguments=["a", "b"],
        outputs={"out": "a"},
        name="add",
    )
    a = torch.arange(6.0).reshape(2, 3)
    torch.testing.assert_close(add(a, a), a + a)
    with pytest.raises(xla_gpu.XlaGpuError, match="add: simple_add"):
        add(a, a[:1])
