// Fill: sets the bytes of memory of either platform; how a door that cannot return an error marks
// results as wrong.
#ifndef XLA_GPU_CORE_FILL_H_
#define XLA_GPU_CORE_FILL_H_

#include <cstdint>

#include "src/core/op.h"

namespace xla_gpu {

// Sets `bytes` bytes at `data` to `value`: enqueued on `stream` on CUDA, done on return on the
// Host.
using FillFn = Status (*)(void* data, uint8_t value, int64_t bytes, void* stream);

// The CUDA layer installs its own; without one, Fill on CUDA is an error.
void SetFillFn(Platform platform, FillFn fn);
Status Fill(Platform platform, void* data, uint8_t value, int64_t bytes, void* stream);

// Fills every result with NaN, or zeros where its dtype has no NaN; null pointers are passed over.
Status PoisonResults(Platform platform, std::span<const TensorView> results, void* stream);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_FILL_H_
