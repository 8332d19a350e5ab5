"""The classic PyTorch/XLA custom call: a CUDA kernel of one's own, compiled by nvcc, in the graph.

    PJRT_DEVICE=XLA_GPU python minimal_xla_custom_call.py [--api-version 1|2|3|4]

Only the first import is new to the recipe that PyTorch/XLA had before it lost its NVIDIA client.
API version 4 is a typed handler (XLA's FFI headers, e.g. those of jaxlib); without a GPU, this
script runs that one on the CPU.
"""

from __future__ import annotations

import xla_gpu.torch_xla  # isort: skip  (what brings _xla_register_custom_call_target back)

import argparse
import ctypes
import importlib.util
import pathlib
import shutil
import subprocess
import tempfile

import torch
import torch_xla
import torch_xla.core.xla_model as xm

SOURCE = pathlib.Path(__file__).with_suffix(".cu")
SYMBOLS = {1: "simple_add", 2: "simple_add_status", 3: "simple_add_status", 4: "simple_add_typed"}


def ffi_headers() -> list[str]:
    """XLA's FFI headers: those that this checkout was built with, else jaxlib's, if it is there.

    A runtime takes handlers built against its own FFI version or an older one. jaxlib 0.7.2 has
    the oldest.
    """
    folders = [SOURCE.parents[2] / "build/deps/jaxlib/include"]
    spec = importlib.util.find_spec("jaxlib")
    if spec and spec.origin:
        folders.append(pathlib.Path(spec.origin).parent / "include")
    return [str(folder) for folder in folders if folder.is_dir()][:1]


def build(folder: str, include: list[str]) -> str:
    """The path of the library, compiled into the folder: by nvcc, or without a GPU by g++."""
    out = f"{folder}/minimal_xla_custom_call.so"
    flags = [*(f"-I{folder}" for folder in include), *(["-DWITH_XLA_FFI"] if include else [])]
    if xla_gpu.torch_xla.platform() == "CUDA":
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        command = [nvcc, "-shared", "-Xcompiler", "-fPIC"]
    else:
        command = ["g++", "-shared", "-fPIC", "-x", "c++"]
    subprocess.run([*command, "-std=c++17", "-O2", *flags, "-o", out, str(SOURCE)], check=True)
    return out


def capsule(library: str, symbol: str) -> object:
    """A PyCapsule with the address of an exported function."""
    function = getattr(ctypes.CDLL(library), symbol)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    return new(ctypes.cast(function, ctypes.c_void_p), b"xla._CUSTOM_CALL_TARGET", None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cuda = xla_gpu.torch_xla.platform() == "CUDA"
    parser.add_argument("--api-version", type=int, choices=SYMBOLS, default=1 if cuda else 4)
    parser.add_argument("--ffi-include", default=ffi_headers(), nargs="*", help="FFI headers")
    options = parser.parse_args()
    version = options.api_version
    platform = "CUDA" if cuda else "Host"
    if version == 4 and not options.ffi_include:
        parser.error(
            "a typed handler needs XLA's FFI headers: pip install jaxlib, or --ffi-include"
        )

    with tempfile.TemporaryDirectory() as folder:  # a library that is loaded needs no file
        handler = capsule(build(folder, options.ffi_include), SYMBOLS[version])
    if version == 1:  # as it always was
        torch_xla._XLAC._xla_register_custom_call_target("XlaGpuSimpleAdd", handler, platform)
    else:
        torch_xla._XLAC._xla_register_custom_call_target(
            "XlaGpuSimpleAdd", handler, platform, version
        )

    device = xm.xla_device()
    a = torch.tensor([1.0, 2.0, 3.0]).to(device)
    b = torch.tensor([10.0, 20.0, 30.0]).to(device)
    config = "{scale = 1.0 : f32}" if version == 4 else ""
    result = torch_xla._XLAC._xla_custom_call(
        [a, b], "XlaGpuSimpleAdd", [[3]], [torch.float32], False, config, version, {}
    )[0]
    print(torch_xla._XLAC._get_xla_tensors_hlo([result]))
    xm.mark_step()
    print(f"API version {version} on {platform}: {result.cpu().tolist()}")
    assert result.cpu().tolist() == [11.0, 22.0, 33.0]

    # Calls that differ in their configuration only do not share an executable.
    config = "{scale = 2.0 : f32}" if version == 4 else "2.0"
    twice = torch_xla._XLAC._xla_custom_call(
        [a, b], "XlaGpuSimpleAdd", [[3]], [torch.float32], False, config, version, {}
    )[0]
    xm.mark_step()
    assert twice.cpu().tolist() == [22.0, 44.0, 66.0]
    print("ok")


if __name__ == "__main__":
    main()
