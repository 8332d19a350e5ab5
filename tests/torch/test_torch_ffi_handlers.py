"""external_kernel(convention="ffi") on torch's tensors: a handler that was written for XLA."""

import pytest
import torch
import xla_gpu
import xla_gpu.torch
from user_kernels import add


def test_a_handler_runs_on_tensors():
    a = torch.arange(6.0).reshape(2, 3)
    torch.testing.assert_close(add(a, a), a + a)
    with pytest.raises(xla_gpu.XlaGpuError, match="add: simple_add"):
        add(a, a[:1])
