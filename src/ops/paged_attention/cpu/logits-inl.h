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
// max)). The factor of the logits goes into `unit` or `inner`; of one so small that differences of
// q.k past f32 count, the queries take a part.
struct LogitScale {
  float query = 1.0f;  // what queries are multiplied by: a power of two or 0, and a sign
  float inner = 0.0f;  // 0: no cap
  float unit = 1.0f;   // positive, as hidden keys are those of x = -inf; NaN of scales not finite
};

// The exponent of the largest power of two in a number, 0 where there is none.
HWY_INLINE int ExponentOf(double x) { return x == 0 || !std::isfinite(x) ? 0 : std::ilogb(x); }

template <class T>
HWY_INLINE double LogitFactorOf(const Problem& p, const Buffers& b, int64_t kv_head) {
  return double{p.scale} * T::kFactor * ScaleOf(b.k_scale, p.k_scale_size, kv_head);
}

template <class T>
HWY_INLINE LogitScale LogitScaleOf(const Problem& p, const Buffers& b, int64_t kv_head) {
  const double factor = LogitFactorOf<T>(p, b, kv_head);
  constexpr int kLeast = -50;  // exponent of what `unit` and `inner` take
  const double query =
      factor == 0 ? 0.0 : std::ldexp(1.0, std::min(ExponentOf(factor) - kLeast, 0));
  const double rest = factor == 0 ? 0.0 : std::fabs(factor) / query;
  const auto positive = [](double x) {
    return static_cast<float>(std::clamp<double>(x, std::numeric_limits<float>::min(), kMaxFloat));
  };
  const float cap = p.soft_cap;
  return {static_cast<float>(std::copysign(query, factor)), cap > 0 ? positive(rest / cap) : 0.0f,
          positive((cap > 0 ? cap : rest) * kLog2E) + static_cast<float>(0 * factor)};
}

// Weights are 2^-kHeadroom of what they are above, and `max` follows no x that lies less than that
// above it, in units of log2: most blocks then neither scale old sums nor wait for their maximum,
// and no weight exceeds 1, so that sums of values near the end of f32 stay within it.
constexpr int kHeadroom = 8;
HWY_INLINE float MaxGrowth(const LogitScale& scale) {
  return std::min(kHeadroom / scale.unit, kMaxFloat);
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
  const int64_t index = row * p.q_heads + head, kv_head = head / p.group_size();
  void* out =
      static_cast<char*>(b.out) + index * p.head_dim * static_cast<int64_t>(DTypeSize(p.out_dtype));
  // In double: this is once a row, and factors and sinks may be anything.
  const double sink = p.has_sinks ? b.sinks[head] * kLog2E : double{kMinusInf};
  if (sum == 0 && sink == kMinusInf) {  // sees nothing
    std::memset(out, 0, static_cast<size_t>(p.head_dim * DTypeSize(p.out_dtype)));
    if (p.return_lse) b.lse[index] = kMinusInf;
    return;
  }
  // A factor that f32 does not hold is far beyond any difference of q.k, but not of sinks.
  const double unit =
      scale.unit == kMaxFloat ? std::fabs(LogitFactorOf<T>(p, b, kv_head)) * kLog2E : scale.unit;
  double top = max * unit;
  double acc_weight = 1 << kHeadroom;
  sum *= acc_weight;
  if (p.has_sinks) {
    const double keys = top;
    if (!(keys >= sink)) top = sink;
    const double weight = std::exp2(keys - top);
    acc_weight *= weight;
    sum = sum * weight + std::exp2(sink - top);
  }
  const double factor = acc_weight * T::kFactor / sum * ScaleOf(b.v_scale, p.v_scale_size, kv_head);
  // In two halves: of a row near the end of f32 neither product leaves it unless both do.
  const double half = std::ldexp(1.0, ExponentOf(factor) / 2);
  StoreRow(acc, static_cast<size_t>(p.head_dim), static_cast<float>(half),
           static_cast<float>(factor / half), p.out_dtype, out);
  if (p.return_lse) b.lse[index] = static_cast<float>(kLn2 * top + std::log(sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
