"""The worker of XlaPlatform: tpu-inference's, with the replacements in place before its model."""

from __future__ import annotations

import os
from typing import Any

import jax

from xla_gpu import vllm_xla
from xla_gpu.vllm_xla import _names, _replace, _start, _step
from xla_gpu.vllm_xla._names import TPUWorker, UnsupportedError, init_logger

logger = init_logger("vllm.xla_gpu")


class XlaWorker(TPUWorker):  # type: ignore[misc]
    """A TPUWorker on XLA's CPU or CUDA device, whose attention is this library's."""

    def init_device(self, *args: str, **kwargs: str) -> None:
        """Chooses the device and says which it is.

        Raises:
          UnsupportedError: on a machine with a GPU that JAX cannot use: it would serve from the CPU
            unasked.
        """
        # Also where VLLM_PLUGINS keeps our general plugin from being called.
        _replace.before_the_model()
        serves_from_gpus = os.environ.get("JAX_PLATFORMS") != "cpu"
        of_a_part = getattr(_names, "TPU_MULTIPROCESS_DP", False)  # not in 0.31
        if serves_from_gpus and (of_a_part or _assigned(self.vllm_config.parallel_config)):
            _keep_own_gpus(self.vllm_config)
        if self.vllm_config.sharding_config.total_devices > 1:
            # XLA's other client for GPUs: the first one waits in each call until all devices have
            # begun it.
            os.environ.setdefault("XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT", "1")
        device = _device()
        _replace.no_sparse_core(device.device_kind)
        logger.info("xla_gpu: vLLM on XLA:%s, %s", device.platform.upper(), device.device_kind)
        super().init_device(*args, **kwargs)

    def load_model(self) -> None:
        """Loads the model, whose step takes its inputs as one array."""
        super().load_model()
        _step.logits_in_one_call(self.model_runner)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Makes the caches, once all programs are compiled."""
        with _start.before_there_are_caches(self.model_runner):
            super().initialize_from_config(kv_cache_config)

    def execute_model(self, scheduler_output: Any) -> Any:
        """A step, before which requests that come back get their tokens.

        With asynchronous scheduling a preempted request loses the last token it had made. The
        runner notes 0 for it and puts the token there a step later, unless the request has left the
        batch by then. vLLM therefore sends the tokens of every request that comes back, and its
        other runners take them; tpu-inference's does not, and goes on after the 0 (on TPUs too).
        """
        for name, tokens in scheduler_output.scheduled_cached_reqs.all_token_ids.items():
            state = self.model_runner.requests[name]
            known = tokens[state.num_prompt_tokens :]
            state.output_token_ids[: len(known)] = known
        self.model_runner.asked.note(scheduler_output)
        return super().execute_model(scheduler_output)

    def _setup_dp_chip_isolation(self) -> None:
        """tpu-inference's, by variables that libtpu reads: init_device has done it."""


def _assigned(parallel_config: Any) -> list[int] | None:
    """Of `--device-ids` this engine's, or numbers of vLLM's own where parts have processes."""
    assigned: list[int] | None = getattr(parallel_config, "assigned_physical_gpu_ids", None)
    return assigned


def _keep_own_gpus(config: Any) -> None:
    """Hides the GPUs of other parts of the requests from this process, before its first CUDA call.

    Under `vllm serve --data-parallel-size` each part has a process of its own; all would share the
    first GPU. Not by jax_cuda_visible_devices: XLA has no device 1 where one is visible.
    """
    count, parts = config.sharding_config.total_devices, config.parallel_config
    here = parts.data_parallel_rank_local  # of the parts on this machine
    number = parts.data_parallel_index if here is None else here
    own, assigned = [*range(number * count, (number + 1) * count)], _assigned(parts) or []
    if assigned != [*range(number * len(assigned), (number + 1) * len(assigned))]:  # vLLM's own
        own = assigned
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(i) for i in range(max(own) + 1)]
    if len(visible) <= max(own) or len(own) < count:
        raise UnsupportedError(
            f"xla_gpu.vllm_xla: this engine needs {count} GPUs, its numbers are {own}, and "
            f"CUDA_VISIBLE_DEVICES is {named}"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[i] for i in own[:count])


def _device() -> jax.Device:
    """The device that JAX takes; not libtpu's, which it would try otherwise."""
    if not vllm_xla.has_gpu() or os.environ.get("JAX_PLATFORMS"):
        return jax.devices()[0]
    jax.config.update("jax_platforms", "cuda,cpu")
    try:
        return jax.devices()[0]
    except RuntimeError as e:
        raise UnsupportedError(
            "xla_gpu.vllm_xla: this machine has an NVIDIA GPU, but JAX cannot use it: pip install "
            f"'jax[cuda12]=={jax.__version__}' (or cuda13), or set JAX_PLATFORMS=cpu to serve from "
            f"the CPU. JAX says: {e}"
        ) from e
