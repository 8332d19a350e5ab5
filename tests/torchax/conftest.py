"""Makes the oracle and the helpers importable; sums up the errors of property tests.

Each module skips where torchax, or the torch and flax that it imports, is not installed.
"""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from compare import Histogram


@pytest.fixture(scope="module")
def histogram(request):
    """The errors of a module's cases, printed when they are through."""
    seen = Histogram()
    yield seen
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{request.module.__name__}: error against fp64\n{seen}")


@pytest.fixture
def env():
    """torchax's environment, entered."""
    import torchax

    with torchax.default_env() as entered:
        yield entered
