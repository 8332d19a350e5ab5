#include "src/ops/grouped_matmul/grouped_matmul.h"

#include <limits>

#include "src/core/expect.h"
#include "src/core/op_registry.h"

namespace xla_gpu {
namespace grouped_matmul {
namespace {

constexpr char kName[] = "grouped_matmul";
constexpr char kOutDType[] = "out_dtype";

// Positions in the schema.
enum Arg { kLhs, kRhs, kGroupSizes, kRhsScale };

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return std::vector{TensorSpec{problem.out_dtype, {problem.rows, problem.columns}}};
}

Op MakeOp() {
  return Op{
      .name = kName,
      .target = "xla_gpu_grouped_matmul",
      .doc =
          "Rows sorted by group times their group's matrix, as a mixture of experts needs it "
          "(jax.lax.ragged_dot): out[r] = lhs[r] @ rhs[g], where group g has the group_sizes[g] "
          "rows that follow those of the groups before it. Rows past the last group's are 0; a "
          "size below 0 counts as 0, and what a group has past the end of lhs as nothing. Products "
          "are summed in f32.",
      .args = {{"lhs", {kF32, kBF16, kF16}, "[rows, K]"},
               {"rhs",
                {kF32, kBF16, kF16, DType::kF8E4M3FN, DType::kF8E5M2, DType::kI8},
                "[groups, K, N], of lhs's dtype or of 8 bits"},
               {"group_sizes", {DType::kI32}, "[groups]: rows of each group"},
               {.name = "rhs_scale",
                .dtypes = {kF32},
                .doc = "[groups, blocks, N]: rhs is value * rhs_scale, one for each column of each "
                       "of so many equal blocks of K",
                .optional = true}},
      .results = {{.name = "out", .doc = "[rows, N] of out_dtype", .dtype = kOutDType}},
      .attrs = {{.name = kOutDType,
                 .type = AttrType::kDType,
                 .doc = "empty for lhs's",
                 .default_value = std::string_view(),
                 .none_is_default = true,
                 .keyword_only = true,
                 .dtypes = {kF32, kBF16, kF16}}},
      .instead_of_gradient = "use jax.lax.ragged_dot, which has one",
      .instead_of_batching = "make one call of all rows, sorted by group",
      .infer = Infer,
      .make_plan = {MakeGroupedMatmulHostPlan, MakeGroupedMatmulCudaPlan},
  };
}

const Op& schema = *new Op(MakeOp());

XLA_GPU_REGISTER_OP(schema);

}  // namespace

StatusOr<Problem> ProblemFromCall(const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(const auto args, BindArguments(schema, call));
  const TensorView &lhs = *args[kLhs], &rhs = *args[kRhs], &sizes = *args[kGroupSizes];
  // Kernels count in 32 bits, up to the end of the last tile.
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() - 1023;
  if (lhs.rank() != 2 || lhs.dim(0) > kMost || lhs.dim(1) < 1 || lhs.dim(1) > kMost) {
    return Wrong(kName, "lhs", lhs, "it must be [rows, K] with K of at least 1, both at most ",
                 kMost);
  }
  if (rhs.rank() != 3 || rhs.dim(1) != lhs.dim(1) || rhs.dim(0) > kMost || rhs.dim(2) > kMost) {
    return Wrong(kName, "rhs", rhs, "it must be [groups, ", lhs.dim(1),
                 ", N], K being that of lhs ", lhs.ToString(), ", groups and N at most ", kMost);
  }
  if (rhs.dtype != lhs.dtype && DTypeSize(rhs.dtype) != 1) {
    return Wrong(kName, "rhs", rhs, "its dtype must be f8e4m3fn, f8e5m2, i8 or that of lhs ",
                 lhs.ToString());
  }
  if (sizes.rank() != 1 || sizes.dim(0) != rhs.dim(0)) {
    return Wrong(kName, "group_sizes", sizes, "it must be i32[", rhs.dim(0),
                 "], one size for each group of rhs ", rhs.ToString());
  }
  Problem problem{.lhs_dtype = lhs.dtype,
                  .rhs_dtype = rhs.dtype,
                  .out_dtype = lhs.dtype,
                  .rows = lhs.dim(0),
                  .inner = lhs.dim(1),
                  .columns = rhs.dim(2),
                  .groups = rhs.dim(0)};
  if (const TensorView* scale = args[kRhsScale]; scale != nullptr) {
    if (scale->rank() != 3 || scale->dim(0) != rhs.dim(0) || scale->dim(2) != rhs.dim(2) ||
        scale->dim(1) < 1 || problem.inner % scale->dim(1) != 0) {
      return Wrong(kName, "rhs_scale", *scale, "it must be f32[", rhs.dim(0), ", blocks, ",
                   rhs.dim(2), "], blocks dividing the ", problem.inner, " rows of rhs ",
                   rhs.ToString());
    }
    problem.scale_blocks = scale->dim(1);
  }
  problem.out_dtype =
      DTypeFromName(call.attributes->GetString(kOutDType)).value_or(problem.lhs_dtype);
  return problem;
}

Buffers BuffersFromCall(const Call& call) {
  return {
      .lhs = call.args[kLhs].data,
      .rhs = call.args[kRhs].data,
      .group_sizes = call.args[kGroupSizes].data_as<int32_t>(),
      .rhs_scale = call.args.size() > kRhsScale ? call.args[kRhsScale].data_as<float>() : nullptr,
      .out = call.results[0].data};
}

}  // namespace grouped_matmul
}  // namespace xla_gpu
