// Prefill: many query rows a sequence, so the time goes into multiply-adds.
//
// A task takes up to kPrefillRows rows (query tokens x heads of one kv head) and walks the keys
// they see in blocks. A block's K is packed transposed and its V as it is, both into panels of
// kPanel columns; then S = Q K^T, an online softmax over the rows of S, and O = O + P V, the two
// products by one register-tiled microkernel. Where T::kDot, Q, K, P and V are words of two bf16
// (bf16-inl.h): neighbours in head_dim for the first product, keys for the second. AMX wants its
// operands in this very form, so where it is there (amx.h) it computes both products.
//
// The bits of a row depend on the keys that it sees alone, not on the other rows of its task: keys
// are summed up in steps that begin at multiples of kSummedKeys.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_PREFILL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_PREFILL_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_PREFILL_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_PREFILL_INL_H_
#endif

#include <algorithm>
#include <utility>

#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/cpu/logits-inl.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"
#include "src/ops/paged_cache/cpu/amx.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

constexpr int64_t kPrefillBlock = 128;  // keys
constexpr int64_t kShortKeys = 2048;    // sums of f32 over more keys would lose digits
constexpr int64_t kSummedKeys = 64;     // that are added up before they are added to what is there
constexpr int64_t kPanel = 2 * kLanes;  // columns
// Rows of a register tile: with two vectors a row it fills 32 or 16 registers.
#if !HWY_ARCH_X86 || HWY_TARGET <= HWY_AVX3
constexpr int64_t kTileRows = 12;
#else
constexpr int64_t kTileRows = 6;
#endif
static_assert(kPrefillBlock % kPanel == 0 && kPrefillRows % kTileRows == 0);
static_assert(kPrefillRows % paged_cache::kAmxRows == 0);

// Each lane: sum + a * b, of f32 or of words.
template <bool kWords>
HWY_INLINE VF32 AddProduct(VF32 sum, VF32 a, VF32 b) {
#if XLA_GPU_HAVE_BF16_DOT
  if constexpr (kWords) {
    return AddProducts(sum, hn::BitCast(U32(), a), hn::BitCast(U32(), b));
  }
#endif
  return hn::MulAdd(a, b, sum);
}

// c[i][0, kPanel) = c[i] + sum over k of a[i][k] * b[k][0, kPanel), i < kTileRows; without
// kAccumulate the first term is left out.
template <bool kWords, bool kAccumulate>
HWY_NOINLINE void MultiplyTile(const float* HWY_RESTRICT a, int64_t lda,
                               const float* HWY_RESTRICT b, int64_t depth, float* HWY_RESTRICT c,
                               int64_t ldc) {
  const F32 df;
  constexpr int64_t kSummed = kWords ? kSummedKeys / 2 : kSummedKeys;
  for (int64_t k = 0; k < depth;) {
    const int64_t end = kAccumulate ? std::min(depth, k + kSummed) : depth;
    VF32 c0[kTileRows];
    VF32 c1[kTileRows];
    HWY_UNROLL(12)
    for (int64_t i = 0; i < kTileRows; ++i) {
      c0[i] = hn::Zero(df);
      c1[i] = hn::Zero(df);
    }
    for (; k < end; ++k) {
      const VF32 b0 = hn::Load(df, b + k * kPanel);
      const VF32 b1 = hn::Load(df, b + k * kPanel + kLanes);
      HWY_UNROLL(12)
      for (int64_t i = 0; i < kTileRows; ++i) {
        const VF32 x = hn::Set(df, a[i * lda + k]);
        c0[i] = AddProduct<kWords>(c0[i], x, b0);
        c1[i] = AddProduct<kWords>(c1[i], x, b1);
      }
    }
    HWY_UNROLL(12)
    for (int64_t i = 0; i < kTileRows; ++i) {
      float* to = c + i * ldc;
      hn::Store(kAccumulate ? hn::Add(c0[i], hn::Load(df, to)) : c0[i], df, to);
      hn::Store(kAccumulate ? hn::Add(c1[i], hn::Load(df, to + kLanes)) : c1[i], df, to + kLanes);
    }
  }
}

