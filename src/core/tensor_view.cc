#include "src/core/tensor_view.h"

#include <algorithm>
#include <limits>

#include "src/core/strings.h"

namespace xla_gpu {

std::string TypeToString(DType dtype, Shape shape) {
  return StrCat(DTypeName(dtype), "[", StrJoin(shape, ","), "]");
}

int64_t TensorView::num_elements() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

std::string_view TypeProblem(const TensorView& view) {
  int64_t bytes = DTypeSize(view.dtype);
  if (bytes == 0) return "xla_gpu does not know its dtype";
  for (const int64_t d : view.shape) {
    if (d < 0) return "dimensions must not be negative";
    if (d > 0 && bytes > std::numeric_limits<int64_t>::max() / d) {
      return "its size in bytes does not fit 63 bits";
    }
    bytes *= d;
  }
  return "";
}

TensorSpec TensorView::spec() const { return {dtype, {shape.begin(), shape.end()}}; }

bool TensorView::SameType(const TensorView& other) const {
  return dtype == other.dtype && std::ranges::equal(shape, other.shape);
}

}  // namespace xla_gpu
