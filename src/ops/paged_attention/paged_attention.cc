#include "src/ops/paged_attention/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "src/core/expect.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/config.h"
#include "src/ops/paged_cache/cache_shape.h"

namespace xla_gpu {
namespace paged_attention {
namespace {

constexpr char kName[] = "paged_attention";
constexpr char kMaxQueryLen[] = "max_query_len";

// Positions in the schema.
enum Arg {
  kQuery,
  kKvCache,
  kContextLens,
  kBlockTables,
  kQueryStartLoc,
  kNumSeqs,
  kFirstOptional,
  kVCache = kFirstOptional,
};

constexpr OptionNames kNames = {kName, "query", "query_start_loc", "sinks", "scale", "causal"};

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform);

Op MakeOp() {
  const DTypes kI32 = {DType::kI32};
  return Op{
      .name = kName,
      .target = "xla_gpu_paged_attention",
      .doc =
          "Attention of a ragged batch of queries over a paged KV cache. Query i of a sequence "
          "stands at pos = context_len - query_len + i and sees keys k <= pos (all of the "
          "sequence's keys if causal is false), with a window only those with pos - k < "
          "sliding_window. Logits are scale*q.k, then soft_cap*tanh(x/soft_cap) if set; a sink "
          "adds one logit per head to the denominator. Rows of no sequence are 0 (lse -inf), "
          "as are rows that see no key, which is so where context_len < query_len (lse: the sink's "
          "logit, if any). A sequence with an index that cannot be meant (a length below 0 or past "
          "the block table, a page outside the cache, starts that descend or lie outside) gives "
          "NaN rows; the others are untouched.",
      .args = AttentionArgs(
          kNames,
          {{"query", paged_cache::ComputeTypes(),
            "[tokens, q_heads, head_dim]: the queries of all sequences, one after the other"},
           paged_cache::KvCacheArg(),
           {"context_lens", kI32, "[max_seqs]: tokens in the cache, the new ones included"},
           {"block_tables", kI32, "[max_seqs, max_pages]: page numbers"},
           {"query_start_loc", kI32, "[max_seqs + 1]: first query row of each sequence"},
           {.name = "num_seqs",
            .dtypes = kI32,
            .doc = "[1]: sequences in use; the rest is padding",
            .vector = true},
           paged_cache::VCacheArg()}),
      .results = {{.name = "out",
                   .doc = "[tokens, q_heads, head_dim] of out_dtype",
                   .like = "query",
                   .dtype = "out_dtype"},
                  {.name = "lse",
                   .doc = "f32 [tokens, q_heads]: natural logarithm of the denominator, sink "
                          "included; only with return_lse",
                   .only_with = "return_lse",
                   .form = "with_lse",
                   .like = "query",
                   .rank = 2,
                   .dtype = "f32"},
                  Workspace()},
      .attrs = AttentionAttrs(kNames, {{.name = "return_lse",
                                        .type = AttrType::kBool,
                                        .doc = "also give lse",
                                        .default_value = false,
                                        .keyword_only = true}}),
      .instead_of_gradient = "it is an op for inference",
      .instead_of_batching =
          "a call already takes a batch of sequences: give each its row of "
          "block_tables, or loop over the batch",
      .infer = Infer,
      .make_plan = {MakePagedAttentionHostPlan, MakePagedAttentionCudaPlan},
  };
}

const Op& schema = *new Op(MakeOp());

Status ParseIndices(const std::vector<const TensorView*>& args, Problem& problem) {
  const TensorView& block_tables = *args[kBlockTables];
  if (block_tables.rank() != 2) {
    return Wrong(kName, "block_tables", block_tables,
                 "it must be i32 [max_seqs, max_pages], of rank 2");
  }
  problem.max_seqs = block_tables.dim(0);
  problem.max_pages_per_seq = block_tables.dim(1);
  if (problem.max_seqs >= kMaxIndex || problem.max_pages_per_seq > kMaxIndex) {
    return Wrong(kName, "block_tables", block_tables, "its dimensions must be less than 2^31-1");
  }
  const std::string as_tables = StrCat(", as block_tables ", block_tables.ToString(), ")");
  XLA_GPU_RETURN_IF_ERROR(Expect(kName, "context_lens", *args[kContextLens],
                                 {DType::kI32, {problem.max_seqs}}, " ([max_seqs]" + as_tables));
  XLA_GPU_RETURN_IF_ERROR(Expect(kName, "query_start_loc", *args[kQueryStartLoc],
                                 {DType::kI32, {problem.max_seqs + 1}},
                                 " ([max_seqs + 1]" + as_tables));
  return Expect(kName, "num_seqs", *args[kNumSeqs], {DType::kI32, {1}}, " (one number)");
}

// Sets `factor` where the attribute is given: from `smallest` to kMaxFactor. Beyond, f32 numbers
// leave their range on the way to the logits.
Status ReadFactor(std::string_view op, const Attributes& attributes, std::string_view name,
                  double smallest, std::string_view left_out, float& factor) {
  if (attributes.Find(name) == nullptr) return OkStatus();
  const double given = attributes.GetFloat(name);
  factor = static_cast<float>(given);
  if (factor >= static_cast<float>(smallest) && factor <= static_cast<float>(kMaxFactor)) {
    return OkStatus();
  }
  return InvalidArgument(op, ": attribute '", name, "' is ", given,
                         "; it must be a finite number from ", smallest, " to ", kMaxFactor,
                         ", or left out for ", left_out);
}

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  std::vector<TensorSpec> results = {
      {problem.out_dtype, {problem.tokens, problem.q_heads, problem.head_dim}}};
  if (problem.return_lse) results.push_back({DType::kF32, {problem.tokens, problem.q_heads}});
  if (platform == Platform::kCuda) results.push_back({DType::kU8, {WorkspaceBytes(problem)}});
  return results;
}

XLA_GPU_REGISTER_OP(schema);

}  // namespace

