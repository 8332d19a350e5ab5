"""The worker of XlaPlatform: tpu-inference's, with the replacements in place before its model."""

from __future__ import annotations

import jax
from tpu_inference.worker.tpu_worker import TPUWorker
from vllm.logger import init_logger

from xla_gpu.vllm_xla import _replace

logger = init_logger("vllm.xla_gpu")


class XlaWorker(TPUWorker):
    """A TPUWorker whose attention is this library's."""

    def init_device(self, *args: str, **kwargs: str) -> None:
        """Says which device XLA took: a JAX without its CUDA plugin would serve from the CPU."""
        # Also where VLLM_PLUGINS keeps our general plugin from being called.
        _replace.before_the_model()
        device = jax.devices()[0]
        logger.info("xla_gpu: vLLM on XLA:%s, %s", device.platform.upper(), device.device_kind)
        super().init_device(*args, **kwargs)
