// Any bytes are either a tensor, which then survives a round trip, or an error; never a crash.
#include <cstdlib>

#include "src/cli/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using xla_gpu::DType;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const DType expected : {DType::kInvalid, DType::kF8E4M3FN}) {
    const auto tensor = xla_gpu::cli::ParseNpy(bytes, expected);
    if (!tensor.ok()) continue;
    const auto again = xla_gpu::cli::ParseNpy(xla_gpu::cli::FormatNpy(*tensor), tensor->dtype);
    if (!again.ok() || again->data != tensor->data || again->shape != tensor->shape) std::abort();
  }
  return 0;
}
