// rotary_embedding on the Host.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/float_types.h"
#include "src/core/host_rows.h"
#include "src/ops/rotary_embedding/rotary_embedding.h"

namespace xla_gpu {
namespace rotary_embedding {
namespace {

constexpr int64_t kElementsOfTask = 1 << 14;

using Floats = std::vector<float>;

Floats LoadAll(const void* from, DType dtype, int64_t count) {
  Floats values(from == nullptr ? 0 : static_cast<size_t>(count));
  LoadFloats(from, dtype, 0, values);
  return values;
}

// `x`: of a head.
void Turn(const Problem& p, const Floats& cos_sin, Floats& x) {
  const auto half = static_cast<size_t>(p.rotary_dim / 2);
  const size_t step = p.interleaved ? 2 : 1, apart = p.interleaved ? 1 : half;
  for (size_t i = 0; i < half; ++i) {
    float &a = x[i * step], &b = x[i * step + apart];
    const float cos = cos_sin[i], sin = cos_sin[half + i], old = a;
    a = old * cos - b * sin;
    b = b * cos + old * sin;
  }
}

// What the tokens of a task compute with.
struct Scratch {
  explicit Scratch(const Problem& p)
      : x(static_cast<size_t>(p.head_dim)), cos_sin(static_cast<size_t>(p.rotary_dim)) {}
  Floats x, cos_sin;
};

void TurnToken(const Problem& p, const Buffers& b, const Floats& q_norm, const Floats& k_norm,
               int64_t token, Scratch& scratch) {
  const int64_t position = b.positions[token];
  if (position >= 0 && position < p.max_positions) {
    LoadFloats(b.cos_sin, p.cos_sin_dtype, position * p.rotary_dim, scratch.cos_sin);
  } else {
    std::fill(scratch.cos_sin.begin(), scratch.cos_sin.end(), std::nanf(""));
  }
  int64_t column = 0;  // of the head
  const auto finish = [&](void* to, int64_t heads, bool turns, const Floats& norm) {
    for (int64_t head = token * heads; head < (token + 1) * heads; ++head, column += p.head_dim) {
      LoadFloats(b.qkv, p.dtype, token * p.heads() * p.head_dim + column, scratch.x);
      MultiplyRow(scratch.x, p.row_factor ? b.row_factor + token : nullptr,
                  p.column_factor ? b.column_factor + column : nullptr);
      if (!norm.empty()) NormalizeRow(scratch.x, norm, p.epsilon);
      if (turns) Turn(p, scratch.cos_sin, scratch.x);
      StoreFloats(scratch.x, to, p.out_dtype, head * p.head_dim);
    }
  };
  finish(b.q, p.q_heads, true, q_norm);
  finish(b.k, p.kv_heads, true, k_norm);
  finish(b.v, p.kv_heads, false, {});
}

}  // namespace
}  // namespace rotary_embedding

StatusOr<std::unique_ptr<Plan>> MakeRotaryEmbeddingHostPlan(const Call& call, int device_ordinal) {
  using namespace rotary_embedding;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem p, ProblemFromCall(call));
  return MakePlan([p](const Call& call, const ExecutionContext& context) {
    const Buffers b = BuffersFromCall(p, call);
    const Floats q_norm = LoadAll(b.q_norm, p.norm_dtype, p.head_dim);
    const Floats k_norm = LoadAll(b.k_norm, p.norm_dtype, p.head_dim);
    const int64_t tokens = std::max<int64_t>(kElementsOfTask / (p.heads() * p.head_dim), 1);
    ParallelForRanges(*context.thread_pool, p.tokens, tokens, [&](int64_t token, int64_t end) {
      Scratch scratch(p);
      for (; token < end; ++token) TurnToken(p, b, q_norm, k_norm, token, scratch);
    });
    return OkStatus();
  });
}

}  // namespace xla_gpu
