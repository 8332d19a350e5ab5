// simple_add: c = a + b, the smallest complete op and the one to copy when adding an op
// (docs/add-an-op.md).
#include "src/ops/simple_add/simple_add.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"

namespace xla_gpu {
namespace {

Status Infer(const Call& call, Platform platform, std::vector<TensorSpec>* results) {
  const TensorView& a = call.args[0];
  const TensorView& b = call.args[1];
  switch (a.dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
    case DType::kI32:
      break;
    default:
      return InvalidArgument(
          StrCat("simple_add: a is ", a.ToString(), "; its dtype must be f32, bf16, f16 or i32"));
  }
  const TensorSpec type{a.dtype, {a.shape.begin(), a.shape.end()}};
  if (!type.Matches(b)) {
    return InvalidArgument(StrCat("simple_add: a is ", a.ToString(), " but b is ", b.ToString(),
                                  "; they must be equal in dtype and shape"));
  }
  results->push_back(type);
  return OkStatus();
}

Op MakeOp() {
  return Op{
      .name = "simple_add",
      .target = "XlaGpuSimpleAdd",
      .doc = "Elementwise c = a + b.",
      .args = {{"a", "f32, bf16, f16 or i32, any shape"}, {"b", "as a"}},
      .results = {{"c", "as a"}},
      .attrs = {},
      .infer = Infer,
      .make_plan = {MakeSimpleAddHostPlan, MakeSimpleAddCudaPlan},
  };
}

XLA_GPU_REGISTER_OP(MakeOp());

}  // namespace
}  // namespace xla_gpu
