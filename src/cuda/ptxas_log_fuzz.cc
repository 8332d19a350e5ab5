// Any bytes as a compiler's log and PTX: never a fault, and numbers that can be.
#include "src/cuda/ptxas_log.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& kernel : xla_gpu::cuda::ParsePtxasLog(text)) {
    const int64_t threads = xla_gpu::cuda::MaxThreads(kernel, text);
    if (kernel.registers < 0 || kernel.stack_bytes < 0 || threads < 0 || threads > 1024) abort();
  }
  return 0;
}