// Four rows of four floats, transposed; `to` rows are `stride` apart.
HWY_INLINE void Transpose4x4(const float* from, int64_t from_stride, float* to, int64_t stride) {
#if HWY_TARGET != HWY_SCALAR
  const hn::CappedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
  const auto r0 = hn::Load(d4, from);
  const auto r1 = hn::Load(d4, from + from_stride);
  const auto r2 = hn::Load(d4, from + 2 * from_stride);
  const auto r3 = hn::Load(d4, from + 3 * from_stride);
  const auto lo01 = hn::BitCast(d2, hn::InterleaveLower(d4, r0, r1));
  const auto hi01 = hn::BitCast(d2, hn::InterleaveUpper(d4, r0, r1));
  const auto lo23 = hn::BitCast(d2, hn::InterleaveLower(d4, r2, r3));
  const auto hi23 = hn::BitCast(d2, hn::InterleaveUpper(d4, r2, r3));
  hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, lo01, lo23)), d4, to);
  hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, lo01, lo23)), d4, to + stride);
  hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, hi01, hi23)), d4, to + 2 * stride);
  hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, hi01, hi23)), d4, to + 3 * stride);
#endif
}

template <class T>
class Prefill {
 public:
  explicit Prefill(const PrefillTask& task)
      : task_(task),
        p_(*task.problem),
        b_(*task.buffers),
        segment_(*task.segment),
        kv_head_(task.first_head / p_.group_size()),
        padded_(RoundUp(p_.head_dim, kRowStep)),
        padded_v_(RoundUp(p_.head_dim, std::max(kRowStep, kPanel))),
        scale_(LogitScaleOf<T>(p_, b_, kv_head_)),
        max_growth_(MaxGrowth(scale_)),
        rows_(task.tokens * task.num_heads),
        amx_(T::kDot ? paged_cache::UsableAmx() : nullptr),
        tile_rows_(amx_ != nullptr ? 2 * paged_cache::kAmxRows : kTileRows),
        group_rows_(amx_ != nullptr ? tile_rows_ : kPrefillRows),
        tiled_rows_(RoundUp(rows_, amx_ != nullptr ? paged_cache::kAmxRows : kTileRows)) {
    const KeyRange first = VisibleKeys(p_, segment_, segment_.pos + task_.first_token);
    const KeyRange last =
        VisibleKeys(p_, segment_, segment_.pos + task_.first_token + task_.tokens - 1);
    keys_ = {first.begin, last.end};
    const bool is_long = keys_.begin / kShortKeys != (keys_.end - 1) / kShortKeys;
    float* memory =
        ThreadScratch(ScratchSlot::kTask,
                      kPrefillRows * (padded_ + (is_long ? 3 : 1) * padded_v_ + kPrefillBlock + 3) +
                          kPrefillBlock * (padded_ + 2 * padded_v_) + 16 * padded_);
    const auto take = [&memory](int64_t n) { return std::exchange(memory, memory + n); };
    q_ = take(kPrefillRows * padded_);
    o_ = take(kPrefillRows * padded_v_);
    s_ = take(kPrefillRows * kPrefillBlock);
    k_ = take(kPrefillBlock * padded_);
    v_ = take(kPrefillBlock * padded_v_);
    non_finite_ = take(kPrefillBlock * padded_v_);
    staged_ = take(4 * padded_);
    max_ = take(kPrefillRows);
    sum_ = reinterpret_cast<double*>(take(2 * kPrefillRows));
    if (is_long) long_o_ = reinterpret_cast<double*>(take(2 * kPrefillRows * padded_v_));
  }

