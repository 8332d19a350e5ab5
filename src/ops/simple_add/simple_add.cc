// simple_add: c = a + b, the smallest complete op and the one to copy when adding an op
// (docs/add-an-op.md).
#include "src/ops/simple_add/simple_add.h"
#include "src/core/op_registry.h"

namespace xla_gpu {
namespace {

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  const TensorView& a = call.args[0];
  const TensorView& b = call.args[1];
  if (!a.SameType(b)) {
    return InvalidArgument("simple_add: a is ", a.ToString(), " but b is ", b.ToString(),
                           "; they must be equal in dtype and shape");
  }
  return std::vector{a.spec()};
}

Op MakeOp() {
  const DTypes dtypes = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32};
  return Op{
      .name = "simple_add",
      .target = "XlaGpuSimpleAdd",
      .doc = "Elementwise c = a + b.",
      .args = {{"a", dtypes, "any shape"}, {"b", dtypes, "as a"}},
      .results = {{.name = "c", .doc = "as a", .like = "a"}},
      .attrs = {},
      .instead_of_gradient = "use a + b",
      .instead_of_batching = "it works on any shape, so call it on the whole batch",
      .infer = Infer,
      .make_plan = {MakeSimpleAddHostPlan, MakeSimpleAddCudaPlan},
  };
}

XLA_GPU_REGISTER_OP(MakeOp());

}  // namespace
}  // namespace xla_gpu
