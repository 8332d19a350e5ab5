"""TVM-FFI functions in C++, compiled once."""

import os
import pathlib
import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def kernels(tmp_path_factory):
    """The path of kernels.cc's library."""
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    info = tvm_ffi.libinfo
    library = tmp_path_factory.mktemp("tvm_ffi") / "kernels.so"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-o", library]
    flags += [f"-L{pathlib.Path(info.find_libtvm_ffi()).parent}"]
    for include in (info.find_include_path(), info.find_dlpack_include_path()):
        flags += ["-isystem", include]
    source = pathlib.Path(__file__).parent / "kernels.cc"
    subprocess.run([compiler, *flags, source, "-ltvm_ffi"], check=True)
    return str(library)
