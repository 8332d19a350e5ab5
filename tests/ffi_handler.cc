// A user's typed handler: out = alpha * x + n.
#include <cstddef>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = ::xla::ffi;
using F32 = ffi::Buffer<ffi::F32>;

ffi::Error ScaleAll(F32 x, ffi::Result<F32> out, float alpha, int32_t n) {
  if (n < 0) return ffi::Error::InvalidArgument("n is negative");
  for (size_t i = 0; i < x.element_count(); ++i) {
    out->typed_data()[i] = alpha * x.typed_data()[i] + static_cast<float>(n);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    Scale, ScaleAll,
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Attr<float>("alpha").Attr<int32_t>("n"));
