"""What the torchax tests share; each module skips where torchax, or what it imports, is missing."""

import pytest
from fixtures import histogram  # noqa: F401


@pytest.fixture
def env():
    """torchax's environment, entered."""
    import torchax

    with torchax.default_env() as entered:
        yield entered
