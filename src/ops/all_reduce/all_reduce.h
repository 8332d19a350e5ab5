// all_reduce: the sum of what the GPUs of a process have, on each of them.
#ifndef XLA_GPU_OPS_ALL_REDUCE_ALL_REDUCE_H_
#define XLA_GPU_OPS_ALL_REDUCE_ALL_REDUCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "src/core/op.h"

namespace xla_gpu {
namespace all_reduce {

// The ordinals that attribute 'devices' lists; none if it is no list.
std::vector<int> DevicesOf(const Call& call);

}  // namespace all_reduce

StatusOr<std::unique_ptr<Plan>> MakeAllReduceHostPlan(const Call& call, int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakeAllReduceCudaPlan(const Call& call, int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_ALL_REDUCE_ALL_REDUCE_H_
