#include "src/ops/quantize_rows/quantize_rows.h"

#include <cmath>
#include <limits>

#include "src/core/expect.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"

namespace xla_gpu {
namespace quantize_rows {
namespace {

constexpr char kName[] = "quantize_rows";
constexpr char kEpsilon[] = "epsilon";

// Positions in the schema.
enum Arg { kX, kNormWeight };

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return std::vector{TensorSpec{DType::kF8E4M3FN, {problem.rows, problem.columns}},
                     TensorSpec{DType::kF32, {problem.rows}}};
}

Op MakeOp() {
  const DTypes dtypes = {DType::kF32, DType::kBF16, DType::kF16};
  return Op{
      .name = kName,
      .target = "xla_gpu_quantize_rows",
      .doc =
          "Rows as f8e4m3fn with a scale each (dynamic per-token quantization): x is about out * "
          "scale, where scale is the largest |x| of the row / 448, at least 2^-126. With "
          "norm_weight of RMSNorm, x * rsqrt(mean(x^2) + epsilon) * norm_weight, in x's place, in "
          "f32. Without it NaN stays where it is, and a row with an infinity is NaN there and 0 "
          "elsewhere.",
      .args = {{"x", dtypes, "[rows, columns]"},
               {.name = "norm_weight", .dtypes = dtypes, .doc = "[columns]", .optional = true}},
      .results = {{.name = "out", .doc = "f8e4m3fn, as x", .like = "x", .dtype = "f8e4m3fn"},
                  {.name = "scale", .doc = "f32 [rows]", .like = "x", .rank = 1, .dtype = "f32"}},
      .attrs = {{.name = kEpsilon,
                 .type = AttrType::kFloat,
                 .doc = "of the norm: finite, at least 0",
                 .default_value = 1e-6,
                 .keyword_only = true}},
      .instead_of_gradient = "it rounds; write it in the framework's own functions",
      .instead_of_batching = "make one call of all rows",
      .infer = Infer,
      .make_plan = {MakeQuantizeRowsHostPlan, MakeQuantizeRowsCudaPlan},
  };
}

const Op& schema = *new Op(MakeOp());

XLA_GPU_REGISTER_OP(schema);

}  // namespace

StatusOr<Problem> ProblemFromCall(const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(const auto args, BindArguments(schema, call));
  const TensorView& x = *args[kX];
  // Kernels count columns in 32 bits, up to the end of a block's last vectors.
  constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max(), kMostColumns = 1 << 30;
  if (x.rank() != 2 || x.dim(0) > kMostRows || x.dim(1) < 1 || x.dim(1) > kMostColumns) {
    return Wrong(kName, "x", x, "it must be [rows, columns], rows at most ", kMostRows,
                 ", columns 1 to ", kMostColumns);
  }
  const TensorView* norm = args[kNormWeight];
  if (norm != nullptr) {
    const TensorSpec expected = {norm->dtype, {x.dim(1)}};
    XLA_GPU_RETURN_IF_ERROR(Expect(kName, "norm_weight", *norm, expected,
                                   StrCat(", one for each column of x ", x.ToString())));
  }
  const auto epsilon = static_cast<float>(call.attributes->GetFloat(kEpsilon));
  if (!(epsilon >= 0) || std::isinf(epsilon)) {
    return InvalidArgument(kName, ": attribute 'epsilon' is ", epsilon,
                           "; it must be a finite f32 number of at least 0");
  }
  return Problem{.dtype = x.dtype,
                 .norm_dtype = norm == nullptr ? DType::kInvalid : norm->dtype,
                 .rows = x.dim(0),
                 .columns = x.dim(1),
                 .epsilon = epsilon};
}

Buffers BuffersFromCall(const Call& call) {
  return {.x = call.args[kX].data,
          .norm_weight = call.args.size() > kNormWeight ? call.args[kNormWeight].data : nullptr,
          .out = call.results[0].data_as<uint8_t>(),
          .scale = call.results[1].data_as<float>()};
}

}  // namespace quantize_rows
}  // namespace xla_gpu