  void Run() {
    LoadQueries();
    std::fill(max_, max_ + tiled_rows_, kMinusInf);
    std::fill(sum_, sum_ + tiled_rows_, 0.0);
    std::fill(o_, o_ + tiled_rows_ * padded_v_, 0.0f);
    if (long_o_ != nullptr) std::fill(long_o_, long_o_ + tiled_rows_ * padded_v_, 0.0);
    if (amx_ != nullptr) amx_->begin(0);
    // Blocks lie at multiples of their size, wherever the window begins.
    const int64_t first = keys_.begin / kPrefillBlock * kPrefillBlock;
    for (int64_t key = first; key < keys_.end; key += kPrefillBlock) {
      if (key % kShortKeys == 0 && key != first) MoveInto(o_, tiled_rows_ * padded_v_, long_o_);
      block_ = key;
      block_begin_ = std::max(keys_.begin - key, int64_t{0});
      block_end_ = std::min(keys_.end - key, kPrefillBlock);
      PackBlock();
      if (!values_finite_) TakeOutNonFinite();
      AddBlock();
    }
    if (amx_ != nullptr) amx_->end();
    if (long_o_ != nullptr) {
      MoveInto(o_, tiled_rows_ * padded_v_, long_o_);
      RoundInto(long_o_, tiled_rows_ * padded_v_, o_);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      float* const o = o_ + row * padded_v_;
      if constexpr (T::kDot) T::ToElementOrder(o, padded_v_);
      FinishRow<T>(p_, b_, QueryRow(row), QueryHead(row), o, sum_[row], max_[row], scale_);
    }
  }

 private:
  using Raw = typename T::Raw;
  using Weight = std::conditional_t<T::kDot, uint16_t, float>;  // after Softmax
  static constexpr int64_t kPerWord = T::kDot ? 2 : 1;          // elements or keys
  static constexpr int64_t kBlockWords = kPrefillBlock / kPerWord;
  static constexpr int64_t kRowStep = [] {
    if constexpr (T::kDot) return int64_t{T::kStep};
    return PadHeadDim(1);
  }();

  static constexpr int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

  // Floats or words of a row of q_.
  int64_t q_stride() const { return padded_ / kPerWord; }

  int64_t QueryRow(int64_t row) const {
    return segment_.row_begin + task_.first_token + row / task_.num_heads;
  }
  int64_t QueryHead(int64_t row) const { return task_.first_head + row % task_.num_heads; }

  // The keys of this block that a row sees.
  KeyRange Seen(int64_t row) const {
    const int64_t pos = segment_.pos + task_.first_token + row / task_.num_heads;
    const KeyRange seen = VisibleKeys(p_, segment_, pos);
    const int64_t begin = std::clamp(seen.begin - block_, block_begin_, block_end_);
    return {begin, std::clamp(seen.end - block_, begin, block_end_)};
  }
  // The keys that some row of a tile sees: both ends grow with the row.
  KeyRange SeenByTile(int64_t row) const {
    const KeyRange last = Seen(std::min(row + tile_rows_, rows_) - 1);
    return {Seen(row).begin, std::max(last.end, Seen(row).end)};
  }

  void LoadQueries() {
    for (int64_t row = 0; row < rows_; ++row) {
      if constexpr (T::kDot) {
        const int64_t index = QueryRow(row) * p_.q_heads + QueryHead(row);
        HWY_ALIGN uint16_t query[kMaxHeadDim] = {};
        std::memcpy(query, static_cast<const uint16_t*>(b_.query) + index * p_.head_dim,
                    static_cast<size_t>(p_.head_dim) * sizeof(query[0]));
        auto* const to = reinterpret_cast<uint16_t*>(q_ + row * q_stride());
        for (int64_t d = 0; d < padded_; d += kRowStep) {
          T::ToWords(query + d, scale_.query, to + d);
        }
      } else {
        LoadQuery(p_, b_, QueryRow(row), QueryHead(row), scale_.query, q_ + row * padded_, padded_);
      }
    }
    std::fill(q_ + rows_ * q_stride(), q_ + tiled_rows_ * q_stride(), 0.0f);
  }

