#include "src/ops/quantize_rows/quantize_rows.h"

#include <limits>

#include "src/core/expect.h"
#include "src/core/norm_epsilon.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"

namespace xla_gpu {
namespace quantize_rows {
namespace {

constexpr char kName[] = "quantize_rows";
constexpr char kActivation[] = "activation";

// Positions in the schema.
enum Arg { kX, kNormWeight, kRowFactor, kColumnFactor, kResidual };

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  std::vector results = {TensorSpec{DType::kF8E4M3FN, {problem.rows, problem.columns}},
                         TensorSpec{DType::kF32, {problem.rows}}};
  if (problem.residual_dtype != DType::kInvalid) {
    results.push_back({problem.residual_dtype, {problem.rows, problem.columns}});
  }
  return results;
}

Op MakeOp() {
  const DTypes dtypes = {DType::kF32, DType::kBF16, DType::kF16};
  return Op{
      .name = kName,
      .target = "xla_gpu_quantize_rows",
      .doc =
          "Rows as f8e4m3fn with a scale each (dynamic per-token quantization): x is about out * "
          "scale, where scale is the largest |x| of the row / 448, at least 2^-126. What is "
          "computed in x's place in f32 where asked for, in this order: x * row_factor[:, None] * "
          "column_factor, as of an fp8 product's sums; the activation silu_mul, silu(g) * u with "
          "[g, u] the halves of x's columns; x + residual, which is also the result sum, rounded; "
          "RMSNorm, x * rsqrt(mean(x^2) + epsilon) * norm_weight. Without a norm NaN stays where "
          "it is, and a row with an infinity is NaN there and 0 elsewhere.",
      .args = {{"x", dtypes, "[rows, columns], of silu_mul [rows, 2 * columns]"},
               {.name = "norm_weight", .dtypes = dtypes, .doc = "[columns]", .optional = true},
               {.name = "row_factor", .dtypes = {DType::kF32}, .doc = "[rows]", .optional = true},
               {.name = "column_factor",
                .dtypes = {DType::kF32},
                .doc = "one of each column of x",
                .optional = true},
               {.name = "residual", .dtypes = dtypes, .doc = "as out", .optional = true}},
      .results = {{.name = "out", .doc = "f8e4m3fn [rows, columns]", .dtype = "f8e4m3fn"},
                  {.name = "scale", .doc = "f32 [rows]", .like = "x", .rank = 1, .dtype = "f32"},
                  {.name = "sum",
                   .doc = "as residual; only with it",
                   .only_with = "residual",
                   .form = "with_residual",
                   .like = "residual"}},
      .attrs = {NormEpsilon("of the norm"),
                {.name = kActivation,
                 .type = AttrType::kString,
                 .doc = "none or silu_mul",
                 .default_value = "none",
                 .keyword_only = true}},
      .instead_of_gradient = "it rounds; write it in the framework's own functions",
      .instead_of_batching = "make one call of all rows",
      .infer = Infer,
      .make_plan = {MakeQuantizeRowsHostPlan, MakeQuantizeRowsCudaPlan},
  };
}

const Op& schema = *new Op(MakeOp());

StatusOr<Activation> ActivationOf(const Attributes& attributes) {
  const std::string_view name = attributes.GetString(kActivation);
  if (name == "none") return Activation::kNone;
  if (name == "silu_mul") return Activation::kSiluMul;
  return InvalidArgument(kName, ": attribute '", kActivation, "' is \"", name,
                         "\"; allowed are none and silu_mul");
}

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
  const Attributes attributes = CompleteAttributes(schema, *call.attributes);
  Problem problem{.dtype = x.dtype, .rows = x.dim(0), .columns = x.dim(1)};
  XLA_GPU_ASSIGN_OR_RETURN(problem.activation, ActivationOf(attributes));
  if (problem.activation == Activation::kSiluMul) {
    if (x.dim(1) % 2 != 0) {
      return Wrong(kName, "x", x, "with activation silu_mul its columns must be even");
    }
    problem.columns = x.dim(1) / 2;
  }
  // Whether it is there, of this type.
  const auto optional = [&](Arg arg, DType dtype, int64_t size,
                            const char* of_what) -> StatusOr<bool> {
    if (args[arg] == nullptr) return false;
    XLA_GPU_RETURN_IF_ERROR(Expect(kName, schema.args[arg].name, *args[arg], {dtype, {size}},
                                   StrCat(", one for each ", of_what, " ", x.ToString())));
    return true;
  };
  if (args[kNormWeight] != nullptr) problem.norm_dtype = args[kNormWeight]->dtype;
  const bool halves = problem.activation == Activation::kSiluMul;
  XLA_GPU_RETURN_IF_ERROR(optional(kNormWeight, problem.norm_dtype, problem.columns,
                                   halves ? "column of a half of x" : "column of x")
                              .status());
  XLA_GPU_ASSIGN_OR_RETURN(problem.row_factor,
                           optional(kRowFactor, DType::kF32, problem.rows, "row of x"));
  XLA_GPU_ASSIGN_OR_RETURN(problem.column_factor,
                           optional(kColumnFactor, DType::kF32, x.dim(1), "column of x"));
  if (const TensorView* residual = args[kResidual]; residual != nullptr) {
    problem.residual_dtype = residual->dtype;
    XLA_GPU_RETURN_IF_ERROR(Expect(kName, "residual", *residual,
                                   {residual->dtype, {problem.rows, problem.columns}},
                                   StrCat(", as the result of x ", x.ToString())));
  }
  XLA_GPU_ASSIGN_OR_RETURN(problem.epsilon, NormEpsilonOf(kName, attributes));
  return problem;
}

Buffers BuffersFromCall(const Problem& problem, const Call& call) {
  size_t next = kNormWeight;
  const auto optional = [&](bool present) -> const void* {
    return present ? call.args[next++].data : nullptr;
  };
  return {.x = call.args[kX].data,
          .norm_weight = optional(problem.norm_dtype != DType::kInvalid),
          .row_factor = static_cast<const float*>(optional(problem.row_factor)),
          .column_factor = static_cast<const float*>(optional(problem.column_factor)),
          .residual = optional(problem.residual_dtype != DType::kInvalid),
          .out = call.results[0].data_as<uint8_t>(),
          .scale = call.results[1].data_as<float>(),
          .sum = call.results.size() > 2 ? call.results[2].data : nullptr};
}

}  // namespace quantize_rows
}  // namespace xla_gpu
