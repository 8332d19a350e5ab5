// What decode and prefill share about logits. They are kept in units of log2 (logit2 = logit *
// log2(e)), so that a weight is one exp2; all constant factors are folded into the query.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_LOGITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_LOGITS_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_LOGITS_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_LOGITS_INL_H_
#endif

#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"
#include "src/ops/paged_attention/problem.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

HWY_INLINE float ScaleOf(const float* scale, int64_t size, int64_t kv_head) {
  return size == 0 ? 1.0f : scale[size == 1 ? 0 : kv_head];
}

// What the query is multiplied by: then q.k is logit2, or logit / soft_cap where there is a cap.
template <class T>
HWY_INLINE float QueryFactor(const Problem& p, const Buffers& b, int64_t kv_head) {
  const double unit = p.soft_cap > 0 ? 1.0 / p.soft_cap : 1.4426950408889634;
  return static_cast<float>(unit * p.scale * T::kFactor *
                            ScaleOf(b.k_scale, p.k_scale_size, kv_head));
}

// What a tanh is multiplied by to give logit2; 0: no cap.
HWY_INLINE float SoftCap2(const Problem& p) { return p.soft_cap * kLog2E; }

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
                          const float* acc, float sum, float max) {
  float acc_weight = 1.0f;
  if (p.has_sinks) {
    const float sink = b.sinks[head] * kLog2E;
    const float new_max = std::isnan(sink) || sink > max ? sink : max;
    const float base = FiniteBase(new_max);
    acc_weight = Exp2(max - base);
    sum = sum * acc_weight + Exp2(sink - base);
    max = new_max;
  }
  const float factor =
      acc_weight * T::kFactor * ScaleOf(b.v_scale, p.v_scale_size, head / p.group_size()) / sum;
  const int64_t index = row * p.q_heads + head;
  const int64_t size = DTypeSize(p.out_dtype);
  StoreRow(acc, static_cast<size_t>(p.head_dim), factor, p.out_dtype,
           static_cast<char*>(b.out) + index * p.head_dim * size);
  if (p.return_lse) b.lse[index] = kLn2 * (max + std::log2(sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
