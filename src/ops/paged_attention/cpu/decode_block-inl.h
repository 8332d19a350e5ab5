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

// Keys of a block: few, so that the rows of all heads are read nearly in the order of their
// addresses, which memory wants, and L1 holds them: rows of different keys often lie a multiple of
// 4096 bytes apart, in the same few sets of it. Yet enough that waiting for the softmax, and
// loading and storing the sums of values, is little beside the products.
template <size_t kHeads>
constexpr int64_t kBlockKeys = std::max<int64_t>(8, kLanes / kHeads);
constexpr int64_t kMaxBlockKeys = kBlockKeys<1>;

// Where the keys [begin, begin + n) of one block lie: their rows of kv head 0. Entries from n on
// repeat the last, so that a whole tile of keys may be taken from any one on.
template <typename Raw>
struct BlockRows {
  static constexpr int64_t kEntries = kMaxBlockKeys + kLanes;
  int64_t begin = 0;
  int64_t n = 0;
  const Raw* k[kEntries];
  const Raw* v[kEntries];
};

// Memory that is needed later.
struct Stretch {
  const char* begin;
  const char* end;
};

// The lines of stretches, brought in as others are read: as many for each product everywhere, and a
// few empty instructions after each (fp8 has enough else to do). The queue of lines that a core
// waits for is short: where prefetches come closer it fills, and reads of what has arrived wait
// behind it. To L1, which does not hold them until then, as a processor takes more prefetches so
// than to L2 alone. Its own prefetchers are no help: they follow reads of neighbouring lines, and a
// block's rows lie apart. What that reaches, and what memory allows: docs/kernels.md.
class LinesAhead {
 public:
  // `last`: where the stretches end.
  LinesAhead(const Stretch* next, const Stretch* last) : next_(next), last_(last) { NextStretch(); }
  static LinesAhead None() { return {nullptr, nullptr}; }

  bool done() const { return step_ == 0; }

  // Where the next kLines lie; those past a stretch's end are asked for in vain.
  template <size_t kLines>
  HWY_INLINE const char* Take() {
    const char* const lines = at_;
    at_ += step_ * static_cast<int64_t>(kLines);
    if (HWY_UNLIKELY(at_ >= end_)) NextStretch();
    return lines;
  }

  // At the i-th of kPoints places between which Take's kLines are to be spread.
  template <class Raw, size_t kLines, size_t kPoints>
  static HWY_INLINE void Bring(const char* lines, size_t i) {
    for (size_t n = i * kLines / kPoints; n < (i + 1) * kLines / kPoints; ++n) {
      __builtin_prefetch(lines + n * kLine, 0, 3);
      __asm__ volatile(".rept %c0\n\tnop\n\t.endr" : : "i"(sizeof(Raw) == 1 ? 0 : 16));
    }
  }

  static constexpr int64_t kLine = 64;

 private:
  void NextStretch() {
    if (next_ == last_) {  // one line again and again, which has arrived
      static const char kLineOfZeros[kLine] = {};
      at_ = kLineOfZeros;
      end_ = kLineOfZeros + kLine;
      step_ = 0;
    } else {
      at_ = next_->begin;
      end_ = next_->end;
      ++next_;
    }
  }

  const char* at_;
  const char* end_;
  int64_t step_ = kLine;
  const Stretch* next_;
  const Stretch* last_;
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
template <class T, size_t kHeads>
class DecodeTile {
 public:
  using Raw = typename T::Raw;
  static constexpr size_t kKeys = kLanes / kHeads;  // in a tile

  HeadRows<Raw> rows;  // K for Score, V for AddValues
  LinesAhead* ahead;   // what to bring in meanwhile
  float* weights;  // [kMaxBlockKeys * kHeads], logits before Softmax; with T::kDot bf16 after it
  float unit, growth;  // LogitScale::unit, MaxGrowth
  size_t begin, end;   // the keys of the block that the tile sees
  float* acc;          // sums of values, [chunk of ForEachChunk][kHeads][vector]
  double* long_acc;    // as acc, of earlier keys; null where there is none

