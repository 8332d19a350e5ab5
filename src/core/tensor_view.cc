#include "src/core/tensor_view.h"

#include <algorithm>

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

bool TensorSpec::Matches(const TensorView& view) const {
  return dtype == view.dtype && std::ranges::equal(shape, view.shape);
}

}  // namespace xla_gpu
