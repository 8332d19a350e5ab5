#include "src/ops/rotary_embedding/rotary_embedding.h"

#include <limits>
#include <utility>

#include "src/core/expect.h"
#include "src/core/norm_epsilon.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"

namespace xla_gpu {
namespace rotary_embedding {
namespace {

constexpr char kName[] = "rotary_embedding";
constexpr char kQHeads[] = "q_heads";
constexpr char kKvHeads[] = "kv_heads";
constexpr char kInterleaved[] = "interleaved";
constexpr char kOutDType[] = "out_dtype";

// Positions in the schema.
enum Arg { kQkv, kPositions, kCosSin, kQNorm, kKNorm, kRowFactor, kColumnFactor };

// Kernels count columns and positions in 32 bits, and have a block for as few as 128 columns.
constexpr int64_t kMostColumns = 1 << 22, kMost = std::numeric_limits<int32_t>::max();

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  XLA_GPU_ASSIGN_OR_RETURN(const Problem p, ProblemFromCall(call));
  const TensorSpec q = {p.out_dtype, {p.tokens, p.q_heads * p.head_dim}};
  const TensorSpec kv = {p.out_dtype, {p.tokens, p.kv_heads * p.head_dim}};
  return std::vector{q, kv, kv};
}

Op MakeOp() {
  const DTypes dtypes = {DType::kF32, DType::kBF16, DType::kF16};
  const auto count = [](const char* name, const char* doc) {
    return AttrSpec{.name = name, .type = AttrType::kInt, .doc = doc, .keyword_only = true};
  };
  return Op{
      .name = kName,
      .target = "xla_gpu_rotary_embedding",
      .doc =
          "Queries and keys turned by their tokens' positions, and the values beside them, each an "
          "array of its own. Of each head's first rotary_dim elements, pairs (a, b) become (a * "
          "cos - b * sin, b * cos + a * sin), in f32; the others are copied. What would be turned "
          "by a position that is not in [0, max_positions) becomes NaN. With q_norm and k_norm "
          "each head x of queries and of keys is x * rsqrt(mean(x^2) + epsilon) * norm (RMSNorm) "
          "before, not rounded in between. With factors qkv * row_factor[:, None] * column_factor, "
          "as of an fp8 product's sums, stands in qkv's place.",
      .args = {{"qkv", dtypes,
                "[tokens, (q_heads + 2 * kv_heads) * head_dim]: queries, keys, values; head_dim is "
                "even"},
               {"positions", {DType::kI32}, "[tokens]"},
               {"cos_sin", dtypes,
                "[max_positions, rotary_dim]: of each position the cosines of all pairs, then the "
                "sines"},
               {.name = "q_norm",
                .dtypes = dtypes,
                .doc = "[head_dim]: weights of the queries' norm",
                .optional = true},
               {.name = "k_norm",
                .dtypes = dtypes,
                .doc = "as q_norm, of the keys'; both or neither",
                .optional = true},
               {.name = "row_factor", .dtypes = {DType::kF32}, .doc = "[tokens]", .optional = true},
               {.name = "column_factor",
                .dtypes = {DType::kF32},
                .doc = "one of each column of qkv",
                .optional = true}},
      .results =
          {{.name = "q", .doc = "[tokens, q_heads * head_dim] of out_dtype", .dtype = kOutDType},
           {.name = "k", .doc = "[tokens, kv_heads * head_dim] of out_dtype", .dtype = kOutDType},
           {.name = "v", .doc = "as k", .dtype = kOutDType}},
      .attrs = {count(kQHeads, "heads of queries"),
                count(kKvHeads, "heads of keys, and of values"),
                {.name = kInterleaved,
                 .type = AttrType::kBool,
                 .doc = "pairs are elements 2 * i and 2 * i + 1, else i and i + rotary_dim / 2",
                 .default_value = false,
                 .keyword_only = true},
                NormEpsilon("of the norms"),
                {.name = kOutDType,
                 .type = AttrType::kDType,
                 .doc = "empty for qkv's",
                 .default_value = std::string_view(),
                 .none_is_default = true,
                 .keyword_only = true,
                 .dtypes = dtypes}},
      .instead_of_gradient = "write it in the framework's own functions",
      .instead_of_batching = "make one call of all tokens",
      .infer = Infer,
      .make_plan = {MakeRotaryEmbeddingHostPlan, MakeRotaryEmbeddingCudaPlan},
  };
}

const Op& schema = *new Op(MakeOp());

XLA_GPU_REGISTER_OP(schema);

}  // namespace

StatusOr<Problem> ProblemFromCall(const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(const auto args, BindArguments(schema, call));
  const TensorView &qkv = *args[kQkv], &positions = *args[kPositions], &cos_sin = *args[kCosSin];
  Problem p{.dtype = qkv.dtype,
            .cos_sin_dtype = cos_sin.dtype,
            .interleaved = call.attributes->GetBool(kInterleaved),
            .q_heads = call.attributes->GetInt(kQHeads),
            .kv_heads = call.attributes->GetInt(kKvHeads)};
  for (const auto& [name, heads] : {std::pair(kQHeads, p.q_heads), {kKvHeads, p.kv_heads}}) {
    if (heads < 1 || heads > kMostColumns) {
      return InvalidArgument(kName, ": attribute '", name, "' is ", heads, "; it must be 1 to ",
                             kMostColumns);
    }
  }
  if (qkv.rank() != 2 || qkv.dim(0) > kMost || qkv.dim(1) < 1 || qkv.dim(1) > kMostColumns ||
      qkv.dim(1) % (2 * p.heads()) != 0) {
    return Wrong(kName, "qkv", qkv, "it must be [tokens, ", p.heads(),
                 " * head_dim], head_dim even, tokens at most ", kMost, ", columns at most ",
                 kMostColumns);
  }
  p.tokens = qkv.dim(0);
  p.head_dim = qkv.dim(1) / p.heads();
  XLA_GPU_RETURN_IF_ERROR(Expect(kName, "positions", positions, {DType::kI32, {p.tokens}},
                                 StrCat(", one for each token of qkv ", qkv.ToString())));
  if (cos_sin.rank() != 2 || cos_sin.dim(0) > kMost || cos_sin.dim(1) < 2 ||
      cos_sin.dim(1) > p.head_dim || cos_sin.dim(1) % 2 != 0) {
    return Wrong(kName, "cos_sin", cos_sin,
                 "it must be [max_positions, rotary_dim], max_positions "
                 "at most ",
                 kMost, ", rotary_dim even, 2 to the ", p.head_dim, " of a head of qkv ",
                 qkv.ToString());
  }
  p.max_positions = cos_sin.dim(0);
  p.rotary_dim = cos_sin.dim(1);
  const TensorView *q_norm = args[kQNorm], *k_norm = args[kKNorm];
  if ((q_norm == nullptr) != (k_norm == nullptr)) {
    return InvalidArgument(kName, ": ", q_norm == nullptr ? "k_norm" : "q_norm",
                           " is given alone; it must be q_norm and k_norm, or neither");
  }
  if (q_norm != nullptr) {
    XLA_GPU_RETURN_IF_ERROR(Expect(kName, "q_norm", *q_norm, {q_norm->dtype, {p.head_dim}},
                                   StrCat(", as long as a head of qkv ", qkv.ToString())));
    XLA_GPU_RETURN_IF_ERROR(Expect(kName, "k_norm", *k_norm, q_norm->spec(), ", as q_norm"));
    p.norm_dtype = q_norm->dtype;
  }
  // Whether it is there, of this size.
  const auto optional = [&](Arg arg, int64_t size, const char* of_what) -> StatusOr<bool> {
    if (args[arg] == nullptr) return false;
    XLA_GPU_RETURN_IF_ERROR(Expect(kName, schema.args[arg].name, *args[arg], {DType::kF32, {size}},
                                   StrCat(", one for each ", of_what, " of qkv ", qkv.ToString())));
    return true;
  };
  XLA_GPU_ASSIGN_OR_RETURN(p.row_factor, optional(kRowFactor, p.tokens, "token"));
  XLA_GPU_ASSIGN_OR_RETURN(p.column_factor, optional(kColumnFactor, qkv.dim(1), "column"));
  p.out_dtype = DTypeFromName(call.attributes->GetString(kOutDType)).value_or(p.dtype);
  XLA_GPU_ASSIGN_OR_RETURN(p.epsilon, NormEpsilonOf(kName, *call.attributes));
  return p;
}

Buffers BuffersFromCall(const Problem& problem, const Call& call) {
  size_t next = kQNorm;
  const auto optional = [&](bool present) -> const void* {
    return present ? call.args[next++].data : nullptr;
  };
  const bool norms = problem.norm_dtype != DType::kInvalid;
  return {.qkv = call.args[kQkv].data,
          .positions = call.args[kPositions].data_as<int32_t>(),
          .cos_sin = call.args[kCosSin].data,
          .q_norm = optional(norms),
          .k_norm = optional(norms),
          .row_factor = static_cast<const float*>(optional(problem.row_factor)),
          .column_factor = static_cast<const float*>(optional(problem.column_factor)),
          .q = call.results[0].data,
          .k = call.results[1].data,
          .v = call.results[2].data};
}

}  // namespace rotary_embedding
}  // namespace xla_gpu
