// rotary_embedding on the Host.
#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/ceil_div.h"
#include "src/core/float_types.h"
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
void Normalize(const Problem& p, const Floats& weight, Floats& x) {
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  const float mean = static_cast<float>(squares / static_cast<double>(p.head_dim));
  const float norm = 1 / std::sqrt(mean + p.epsilon);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= norm * weight[i];
}

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

float Factor(const Problem& p, const Buffers& b, int64_t token, int64_t column, size_t i) {
  const float of_row = p.row_factor ? b.row_factor[token] : 1;
  return p.column_factor ? of_row * b.column_factor[static_cast<size_t>(column) + i] : of_row;
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
      for (size_t i = 0; i < scratch.x.size(); ++i) {
        if (p.row_factor || p.column_factor) scratch.x[i] *= Factor(p, b, token, column, i);
      }
      if (!norm.empty()) Normalize(p, norm, scratch.x);
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
    context.thread_pool->ParallelFor(CeilDiv(p.tokens, tokens), [&](int64_t task) {
      Scratch scratch(p);
      const int64_t end = std::min((task + 1) * tokens, p.tokens);
      for (int64_t token = task * tokens; token < end; ++token) {
        TurnToken(p, b, q_norm, k_norm, token, scratch);
      }
    });
    return OkStatus();
  });
}

}  // namespace xla_gpu
