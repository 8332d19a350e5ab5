"""What the JAX tests share."""

import pytest
import tiny_llama
from fixtures import histogram  # noqa: F401


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): runs in one pytest-xdist worker")


@pytest.fixture(scope="session")
def llama_checkpoint(tmp_path_factory):
    """llama_checkpoint(kind): the folder of a tiny random model, of tiny_llama.KINDS."""
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = tiny_llama.write(tmp_path_factory.mktemp(kind), **tiny_llama.KINDS[kind])
        return made[kind]

    return get
