"""vLLM on XLA:CPU and XLA:GPU: the platform through which plain `vllm serve MODEL` runs there.

vLLM's JAX backend (the packages tpu-inference and vllm-tpu) is made for TPUs. This package stands
in for what only runs there, the attention kernel first of all: it becomes a custom call of this
library. vLLM finds it by its entry points; nobody imports it. docs/vllm.md has the use and the
limits.
"""

from __future__ import annotations

import os
import pathlib
import sys

from xla_gpu.vllm_xla import _names

PLATFORM = "xla_gpu.vllm_xla.platform.XlaPlatform"


def platform_plugin() -> str | None:
    """Entry point of vllm.platform_plugins: the platform's class.

    None on a TPU machine, and beside a vLLM that has nothing of the JAX backend, such as CUDA's.
    """
    if not any(_names.installed(name) for name in _names.PACKAGES):
        return None
    return None if has_tpu() else PLATFORM


def general_plugin() -> None:
    """Entry point of vllm.general_plugins, which vLLM calls in each of its processes.

    Raises:
      UnsupportedError: for a tpu-inference or vLLM that this package does not know.
    """
    module, _, name = PLATFORM.rpartition(".")
    if isinstance(_names.current_platform, getattr(sys.modules.get(module), name, ())):
        from xla_gpu.vllm_xla import _replace

        _replace.before_the_model()


_XLA_FLAGS = (
    # By default XLA ends a CUDA graph at each collective and begins another one behind it: over two
    # devices a layer is two graphs and two calls of NCCL, which took the host longer than the
    # device its step.
    "--xla_gpu_enable_command_buffer=+COLLECTIVES",
    # By default XLA compares what the candidates for a product compute, and only logs where they
    # differ: with fp8 weights a third of the start.
    "--xla_gpu_autotune_level=2",
)


def prepare_environment() -> None:
    """Settings that vLLM, tpu-inference and JAX read."""
    # Where Triton works vLLM's scheduler takes the runner for its second one for CUDA, to which a
    # request that comes back after preemption is a new one; tpu-inference's loses its tokens then.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # Without these it asks a cloud's metadata server what TPU this is, and waits for the answer.
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "none")
    os.environ.setdefault("TPU_NAME", "none")
    os.environ.setdefault("TPU_WORKER_ID", "0")
    # Programs that compile at once, each on several cores and with its own memory on the device.
    os.environ.setdefault("NUM_PRECOMPILE_WORKERS", str(min(8, len(os.sched_getaffinity(0)))))
    # A batch is padded to 16 tokens at least, whose rows would have 8 experts more read than one
    # request wants: 26 us a layer of 59 on an H100. All to one expert, with weight 0.
    os.environ.setdefault("MOE_ROUTE_PADDING_TO_EXPERT0", "1")
    # tpu-inference refuses the name of a platform that it does not know; worker.py sets it.
    if os.environ.get("JAX_PLATFORMS") in ("cuda", "gpu", "cuda,cpu"):
        del os.environ["JAX_PLATFORMS"]
    if not has_gpu():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # else JAX tries libtpu
    for flag in _XLA_FLAGS:
        flags = os.environ.get("XLA_FLAGS", "")
        if flag.partition("=")[0] not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {flag}".strip()


def has_gpu() -> bool:
    """Whether there is an NVIDIA GPU, for all that the device files say."""
    return pathlib.Path("/dev/nvidiactl").exists()


def has_tpu() -> bool:
    """Whether there is a TPU, for all that the device files say: of newer ones those of VFIO.

    GPUs that a machine hands on to virtual ones have these too, and in /dev/accel are others' NPUs.
    """
    files = pathlib.Path("/dev")
    return any(files.glob("accel[0-9]*")) or (not has_gpu() and any(files.glob("vfio/[0-9]*")))
