"""TVM-FFI functions in C++, compiled once."""

import os
import pathlib
import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def libtvm_ffi():
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    return tvm_ffi.libinfo.find_libtvm_ffi()


@pytest.fixture(scope="session")
def kernels(tmp_path_factory, libtvm_ffi):
    """The path of kernels.cc's library."""
    from tvm_ffi import libinfo

    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("tvm_ffi") / "kernels.so"
    source = pathlib.Path(__file__).parent / "kernels.cc"
    folder = pathlib.Path(libtvm_ffi).parent
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", f"-L{folder}", "-o", library]
    for include in (libinfo.find_include_path(), libinfo.find_dlpack_include_path()):
        flags += ["-isystem", include]
    subprocess.run([compiler, *flags, source, "-ltvm_ffi"], check=True)
    return str(library)
