"""The examples of Triton's kernels run, on the CPU by their twins."""

import importlib.util

import kernel_examples
import pytest
import triton

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)

VERSION = tuple(map(int, triton.__version__.split(".")[:2]))


def test_softmax():
    kernel_examples.check("triton_softmax", "cpu", JAX_PLATFORMS="cpu")


@pytest.mark.skipif(VERSION < (3, 4), reason="@triton.autotune of Triton 3.3 wants a GPU")
def test_matmul():
    kernel_examples.check("triton_matmul", "cpu", JAX_PLATFORMS="cpu")
