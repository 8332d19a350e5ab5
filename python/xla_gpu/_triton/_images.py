"""Machine code of Triton's kernels, kept on disk.

Triton has a cache of its own, but hashes all of its installation before it looks there: 0.2 to
0.4 s in each process. Here size and time of each file tell one installation from another.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from xla_gpu._triton import _disk
from xla_gpu._triton._compile import Constant, Image, Parameter, compile_image


def image_of(
    name: str, fn: Any, parameters: Mapping[str, Parameter], options: Mapping[str, Any], arch: int
) -> Image:
    """compile_image, or what an earlier process made of the same."""
    facts = _facts(fn, parameters, options, arch)
    if facts is None:
        return compile_image(name, fn, parameters, options, arch)
    image = _image(_disk.read(facts))
    if image is None:
        image = compile_image(name, fn, parameters, options, arch)
        said = {**dataclasses.asdict(image), "cubin": base64.b64encode(image.cubin).decode()}
        _disk.write(facts, f"machine code of Triton kernel {name} for sm_{arch}", said)
    return image


def _image(kept: Any) -> Image | None:
    """None where it is not what this version keeps."""
    try:
        cubin = base64.b64decode(kept.pop("cubin"))
        trailing, cluster = (tuple(kept.pop(key)) for key in ("trailing", "cluster"))
        return Image(cubin=cubin, trailing=trailing, cluster=cluster, **kept)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


# ---- What the machine code depends on ----------------------------------------------------------


def _facts(
    fn: Any, parameters: Mapping[str, Parameter], options: Mapping[str, Any], arch: int
) -> list[object] | None:
    """None where it may depend on more than can be told."""
    constants = [p.value for p in parameters.values() if isinstance(p, Constant)]
    if not all(map(_tells_all, [*constants, *options.values()])) or _is_steered():
        return None
    declared = [(p.name, str(getattr(p, "annotation_type", "")), p.is_const) for p in fn.params]
    return [
        "triton",
        sys.version_info[:2],  # whose parser reads the source
        _installation(os.environ.get("TRITON_PTXAS_PATH")),
        _environment(),
        fn.cache_key,  # the text, what it calls, and constants that it finds around it
        declared,
        list(parameters.items()),
        sorted(options.items()),
        bool(getattr(fn, "debug", False)),
        arch,
    ]


def _tells_all(value: Any) -> bool:
    """Whether its text is another for another value, in every process."""
    import triton.language as tl

    if isinstance(value, tuple):
        return all(map(_tells_all, value))
    return type(value) in (bool, int, float, str, type(None)) or isinstance(value, tl.dtype)


def _is_steered() -> bool:
    """Whether Triton is told to compile always, to dump, or by the program to be another."""
    asked = ("TRITON_ALWAYS_COMPILE", "TRITON_KERNEL_OVERRIDE", "TRITON_KERNEL_DUMP")
    if any(os.environ.get(name, "0") != "0" for name in asked):
        return True
    try:
        from triton import knobs
    except ImportError:  # before 3.4
        return False
    groups = ("compilation", "language", "nvidia", "runtime")
    return any(vars(getattr(knobs, name)) for name in groups if hasattr(knobs, name))


def _environment() -> list[tuple[str, str]]:
    """What Triton reads there, but for where it keeps files."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    folders = ("TRITON_CACHE_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR")
    found = {k: v for k, v in os.environ.items() if k.startswith("TRITON_") and k not in folders}
    return sorted({**found, **get_cache_invalidating_env_vars()}.items())


@functools.cache
def _installation(ptxas: str | None) -> str:
    """A digest of Triton's files by size and time, and of another ptxas."""
    import triton

    root = pathlib.Path(triton.__file__).parent
    digest = hashlib.sha256(f"{triton.__version__} {root}".encode())
    for path in [*_files(root), *([ptxas] if ptxas else [])]:
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError:
            continue
        digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _files(root: pathlib.Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (f"{folder}/{name}" for name in sorted(files))
