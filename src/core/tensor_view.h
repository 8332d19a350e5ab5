// TensorView: a dense row-major tensor that somebody else owns. TensorSpec: its type without data.
#ifndef XLA_GPU_CORE_TENSOR_VIEW_H_
#define XLA_GPU_CORE_TENSOR_VIEW_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/dtype.h"

namespace xla_gpu {

using Shape = std::span<const int64_t>;

// "bf16[8,32,128]": how every message writes a tensor type.
std::string TypeToString(DType dtype, Shape shape);

struct TensorSpec;

struct TensorView {
  void* data = nullptr;  // null where only the type is known (while XLA compiles)
  DType dtype = DType::kInvalid;
  Shape shape;  // points into the caller's memory

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
  int64_t dim(int64_t i) const { return shape[static_cast<size_t>(i)]; }
  int64_t num_elements() const;
  int64_t size_bytes() const { return num_elements() * DTypeSize(dtype); }
  std::string ToString() const { return TypeToString(dtype, shape); }
  TensorSpec spec() const;
  bool SameType(const TensorView& other) const;

  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data);
  }
};

// Why no tensor is of this type, which may be anything; "" where dimensions are not negative and
// int64 holds the size in bytes, so that one may multiply.
std::string_view TypeProblem(const TensorView& view);

struct TensorSpec {
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;

  bool Matches(const TensorView& view) const { return view.SameType({nullptr, dtype, shape}); }
  std::string ToString() const { return TypeToString(dtype, shape); }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_TENSOR_VIEW_H_
