// Decode of one block of keys: scores, softmax, values.
//
// A block's logits are held in tiles: one vector holds (q heads of the tile) x (keys of the tile),
// so that a sum over head_dim for all of them ends in one vector without a horizontal sum each.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_BLOCK_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_BLOCK_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_BLOCK_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/cpu/logits-inl.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

// Where the n keys of one block lie, at most kMaxKeys: their rows of kv head 0. Entries from n on
// repeat the last, so that a whole tile of keys may be taken from any one on.
template <typename Raw, int64_t kMaxKeys>
struct BlockRows {
  static constexpr int64_t kEntries = kMaxKeys + kLanes;
  int64_t n = 0;
  const Raw* k[kEntries];
  const Raw* v[kEntries];
  int64_t slot[kMaxKeys];  // their places in the cache
};

// Each lane: the maximum of its group of kCount neighbours.
template <size_t kCount>
HWY_INLINE VF32 MaxOfEach(VF32 x) {
#if HWY_TARGET != HWY_SCALAR
  const F32 df;
  if constexpr (kCount >= 2) x = hn::Max(x, hn::Reverse2(df, x));
  if constexpr (kCount >= 4) x = hn::Max(x, hn::Reverse4(df, x));
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  if constexpr (kCount >= 8) x = hn::Max(x, hn::Reverse8(df, x));
  if constexpr (kCount >= 16) x = hn::Max(x, hn::Reverse(df, x));
#endif
#endif
  return x;
}

// A tile of q heads and one block of their kv head: Score, then Softmax, then AddValues.
template <class T, size_t kHeads, size_t kMaxBlockKeys = 16>
class DecodeTile {
 public:
  using CacheType = T;
  static constexpr bool kAmx = false;
  static constexpr size_t kTileHeads = kHeads;
  static constexpr size_t kMaxKeys = kMaxBlockKeys;
  using Raw = typename T::Raw;
  static constexpr size_t kKeys = kLanes / kHeads;  // in a tile

  static constexpr size_t kAsked = std::min<size_t>(4, kKeys);  // keys that are asked for together
  static constexpr bool kMayAskAsZen5 = kHeads > 1 || sizeof(Raw) < 4;  // else it is slower

  HeadRows<Raw> rows;                           // K for Score, V for AddValues
  HeadRows<Raw> later[kMaxBlockKeys / kAsked];  // to ask for, as many as those that are read
  float* weights;  // [kMaxBlockKeys * kHeads], logits before Softmax; with T::kDot bf16 after it
  LogitScale scale;
  float growth;       // MaxGrowth
  size_t begin, end;  // the keys of the block that the tile sees
  bool as_zen5;       // how to ask, if kMayAskAsZen5
  float* acc;         // sums of values, [chunk of ForEachChunk][kHeads][vector]
  double* long_acc;   // as acc, of earlier keys; null where there is none

  // What is read has been asked for.
  HWY_INLINE void AskNoMore() {
    std::fill(later, std::end(later), rows);
    as_zen5 = false;
  }

  // Words of head h of the tile, with T::kDot: steps of the first of kHeads rows, the second and so
  // on, then the next steps: more pointers than registers would cost as much as the products.
  static void PackQuery(const uint16_t* query, float factor, size_t h, size_t padded, float* q) {
    auto* words = reinterpret_cast<uint16_t*>(q) + h * T::kStep;
    for (size_t d = 0; d < padded; d += T::kStep) {
      T::ToWords(query + d, factor, words + d * kHeads);
    }
  }

  // `weights` become x (LogitScale) of the keys that are seen, -inf in lanes past the last of them.
  HWY_INLINE void Score(const float* q, size_t padded) {
    ScoreBy([&](size_t first) XLA_GPU_INLINE_LAMBDA {
      if constexpr (T::kDot) {
        return DotWords(q, padded, first);
      } else {
        return Dots(q, padded, first);
      }
    });
  }

