"""The torch ops on the CPU: needs torch, any release from 2.4 on."""

import importlib.util
import pathlib
import sys

import pytest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
    from compare import Histogram

    @pytest.fixture(scope="module")
    def histogram(request):
        """The errors of a module's cases, printed when they are through."""
        seen = Histogram()
        yield seen
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(f"\n{request.module.__name__}: error against fp64\n{seen}")
