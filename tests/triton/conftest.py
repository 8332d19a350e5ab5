"""Kernels of Triton, described without a GPU: needs Triton from 3.2 on, and no framework."""

import importlib.util
import os
import tempfile

import pytest

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["*.py"]
else:
    cache = tempfile.TemporaryDirectory(prefix="xla-gpu-triton-")  # until the process ends
    os.environ["TRITON_CACHE_DIR"] = cache.name
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 4):

        class Driver:
            """@triton.autotune of 3.2 and 3.3 asks for a driver where it is written."""

            def __getattr__(self, name):
                return lambda *args: None

        triton.runtime.driver.set_active(Driver())


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path):
    from xla_gpu._triton import _device

    monkeypatch.setattr(_device, "find", lambda: None)
    monkeypatch.setenv("XLA_GPU_CACHE_DIR", str(tmp_path))