  // Each x becomes a weight. `max` and `sum` are vectors with kKeys lanes for each head, `long_sum`
  // as sum, of the keys of long_acc.
  //
  // `max` follows only what is above it by more than `growth`: a processor goes on as if it had
  // seen that nothing is.
  HWY_INLINE void Softmax(float* max, float* sum, double* long_sum, size_t padded) {
    const F32 df;
    const VF32 unit_of_x = hn::Set(df, scale.unit);
    const VF32 old_max = hn::Load(df, max);
    VF32 base = FiniteBase(old_max);
    VF32 total = hn::Load(df, sum);
    const size_t n = (end - begin + kKeys - 1) / kKeys * kLanes;
    VF32 block_max = hn::Load(df, weights);
    for (size_t i = kLanes; i < n; i += kLanes) {
      block_max = hn::Max(block_max, hn::Load(df, weights + i));
    }
    const VF32 limit = hn::Add(old_max, hn::Set(df, growth));
    if (!hn::AllTrue(df, hn::Le(block_max, limit))) {
      const VF32 new_max = hn::Max(old_max, MaxOfEach<kKeys>(block_max));
      base = FiniteBase(new_max);
      const VF32 alpha = Exp2(hn::Mul(hn::Sub(old_max, base), unit_of_x));
      hn::Store(new_max, df, max);
      total = hn::Mul(total, alpha);
      Rescale(alpha, long_sum, padded);
    }
    for (size_t i = 0; i < n; i += kLanes) {
      const VF32 e = Exp2<kHeadroom>(hn::Mul(hn::Sub(hn::Load(df, weights + i), base), unit_of_x));
      total = hn::Add(total, e);
      if constexpr (T::kDot) {
        T::StoreWeights(e, reinterpret_cast<uint16_t*>(weights) + i);
      } else {
        hn::Store(e, df, weights + i);
      }
    }
    hn::Store(total, df, sum);
  }

  HWY_INLINE void AddValues(size_t padded) {
    ForEachChunk(padded, [&](auto wide, size_t d) XLA_GPU_INLINE_LAMBDA {
      constexpr size_t kWide = decltype(wide)::value;
      if constexpr (!T::kDot) {
        AddValuesAt<kWide>(d);
      } else if constexpr (kWide * kLanes % T::kStep == 0) {  // as rows are whole steps
        AddPairsAt<kWide>(d);
      }
    });
  }

  // Copies `acc` to rows, [kHeads][padded].
  void StoreRows(size_t padded, float* rows) const {
    const F32 df;
    ForEachChunk(padded, [&](auto wide, size_t d) XLA_GPU_INLINE_LAMBDA {
      const float* from = acc + d * kHeads;
      for (size_t i = 0; i < kHeads * wide; ++i, from += kLanes) {
        hn::Store(hn::Load(df, from), df, rows + i / wide * padded + d + i % wide * kLanes);
      }
    });
  }

 protected:
  // `products`: q.k of a tile of keys from one of the block on.
  template <class F>
  HWY_INLINE void ScoreBy(const F& products) {
    const F32 df;
    const float cap = scale.inner;
    float* to = weights;
    for (size_t first = begin; first < end; first += kKeys, to += kLanes) {
      VF32 x = products(first);
      if (cap > 0) x = Tanh(hn::Mul(hn::Set(df, cap), x));
      if (end - first < kKeys) x = HideKeysFrom(end - first, x);
      hn::Store(x, df, to);
    }
  }

  // Calls f(number of vectors, first element) for the chunks of a row that AddValues takes at a
  // time. All heads' sums of a chunk lie together, so that one pointer reaches them.
  template <class F>
  static HWY_INLINE void ForEachChunk(size_t padded, const F& f) {
    constexpr size_t kWide = HWY_TARGET <= HWY_AVX3 || !HWY_ARCH_X86 ? 4 : 2;
    size_t d = 0;
    for (; d + kWide * kLanes <= padded; d += kWide * kLanes) {
      f(std::integral_constant<size_t, kWide>(), d);
    }
    if (d + 2 * kLanes <= padded) {
      f(std::integral_constant<size_t, 2>(), d);
      d += 2 * kLanes;
    }
    if (d < padded) f(std::integral_constant<size_t, 1>(), d);
  }

