"""xla_gpu.register: every form of a handler goes into JAX; what XLA would drop is refused aloud."""

import ctypes
import importlib.metadata
import itertools
import os
import pathlib
import shutil
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import xla_gpu
from legacy_calls import custom_call
from xla_gpu import _lib
from xla_gpu.jax import _compat, _registration

_COUNTER = itertools.count()


def fresh(stem="registered"):
    return f"{stem}_{next(_COUNTER)}"


def capsule(address):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(address, None, None)


def simple_add_address():
    return _lib.handler_address("simple_add", "Host", 4)


def test_handler_is_what_jax_takes():
    target = fresh()
    jax_ffi = pytest.importorskip("jax.ffi")
    handler = xla_gpu.handler("simple_add", platform="Host")
    jax_ffi.register_ffi_target(target, handler, platform="cpu")
    assert type(handler).__name__ == "PyCapsule" and adds(target)


def adds(target):
    a = np.arange(4, dtype=np.float32)
    (result,) = custom_call(target, 4, "", [a])(a, a)
    return np.array_equal(np.asarray(result), a + a)


FORMS = {
    "address": lambda address: address,
    "ctypes function": lambda address: ctypes.CFUNCTYPE(ctypes.c_void_p)(address),
    "capsule": capsule,
    "stages": lambda address: {"instantiate": address, "execute": capsule(address)},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("platform", ["Host", "cpu"])
def test_every_form_of_a_handler(form, platform):
    target = fresh()
    xla_gpu.register(target, FORMS[form](simple_add_address()), platform=platform)
    assert adds(target)


HANDLER_SOURCE = r"""
#include "xla/ffi/api/c_api.h"
static XLA_FFI_Error* Handle(XLA_FFI_CallFrame* frame, int minor) {
  if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata* m = ((XLA_FFI_Metadata_Extension*)frame->extension_start)->metadata;
    m->api_version.major_version = 0;
    m->api_version.minor_version = minor;
    m->traits = 0;
    return nullptr;
  }
  const float* in = (const float*)((XLA_FFI_Buffer*)frame->args.args[0])->data;
  XLA_FFI_Buffer* out = (XLA_FFI_Buffer*)frame->rets.rets[0];
  for (int64_t i = 0; i < out->dims[0]; ++i) ((float*)out->data)[i] = 2 * in[i];
  return nullptr;
}
extern "C" XLA_FFI_Error* Twice(XLA_FFI_CallFrame* frame) { return Handle(frame, 1); }
extern "C" XLA_FFI_Error* FromTheFuture(XLA_FFI_CallFrame* frame) { return Handle(frame, 99); }
extern "C" void Untyped(void* out, const void** in) {
  for (int i = 0; i < 4; ++i) ((float*)out)[i] = 3 * ((const float*)in[0])[i];
}
#include <cstdlib>
extern "C" void Exits() { std::exit(0); }
extern "C" void* Stranger() { return (void*)1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A shared library of three handlers, built against the headers of the jaxlib under test."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to build a handler with")
    folder = tmp_path_factory.mktemp("handlers")
    source = folder / "handlers.cc"
    source.write_text(HANDLER_SOURCE)
    path = folder / "libhandlers.so"
    include = pathlib.Path(_compat.ffi.include_dir())
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-std=c++17", f"-I{include}", source, "-o", path], check=True
    )
    return str(path)


@pytest.mark.parametrize("as_tuple", [False, True])
def test_a_symbol_of_the_users_library(library, as_tuple):
    target = fresh()
    handler = (library, "Twice") if as_tuple else f"{library}:Twice"
    xla_gpu.register(target, handler, platform="Host")
    a = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(custom_call(target, 4, "", [a])(a)[0], 2 * a)


def test_an_untyped_handler(library):
    target = fresh()
    xla_gpu.register(target, f"{library}:Untyped", platform="Host", api_version=1)
    a = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(custom_call(target, 1, "", [a])(a)[0], 3 * a)


def test_a_handler_newer_than_the_runtime_is_refused_with_both_versions(library):
    runtime, (major, minor) = _registration.runtime_ffi_version()
    with pytest.raises(xla_gpu.XlaGpuError) as error:
        xla_gpu.register(fresh(), f"{library}:FromTheFuture", platform="Host")
    assert error.value.code_name == "FAILED_PRECONDITION"
    for part in ("0.99", f"{major}.{minor}", runtime):
        assert part in str(error.value)


def test_the_same_again_is_fine_and_another_is_not(library):
    target = fresh()
    xla_gpu.register(target, f"{library}:Twice", platform="Host")
    xla_gpu.register(target, (library, "Twice"), platform="cpu")
    with pytest.raises(xla_gpu.XlaGpuError, match="taken by another handler") as error:
        xla_gpu.register(target, simple_add_address(), platform="Host")
    assert error.value.code_name == "ALREADY_EXISTS"


def test_a_kernel_and_a_handler_of_one_name_are_refused_by_it(library):
    source = "void twice(const float* x, float* out) { *out = 2 * *x; }"
    first, second = fresh(), fresh()
    kernels = [
        xla_gpu.host_kernel(source, "twice", outputs={"out": "x"}, name=name)
        for name in (first, second)
    ]
    assert kernels[0](jnp.ones(1)) == 2
    xla_gpu.register(second, f"{library}:Twice", platform="Host")
    for name, call in (
        (first, lambda: xla_gpu.register(first, f"{library}:Twice", platform="Host")),
        (second, lambda: kernels[1](jnp.ones(1))),
    ):
        with pytest.raises(xla_gpu.XlaGpuError, match=f"{name}: another handler has this") as error:
            call()
        assert error.value.code_name == "ALREADY_EXISTS"


def test_a_cuda_handler_may_be_registered_without_a_gpu():
    xla_gpu.register(fresh(), xla_gpu.handler("simple_add", platform="CUDA"), platform="CUDA")
    assert jnp.ones(1).sum() == 1


BAD = {
    "empty name": ({"name": ""}, ValueError, "name is ''"),
    "name no text": ({"name": 3}, ValueError, "name is 3"),
    "platform": ({"platform": "TPU"}, ValueError, "platform is 'TPU'; allowed are Host"),
    "platforms": ({"platform": ["Host"]}, ValueError, r"platform is \['Host'\]; allowed are Host"),
    "api_version float": ({"api_version": 1.0}, ValueError, "api_version is 1.0; allowed are 1"),
    "api_version": ({"api_version": 5}, ValueError, "api_version is 5; allowed are 1, 2, 3"),
    "no library": ({"handler": "/no/such.so:f"}, LookupError, "/no/such.so does not exist"),
    "no symbol name": ({"handler": "lib.so"}, ValueError, "must be 'path/to/lib.so:symbol'"),
    "tuple": ({"handler": ("a", "b", "c")}, ValueError, r"allowed is \(path, symbol\)"),
    "float": ({"handler": 1.5}, ValueError, "handler is float 1.5; allowed are"),
    "true": ({"handler": True}, ValueError, "handler is True"),
    "null": ({"handler": 0}, ValueError, "handler is 0x0, which is no address"),
    "negative": ({"handler": -1}, ValueError, "which is no address"),
    "not code": ({"handler": 4096}, ValueError, "is no function"),
    "unknown stage": (
        {"handler": {"run": 1}},
        ValueError,
        "handler has run; allowed are instantiate",
    ),
    "no execute": ({"handler": {"prepare": 1}}, ValueError, "execute must be there"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls(name):
    change, kind, message = BAD[name]
    call = {"name": fresh(), "handler": simple_add_address(), "platform": "Host"} | change
    handler, target = call.pop("handler"), call.pop("name")
    with pytest.raises(kind, match=message):
        xla_gpu.register(target, handler, **call)


NO_HANDLERS = {
    "untyped": ("Untyped", 4, "Untyped of .* is no typed FFI handler"),
    "exits": ("Exits", 4, "Exits of .* ended with exit code 0"),
    "returns something": ("Stranger", 4, "what is no XLA_FFI_Error; .* api_version 1, 2 or 3"),
    "typed": ("Twice", 3, "Twice of .* is a typed FFI handler .* register it with api_version 4"),
}


@pytest.mark.parametrize("form", ["text", "capsule", "ctypes function", "stages"])
@pytest.mark.parametrize("name", NO_HANDLERS)
def test_what_is_no_handler_does_not_harm_this_process(name, form, library):
    symbol, api_version, message = NO_HANDLERS[name]
    function = ctypes.CDLL(library)[symbol]
    address = ctypes.cast(function, ctypes.c_void_p).value
    handler = {
        "text": f"{library}:{symbol}",
        "capsule": capsule(address),
        "ctypes function": function,
        "stages": {"execute": address},
    }[form]
    with pytest.raises(ValueError, match=message):
        xla_gpu.register(fresh(), handler, platform="Host", api_version=api_version)


def test_a_function_of_libc_is_no_handler():
    with pytest.raises(ValueError, match="getpid of .*libc.* is no typed FFI handler"):
        xla_gpu.register(fresh(), ctypes.CDLL("libc.so.6").getpid, platform="Host")


def test_a_text_file_is_no_library(tmp_path):
    path = tmp_path / "lib.so"
    path.write_text("no ELF")
    with pytest.raises(xla_gpu.XlaGpuError, match="cannot load"):
        xla_gpu.register(fresh(), f"{path}:f", platform="Host")


def test_a_missing_symbol_is_named(library):
    with pytest.raises(LookupError, match="exports no symbol 'Thrice'"):
        xla_gpu.register(fresh(), f"{library}:Thrice", platform="Host")


def test_stages_of_an_untyped_handler(library):
    with pytest.raises(ValueError, match="an untyped handler .* has execute only"):
        xla_gpu.register(fresh(), simple_add_address(), platform="Host", api_version=3)


PLUGIN_PROGRAM = """
import sys
sys.modules["jax"] = None  # as if it were not installed
import importlib.util
import xla_gpu
from xla_gpu import _register
_register.importlib.util.find_spec = lambda name: None

plugin, library = sys.argv[1:]
address = xla_gpu.handler("simple_add", platform="Host")
xla_gpu.register("add", address, platform="Host", pjrt_plugin=plugin)
xla_gpu.register("add", address, platform="Host", pjrt_plugin=plugin)
xla_gpu.register("add_again", address, platform="Host")  # the loaded one
for handler, version in ((library + ":FromTheFuture", 4), (library + ":Untyped", 1)):
    try:
        xla_gpu.register("refused", handler, platform="Host", api_version=version)
        print("accepted")
    except xla_gpu.XlaGpuError as e:
        print(e.code_name, e)
"""


def test_a_pjrt_plugin_without_jax(library):
    try:
        files = importlib.metadata.files("xla-cpu-pjrt")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("xla-cpu-pjrt is not installed")
    (plugin,) = [str(file.locate()) for file in files if file.suffix == ".so"]
    done = subprocess.run(
        [sys.executable, "-c", PLUGIN_PROGRAM, plugin, library],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    newer, untyped = done.stdout.splitlines()
    assert "0.99" in newer
    assert newer.startswith("FAILED_PRECONDITION")
    assert untyped.startswith("UNIMPLEMENTED")
