"""The worker of XlaPlatform: tpu-inference's, with the replacements in place before its model."""

from __future__ import annotations

import importlib.util
import os

import jax
from tpu_inference.worker.tpu_worker import TPUWorker
from vllm.logger import init_logger

from xla_gpu import vllm_xla
from xla_gpu.vllm_xla import _replace
from xla_gpu.vllm_xla._versions import UnsupportedError

logger = init_logger("vllm.xla_gpu")

_CUDAS = ("cuda13", "cuda12")


class XlaWorker(TPUWorker):
    """A TPUWorker on XLA's CPU or CUDA device, whose attention is this library's."""

    def init_device(self, *args: str, **kwargs: str) -> None:
        """Chooses the device and says which it is.

        Raises:
          UnsupportedError: on a machine with a GPU where JAX has no CUDA plugin, and would serve
            from the CPU unasked.
        """
        # Also where VLLM_PLUGINS keeps our general plugin from being called.
        _replace.before_the_model()
        if vllm_xla.has_gpu() and not os.environ.get("JAX_PLATFORMS"):
            if not any(importlib.util.find_spec(f"jax_plugins.xla_{cuda}") for cuda in _CUDAS):
                raise UnsupportedError(
                    "xla_gpu.vllm_xla: this machine has an NVIDIA GPU, but JAX has no CUDA plugin: "
                    f"pip install 'jax[cuda13]=={jax.__version__}' (cuda12 for drivers before "
                    "580), or set JAX_PLATFORMS=cpu to serve from the CPU"
                )
            jax.config.update("jax_platforms", "cuda,cpu")  # not libtpu
        device = jax.devices()[0]
        logger.info("xla_gpu: vLLM on XLA:%s, %s", device.platform.upper(), device.device_kind)
        super().init_device(*args, **kwargs)
