// Decode of one block of keys as in decode_block-inl.h, its products by AMX (amx.h).
//
// Keys and values become bf16 in a buffer, keys as they are and values in pairs of keys: so rows of
// the cache are read as always, one after the other, and asked for on the way. The products of what
// is staged are done while the next rows are, in small parts: AMX computes while vectors load and
// convert.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_AMX_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_AMX_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_AMX_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <iterator>

#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/decode_block-inl.h"
#include "src/ops/paged_cache/cpu/amx.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

// Products to do, in their order.
class AmxQueue {
 public:
  explicit AmxQueue(const paged_cache::AmxUnit* unit) : unit_(unit) {}

  void Begin(int64_t few) const { unit_->begin(few); }
  void End() {
    RunAll();
    unit_->end();
  }
  void Add(const paged_cache::AmxProduct& product) {
    if (end_ == std::size(products_)) RunAll();
    products_[end_++] = product;
  }
  void RunOne() {
    if (next_ < end_) unit_->multiply(products_[next_++]);
  }
  void RunAll() {
    while (next_ < end_) RunOne();
    next_ = end_ = 0;
  }

 private:
  const paged_cache::AmxUnit* const unit_;
  size_t next_ = 0, end_ = 0;
  paged_cache::AmxProduct products_[16];
};

#if XLA_GPU_HAVE_BF16_DOT

template <class T, size_t kHeads>
class AmxDecodeTile : public DecodeTile<T, kHeads, 2 * paged_cache::kAmxRows> {
  using Base = DecodeTile<T, kHeads, 2 * paged_cache::kAmxRows>;

 public:
  using Base::acc;
  using Base::begin;
  using Base::end;
  using Base::kAsked;
  using Base::kKeys;
  using Base::kMaxKeys;
  using Base::later;
  using Base::rows;
  using Base::weights;
  using typename Base::Raw;
  static constexpr bool kAmx = true;

  AmxQueue* queue;
  float* staged;  // words: a row of each key or, of values, of each pair; kMaxKeys / 2 * padded
  KeyRange staged_keys = {0, 0};

  // q: [head_dim / 2][kHeads] words.
  static void PackQuery(const uint16_t* query, float factor, size_t h, size_t padded, float* q) {
    for (size_t d = 0; d < padded; d += T::kStep) {
      HWY_ALIGN uint16_t words[T::kStep];
      T::ToWords(query + d, factor, words);
      for (size_t i = 0; i < T::kStep / 2; ++i) {
        std::memcpy(q + (d / 2 + i) * kHeads + h, words + 2 * i, sizeof(*q));
      }
    }
  }

  // Leaves [key][kHeads] products in `weights`, once the queue has run.
  HWY_INLINE void Score(const float* q, size_t padded) {
    StageOnce([&]() HWY_ATTR { StageKeys(padded); });
    const auto words = static_cast<int64_t>(padded / 2);
    queue->Add({staged, words, q, kHeads, words, weights, kHeads, kMaxKeys, false, kHeads});
  }

  HWY_INLINE void StageValues(size_t padded) {
    StageOnce([&]() HWY_ATTR { StagePairs(padded); });
  }

  HWY_INLINE void Softmax(float* max, float* sum, double* long_sum, size_t padded) {
    const F32 df;
    HWY_ALIGN int32_t lane_of[kLanes];
    for (size_t i = 0; i < kLanes; ++i) {
      lane_of[i] = static_cast<int32_t>(i % kKeys * kHeads + i / kKeys);
    }
    const auto by_head = hn::SetTableIndices(df, lane_of);
    this->ScoreBy([&](size_t first) XLA_GPU_INLINE_LAMBDA {
      return hn::TableLookupLanes(hn::Load(df, weights + (first - begin) * kHeads), by_head);
    });
    Base::Softmax(max, sum, long_sum, padded);
  }