  // K to k_[panel][head_dim][kPanel], V to v_[panel][key][kPanel]; keys that no row sees are 0.
  void PackBlock() {
    alignas(64) static constexpr Raw kZeros[kMaxHeadDim] = {};
    values_finite_ = true;
    // Four keys are packed at a time.
    const int64_t packed_end = RoundUp(block_end_, std::max<int64_t>(kPanel, 4));
    const Raw* values[2];
    for (int64_t key = 0; key < packed_end; ++key) {
      const Raw* k = kZeros;
      const Raw*& v = values[key % 2];
      v = kZeros;
      float k_scale = 1.0f, v_scale = 1.0f;
      if (key >= block_begin_ && key < block_end_) {
        const int64_t page = segment_.pages[(block_ + key) / p_.page_size];
        const int64_t token = (block_ + key) % p_.page_size;
        k = static_cast<const Raw*>(b_.k_cache) + p_.k.At(page, token, kv_head_);
        v = static_cast<const Raw*>(b_.v_cache) + p_.v.At(page, token, kv_head_);
        const int64_t slot = page * p_.page_size + token;
        k_scale = TokenScale(p_, b_.k_token_scales, slot, kv_head_);
        v_scale = TokenScale(p_, b_.v_token_scales, slot, kv_head_);
      }
      StageKey(k, k_scale, staged_ + key % 4 * q_stride());
      if (key % 4 == 3) PackFourKeys(key - 3);
      if constexpr (!T::kDot) {
        PackV(key, v, v_scale);
      } else if (key % 2 == 1) {
        PackPairOfV(key - 1, values[0], values[1]);
      }
    }
  }

  void StageKey(const Raw* key, float scale, float* to) const {
    if constexpr (T::kDot) {  // then no token has scales
      Raw copy[kMaxHeadDim];
      key = WholeSteps(key, copy);
      for (int64_t d = 0; d < padded_; d += kRowStep) {
        VU32 words[T::kWords];
        T::LoadWords(key + d, words);
        for (size_t i = 0; i < T::kWords; ++i) {
          hn::Store(hn::BitCast(F32(), words[i]), F32(), to + d / 2 + i * kLanes);
        }
      }
    } else {
      LoadRow<T>(key, p_.head_dim, scale, to, padded_);
    }
  }

  // A row that may be read up to padded_: `row`, or a copy with zeros after it.
  const Raw* WholeSteps(const Raw* row, Raw* copy) const {
    if (p_.head_dim == padded_) return row;
    std::copy(row, row + p_.head_dim, copy);
    std::fill(copy + p_.head_dim, copy + padded_, Raw{0});
    return copy;
  }

