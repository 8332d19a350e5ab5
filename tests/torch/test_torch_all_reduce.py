"""all_reduce on torch tensors of one device of the CPU: eager, compiled, wrong inputs."""

import pytest
import torch
import xla_gpu.torch


def test_of_one_device_is_its_part():
    x = torch.randn(3, 5, dtype=torch.bfloat16)
    compiled = torch.compile(xla_gpu.torch.all_reduce, backend="aot_eager")
    for call in (torch.ops.xla_gpu.all_reduce, xla_gpu.torch.all_reduce, compiled):
        torch.testing.assert_close(call(x, devices="0"), x)


def test_wrong_inputs_are_named():
    with pytest.raises(Exception, match='is "0,0"; it must be 1 to 8'):
        xla_gpu.torch.all_reduce(torch.ones(2), devices="0,0")
    with pytest.raises(Exception, match="attribute 'devices' has 2, and the call runs on the Host"):
        xla_gpu.torch.all_reduce(torch.ones(2), devices="0,1")