  // The products are for the queue to do, by weights as [kHeads][key], behind those of Softmax.
  HWY_INLINE void AddValues(size_t padded) {
    StageValues(padded);
    const auto* from = reinterpret_cast<const uint16_t*>(weights);
    float* const a = weights + kHeads * kMaxKeys / 2;
    auto* const to = reinterpret_cast<uint16_t*>(a);
    const size_t n = end - begin;
    if (n < kMaxKeys) std::fill(to, to + kHeads * kMaxKeys, uint16_t{0});
    for (size_t key = 0; key < n; key += kKeys) {
      for (size_t h = 0; h < kHeads; ++h, from += kKeys) {
        std::memcpy(to + h * kMaxKeys + key, from, kKeys * sizeof(*from));
      }
    }
    Base::ForEachChunk(padded, [&](auto wide, size_t d) XLA_GPU_INLINE_LAMBDA {
      for (size_t i = 0; i < wide * kLanes; i += 2 * kLanes) {
        queue->Add({a, kMaxKeys / 2, staged + d + i, static_cast<int64_t>(padded), kMaxKeys / 2,
                    acc + d * kHeads + i, wide * kLanes, kHeads, true});
      }
    });
  }

 private:
  static constexpr size_t kKeysAProduct = 4;  // that are staged meanwhile

  // Calls stage(), after which the queue is empty, unless the keys that the tile sees are staged.
  template <class F>
  HWY_INLINE void StageOnce(const F& stage) {
    const KeyRange keys{static_cast<int64_t>(begin), static_cast<int64_t>(end)};
    if (keys.begin == staged_keys.begin && keys.end == staged_keys.end) return;
    if (staged_keys.end != 0) queue->RunAll();  // it reads what other rows see
    staged_keys = keys;
    stage();
    queue->RunAll();
  }

  HWY_NOINLINE void StageKeys(size_t padded) const {
    float* to = staged;
    const size_t n = end - begin;
    for (size_t i = 0; i < n; ++i) {
      if (i % kKeysAProduct == 0) queue->RunOne();
      const Raw *const row = rows[begin + i], *const ahead = later[i / kAsked][i % kAsked];
      for (size_t d = 0; d < padded; d += T::kStep) {
        VU32 words[T::kWords];
        T::LoadWords(row + d, words);
        this->template AskFor<T::kStep>(ahead, d);
        for (size_t j = 0; j < T::kWords; ++j, to += kLanes) {
          hn::Store(hn::BitCast(F32(), words[j]), F32(), to);
        }
      }
    }
  }

  // Behind the last key come zeros, since 0 * NaN is NaN.
  HWY_NOINLINE void StagePairs(size_t padded) const {
    alignas(64) static constexpr Raw kNone[kMaxHeadDim] = {};
    constexpr size_t kPairs = 2 * T::kWords;
    float* to = staged;
    const size_t n = end - begin;
    for (size_t i = 0; i < n; i += 2) {
      if (i % kKeysAProduct == 0) queue->RunOne();
      const Raw* const row = rows[begin + i];
      const Raw* const second = i + 1 < n ? rows[begin + i + 1] : kNone;
      const Raw* const ahead = later[i / kAsked][i % kAsked];
      const Raw* const second_ahead = later[i / kAsked][i % kAsked + 1];
      for (size_t d = 0; d < padded; d += T::kStep) {
        VU32 pairs[kPairs];
        T::LoadPairs(row + d, second + d, pairs);
        this->template AskFor<T::kStep>(ahead, d);
        this->template AskFor<T::kStep>(second_ahead, d);
        for (size_t j = 0; j < kPairs; ++j, to += kLanes) {
          hn::Store(hn::BitCast(F32(), pairs[j]), F32(), to);
        }
      }
    }
    std::fill(to, staged + kMaxKeys / 2 * padded, 0.0f);
  }
};

#endif  // XLA_GPU_HAVE_BF16_DOT

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