StatusOr<Problem> ProblemFromCall(const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(const auto args, BindArguments(schema, call));
  const Attributes attributes = CompleteAttributes(schema, *call.attributes);
  const TensorView& query = *args[kQuery];
  const TensorView& kv_cache = *args[kKvCache];
  XLA_GPU_ASSIGN_OR_RETURN(const auto cache,
                           paged_cache::ParseCacheShape(kName, kv_cache, args[kVCache]));
  Problem problem{cache};
  XLA_GPU_RETURN_IF_ERROR(ParseQuery(kNames, query, problem));
  if (query.dim(2) != problem.head_dim) {
    return InvalidArgument(kName, ": head_dim is ", query.dim(2), " in query ", query.ToString(),
                           " but ", problem.head_dim, " in kv_cache ", kv_cache.ToString(),
                           "; they must be equal");
  }
  XLA_GPU_RETURN_IF_ERROR(CheckHeads(kNames, query, "kv_cache", kv_cache, problem.kv_heads));
  XLA_GPU_RETURN_IF_ERROR(ParseIndices(args, problem));
  XLA_GPU_RETURN_IF_ERROR(ParseOptions(kNames, args, attributes, problem));
  problem.return_lse = attributes.GetBool("return_lse");
  return problem;
}

std::vector<ArgSpec> AttentionArgs(const OptionNames& names, std::vector<ArgSpec> own) {
  own.push_back({.name = names.sinks,
                 .dtypes = {DType::kF32},
                 .doc = "[q_heads]: one more logit in each head's denominator",
                 .optional = true,
                 .vector = true});
  own.push_back(paged_cache::ScaleArg("k_scale", "keys are stored value * k_scale"));
  own.push_back(paged_cache::ScaleArg("v_scale", "values are stored value * v_scale"));
  return own;
}

std::vector<AttrSpec> AttentionAttrs(const OptionNames& names, std::vector<AttrSpec> more) {
  std::vector<AttrSpec> attrs = {
      {.name = names.scale,
       .type = AttrType::kFloat,
       .doc = "factor of the logits, -1e20 to 1e20; none: 1/sqrt(head_dim)",
       .none_is_default = true},
      {.name = "sliding_window",
       .type = AttrType::kInt,
       .doc = "keys a query sees, itself included, at least 1; none: all",
       .none_is_default = true},
      {.name = "soft_cap",
       .type = AttrType::kFloat,
       .doc = "cap of the logits, 1e-20 to 1e20; none: no cap",
       .none_is_default = true},
      {.name = names.causal,
       .type = AttrType::kBool,
       .doc = "false: queries see later keys too",
       .default_value = true,
       .keyword_only = true}};
  attrs.insert(attrs.end(), more.begin(), more.end());
  attrs.push_back({.name = kMaxQueryLen,
                   .type = AttrType::kInt,
                   .doc = "query rows that a sequence has at most, a promise that makes decode of "
                          "few faster; 0: unknown. Longer ones are slow but right",
                   .default_value = int64_t{0},
                   .keyword_only = true});
  attrs.push_back({.name = "out_dtype",
                   .type = AttrType::kDType,
                   .doc = "empty for the query's",
                   .default_value = std::string_view(),
                   .none_is_default = true,
                   .keyword_only = true,
                   .dtypes = paged_cache::ComputeTypes()});
  attrs.push_back({.name = "batch_invariant",
                   .type = AttrType::kBool,
                   .doc = "a sequence's bits do not depend on what else is in the batch",
                   .none_is_default = true,
                   .keyword_only = true,
                   .environment = "XLA_GPU_BATCH_INVARIANT"});
  return attrs;
}

