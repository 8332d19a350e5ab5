#include "src/core/call_frame.h"

#include <algorithm>

namespace xla_gpu {

Status TensorList::TooMany(size_t count) const {
  return InvalidArgument(count, " ", kind_, "s came; at most ", kMaxTensors, " may");
}

Status TensorList::BadRank(int64_t rank) const {
  return InvalidArgument(kind_, " ", size_, " has rank ", rank,
                         rank > 0 && rank <= kMaxRank ? " but dims is NULL" : "",
                         "; rank must be 0 to ", kMaxRank, ", with as many dims");
}

std::optional<std::span<const int64_t>> CallFrame::Widen(std::span<const int32_t> values) {
  if (values.size() > kMaxWidened - num_widened_) return std::nullopt;
  int64_t* to = widened_.data() + num_widened_;
  std::ranges::copy(values, to);
  num_widened_ += values.size();
  return std::span<const int64_t>(to, values.size());
}

}  // namespace xla_gpu