  // `weights` become x (LogitScale) of the keys that are seen, -inf in lanes past the last of them;
  // `cap`: LogitScale::inner.
  HWY_INLINE void Score(const float* q, float cap, size_t padded) {
    const F32 df;
    float* to = weights;
    for (size_t first = begin; first < end; first += kKeys, to += kLanes) {
      VF32 x;
      if constexpr (T::kDot) {
        x = DotWords(q, padded, first);
      } else {
        x = Dots(q, padded, first);
      }
      if (cap > 0) x = Tanh(hn::Mul(hn::Set(df, cap), x));
      if (end - first < kKeys) x = HideKeysFrom(end - first, x);
      hn::Store(x, df, to);
    }
  }

  // Each x becomes a weight. `max` and `sum` are vectors with kKeys lanes for each head, `long_sum`
  // as sum, of the keys of long_acc.
  //
  // `max` follows only what is above it by more than `growth`: a processor goes on as if it had
  // seen that nothing is.
  HWY_INLINE void Softmax(float* max, float* sum, double* long_sum, size_t padded) {
    const F32 df;
    const VF32 unit_of_x = hn::Set(df, unit);
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
      const VF32 e = Exp2(hn::Mul(hn::Sub(hn::Load(df, weights + i), base), unit_of_x));
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

 private:
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
    LinesAhead later = *ahead;
    constexpr size_t kLines = LinesOf(2 * kLanes * kKeys);
    const F32 df;
    VF32 sums[kLanes];
    Unrolled<kLanes>([&](auto i) XLA_GPU_INLINE_LAMBDA { sums[i] = hn::Zero(df); });
    size_t d = 0;
    for (; d + 2 * kLanes <= padded; d += 2 * kLanes) {
      const char* const lines = later.Take<kLines>();
      // Whichever are fewer stay in registers, queries or keys.
      if constexpr (kHeads <= kKeys) {
        VF32 query[kHeads * 2];
        Unrolled<kHeads * 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          query[i] = hn::Load(df, q + i / 2 * padded + d + i % 2 * kLanes);
        });
        Unrolled<kKeys>([&](auto j) XLA_GPU_INLINE_LAMBDA {
          LinesAhead::Bring<Raw, kLines, kKeys>(lines, j);
          VF32 key[2];
          T::LoadPair(keys[j] + d, key);
          Unrolled<kHeads * 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
            VF32& sum = sums[i / 2 * kKeys + j];
            sum = hn::MulAdd(query[i], key[i % 2], sum);
          });
        });
      } else {
        VF32 key[kKeys * 2];
        Unrolled<kKeys>([&](auto j)
                            XLA_GPU_INLINE_LAMBDA { T::LoadPair(keys[j] + d, key + 2 * j); });
        Unrolled<kHeads * 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          LinesAhead::Bring<Raw, kLines, kHeads * 2>(lines, i);
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
    *ahead = later;
    return SumEach(sums);
  }

  // As Dots, of words.
  HWY_NOINLINE VF32 DotWords(const float* q, size_t padded, size_t first) {
    constexpr size_t kTogether = 4;  // keys
    constexpr size_t kLines = LinesOf(T::kStep * kTogether);
    LinesAhead later = *ahead;
    VF32 sums[kLanes];
    Unrolled<kKeys / kTogether>([&](auto part) XLA_GPU_INLINE_LAMBDA {
      const size_t at = first + part * kTogether;
      const HeadRows<Raw> keys = rows.From(at);
      VF32 sum[kHeads * kTogether];
      Unrolled<kHeads * kTogether>([&](auto i) XLA_GPU_INLINE_LAMBDA { sum[i] = hn::Zero(F32()); });
      const auto* query_at = reinterpret_cast<const uint32_t*>(q);
      for (size_t d = 0; d < padded; d += T::kStep, query_at += kHeads * T::kStep / 2) {
        const char* const lines = later.Take<kLines>();
        VU32 key[kTogether * T::kWords];
        Unrolled<kTogether>(
            [&](auto j) XLA_GPU_INLINE_LAMBDA { T::LoadWords(keys[j] + d, key + j * T::kWords); });
        Unrolled<kHeads * T::kWords>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          LinesAhead::Bring<Raw, kLines, kHeads * T::kWords>(lines, i);
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
    *ahead = later;
    return SumEach(sums);
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
    LinesAhead later = *ahead;
    constexpr size_t kLines = LinesOf(kWide * kLanes);
    for (size_t j = 0; j < n; ++j) {
      const Raw* from = values[j] + d;
      const char* const lines = later.Take<kLines>();
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
        LinesAhead::Bring<Raw, kLines, kHeads>(lines, h);
        const VF32 w = hn::Set(df, weight[h * kKeys]);
        Unrolled<kWide>([&](auto i) XLA_GPU_INLINE_LAMBDA {
          sums[h * kWide + i] = hn::MulAdd(w, value[i], sums[h * kWide + i]);
        });
      });
    }
    *ahead = later;
    Unrolled<kHeads * kWide>([&](auto i) XLA_GPU_INLINE_LAMBDA {
      hn::Store(hn::Add(sums[i], hn::Load(df, to + i * kLanes)), df, to + i * kLanes);
    });
  }

  // As AddValuesAt, of words: keys two by two.
  template <size_t kWide>
  HWY_NOINLINE void AddPairsAt(size_t d) {
    const F32 df;
    constexpr size_t kPairs = 2 * T::kWords, kSteps = kWide / kPairs;
    constexpr size_t kLines = LinesOf(2 * kWide * kLanes);
    float* const to = acc + d * kHeads;
    VF32 sums[kHeads * kWide];
    Unrolled<kHeads * kWide>(
        [&](auto i) XLA_GPU_INLINE_LAMBDA { sums[i] = hn::Load(df, to + i * kLanes); });
    const Raw* const* row = rows.row + begin;
    const int64_t offset = rows.head + static_cast<int64_t>(d);
    const size_t n = end - begin;
    LinesAhead later = *ahead;
    const auto* words = reinterpret_cast<const uint32_t*>(weights);
    // The i-th key of a tile, and if `is_pair` the one after it.
    const auto add = [&](auto i, auto is_pair) XLA_GPU_INLINE_LAMBDA {
      const Raw *const first_row = row[i] + offset, *const second_row = row[i + is_pair] + offset;
      const char* const lines = later.Take<kLines>();
      Unrolled<kSteps>([&](auto step) XLA_GPU_INLINE_LAMBDA {
        VU32 first[T::kWords], second[T::kWords], pairs[kPairs];
        T::LoadWords(first_row + step * T::kStep, first);
        if constexpr (is_pair) {
          T::LoadWords(second_row + step * T::kStep, second);
        } else {
          std::fill(second, second + T::kWords, hn::Zero(U32()));
        }
        T::PairKeys(first, second, pairs);
        Unrolled<kHeads>([&](auto h) XLA_GPU_INLINE_LAMBDA {
          LinesAhead::Bring<Raw, kLines, kSteps * kHeads>(lines, step * kHeads + h);
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
    for (; left >= kKeys; left -= kKeys, row += kKeys, words += kLanes / 2) {
      Unrolled<kKeys / 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
        add(std::integral_constant<size_t, 2 * i>(), kPair);
      });
    }
    Unrolled<kKeys / 2>([&](auto i) XLA_GPU_INLINE_LAMBDA {
      constexpr std::integral_constant<size_t, 2 * i> kFirst;
      if (left >= kFirst + 2) add(kFirst, kPair);
      if (left == kFirst + 1) add(kFirst, std::false_type());  // the key after it may be NaN
    });
    *ahead = later;
    Unrolled<kHeads * kWide>(
        [&](auto i) XLA_GPU_INLINE_LAMBDA { hn::Store(sums[i], df, to + i * kLanes); });
  }

  // Lines to take for so many elements that are read.
  static constexpr size_t LinesOf(size_t elements) {
    return std::max<size_t>(1, elements * sizeof(Raw) / LinesAhead::kLine);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