Status ParseQuery(const OptionNames& names, const TensorView& query, Problem& problem) {
  if (query.rank() != 3) {
    return Wrong(names.op, names.query, query, "it must be [tokens, q_heads, head_dim], of rank 3");
  }
  if (query.dim(0) > kMaxIndex) {
    return Wrong(names.op, names.query, query, "at most 2^31-1 tokens are allowed: ", names.starts,
                 " is i32");
  }
  problem.query_dtype = query.dtype;
  problem.tokens = query.dim(0);
  problem.q_heads = query.dim(1);
  return OkStatus();
}

Status CheckHeads(const OptionNames& names, const TensorView& query, std::string_view kv_name,
                  const TensorView& kv, int64_t kv_heads) {
  const int64_t q_heads = query.dim(1);
  if (kv_heads >= 1 && q_heads >= 1 && q_heads <= kMaxHeads && q_heads % kv_heads == 0) {
    return OkStatus();
  }
  return InvalidArgument(names.op, ": ", names.query, " ", query.ToString(), " has ", q_heads,
                         " heads and ", kv_name, " ", kv.ToString(), " has ", kv_heads,
                         " kv heads; q_heads must be a multiple of kv_heads, at most ", kMaxHeads);
}

Status ParseOptions(const OptionNames& names, std::span<const TensorView* const> args,
                    const Attributes& attributes, Problem& problem) {
  const std::string_view op = names.op;
  const auto optional = args.last(3);
  if (const TensorView* sinks = optional[0]; sinks != nullptr) {
    XLA_GPU_RETURN_IF_ERROR(
        Expect(op, names.sinks, *sinks, {DType::kF32, {problem.q_heads}}, ", one per q head"));
    problem.has_sinks = true;
  }
  XLA_GPU_RETURN_IF_ERROR(paged_cache::ParseScales(op, optional[1], optional[2], problem));
  problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  XLA_GPU_RETURN_IF_ERROR(
      ReadFactor(op, attributes, names.scale, -kMaxFactor, "1/sqrt(head_dim)", problem.scale));
  XLA_GPU_RETURN_IF_ERROR(
      ReadFactor(op, attributes, "soft_cap", 1 / kMaxFactor, "no cap", problem.soft_cap));
  if (attributes.Find("sliding_window") != nullptr) {
    const int64_t window = attributes.GetInt("sliding_window");
    if (window < 1) {
      return InvalidArgument(op, ": attribute 'sliding_window' is ", window,
                             "; it must be at least 1, or left out for no window");
    }
    // Positions are i32, so a larger window hides nothing more.
    problem.sliding_window = std::min(window, kMaxIndex);
  }
  problem.causal = attributes.GetBool(names.causal);
  problem.out_dtype =
      DTypeFromName(attributes.GetString("out_dtype")).value_or(problem.query_dtype);
  problem.batch_invariant = attributes.GetBool("batch_invariant");
  const int64_t max_query_len = attributes.GetInt(kMaxQueryLen);
  if (max_query_len < 0) {
    return InvalidArgument(op, ": attribute '", kMaxQueryLen, "' is ", max_query_len,
                           "; it must be at least 1, or 0 where it is unknown");
  }
  if (problem.batch_invariant == 0) problem.max_query_len = std::min(max_query_len, kMaxIndex);
  return OkStatus();
}

Buffers BuffersFromCall(const Problem& problem, const Call& call) {
  size_t next = kFirstOptional;
  const auto optional = [&](bool present) -> const void* {
    return present ? call.args[next++].data : nullptr;
  };
  Buffers buffers{};
  buffers.query = call.args[kQuery].data;
  buffers.k_cache = call.args[kKvCache].data;
  buffers.context_lens = call.args[kContextLens].data_as<int32_t>();
  buffers.block_tables = call.args[kBlockTables].data_as<int32_t>();
  buffers.query_start_loc = call.args[kQueryStartLoc].data_as<int32_t>();
  buffers.num_seqs = call.args[kNumSeqs].data_as<int32_t>();
  const void* v_cache = optional(problem.separate_v);
  buffers.v_cache = problem.separate_v ? v_cache : buffers.k_cache;
  buffers.sinks = static_cast<const float*>(optional(problem.has_sinks));
  buffers.k_scale = static_cast<const float*>(optional(problem.k_scale_size > 0));
  buffers.k_token_scales = static_cast<const float*>(optional(problem.k_token_scales));
  buffers.v_scale = static_cast<const float*>(optional(problem.v_scale_size > 0));
  buffers.v_token_scales = static_cast<const float*>(optional(problem.v_token_scales));
  buffers.out = call.results[0].data;
  size_t result = 1;
  if (problem.return_lse) buffers.lse = call.results[result++].data_as<float>();
  if (result < call.results.size()) buffers.workspace = call.results[result].data;
  return buffers;
}

}  // namespace paged_attention

}  // namespace xla_gpu
