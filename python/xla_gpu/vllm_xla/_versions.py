"""The releases of tpu-inference and vLLM that this package knows."""

from __future__ import annotations

from importlib import metadata

# tpu-inference's own functions are replaced (_replace.py), so every release needs a look before it
# stands here. Its release and vLLM's go together: each pins the other.
KNOWN = {"tpu-inference": ("0.32.0",), "vllm-tpu": ("0.32.0",)}


class UnsupportedError(RuntimeError):
    """What is installed, or what the user asked for, is not what this package can run."""


def installed(name: str) -> str | None:
    """The version of a package without its local part, or None."""
    try:
        return metadata.version(name).split("+")[0]
    except metadata.PackageNotFoundError:
        return None


def check() -> None:
    """Raises UnsupportedError unless a known pair is installed."""
    for name, known in KNOWN.items():
        version = installed(name)
        if version not in known:
            found = f"{name} {version} is installed" if version else f"{name} is not installed"
            raise UnsupportedError(
                f"xla_gpu.vllm_xla: {found}; it knows {name} {' and '.join(known)}. It replaces "
                f"functions of that release and does not guess at others: pip install "
                f"{name}=={known[-1]} (docs/vllm.md)"
            )
