// Decode by AMX: the keys and values of a block as its products take them.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_AMX_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_AMX_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_AMX_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/decode_block-inl.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"
#include "src/ops/paged_cache/cpu/amx.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

constexpr int64_t kAmxKeys = 2 * paged_cache::kAmxRows;  // of a block: words of one tile's depth
static_assert(kAmxKeys <= kMaxBlockKeys && kAmxKeys == 2 * paged_cache::kAmxWords);

// For types without T::kDot: nothing.
template <class T, size_t kHeads, bool kDot = T::kDot>
class AmxBlockOf {
 public:
  static constexpr int64_t NumFloats(int64_t) { return 0; }
  void TakeMemory(float*, int64_t) {}
};

// Keys lie as rows, so that logits are [key][head]; values as words of two keys.
template <class T, size_t kHeads>
class AmxBlockOf<T, kHeads, true> {
 public:
  static constexpr size_t kKeys = kLanes / kHeads;  // in a vector of logits

  static constexpr int64_t NumFloats(int64_t padded) {
    return kAmxKeys * padded + (kAmxKeys + kAmxKeys / 2) * int64_t{kHeads} + kLanes;
  }
  void TakeMemory(float* memory, int64_t padded) {
    padded_ = static_cast<size_t>(padded);
    keys_ = memory;
    values_ = keys_ + kAmxKeys * padded / 2;
    logits_ = values_ + kAmxKeys * padded / 2;
    weights_ = reinterpret_cast<uint16_t*>(logits_ + kAmxKeys * kHeads + kLanes);
  }

  // kStep elements of the query of head h to words [element / 2][kHeads].
  void ToColumn(const uint16_t* query, uint16_t sign, size_t h, float* to) const {
    HWY_ALIGN uint16_t words[T::kStep];
    T::ToWords(query, sign, words);
    for (size_t i = 0; i < T::kStep / 2; ++i) {
      std::memcpy(to + i * kHeads + h, words + 2 * i, sizeof(float));
    }
  }

  // The keys and values that a tile sees, zeros after them.
  template <class Tile>
  void Stage(const Tile& tile, const paged_cache::AmxUnit* unit) {
    unit_ = unit;
    const size_t n = tile.end - tile.begin;
    const auto k = tile.k.From(tile.begin), v = tile.v.From(tile.begin);
    const auto near_k = tile.near_k.From(tile.begin), far_k = tile.far_k.From(tile.begin);
    const auto near_v = tile.near_v.From(tile.begin), far_v = tile.far_v.From(tile.begin);
    for (size_t j = 0; j < n; ++j) {
      for (size_t d = 0; d < padded_; d += T::kStep) {
        VU32 words[T::kWords];
        T::LoadWords(k[j] + d, words);
        PrefetchToL2(near_k, j, d, T::kStep);
        PrefetchToL2(far_k, j, d, T::kStep);
        StoreWords<T::kWords>(words, keys_ + (j * padded_ + d) / 2);
      }
    }
    for (size_t j = 0; j < n; j += 2) {
      for (size_t d = 0; d < padded_; d += T::kStep) {
        VU32 first[T::kWords], second[T::kWords], pairs[2 * T::kWords];
        T::LoadWords(v[j] + d, first);
        PrefetchToL2(near_v, j, d, T::kStep);
        PrefetchToL2(far_v, j, d, T::kStep);
        if (j + 1 < n) {
          T::LoadWords(v[j + 1] + d, second);
          PrefetchToL2(near_v, j + 1, d, T::kStep);
          PrefetchToL2(far_v, j + 1, d, T::kStep);
        } else {
          std::fill(second, second + T::kWords, hn::Zero(U32()));
        }
        T::PairKeys(first, second, pairs);
        StoreWords<2 * T::kWords>(pairs, values_ + j / 2 * padded_ + d);
      }
    }
    if (n == kAmxKeys) return;
    std::fill(keys_ + n * padded_ / 2, keys_ + kAmxKeys * padded_ / 2, 0.0f);
    std::fill(values_ + (n + 1) / 2 * padded_, values_ + kAmxKeys / 2 * padded_, 0.0f);
  }

  // The logits of all keys, which ScoresFrom then gives as DecodeTile wants them.
  void Score(const float* q) const {
    const auto stride = static_cast<int64_t>(padded_ / 2);
    unit_->score({keys_, stride, q, kHeads, stride, logits_, kHeads, kAmxKeys, kHeads, false});
  }
  HWY_INLINE VF32 ScoresFrom(size_t key) const {
    const F32 df;
    HWY_ALIGN int32_t lanes[kLanes];
    for (size_t i = 0; i < kLanes; ++i) {
      lanes[i] = static_cast<int32_t>(i % kKeys * kHeads + i / kKeys);
    }
    return hn::TableLookupLanes(hn::LoadU(df, logits_ + key * kHeads),
                                hn::SetTableIndices(df, lanes));
  }

  // From vectors of kKeys weights for each head to rows of all keys.
  void SetWeights(const uint16_t* from, size_t n) const {
    std::fill(weights_, weights_ + kHeads * kAmxKeys, uint16_t{0});
    for (size_t key = 0; key < n; key += kKeys, from += kLanes) {
      for (size_t h = 0; h < kHeads; ++h) {
        std::memcpy(weights_ + h * kAmxKeys + key, from + h * kKeys, kKeys * sizeof(*from));
      }
    }
  }
  // Adds to `wide` vectors of each head's sums those of the values from element d on.
  void AddValues(size_t d, size_t wide, float* sums) const {
    for (size_t i = 0; i < wide; ++i) {
      unit_->add_values({reinterpret_cast<const float*>(weights_), kAmxKeys / 2,
                         values_ + d + i * kLanes, static_cast<int64_t>(padded_), kAmxKeys / 2,
                         sums + i * kLanes, static_cast<int64_t>(wide * kLanes), kHeads, kLanes,
                         true});
    }
  }

 private:
  template <size_t n>
  static HWY_INLINE void StoreWords(const VU32* words, float* to) {
    Unrolled<n>([&](auto i) XLA_GPU_INLINE_LAMBDA {
      hn::Store(hn::BitCast(F32(), words[i]), F32(), to + i * kLanes);
    });
  }

  const paged_cache::AmxUnit* unit_ = nullptr;
  size_t padded_ = 0;
  float* keys_ = nullptr;        // [kAmxKeys][padded / 2] words
  float* values_ = nullptr;      // [kAmxKeys / 2][padded] words, as T::PairKeys gives them
  float* logits_ = nullptr;      // [kAmxKeys][kHeads], and a vector that is read but not used
  uint16_t* weights_ = nullptr;  // [kHeads][kAmxKeys]
};

template <class T, size_t kHeads>
class AmxBlock : public AmxBlockOf<T, kHeads> {};

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
