// The plan factories of simple_add, one for each platform.
#ifndef XLA_GPU_OPS_SIMPLE_ADD_SIMPLE_ADD_H_
#define XLA_GPU_OPS_SIMPLE_ADD_SIMPLE_ADD_H_

#include <memory>

#include "src/core/op.h"

namespace xla_gpu {

StatusOr<std::unique_ptr<Plan>> MakeSimpleAddHostPlan(const Call& call, int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakeSimpleAddCudaPlan(const Call& call, int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_SIMPLE_ADD_SIMPLE_ADD_H_
