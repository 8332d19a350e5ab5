"""Examples of kernels of one's own on torch's tensors: their objects know each framework."""

import importlib.util

import kernel_examples
import pytest
import torch

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)


def test_saxpy():
    done = kernel_examples.run("saxpy", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "ok on cpu: torch" in done.stdout


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_rms_norm(monkeypatch, dtype, tolerance):
    """Without a gradient, which torch has of nothing that writes in place."""
    rms_norm = kernel_examples.module("rms_norm", monkeypatch).rms_norm
    x, residual = (torch.randn(2, 5, 33, dtype=dtype) for _ in range(2))
    weight = torch.randn(33, dtype=dtype)
    h = x + residual
    want = torch.nn.functional.rms_norm(h.float(), (33,), weight.float(), 1e-6)
    out, kept = rms_norm(x, residual, weight)
    assert kept is residual
    torch.testing.assert_close(kept, h)
    torch.testing.assert_close(out.float(), want, rtol=tolerance, atol=tolerance)
