// CallFrame: a call decoded onto the stack, through whichever door it came. Nothing is allocated,
// and what it holds points into the caller's memory.
#ifndef XLA_GPU_CORE_CALL_FRAME_H_
#define XLA_GPU_CORE_CALL_FRAME_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "src/core/op.h"

namespace xla_gpu {

// The bounds of a call, the same at every door.
inline constexpr size_t kMaxTensors = 64;  // arguments, and results
inline constexpr int64_t kMaxRank = 32;

// The arguments or the results of a call.
class TensorList {
 public:
  // `kind`: "argument" or "result", for messages.
  explicit TensorList(const char* kind) : kind_(kind) {}
  TensorList(const TensorList&) = delete;
  TensorList& operator=(const TensorList&) = delete;

  // An error if a call may not have so many: to be asked before a caller's array is read.
  Status CheckCount(size_t count) const {
    return count <= kMaxTensors ? OkStatus() : TooMany(count);
  }

  // An error if there are kMaxTensors, or rank or dims cannot be.
  Status Add(void* data, DType dtype, int64_t rank, const int64_t* dims) {
    if (size_ == kMaxTensors) return TooMany(size_ + 1);
    if (rank < 0 || rank > kMaxRank || (rank > 0 && dims == nullptr)) return BadRank(rank);
    std::construct_at(views_ + size_++,
                      TensorView{data, dtype, Shape(dims, static_cast<size_t>(rank))});
    return OkStatus();
  }

  const char* kind() const { return kind_; }
  std::span<const TensorView> views() const { return {views_, size_}; }

 private:
  Status TooMany(size_t count) const;
  Status BadRank(int64_t rank) const;

  const char* kind_;
  size_t size_ = 0;
  union {  // made by Add: clearing all would be a third of a small call's time
    TensorView views_[kMaxTensors];
  };
};

struct CallFrame {
  TensorList args{"argument"};
  TensorList results{"result"};
  Attributes attributes;

  Call call() const { return {args.views(), results.views(), &attributes}; }

  // The values as attributes have them, in the frame's own memory; nothing if it has no room left.
  std::optional<std::span<const int64_t>> Widen(std::span<const int32_t> values);
  static constexpr size_t kMaxWidened = 256;  // values in all

 private:
  std::array<int64_t, kMaxWidened> widened_;  // the first num_widened_ of them
  size_t num_widened_ = 0;
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_CALL_FRAME_H_
