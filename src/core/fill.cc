#include "src/core/fill.h"

#include <atomic>
#include <cstring>

namespace xla_gpu {
namespace {

Status FillHost(void* data, uint8_t value, int64_t bytes, void*) {
  std::memset(data, value, static_cast<size_t>(bytes));
  return OkStatus();
}

std::atomic<FillFn> fill_fns[kNumPlatforms] = {FillHost, nullptr};

}  // namespace

void SetFillFn(Platform platform, FillFn fn) { fill_fns[static_cast<int>(platform)].store(fn); }

Status Fill(Platform platform, void* data, uint8_t value, int64_t bytes, void* stream) {
  const FillFn fn = fill_fns[static_cast<int>(platform)].load();
  if (fn == nullptr) {
    return Unimplemented("memory of platform ", PlatformName(platform),
                         " cannot be filled: its layer is not in this program");
  }
  // The CUDA driver calls no bytes an invalid value.
  return bytes == 0 ? OkStatus() : fn(data, value, bytes, stream);
}

Status PoisonResults(Platform platform, std::span<const TensorView> results, void* stream) {
  for (const TensorView& result : results) {
    if (result.data == nullptr) continue;
    const uint8_t poison = IsFloat(result.dtype) ? 0xff : 0;
    XLA_GPU_RETURN_IF_ERROR(Fill(platform, result.data, poison, result.size_bytes(), stream));
  }
  return OkStatus();
}

}  // namespace xla_gpu
