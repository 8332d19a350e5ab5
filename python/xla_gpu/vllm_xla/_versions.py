"""The releases of tpu-inference and vLLM that this package knows."""

from __future__ import annotations

from importlib import metadata

# tpu-inference's own functions are replaced (_replace.py), so every release needs a look before it
# stands here. Its release and vLLM's go together: each pins the other.
RELEASES = ("0.31.0", "0.32.0")
PACKAGES = ("tpu-inference", "vllm-tpu")


class UnsupportedError(RuntimeError):
    """What is installed, or what the user asked for, is not what this package can run."""


def installed(name: str) -> str | None:
    """The version of a package without its local part, or None."""
    try:
        return metadata.version(name).split("+")[0]
    except metadata.PackageNotFoundError:
        return None


def check() -> None:
    """Raises UnsupportedError unless both packages are of one known release."""
    versions = [installed(name) for name in PACKAGES]
    release = versions[0] if versions[0] in RELEASES else RELEASES[-1]
    for name, version in zip(PACKAGES, versions, strict=True):
        if version != release:
            found = f"{name} {version} is installed" if version else f"{name} is not installed"
            raise UnsupportedError(
                f"xla_gpu.vllm_xla: {found}; it knows {' and '.join(RELEASES)}, both packages of "
                f"one. It replaces functions of that release and does not guess at others: pip "
                f"install {name}=={release} (docs/vllm.md)"
            )
