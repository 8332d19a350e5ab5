#include "src/core/fill.h"

#include <atomic>
#include <cstring>

#include "src/core/strings.h"

namespace xla_gpu {
namespace {

Status FillHost(void* data, uint8_t value, int64_t bytes, void*) {
  std::memset(data, value, static_cast<size_t>(bytes));
  return OkStatus();
}

std::atomic<FillFn> fill_fns[kNumPlatforms] = {FillHost, nullptr};

// All bits set is a NaN in every float type that there is: f64, f32, bf16, f16 and both fp8.
uint8_t PoisonByte(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
    case DType::kF8E4M3FN:
    case DType::kF8E5M2:
      return 0xff;
    default:
      return 0;
  }
}

}  // namespace

void SetFillFn(Platform platform, FillFn fn) { fill_fns[static_cast<int>(platform)].store(fn); }

Status Fill(Platform platform, void* data, uint8_t value, int64_t bytes, void* stream) {
  const FillFn fn = fill_fns[static_cast<int>(platform)].load();
  if (fn == nullptr) {
    return Unimplemented(StrCat("memory of platform ", PlatformName(platform),
                                " cannot be filled: its layer is not in this program"));
  }
  return bytes == 0 ? OkStatus() : fn(data, value, bytes, stream);
}

Status PoisonResults(Platform platform, std::span<const TensorView> results, void* stream) {
  for (const TensorView& result : results) {
    if (result.data == nullptr) continue;
    XLA_GPU_RETURN_IF_ERROR(
        Fill(platform, result.data, PoisonByte(result.dtype), result.size_bytes(), stream));
  }
  return OkStatus();
}

}  // namespace xla_gpu
