// rotary_embedding on the Host.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "src/core/ceil_div.h"
#include "src/core/float_types.h"
#include "src/ops/rotary_embedding/rotary_embedding.h"

namespace xla_gpu {
namespace rotary_embedding {
namespace {

constexpr int64_t kElementsOfTask = 1 << 14;

// `x`: of a head.
void Turn(const Problem& p, const std::vector<float>& cos_sin, std::vector<float>& x) {
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
      : x(static_cast<size_t>(p.rotary_dim)), cos_sin(static_cast<size_t>(p.rotary_dim)) {}
  std::vector<float> x, cos_sin;
};

void TurnToken(const Problem& p, const Buffers& b, int64_t token, Scratch& scratch) {
  const int64_t position = b.positions[token];
  if (position >= 0 && position < p.max_positions) {
    LoadFloats(b.cos_sin, p.cos_sin_dtype, position * p.rotary_dim, scratch.cos_sin);
  } else {
    std::fill(scratch.cos_sin.begin(), scratch.cos_sin.end(), std::nanf(""));
  }
  const int64_t head_bytes = p.head_dim * DTypeSize(p.dtype);
  const auto* from = static_cast<const char*>(b.qkv) + token * p.heads() * head_bytes;
  const auto copy = [&](void* to, int64_t heads) {
    const int64_t bytes = heads * head_bytes;
    std::memcpy(static_cast<char*>(to) + token * bytes, from, static_cast<size_t>(bytes));
    from += bytes;
  };
  const auto turn = [&](void* x, int64_t heads) {
    for (int64_t head = token * heads; head < (token + 1) * heads; ++head) {
      LoadFloats(x, p.dtype, head * p.head_dim, scratch.x);
      Turn(p, scratch.cos_sin, scratch.x);
      StoreFloats(scratch.x, x, p.dtype, head * p.head_dim);
    }
  };
  copy(b.q, p.q_heads);
  turn(b.q, p.q_heads);
  copy(b.k, p.kv_heads);
  turn(b.k, p.kv_heads);
  copy(b.v, p.kv_heads);
}

}  // namespace
}  // namespace rotary_embedding

StatusOr<std::unique_ptr<Plan>> MakeRotaryEmbeddingHostPlan(const Call& call, int device_ordinal) {
  using namespace rotary_embedding;  // NOLINT
  XLA_GPU_ASSIGN_OR_RETURN(const Problem p, ProblemFromCall(call));
  return MakePlan([p](const Call& call, const ExecutionContext& context) {
    const Buffers b = BuffersFromCall(call);
    const int64_t tokens = std::max<int64_t>(kElementsOfTask / (p.heads() * p.head_dim), 1);
    context.thread_pool->ParallelFor(CeilDiv(p.tokens, tokens), [&](int64_t task) {
      Scratch scratch(p);
      const int64_t end = std::min((task + 1) * tokens, p.tokens);
      for (int64_t token = task * tokens; token < end; ++token) TurnToken(p, b, token, scratch);
    });
    return OkStatus();
  });
}

}  // namespace xla_gpu
