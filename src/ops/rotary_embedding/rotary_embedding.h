// rotary_embedding: queries and keys turned by their positions, values beside them.
#ifndef XLA_GPU_OPS_ROTARY_EMBEDDING_ROTARY_EMBEDDING_H_
#define XLA_GPU_OPS_ROTARY_EMBEDDING_ROTARY_EMBEDDING_H_

#include <cstdint>
#include <memory>

#include "src/core/op.h"

namespace xla_gpu {
namespace rotary_embedding {

// The types and sizes of a checked call.
struct Problem {
  DType dtype = DType::kInvalid;          // f32, bf16, f16
  DType cos_sin_dtype = DType::kInvalid;  // likewise
  DType norm_dtype = DType::kInvalid;     // likewise; kInvalid without norms
  DType out_dtype = DType::kInvalid;      // likewise
  bool row_factor = false;
  bool column_factor = false;
  bool interleaved = false;
  int64_t tokens = 0;
  int64_t q_heads = 0;   // at least 1
  int64_t kv_heads = 0;  // likewise
  int64_t head_dim = 0;  // even
  int64_t max_positions = 0;
  int64_t rotary_dim = 0;  // even, at least 2, at most head_dim
  float epsilon = 0;

  int64_t heads() const { return q_heads + 2 * kv_heads; }
};

// As the schema has it; an error where shapes do not fit.
StatusOr<Problem> ProblemFromCall(const Call& call);

struct Buffers {
  const void* qkv;
  const int32_t* positions;
  const void* cos_sin;
  const void* q_norm;          // null without norms
  const void* k_norm;          // likewise
  const float* row_factor;     // null without
  const float* column_factor;  // null without
  void* q;
  void* k;
  void* v;
};
Buffers BuffersFromCall(const Problem& problem, const Call& call);

}  // namespace rotary_embedding

StatusOr<std::unique_ptr<Plan>> MakeRotaryEmbeddingHostPlan(const Call& call, int device_ordinal);
StatusOr<std::unique_ptr<Plan>> MakeRotaryEmbeddingCudaPlan(const Call& call, int device_ordinal);

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_ROTARY_EMBEDDING_ROTARY_EMBEDDING_H_
