// For tests: tensors in exact-size heap buffers, so that a sanitizer sees any access past them, and
// the integers that random cases draw.
#ifndef XLA_GPU_OPS_PAGED_CACHE_OWNED_TENSOR_H_
#define XLA_GPU_OPS_PAGED_CACHE_OWNED_TENSOR_H_

#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "src/core/float_types.h"
#include "src/core/tensor_view.h"

namespace xla_gpu::paged_cache {

// A function of (lo, hi) that draws an integer of [lo, hi], each as likely.
inline auto IntegersOf(std::mt19937_64& rng) {
  return [&rng](int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(rng);
  };
}
using Integers = decltype(IntegersOf(std::declval<std::mt19937_64&>()));

// The three shapes of ParseCacheShape.
enum class Layout { kInterleaved, kPair, kStacked };

inline constexpr std::align_val_t kLeastAlignment{16};  // of whole tensors, in any front end
struct AlignedDelete {
  std::align_val_t alignment = kLeastAlignment;
  size_t shift = 0;
  void operator()(char* data) const { ::operator delete[](data - shift, alignment); }
};

// A tensor that owns exactly its bytes, from `shift` elements past an address that is aligned.
struct OwnedTensor {
  OwnedTensor() = default;
  OwnedTensor(DType type, std::vector<int64_t> dims, std::align_val_t alignment = kLeastAlignment,
              int64_t shift = 0)
      : dtype(type), shape(std::move(dims)) {
    const auto bytes = static_cast<size_t>(view().size_bytes());
    const auto before = static_cast<size_t>(shift * DTypeSize(type));
    data = {new (alignment) char[before + bytes]() + before, AlignedDelete{alignment, before}};
  }
  TensorView view() const { return {data.get(), dtype, shape}; }
  double Get(int64_t i) const { return LoadAsDouble(data.get(), dtype, i); }
  void Set(int64_t i, double value) { StoreFromDouble(data.get(), dtype, i, value); }
  int32_t* ints() const { return reinterpret_cast<int32_t*>(data.get()); }
  float* floats() const { return reinterpret_cast<float*>(data.get()); }
  int64_t size() const { return view().num_elements(); }

  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
  std::unique_ptr<char[], AlignedDelete> data;
};

}  // namespace xla_gpu::paged_cache

#endif  // XLA_GPU_OPS_PAGED_CACHE_OWNED_TENSOR_H_
