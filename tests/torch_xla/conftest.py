"""PyTorch/XLA on the compatibility plugin: needs torch 2.9 and torch_xla 2.9.

On a machine with an NVIDIA GPU over its CUDA plugin, else over xla-cpu-pjrt.
"""

import importlib.util
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent

if importlib.util.find_spec("torch_xla") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path[:0] = [str(HERE), str(HERE.parent / "oracle")]
    # Read when torch_xla is first imported.
    os.environ.setdefault("PJRT_DEVICE", "XLA_GPU")
    if not pathlib.Path("/dev/nvidiactl").exists():
        os.environ.setdefault("XLA_GPU_PJRT_PLUGIN", "cpu")
    from compare import Histogram

    @pytest.fixture(scope="module")
    def histogram(request):
        """The errors of a module's cases, printed when they are through."""
        seen = Histogram()
        yield seen
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\n{request.module.__name__}: error against fp64\n{seen}")
