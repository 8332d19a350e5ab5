"""vLLM on XLA: needs tpu-inference 0.32.0 and vllm-tpu 0.32.0 (make test-vllm).

On a machine with an NVIDIA GPU and JAX's CUDA plugin the servers run there, else on the CPU.
"""

import importlib.util
import os

import pytest

if importlib.util.find_spec("tpu_inference") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import jax
    from checkpoints import Checkpoints

    # Of this process, not of those that tests start.
    if "host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", 2)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """checkpoint(name): the folder of a tiny random checkpoint."""
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def reference(checkpoint):
    """reference(name): transformers' model of it."""
    return checkpoint.reference
