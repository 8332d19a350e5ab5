// HloParameters on any bytes: never a fault, and what it reads are types of tensors.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "src/xla/hlo_proto.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const bool with_config : {false, true}) {
    const auto parameters = xla_gpu::xla::HloParameters(bytes, with_config);
    if (!parameters.has_value()) continue;
    for (const auto& spec : *parameters) {
      if (spec.has_value() && xla_gpu::DTypeSize(spec->dtype) == 0) std::abort();
    }
  }
  return 0;
}
