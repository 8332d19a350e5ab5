#include "src/ops/update_kv_cache/update_kv_cache.h"

#include "src/core/expect.h"
#include "src/core/op_registry.h"

namespace xla_gpu {
namespace update_kv_cache {
namespace {

constexpr char kName[] = "update_kv_cache";

// Positions in the schema.
enum Arg {
  kKey,
  kValue,
  kKvCache,
  kSlotMapping,
  kFirstOptional,
  kVCache = kFirstOptional,
  kKScale,
  kVScale
};

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  XLA_GPU_ASSIGN_OR_RETURN(const Problem problem, ProblemFromCall(call));
  return std::vector(problem.separate_v ? 2 : 1, call.args[kKvCache].spec());
}

Op MakeOp() {
  return Op{
      .name = kName,
      .target = "xla_gpu_update_kv_cache",
      .doc =
          "Writes each token's key and value into its slot of a paged KV cache, in place where "
          "the result shares the argument's buffer. Tokens with a slot out of range are skipped; "
          "where two tokens name one slot, the later one stays. Stored is x / scale, saturated "
          "to the largest finite value in fp8 caches.",
      .args = {{"key", paged_cache::ComputeTypes(), "[tokens, kv_heads, head_dim]"},
               {"value", paged_cache::ComputeTypes(), "as key"},
               paged_cache::KvCacheArg(),
               {"slot_mapping",
                {DType::kI32, DType::kI64},
                "[tokens]: page * page_size + offset in the page; negative: skip the token"},
               paged_cache::VCacheArg(),
               paged_cache::ScaleArg("k_scale", "keys are stored divided by it"),
               paged_cache::ScaleArg("v_scale", "values are stored divided by it")},
      .results = {{.name = "kv_cache",
                   .doc = "as the argument",
                   .kind = ResultKind::kAlias,
                   .alias_of = "kv_cache"},
                  {.name = "v_cache",
                   .doc = "as the argument, where it is given",
                   .kind = ResultKind::kAlias,
                   .alias_of = "v_cache",
                   .only_with = "v_cache",
                   .form = "pair"}},
      .attrs = {},
      .instead_of_gradient = "it writes a cache for inference",
      .instead_of_batching =
          "a call already takes the tokens of all sequences: give each its slot, "
          "or loop over the batch",
      .infer = Infer,
      .make_plan = {MakeUpdateKvCacheHostPlan, MakeUpdateKvCacheCudaPlan},
  };
}

const Op& schema = *new Op(MakeOp());

XLA_GPU_REGISTER_OP(schema);

}  // namespace

StatusOr<Problem> ProblemFromCall(const Call& call) {
  XLA_GPU_ASSIGN_OR_RETURN(const auto args, BindArguments(schema, call));
  XLA_GPU_ASSIGN_OR_RETURN(const auto cache,
                           paged_cache::ParseCacheShape(kName, *args[kKvCache], args[kVCache]));
  Problem problem{cache};
  const TensorView& key = *args[kKey];
  if (key.rank() != 3 || key.dim(1) != problem.kv_heads || key.dim(2) != problem.head_dim) {
    return Wrong(kName, "key", key, "it must be f32, bf16 or f16 [tokens, ", problem.kv_heads, ", ",
                 problem.head_dim, "], the kv heads and head_dim of kv_cache ",
                 args[kKvCache]->ToString());
  }
  const TensorView& value = *args[kValue];
  if (!key.SameType(value)) {
    return InvalidArgument(kName, ": key is ", key.ToString(), " but value is ", value.ToString(),
                           "; they must be equal in dtype and shape");
  }
  problem.input_dtype = key.dtype;
  problem.tokens = key.dim(0);
  const TensorView& slots = *args[kSlotMapping];
  if (slots.rank() != 1 || slots.dim(0) != problem.tokens) {
    return Wrong(kName, "slot_mapping", slots, "it must be i32 or i64 [", problem.tokens,
                 "], one slot for each token of key ", key.ToString());
  }
  problem.slot_dtype = slots.dtype;
  XLA_GPU_RETURN_IF_ERROR(paged_cache::ParseScales(kName, args[kKScale], args[kVScale], problem));
  return problem;
}

Buffers BuffersFromCall(const Problem& problem, const Call& call) {
  size_t next = kFirstOptional;
  const auto optional = [&](bool present) -> const void* {
    return present ? call.args[next++].data : nullptr;
  };
  Buffers buffers{};
  buffers.key = call.args[kKey].data;
  buffers.value = call.args[kValue].data;
  buffers.k_cache_in = call.args[kKvCache].data;
  buffers.slot_mapping = call.args[kSlotMapping].data;
  const void* v_cache = optional(problem.separate_v);
  buffers.v_cache_in = problem.separate_v ? v_cache : buffers.k_cache_in;
  buffers.k_scale = static_cast<const float*>(optional(problem.has_k_scale()));
  buffers.v_scale = static_cast<const float*>(optional(problem.has_v_scale()));
  buffers.k_cache_out = call.results[0].data;
  buffers.v_cache_out = problem.separate_v ? call.results[1].data : call.results[0].data;
  buffers.cache_bytes = call.args[kKvCache].size_bytes();
  return buffers;
}

}  // namespace update_kv_cache
}  // namespace xla_gpu