  void PackFourKeys(int64_t key) {
    const auto column = [this](int64_t of) {
      return k_ + of / kPanel * q_stride() * kPanel + of % kPanel;
    };
    if constexpr (kPanel >= 4) {
      for (int64_t d = 0; d < q_stride(); d += 4) {
        Transpose4x4(staged_ + d, q_stride(), column(key) + d * kPanel, kPanel);
      }
    } else {  // vectors of one lane: the four lie in two panels
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t d = 0; d < padded_; ++d) {
          column(key + i)[d * kPanel] = staged_[i * padded_ + d];
        }
      }
    }
  }

  // Where the values of a key, or of a pair of them, from column d on go.
  float* Values(int64_t word, int64_t d) const {
    return v_ + (d / kPanel * kBlockWords + word) * kPanel + d % kPanel;
  }

  void PackV(int64_t key, const Raw* value, float scale) {
    const F32 df;
    HWY_ALIGN float values[kMaxHeadDim + kPanel];
    LoadRow<T>(value, p_.head_dim, scale, values, padded_v_);
    VF32 zero = hn::Zero(df);  // stays 0 unless a value is infinite or NaN
    for (int64_t d = 0; d < padded_v_; d += kLanes) {
      const VF32 x = hn::Load(df, values + d);
      zero = hn::MulAdd(x, hn::Zero(df), zero);
      hn::Store(x, df, Values(key, d));
    }
    if (!hn::AllTrue(df, hn::Eq(zero, hn::Zero(df)))) values_finite_ = false;
  }

  void PackPairOfV(int64_t key, const Raw* first, const Raw* second) {
    if constexpr (T::kDot) {
      Raw copies[2][kMaxHeadDim];
      first = WholeSteps(first, copies[0]);
      second = WholeSteps(second, copies[1]);
      for (int64_t d = 0; d < padded_v_; d += kRowStep) {
        VU32 pairs[2 * T::kWords];
        T::LoadPairs(first + d, second + d, pairs);
        for (size_t i = 0; i < 2 * T::kWords; ++i) {
          values_finite_ &= T::AllFinite(pairs[i]);
          hn::Store(hn::BitCast(F32(), pairs[i]), F32(), Values(key / 2, d + i * kLanes));
        }
      }
    }
  }

  // The block's part of all rows, group by group. The products of the group after, and of the one
  // before, are done between the rows of a group's softmax: AMX computes while vectors do.
  void AddBlock() {
    const int64_t k_panels = (block_end_ + kPanel - 1) / kPanel, v_panels = padded_v_ / kPanel;
    for (int64_t panel = 0; panel < k_panels; ++panel) MultiplyQK(0, panel);
    int64_t group = 0;
    for (; group < rows_; group += group_rows_) {
      const int64_t next = group + group_rows_, last = group - group_rows_;
      const int64_t qk = next < rows_ ? k_panels : 0, pv = last >= 0 ? v_panels : 0;
      const int64_t rows = std::min(rows_ - group, group_rows_);
      for (int64_t i = 0, done = 0; i < rows; ++i) {
        Softmax(group + i);
        PrefetchPart(group + i);
        for (; done < (qk + pv) * (i + 1) / rows; ++done) {
          done < qk ? MultiplyQK(next, done) : MultiplyPV(last, done - qk);
        }
      }
    }
    for (int64_t panel = 0; panel < v_panels; ++panel) MultiplyPV(group - group_rows_, panel);
    for (int64_t row = 0; !values_finite_ && row < rows_; ++row) AddNonFinite(row);
  }

  // A row's part of the keys and values of the next block: their rows lie so far apart that the
  // processor does not see them coming. Inline, or GCC takes it for a function without effects.
  HWY_INLINE void PrefetchPart(int64_t row) const {
    const int64_t next = block_ + kPrefillBlock;
    const int64_t count = std::min(keys_.end - next, kPrefillBlock);
    const int64_t end = next + count * (row + 1) / rows_;
    for (int64_t key = next + count * row / rows_; key < end; ++key) {
      const int64_t page = segment_.pages[key / p_.page_size];
      const int64_t token = key % p_.page_size;
      const Raw* const k = static_cast<const Raw*>(b_.k_cache) + p_.k.At(page, token, kv_head_);
      const Raw* const v = static_cast<const Raw*>(b_.v_cache) + p_.v.At(page, token, kv_head_);
      for (int64_t d = 0; d < p_.head_dim; d += 64 / sizeof(Raw)) {
        __builtin_prefetch(k + d, 0, 2);
        __builtin_prefetch(v + d, 0, 2);
      }
    }
  }

  // c = a * b or, if kAccumulate, c + a * b: the tile of rows at `row`, by a panel of b.
  template <bool kAccumulate>
  void Multiply(int64_t row, const float* a, int64_t lda, const float* b, int64_t depth, float* c,
                int64_t ldc) const {
    if (amx_ != nullptr) {
      amx_->multiply(
          {a, lda, b, kPanel, depth, c, ldc, std::min(tile_rows_, tiled_rows_ - row), kAccumulate});
    } else {
      MultiplyTile<T::kDot, kAccumulate>(a, lda, b, depth, c, ldc);
    }
  }

  // A panel of keys by the rows of a group.
  void MultiplyQK(int64_t group, int64_t panel) {
    const float* b = k_ + panel * q_stride() * kPanel;
    for (int64_t row = group; row < std::min(rows_, group + group_rows_); row += tile_rows_) {
      const KeyRange seen = SeenByTile(row);
      if (seen.end <= panel * kPanel || seen.begin >= (panel + 1) * kPanel) continue;
      Multiply<false>(row, q_ + row * q_stride(), q_stride(), b, T::kDot ? q_stride() : p_.head_dim,
                      s_ + row * kPrefillBlock + panel * kPanel, kPrefillBlock);
    }
  }

  // Logits of one row to weights; 0 for the keys of the block that it does not see.
  void Softmax(int64_t row) {
    const F32 df;
    const KeyRange seen = Seen(row);
    float* s = s_ + row * kPrefillBlock;
    auto* const weights = reinterpret_cast<Weight*>(s);
    if (seen.begin >= seen.end) {
      std::fill(s, s + kPrefillBlock, 0.0f);
      return;
    }
    const int64_t begin = seen.begin / kLanes * kLanes;
    if (scale_.inner > 0) {
      const VF32 inner = hn::Set(df, scale_.inner);
      for (int64_t k = begin; k < seen.end; k += kLanes) {
        hn::Store(Tanh(hn::Mul(inner, hn::Load(df, s + k))), df, s + k);
      }
    }
    std::fill(s, s + seen.begin, kMinusInf);
    std::fill(s + seen.end, s + kPrefillBlock, kMinusInf);
    VF32 max = hn::Set(df, kMinusInf);
    for (int64_t k = begin; k < seen.end; k += kLanes) max = hn::Max(max, hn::Load(df, s + k));
    const float block_max = hn::GetLane(hn::MaxOfLanes(df, max));
    if (!(block_max <= max_[row] + max_growth_)) Rescale(row, std::max(max_[row], block_max));
    const VF32 unit = hn::Set(df, scale_.unit);
    const VF32 bases = hn::Set(df, FiniteBase(max_[row]));
    VF32 sum = hn::Zero(df);
    for (int64_t k = begin; k < seen.end; k += kLanes) {
      const VF32 e = Exp2<kHeadroom>(hn::Mul(hn::Sub(hn::Load(df, s + k), bases), unit));
      sum = hn::Add(sum, e);
      if constexpr (T::kDot) {
        T::StoreWeights(e, weights + k);
      } else {
        hn::Store(e, df, weights + k);
      }
    }
    std::fill(weights, weights + begin, Weight{0});
    std::fill(weights + RoundUp(seen.end, kLanes), weights + kPrefillBlock, Weight{0});
    sum_[row] += hn::GetLane(hn::SumOfLanes(df, sum));
  }

  // The row's sums become what they are with another `max`.
  HWY_NOINLINE void Rescale(int64_t row, float new_max) {
    const float alpha = Exp2((max_[row] - FiniteBase(new_max)) * scale_.unit);
    ScaleBy(F32(), alpha, o_ + row * padded_v_, padded_v_);
    if (long_o_ != nullptr) ScaleBy(F64(), alpha, long_o_ + row * padded_v_, padded_v_);
    sum_[row] *= alpha;
    max_[row] = new_max;
  }

  // The weights of a group's rows by a panel of values.
  void MultiplyPV(int64_t group, int64_t panel) {
    const int64_t step = amx_ != nullptr ? 2 * paged_cache::kAmxWords : kPerWord;  // keys
    const int64_t d = panel * kPanel;
    for (int64_t row = group; row < std::min(rows_, group + group_rows_); row += tile_rows_) {
      const KeyRange seen = SeenByTile(row);
      if (seen.begin >= seen.end) continue;
      const int64_t begin = seen.begin / kSummedKeys * kSummedKeys / kPerWord;
      Multiply<true>(row, s_ + row * kPrefillBlock + begin, kPrefillBlock, Values(begin, d),
                     RoundUp(seen.end, step) / kPerWord - begin, o_ + row * padded_v_ + d,
                     padded_v_);
    }
  }

  // Values that are infinite or NaN go from v_ to non_finite_, each with zeros in its place in the
  // other one: no row is to meet one that it does not see, since 0 * NaN is NaN.
  void TakeOutNonFinite() {
    const std::conditional_t<T::kDot, hn::Repartition<uint16_t, F32>, U32> d;
    using Bits = hn::TFromD<decltype(d)>;
    const auto infinity = hn::Set(d, static_cast<Bits>(T::kDot ? 0x7f80 : 0x7f800000));
    for (int64_t i = 0; i < padded_v_ * kBlockWords; i += kLanes) {
      const auto bits = hn::BitCast(d, hn::Load(F32(), v_ + i));
      const auto is_finite = hn::Ne(hn::And(bits, infinity), infinity);
      hn::Store(hn::BitCast(F32(), hn::IfThenElseZero(is_finite, bits)), F32(), v_ + i);
      hn::Store(hn::BitCast(F32(), hn::IfThenZeroElse(is_finite, bits)), F32(), non_finite_ + i);
    }
  }

  // What a row sees of non_finite_.
  void AddNonFinite(int64_t row) {
    const F32 df;
    const KeyRange seen = Seen(row);
    const float* const weights = s_ + row * kPrefillBlock;
    for (int64_t d = 0; d < padded_v_; d += kLanes) {
      VF32 sum = hn::Zero(df);
      for (int64_t word = seen.begin / kPerWord; word * kPerWord < seen.end; ++word) {
        sum = AddProduct<T::kDot>(sum, hn::Set(df, weights[word]), SeenNonFinite(word, d, seen));
      }
      float* const o = o_ + row * padded_v_ + d;
      hn::Store(hn::Add(hn::Load(df, o), sum), df, o);
    }
  }

  // A word of non_finite_, keys out of `seen` as zeros.
  VF32 SeenNonFinite(int64_t word, int64_t d, KeyRange seen) const {
    constexpr uint32_t kBits = T::kDot ? 0xffff : 0xffffffff;  // of a key
    uint32_t mask = 0;
    for (int64_t i = 0; i < kPerWord; ++i) {
      const int64_t key = word * kPerWord + i;
      if (seen.begin <= key && key < seen.end) mask |= kBits << (16 * i);
    }
    const auto words = hn::BitCast(U32(), hn::Load(F32(), non_finite_ + (Values(word, d) - v_)));
    return hn::BitCast(F32(), hn::And(words, hn::Set(U32(), mask)));
  }

  const PrefillTask& task_;
  const Problem& p_;
  const Buffers& b_;
  const Segment& segment_;
  const int64_t kv_head_;
  const int64_t padded_;    // elements of a row of q_
  const int64_t padded_v_;  // of a row of o_
  const LogitScale scale_;
  const float max_growth_;
  const int64_t rows_;
  const paged_cache::AmxUnit* const amx_;  // null: MultiplyTile computes
  const int64_t tile_rows_;                // of a product
  const int64_t group_rows_;               // of AddBlock
  const int64_t tiled_rows_;
  KeyRange keys_;  // that any row sees
  float* q_;
  float* o_;
  float* s_;  // [row][kPrefillBlock]: x (LogitScale), then weights
  float* k_;
  float* v_;
  float* non_finite_;
  float* staged_;
  float* max_;
  double* sum_;
  double* long_o_ = nullptr;  // as o_, of earlier blocks; where kShortKeys are passed

  // The block at hand: its first key, and the keys in it that any row sees.
  int64_t block_ = 0;
  int64_t block_begin_ = 0;
  int64_t block_end_ = 0;
  bool values_finite_ = true;
};

void PrefillBlock(const PrefillTask& task) {
  WithComputeType(*task.problem, [&](auto type) HWY_ATTR { Prefill<decltype(type)>(task).Run(); });
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
