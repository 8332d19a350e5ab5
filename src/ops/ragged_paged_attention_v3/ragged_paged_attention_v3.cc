#include "src/ops/ragged_paged_attention_v3/ragged_paged_attention_v3.h"

#include <string>
#include <string_view>
#include <vector>

#include "src/core/expect.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/ops/paged_attention/cuda/config.h"

namespace xla_gpu {
namespace ragged_paged_attention_v3 {
namespace {

using paged_cache::kMaxIndex;

constexpr char kCacheLayout[] = "cache_layout";

// Positions in the schema.
enum Arg {
  kQueries,
  kKeys,
  kValues,
  kKvCache,
  kKvLens,
  kPageIndices,
  kCuQLens,
  kDistribution,
  kFirstOptional,
};

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform);

constexpr paged_attention::OptionNames kNames = {
    kName, "queries", "cu_q_lens", "attention_sink", "sm_scale", "use_causal_mask"};

Op MakeOp() {
  const DTypes kI32 = {DType::kI32};
  return Op{
      .name = kName,
      .target = "xla_gpu_ragged_paged_attention_v3",
      .doc =
          "Writes the keys and values of new tokens into a packed KV cache, in place, and attends "
          "over it: the contract of the TPU kernel of this name. Sequence s has the query rows "
          "cu_q_lens[s] to cu_q_lens[s+1] and kv_lens[s] tokens, the new ones included, in the "
          "pages page_indices[s * pages_per_seq ...]; the sequences in use are the first "
          "distribution[2]. Masks, window, soft cap, sinks, padding and wrong indices are as in "
          "`paged_attention`. A cache is packed by 32 bits: packing = 32 / bits of its dtype.",
      .args = paged_attention::AttentionArgs(
          kNames,
          {{"queries", paged_cache::ComputeTypes(), "[tokens, q_heads, head_dim]"},
           {"keys", paged_cache::CacheTypes(), "[tokens, kv_heads, head_dim] of the cache's dtype"},
           {"values", paged_cache::CacheTypes(), "as keys"},
           {.name = "kv_cache",
            .dtypes = paged_cache::CacheTypes(),
            .doc = "[pages, page_size, align(2*kv_heads, packing)/packing, packing, "
                   "align(head_dim, 128)], K and V of a head one after the other; "
                   "side_by_side: [pages, page_size, align(kv_heads, packing)/packing, packing, "
                   "128], head_dim 64, K and V in the halves of a row",
            .no_copy = true},
           {"kv_lens", kI32, "[max_seqs]: tokens in the cache, the new ones included"},
           {"page_indices", kI32, "[max_seqs * pages_per_seq]: page numbers"},
           {"cu_q_lens", kI32, "[max_seqs + 1]: first query row of each sequence"},
           {"distribution", kI32, "[3]: the last is the number of sequences in use"}}),
      .results = {{.name = "out",
                   .doc = "[tokens, q_heads, head_dim] of out_dtype",
                   .like = "queries",
                   .dtype = "out_dtype"},
                  {.name = "kv_cache",
                   .doc = "as the argument",
                   .kind = ResultKind::kAlias,
                   .alias_of = "kv_cache"},
                  Workspace()},
      .attrs = paged_attention::AttentionAttrs(
          kNames, {{.name = "update_kv_cache",
                    .type = AttrType::kBool,
                    .doc = "false: nothing is written, the cache already holds the new tokens",
                    .default_value = true,
                    .keyword_only = true},
                   {.name = kCacheLayout,
                    .type = AttrType::kString,
                    .doc = "interleaved or side_by_side (head_dim 64)",
                    .default_value = "interleaved",
                    .keyword_only = true}}),
      .instead_of_gradient = "it is an op for inference",
      .instead_of_batching =
          "a call already takes a batch of sequences: give each its pages, or "
          "loop over the batch",
      .infer = Infer,
      .make_plan = {MakeRaggedPagedAttentionV3HostPlan, MakeRaggedPagedAttentionV3CudaPlan},
  };
}

const Op& schema = *new Op(MakeOp());

Status ParseQueriesAndKeys(const std::vector<const TensorView*>& args,
                           paged_attention::Problem& problem) {
  const TensorView& queries = *args[kQueries];
  const TensorView& keys = *args[kKeys];
  XLA_GPU_RETURN_IF_ERROR(paged_attention::ParseQuery(kNames, queries, problem));
  const int64_t tokens = queries.dim(0), head_dim = queries.dim(2);
  if (head_dim < 1 || head_dim > paged_cache::kMaxHeadDim) {
    return Wrong(kName, "queries", queries, "its head_dim is ", head_dim, "; allowed are 1 to ",
                 paged_cache::kMaxHeadDim);
  }
  if (keys.rank() != 3 || keys.dim(0) != tokens || keys.dim(2) != head_dim) {
    return Wrong(kName, "keys", keys, "it must be [", tokens, ", kv_heads, ", head_dim,
                 "], as queries ", queries.ToString());
  }
  XLA_GPU_RETURN_IF_ERROR(paged_attention::CheckHeads(kNames, queries, "keys", keys, keys.dim(1)));
  const TensorView& cache = *args[kKvCache];
  if (keys.dtype != cache.dtype) {
    return Wrong(kName, "keys", keys, "its dtype must be that of kv_cache ", cache.ToString(),
                 ": quantise keys and values (x / scale, saturated) before the call");
  }
  return Expect(kName, "values", *args[kValues], keys.spec(), " as keys");
}

StatusOr<paged_cache::PackedLayout> LayoutOf(const Attributes& attributes) {
  const std::string_view name = attributes.GetString(kCacheLayout);
  if (name == "interleaved") return paged_cache::PackedLayout::kInterleaved;
  if (name == "side_by_side") return paged_cache::PackedLayout::kSideBySide;
  return InvalidArgument(kName, ": attribute '", kCacheLayout, "' is \"", name,
                         "\"; allowed are interleaved and side_by_side");
}

Status ParseIndices(const std::vector<const TensorView*>& args, paged_attention::Problem& problem) {
  const TensorView& kv_lens = *args[kKvLens];
  if (kv_lens.rank() != 1 || kv_lens.dim(0) < 1 || kv_lens.dim(0) >= kMaxIndex) {
    return Wrong(kName, "kv_lens", kv_lens,
                 "it must be i32 [max_seqs], with at least one sequence");
  }
  problem.max_seqs = kv_lens.dim(0);
  const TensorView& pages = *args[kPageIndices];
  if (pages.rank() != 1 || pages.dim(0) % problem.max_seqs != 0 ||
      pages.dim(0) / problem.max_seqs > kMaxIndex) {
    return Wrong(kName, "page_indices", pages,
                 "it must be i32 [max_seqs * pages_per_seq], max_seqs ", problem.max_seqs,
                 " as kv_lens ", kv_lens.ToString());
  }
  problem.max_pages_per_seq = pages.dim(0) / problem.max_seqs;
  XLA_GPU_RETURN_IF_ERROR(Expect(kName, "cu_q_lens", *args[kCuQLens],
                                 {DType::kI32, {problem.max_seqs + 1}},
                                 StrCat(" ([max_seqs + 1], as kv_lens ", kv_lens.ToString(), ")")));
  return Expect(kName, "distribution", *args[kDistribution], {DType::kI32, {3}},
                " (ends of the decoding, the prefilling and all sequences)");
}

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  const paged_attention::Problem& p = problem.attention;
  std::vector<TensorSpec> results = {{p.out_dtype, {p.tokens, p.q_heads, p.head_dim}},
                                     call.args[kKvCache].spec()};
  if (platform == Platform::kCuda) {
    results.push_back({DType::kU8, {paged_attention::WorkspaceBytes(p)}});
  }
  return results;
}

XLA_GPU_REGISTER_OP(schema);

}  // namespace

