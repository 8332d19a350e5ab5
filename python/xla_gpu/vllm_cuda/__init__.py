"""This library's paged attention in vLLM's own engine: `vllm serve --attention-backend CUSTOM`.

vLLM on torch and CUDA, not the JAX backend of xla_gpu.vllm_xla. vLLM finds the backend by an entry
point and imports it only where it is selected. docs/vllm.md has the use and the limits.
"""

from __future__ import annotations

import logging

BACKEND = "xla_gpu.vllm_cuda.backend.XlaGpuBackend"
# Releases of vLLM whose contract the backend was tested with. Until 0.26 at least a backend tells
# the cache's shape and order; by 0.32 vLLM has one shape, and a backend names the orders it reads.
KNOWN = tuple(f"0.{minor}" for minor in range(26, 34))


def register() -> None:
    """Entry point of vllm.general_plugins: gives the name CUSTOM to BACKEND.

    Nothing else is imported or changed. A vLLM that has no such name, or has given it to another
    package's backend, stays as it is.
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        custom = AttentionBackendEnum.CUSTOM
        taken = custom.get_path() if custom.is_overridden() else BACKEND
    except (ImportError, AttributeError):
        return
    if taken == BACKEND:
        register_backend(custom, BACKEND)
    else:
        logging.getLogger(__name__).warning(
            "xla_gpu.vllm_cuda: the attention backend CUSTOM is %s already and stays so; "
            "VLLM_PLUGINS names the plugins that are loaded",
            taken,
        )
