"""external_kernel(convention="ffi"): a typed XLA FFI handler as a kernel, in JAX."""

import ctypes
import pathlib
import shutil
import subprocess

import jax
import jax.export
import numpy as np
import pytest
import xla_gpu
from xla_gpu.jax import _compat

SOURCE = r"""
#include <memory>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;
static ffi::Error Scale(F32 x, ffi::Result<F32> out, float alpha, int32_t n) {
  if (n < 0) return ffi::Error::InvalidArgument("n is negative");
  for (size_t i = 0; i < x.element_count(); ++i) {
    out->typed_data()[i] = alpha * x.typed_data()[i] + n;
  }
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(Handler, Scale,
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Attr<float>("alpha").Attr<int32_t>("n"));
extern "C" int NoHandler() { return 0; }

struct Offset {
  static ffi::TypeId id;
  float value;
};
ffi::TypeId Offset::id = {};
static ffi::ErrorOr<std::unique_ptr<Offset>> MakeOffset(float alpha) {
  return std::make_unique<Offset>(Offset{alpha});
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(Make, MakeOffset, ffi::Ffi::BindInstantiate().Attr<float>("alpha"));
static ffi::Error Add(F32 x, ffi::Result<F32> out, Offset* offset, float) {
  for (size_t i = 0; i < x.element_count(); ++i) {
    out->typed_data()[i] = x.typed_data()[i] + offset->value;
  }
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(AddOffset, Add,
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Ctx<ffi::State<Offset>>().Attr<float>("alpha"));
#if XLA_FFI_API_MINOR >= 2
extern "C" const XLA_FFI_TypeInfo OffsetInfo = ffi::MakeTypeInfo<Offset>();
#endif
"""

X = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Handlers built against the headers of the jaxlib under test."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to build a handler with")
    folder = tmp_path_factory.mktemp("ffi_handlers")
    (folder / "handlers.cc").write_text(SOURCE)
    path = folder / "libhandlers.so"
    include = pathlib.Path(_compat.ffi.include_dir())
    command = [compiler, "-shared", "-fPIC", "-std=c++17", f"-I{include}"]
    subprocess.run([*command, folder / "handlers.cc", "-o", path], check=True)
    return str(path)


def make(function, **options):
    return xla_gpu.external_kernel(
        function,
        convention="ffi",
        platform="Host",
        arguments=["x"],
        outputs={"out": "x"},
        scalars={"n": ("i32", 1), "alpha": "f32"},
        **options,
    )


@pytest.mark.parametrize("form", ["symbol", "address", "stages"])
def test_in_jax(library, form):
    function = f"{library}:Handler"
    if form != "symbol":
        function = xla_gpu._handlers.address_of(function)
    if form == "stages":
        function = {"execute": function}
    kernel = make(function, name="scale")
    np.testing.assert_array_equal(kernel(X, alpha=2.0), 2 * X + 1)
    np.testing.assert_array_equal(jax.jit(lambda x: kernel(x, alpha=0.5, n=3))(X), X / 2 + 3)


def stateful(stages):
    return xla_gpu.external_kernel(
        stages,
        convention="ffi",
        platform="Host",
        arguments=["x"],
        outputs={"out": "x"},
        scalars={"alpha": "f32"},
        name="add",
    )


def test_state_without_its_type_is_refused(library):
    """Before the type has an id; the headers would end the process."""
    execute = {"execute": f"{library}:AddOffset"}
    with pytest.raises(Exception, match="add: the handler takes a state whose type has no id"):
        np.asarray(stateful(execute)(X, alpha=1.0))
    with pytest.raises(Exception, match="add: .*type_id and type_info"):
        np.asarray(stateful({**execute, "instantiate": f"{library}:Make"})(X, alpha=1.0))


def test_state(library):
    stages = {
        "instantiate": f"{library}:Make",
        "execute": f"{library}:AddOffset",
        "type_id": f"{library}:_ZN6Offset2idE",
    }
    if hasattr(ctypes.CDLL(library), "OffsetInfo"):  # since FFI 0.2
        stages["type_info"] = f"{library}:OffsetInfo"
    kernel = stateful(stages)
    for alpha in (1.0, 2.5, 1.0):
        np.testing.assert_array_equal(kernel(X, alpha=alpha), X + np.float32(alpha))
    run = jax.jit(lambda x: kernel(kernel(x, alpha=3.0), alpha=4.0))
    np.testing.assert_array_equal(run(X), X + 7)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ({"instantiate": 1}, "external_kernel: function has instantiate; allowed are .*type_id"),
        ({"execute": 1, "run": 1}, "external_kernel: function has execute, run; allowed are"),
        ({"execute": 1, "prepare": []}, r"external_kernel: function\['prepare'\] is list"),
        ({"execute": "/no.so:F"}, r"function\['execute'\]: the library /no.so does not exist"),
    ],
)
def test_wrong_stages(function, message):
    with pytest.raises(xla_gpu.XlaGpuError, match=message):
        stateful(function)


def test_its_errors_name_the_kernel(library):
    with pytest.raises(Exception, match="scale: n is negative"):
        np.asarray(make(f"{library}:Handler", name="scale")(X, alpha=2.0, n=-1))


def test_what_is_no_handler(library):
    with pytest.raises(Exception, match="NoHandler of .* is no typed FFI handler"):
        np.asarray(make(f"{library}:NoHandler")(X, alpha=2.0))


def test_parameters_are_refused():
    with pytest.raises(xla_gpu.InvalidArgumentError, match="parameters"):
        make(1, parameters=["x", "out"])


def test_it_is_not_exported(library):
    kernel = make(f"{library}:Handler", name="scale")
    program = jax.jit(lambda x: kernel(x, alpha=1.0))
    with pytest.raises(xla_gpu.InvalidArgumentError, match="scale: .* exported program cannot"):
        jax.export.export(program, disabled_checks=xla_gpu.jax.export_checks())(X)