StatusOr<Problem> ProblemFromCall(const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(const auto args, BindArguments(schema, call));
  const Attributes attributes = CompleteAttributes(schema, *call.attributes);
  Problem problem;
  paged_attention::Problem& p = problem.attention;
  XLA_GPU_RETURN_IF_ERROR(ParseQueriesAndKeys(args, p));
  const TensorView& keys = *args[kKeys];
  XLA_GPU_ASSIGN_OR_RETURN(const auto layout, LayoutOf(attributes));
  if (layout == paged_cache::PackedLayout::kSideBySide && keys.dim(2) != 64) {
    return Wrong(
        kName, "queries", *args[kQueries],
        "with cache_layout side_by_side (the head_dim-64 variant) its head_dim must be 64");
  }
  paged_cache::CacheShape& cache = p;
  XLA_GPU_ASSIGN_OR_RETURN(cache, paged_cache::ParsePackedCacheShape(kName, *args[kKvCache], layout,
                                                                     keys.dim(1), keys.dim(2)));
  // Without the scales: keys and values come as they are stored.
  problem.update = {cache, keys.dtype, DType::kI64, keys.dim(0)};
  problem.update_kv_cache = attributes.GetBool("update_kv_cache");
  XLA_GPU_RETURN_IF_ERROR(ParseIndices(args, p));
  XLA_GPU_RETURN_IF_ERROR(paged_attention::ParseOptions(kNames, args, attributes, p));
  return problem;
}

Buffers BuffersFromCall(const Problem& problem, const Call& call) {
  size_t next = kFirstOptional;
  const auto optional = [&](bool present) -> const float* {
    return present ? call.args[next++].data_as<const float>() : nullptr;
  };
  Buffers buffers{};
  paged_attention::Buffers& a = buffers.attention;
  a.query = call.args[kQueries].data;
  a.k_cache = a.v_cache = call.results[1].data;
  a.context_lens = call.args[kKvLens].data_as<int32_t>();
  a.block_tables = call.args[kPageIndices].data_as<int32_t>();
  a.query_start_loc = call.args[kCuQLens].data_as<int32_t>();
  a.num_seqs = call.args[kDistribution].data_as<int32_t>() + 2;
  a.sinks = optional(problem.attention.has_sinks);
  a.k_scale = optional(problem.attention.k_scale_size > 0);
  a.k_token_scales = optional(problem.attention.k_token_scales);
  a.v_scale = optional(problem.attention.v_scale_size > 0);
  a.v_token_scales = optional(problem.attention.v_token_scales);
  a.out = call.results[0].data;
  if (call.results.size() > 2) a.workspace = call.results[2].data;

  update_kv_cache::Buffers& u = buffers.update;
  u.key = call.args[kKeys].data;
  u.value = call.args[kValues].data;
  u.k_cache_in = u.v_cache_in = call.args[kKvCache].data;
  u.k_cache_out = u.v_cache_out = call.results[1].data;
  u.cache_bytes = call.args[kKvCache].size_bytes();
  return buffers;
}

}  // namespace ragged_paged_attention_v3
}  // namespace xla_gpu