  // The dot products of all queries and the keys from `first` on.
  HWY_INLINE VF32 Dots(const float* q, size_t padded, size_t first) {
    const HeadRows<Raw> keys = rows.From(first);
    const HeadRows<Raw>* ahead = later + (first - begin) / kAsked;
    const F32 df;
    VF32 sums[kLanes];
    Unrolled<kLanes>([&](auto i) XLA_GPU_INLINE_LAMBDA { sums[i] = hn::Zero(df); });
    size_t d = 0;
    for (; d + 2 * kLanes <= padded; d += 2 * kLanes) {
      // Whichever are fewer stay in registers, queries or keys.
      if constexpr (kHeads <= kKeys) {
        VF32 query[kHeads * 2];
        Unrolled<kHeads * 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          query[i] = hn::Load(df, q + i / 2 * padded + d + i % 2 * kLanes);
        });
        Unrolled<kKeys>([&](auto j) XLA_GPU_INLINE_LAMBDA {
          VF32 key[2];
          T::LoadPair(keys[j] + d, key);
          AskFor<2 * kLanes>(ahead[j / kAsked][j % kAsked], d);
          Unrolled<kHeads * 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
            VF32& sum = sums[i / 2 * kKeys + j];
            sum = hn::MulAdd(query[i], key[i % 2], sum);
          });
        });
      } else {
        VF32 key[kKeys * 2];
        Unrolled<kKeys>([&](auto j) XLA_GPU_INLINE_LAMBDA {
          T::LoadPair(keys[j] + d, key + 2 * j);
          AskFor<2 * kLanes>(ahead[j / kAsked][j % kAsked], d);
        });
        Unrolled<kHeads * 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          const VF32 query = hn::Load(df, q + i / 2 * padded + d + i % 2 * kLanes);
          Unrolled<kKeys>([&](auto j) XLA_GPU_INLINE_LAMBDA {
            VF32& sum = sums[i / 2 * kKeys + j];
            sum = hn::MulAdd(query, key[2 * j + i % 2], sum);
          });
        });
      }
    }
    if (d < padded) {
      Unrolled<kKeys>([&](auto j) XLA_GPU_INLINE_LAMBDA {
        const VF32 key = T::Load(keys[j] + d);
        Unrolled<kHeads>([&](auto h) XLA_GPU_INLINE_LAMBDA {
          VF32& sum = sums[h * kKeys + j];
          sum = hn::MulAdd(hn::Load(df, q + h * padded + d), key, sum);
        });
      });
    }
    return SumEach(sums);
  }

  // As Dots, of words.
  HWY_NOINLINE VF32 DotWords(const float* q, size_t padded, size_t first) {
    constexpr size_t kTogether = kAsked;
    VF32 sums[kLanes];
    Unrolled<kKeys / kTogether>([&](auto part) XLA_GPU_INLINE_LAMBDA {
      const HeadRows<Raw> keys = rows.From(first + part * kTogether);
      const HeadRows<Raw> ahead = later[(first - begin) / kAsked + part];
      VF32 sum[kHeads * kTogether];
      Unrolled<kHeads * kTogether>([&](auto i) XLA_GPU_INLINE_LAMBDA { sum[i] = hn::Zero(F32()); });
      const auto* query_at = reinterpret_cast<const uint32_t*>(q);
      for (size_t d = 0; d < padded; d += T::kStep, query_at += kHeads * T::kStep / 2) {
        VU32 key[kTogether * T::kWords];
        Unrolled<kTogether>([&](auto j) XLA_GPU_INLINE_LAMBDA {
          T::LoadWords(keys[j] + d, key + j * T::kWords);
          AskFor<T::kStep>(ahead[j], d);
        });
        Unrolled<kHeads * T::kWords>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          const VU32 query = hn::Load(U32(), query_at + i * kLanes);
          Unrolled<kTogether>([&](auto j) XLA_GPU_INLINE_LAMBDA {
            VF32& to = sum[i / T::kWords * kTogether + j];
            to = AddProducts(to, query, key[j * T::kWords + i % T::kWords]);
          });
        });
      }
      Unrolled<kHeads * kTogether>([&](auto i) XLA_GPU_INLINE_LAMBDA {
        sums[i / kTogether * kKeys + part * kTogether + i % kTogether] = sum[i];
      });
    });
    return SumEach(sums);
  }

  // Asks for the lines of kCount elements from d on. Zen 5 takes more requests into L1 than into
  // L2, best some instructions apart, empty ones where there is too little to compute. Others wait
  // for few lines at once in L1.
  template <size_t kCount>
  HWY_INLINE void AskFor(const Raw* row, size_t d) const {
    constexpr size_t kLine = 64, kBytes = kCount * sizeof(Raw);
    if (kBytes < kLine && d * sizeof(Raw) % kLine != 0) return;
    const auto* const from = reinterpret_cast<const char*>(row + d);
    Unrolled<(kBytes + kLine - 1) / kLine>([&](auto i) XLA_GPU_INLINE_LAMBDA {
#if HWY_TARGET == HWY_AVX3
      if (kMayAskAsZen5 && as_zen5) {
        constexpr int kEmpty = sizeof(Raw) == 4   ? 20
                               : sizeof(Raw) == 1 ? 0
                               : kHeads == 1      ? 16
                               : T::kDot          ? 8
                                                  : 0;
        __builtin_prefetch(from + i * kLine, 0, 3);
        __asm__ volatile(".rept %c0\n\tnop\n\t.endr" : : "i"(kEmpty));
        return;
      }
#endif
      __builtin_prefetch(from + i * kLine, 0, 2);
    });
  }

  static HWY_INLINE VF32 HideKeysFrom(size_t valid, VF32 x) {
    const F32 df;
    HWY_ALIGN float values[kLanes];
    hn::Store(x, df, values);
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t j = valid; j < kKeys; ++j) {
        values[h * kKeys + j] = kMinusInf;
      }
    }
    return hn::Load(df, values);
  }

  HWY_NOINLINE void Rescale(VF32 alpha, double* long_sum, size_t padded) const {
    const F32 df;
    HWY_ALIGN float factors[kLanes];
    hn::Store(alpha, df, factors);
    ForEachChunk(padded, [&](auto wide, size_t d) XLA_GPU_INLINE_LAMBDA {
      size_t at = d * kHeads;
      for (size_t i = 0; i < kHeads * wide; ++i, at += kLanes) {
        const float factor = factors[i / wide * kKeys];
        ScaleBy(df, factor, acc + at, kLanes);
        if (long_acc != nullptr) ScaleBy(F64(), factor, long_acc + at, kLanes);
      }
    });
    for (size_t i = 0; long_acc != nullptr && i < kLanes; ++i) long_sum[i] *= factors[i];
  }

  // Adds weight * value of all keys to the sums of the chunk of kWide vectors from element d on:
  // those of a block are summed from zero, since adding each to what many left rounds more. A
  // function of its own, of few variables, so that compilers keep its sums in registers.
  template <size_t kWide>
  HWY_NOINLINE void AddValuesAt(size_t d) {
    const F32 df;
    float* const to = acc + d * kHeads;
    VF32 sums[kHeads * kWide];
    Unrolled<kHeads * kWide>([&](auto i) XLA_GPU_INLINE_LAMBDA { sums[i] = hn::Zero(df); });
    const HeadRows<Raw> values = rows.From(begin);
    const size_t n = end - begin;
    for (size_t j = 0; j < n; ++j) {
      const Raw* from = values[j] + d;
      AskFor<kWide * kLanes>(later[j / kAsked][j % kAsked], d);
      VF32 value[kWide];
      if constexpr (kWide == 1) {
        value[0] = T::Load(from);
      } else {
        Unrolled<kWide / 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          T::LoadPair(from + 2 * i * kLanes, value + 2 * i);
        });
      }
      const float* weight = weights + j / kKeys * kLanes + j % kKeys;
      Unrolled<kHeads>([&](auto h) XLA_GPU_INLINE_LAMBDA {
        const VF32 w = hn::Set(df, weight[h * kKeys]);
        Unrolled<kWide>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          sums[h * kWide + i] = hn::MulAdd(w, value[i], sums[h * kWide + i]);
        });
      });
    }
    Unrolled<kHeads * kWide>([&](auto i) XLA_GPU_INLINE_LAMBDA {
      hn::Store(hn::Add(sums[i], hn::Load(df, to + i * kLanes)), df, to + i * kLanes);
    });
  }

  // As AddValuesAt, of words: keys two by two.
  template <size_t kWide>
  HWY_NOINLINE void AddPairsAt(size_t d) {
    const F32 df;
    constexpr size_t kPairs = 2 * T::kWords, kSteps = kWide / kPairs;
    float* const to = acc + d * kHeads;
    VF32 sums[kHeads * kWide];
    Unrolled<kHeads * kWide>(
        [&](auto i) XLA_GPU_INLINE_LAMBDA { sums[i] = hn::Load(df, to + i * kLanes); });
    const Raw* const* row = rows.row + begin;
    const HeadRows<Raw>* ahead = later;
    const int64_t offset = rows.head + static_cast<int64_t>(d);
    const size_t n = end - begin;
    const auto* words = reinterpret_cast<const uint32_t*>(weights);
    static constexpr Raw kNone[T::kStep] = {};
    // The i-th key of a tile, and if `is_pair` the one after it.
    const auto add = [&](auto i, auto is_pair) XLA_GPU_INLINE_LAMBDA {
      const Raw *const first_row = row[i] + offset, *const second_row = row[i + is_pair] + offset;
      AskFor<kWide * kLanes>(ahead[i / kAsked][i % kAsked], d);
      if constexpr (is_pair) {
        AskFor<kWide * kLanes>(ahead[(i + 1) / kAsked][(i + 1) % kAsked], d);
      }
      Unrolled<kSteps>([&](auto step) XLA_GPU_INLINE_LAMBDA {
        VU32 pairs[kPairs];
        T::LoadPairs(first_row + step * T::kStep, is_pair ? second_row + step * T::kStep : kNone,
                     pairs);
        Unrolled<kHeads>([&](auto h) XLA_GPU_INLINE_LAMBDA {
          const VU32 w = hn::Set(U32(), words[(h * kKeys + i) / 2]);
          Unrolled<kPairs>([&](auto pair) XLA_GPU_INLINE_LAMBDA {
            VF32& sum = sums[h * kWide + step * kPairs + pair];
            sum = AddProducts(sum, w, pairs[pair]);
          });
        });
      });
    };
    constexpr std::true_type kPair;
    size_t left = n;
    for (; left >= kKeys;
         left -= kKeys, row += kKeys, ahead += kKeys / kAsked, words += kLanes / 2) {
      Unrolled<kKeys / 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
        add(std::integral_constant<size_t, 2 * i>(), kPair);
      });
    }
    Unrolled<kKeys / 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
      constexpr std::integral_constant<size_t, 2 * i> kFirst;
      if (left >= kFirst + 2) add(kFirst, kPair);
      if (left == kFirst + 1) add(kFirst, std::false_type());  // the key after it may be NaN
    });
    Unrolled<kHeads * kWide>(
        [&](auto i) XLA_GPU_INLINE_LAMBDA { hn::Store(sums[i], df, to + i * kLanes); });
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
