// What decode and prefill share about logits. A row's numbers x, q.k or with a soft cap its tanh,
// stay in a unit of their own until the row's maximum is subtracted: then no factor, however large,
// makes an infinity of a finite logit.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_LOGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_LOGITS_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_LOGITS_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_LOGITS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"
#include "src/ops/paged_attention/problem.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;
constexpr float kMaxFloat = std::numeric_limits<float>::max();
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

HWY_INLINE float ScaleOf(const float* scale, int64_t size, int64_t kv_head) {
  return size == 0 ? 1.0f : scale[size == 1 ? 0 : kv_head];
}

// What a key or value is multiplied by as it is loaded: of Buffers::k_token_scales or the values'.
HWY_INLINE float TokenScale(const Problem& p, const float* scales, int64_t slot, int64_t kv_head) {
  if (scales == nullptr) return 1.0f;
  const float scale = scales[slot * p.kv_heads + kv_head];
  return scale + 0.0f * scale;
}

// From q.k to weights: x is q.k, with a soft cap tanh(inner * q.k); a weight is exp2(unit * (x -
// max)). The factor of the logits goes half into the queries and half into `unit` or `inner`, so
// that neither products nor weights leave the range of f32.
struct LogitScale {
  // What queries are multiplied by: a power of two, or with T::kDot 1, and a sign.
  float query = 1.0f;
  float inner = 0.0f;  // 0: no cap
  float unit = 1.0f;   // positive, as hidden keys are those of x = -inf
};

template <class T>
HWY_INLINE LogitScale LogitScaleOf(const Problem& p, const Buffers& b, int64_t kv_head) {
  const double factor = double{p.scale} * T::kFactor * ScaleOf(b.k_scale, p.k_scale_size, kv_head);
  const double query = T::kDot || factor == 0 ? 1.0 : std::ldexp(1.0, std::ilogb(factor) / 2);
  const double rest = std::fabs(factor) / query;
  const auto positive = [](double x) {
    return static_cast<float>(std::clamp<double>(x, std::numeric_limits<float>::min(), kMaxFloat));
  };
  const float cap = p.soft_cap;
  return {static_cast<float>(std::copysign(query, factor)), cap > 0 ? positive(rest / cap) : 0.0f,
          positive((cap > 0 ? cap : rest) * kLog2E)};
}

// How far above `max` an x may lie before `max` follows it. A weight may exceed 1 as well as not,
// and most blocks then neither scale old sums nor wait for their maximum. In units of log2: weights
// up to 2^8 keep sums far from the largest f32.
HWY_INLINE float MaxGrowth(const LogitScale& scale) {
  return std::min(8.0f / scale.unit, kMaxFloat);
}

// Query row and head as f32 times `factor`, zeros from head_dim to `padded`.
HWY_INLINE void LoadQuery(const Problem& p, const Buffers& b, int64_t row, int64_t head,
                          float factor, float* to, size_t padded) {
  const int64_t index = (row * p.q_heads + head) * p.head_dim;
  const size_t n = static_cast<size_t>(p.head_dim);
  switch (p.query_dtype) {
    case DType::kF32:
      return LoadRow<CacheF32>(static_cast<const float*>(b.query) + index, n, factor, to, padded);
    case DType::kBF16:
      return LoadRow<CacheBF16>(static_cast<const uint16_t*>(b.query) + index, n, factor, to,
                                padded);
    default:
      return LoadRow<CacheF16>(static_cast<const uint16_t*>(b.query) + index, n, factor, to,
                               padded);
  }
}

// What to subtract from logits whose maximum is `max`: 0 where every logit is -inf, so that their
// weights become 0 and not NaN.
HWY_INLINE VF32 FiniteBase(VF32 max) {
  const F32 df;
  return hn::IfThenZeroElse(hn::Eq(max, hn::Set(df, kMinusInf)), max);
}
HWY_INLINE float FiniteBase(float max) { return max == kMinusInf ? 0.0f : max; }

// One finished row and head: acc / sum, the sink's weight added to the sum.
template <class T>
HWY_INLINE void FinishRow(const Problem& p, const Buffers& b, int64_t row, int64_t head,
                          const float* acc, double sum, float max, const LogitScale& scale) {
  const int64_t index = row * p.q_heads + head;
  void* out =
      static_cast<char*>(b.out) + index * p.head_dim * static_cast<int64_t>(DTypeSize(p.out_dtype));
  // In double: this is once a row, and factors and sinks may be anything.
  const double sink = p.has_sinks ? b.sinks[head] * kLog2E : double{kMinusInf};
  if (sum == 0 && sink == kMinusInf) {  // sees nothing
    std::memset(out, 0, static_cast<size_t>(p.head_dim * DTypeSize(p.out_dtype)));
    if (p.return_lse) b.lse[index] = kMinusInf;
    return;
  }
  double top = max * double{scale.unit};
  double acc_weight = 1.0;
  if (p.has_sinks) {
    const double keys = top;
    if (!(keys >= sink)) top = sink;
    acc_weight = std::exp2(keys - top);
    sum = sum * acc_weight + std::exp2(sink - top);
  }
  StoreRow(acc, static_cast<size_t>(p.head_dim), static_cast<float>(acc_weight * T::kFactor / sum),
           ScaleOf(b.v_scale, p.v_scale_size, head / p.group_size()), p.out_dtype, out);
  if (p.return_lse) b.lse[index] = static_cast<float>(kLn2 * top + std::log(sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
