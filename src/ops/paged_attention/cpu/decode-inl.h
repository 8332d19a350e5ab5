// Decode: few query rows a sequence, so the time goes into reading K and V once.
//
// A task takes one split of the context and walks it in blocks of keys; in a block, head by head,
// so that whole pages are read though a head's rows lie far apart. A block's logits are held in
// tiles: one vector holds (q heads of the tile) x (keys of the tile), so that a sum over head_dim
// for all of them ends in one vector without a horizontal sum each.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/dot_bf16-inl.h"
#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/cpu/logits-inl.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

constexpr int64_t kDecodeBlock = 32;  // keys
static_assert(kDecodeBlock % 16 == 0);

// Where the keys of one block lie: element offsets of (token, kv head 0) in the K and V tensors.
struct BlockRows {
  int64_t begin = 0;
  int64_t n = 0;
  int64_t k[kDecodeBlock];
  int64_t v[kDecodeBlock];

  void Find(const Problem& p, const Span& span, int64_t from, int64_t to) {
    begin = from;
    n = std::max<int64_t>(to - from, 0);
    int64_t index = from / p.page_size;
    int64_t in_page = from % p.page_size;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t page = span.pages[index];
      k[i] = p.k.offset + page * p.k.page_stride + in_page * p.k.token_stride;
      v[i] = p.v.offset + page * p.v.page_stride + in_page * p.v.token_stride;
      if (++in_page == p.page_size) {
        in_page = 0;
        ++index;
      }
    }
  }
};

// bf16 queries and keys as they are, multiplied by DotBF16.
struct DotBF16Cache : CacheBF16 {
  static constexpr bool kDot = true;
};

// Asks for the cache lines of elements [d, d + n) of a row, where d is a whole number of lines:
// each line once, whatever the steps that a row is read in.
template <typename Raw>
HWY_INLINE void PrefetchToL2(const Raw* row, size_t d, size_t n) {
  constexpr size_t kLine = 64 / sizeof(Raw);
  if (kLine > n && d % kLine != 0) return;
  for (size_t i = 0; i < n; i += kLine) __builtin_prefetch(row + d + i, 0, 2);
}

// One block of one kv head: pointers to the rows of its keys, and to those that are read next (the
// next head's of the block, or the next block's first). The latter are brought into L2 line by line
// as the former are read: a processor drops prefetches that come in bursts. L1 would not do: rows
// of one head lie a power of two apart and share few of its sets.
template <class T, size_t kHeads>
class DecodeHead {
 public:
  using Raw = typename T::Raw;
  static constexpr size_t kKeys = kLanes / kHeads;  // in a tile

  const Raw* k[kDecodeBlock];
  const Raw* v[kDecodeBlock];
  const Raw* next_k[kDecodeBlock];
  const Raw* next_v[kDecodeBlock];
  float logit_factor = 1.0f;  // where T::kDot; else it is in the queries
  // Adds keys [begin, end) of the block to kHeads rows: `q` and `acc` [kHeads][padded]; `max` and
  // `sum` are vectors with kKeys lanes for each head.
  HWY_INLINE void Add(const float* q, size_t padded, size_t begin, size_t end, float soft_cap2,
                      float* acc, float* max, float* sum) {
    const F32 df;
    HWY_ALIGN float p[kDecodeBlock * kHeads + kLanes];
    HWY_ALIGN float alpha[kLanes];
    const size_t tiles = (end - begin + kKeys - 1) / kKeys;
    VF32 block_max = hn::Set(df, kMinusInf);
    for (size_t t = 0; t < tiles; ++t) {
      VF32 x = Logits(q, padded, begin + t * kKeys, end);
      if (soft_cap2 > 0) x = hn::Mul(hn::Set(df, soft_cap2), Tanh(x));
      const size_t valid = end - begin - t * kKeys;
      if (valid < kKeys) x = HideKeysFrom(valid, x);
      hn::Store(x, df, p + t * kLanes);
      block_max = hn::Max(block_max, x);
    }
    const VF32 base = Rebase(block_max, max, alpha);
    VF32 total = hn::Mul(hn::Load(df, sum), hn::Load(df, alpha));
    for (size_t t = 0; t < tiles; ++t) {
      const VF32 e = Exp2(hn::Sub(hn::Load(df, p + t * kLanes), base));
      hn::Store(e, df, p + t * kLanes);
      total = hn::Add(total, e);
    }
    hn::Store(total, df, sum);
    size_t d = 0;
    constexpr size_t kWide = HWY_TARGET <= HWY_AVX3 || !HWY_ARCH_X86 ? 4 : 2;
    for (; d + kWide * kLanes <= padded; d += kWide * kLanes) {
      AddValues<kWide>(p, alpha, padded, begin, end, d, acc);
    }
    if (d + 2 * kLanes <= padded) {
      AddValues<2>(p, alpha, padded, begin, end, d, acc);
      d += 2 * kLanes;
    }
    if (d < padded) AddValues<1>(p, alpha, padded, begin, end, d, acc);
  }

 private:
  HWY_INLINE VF32 Logits(const float* q, size_t padded, size_t first, size_t end) const {
    const F32 df;
    const Raw* rows[kKeys];
    const Raw* next[kKeys];
    for (size_t j = 0; j < kKeys; ++j) {
      const size_t i = std::min(first + j, end - 1);
      rows[j] = k[i];
      next[j] = next_k[i];
    }
#if XLA_GPU_HAVE_BF16_DOT
    if constexpr (T::kDot) {
      const VF32 dots = DotBF16<kHeads, kKeys>(reinterpret_cast<const uint16_t*>(q), 2 * padded,
                                               rows, next, padded);
      return hn::Mul(hn::Set(df, logit_factor), dots);
    }
#endif
    VF32 acc[kLanes];
    for (size_t i = 0; i < kLanes; ++i) acc[i] = hn::Zero(df);
    size_t d = 0;
    for (; d + 2 * kLanes <= padded; d += 2 * kLanes) {
      VF32 key[kKeys][2];
      for (size_t j = 0; j < kKeys; ++j) {
        T::LoadPair(rows[j] + d, key[j]);
        PrefetchToL2(next[j], d, 2 * kLanes);
      }
      for (size_t h = 0; h < kHeads; ++h) {
        for (size_t i = 0; i < 2; ++i) {
          const VF32 query = hn::Load(df, q + h * padded + d + i * kLanes);
          for (size_t j = 0; j < kKeys; ++j) {
            acc[h * kKeys + j] = hn::MulAdd(query, key[j][i], acc[h * kKeys + j]);
          }
        }
      }
    }
    if (d < padded) {
      for (size_t j = 0; j < kKeys; ++j) {
        const VF32 key = T::Load(rows[j] + d);
        for (size_t h = 0; h < kHeads; ++h) {
          const VF32 query = hn::Load(df, q + h * padded + d);
          acc[h * kKeys + j] = hn::MulAdd(query, key, acc[h * kKeys + j]);
        }
      }
    }
    return SumEach<kLanes>(acc);
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

  // The new maximum of each head into `max`, what old sums are multiplied by into `alpha`; gives
  // what to subtract from logits.
  static HWY_INLINE VF32 Rebase(VF32 block_max, float* max, float* alpha) {
    const F32 df;
    HWY_ALIGN float lanes[kLanes];
    hn::Store(block_max, df, lanes);
    for (size_t h = 0; h < kHeads; ++h) {
      float m = lanes[h * kKeys];
      for (size_t j = 1; j < kKeys; ++j) m = std::max(m, lanes[h * kKeys + j]);
      for (size_t j = 0; j < kKeys; ++j) lanes[h * kKeys + j] = m;
    }
    const VF32 old_max = hn::Load(df, max);
    const VF32 new_max = hn::Max(old_max, hn::Load(df, lanes));
    const VF32 base = FiniteBase(new_max);
    hn::Store(Exp2(hn::Sub(old_max, base)), df, alpha);
    hn::Store(new_max, df, max);
    return base;
  }

  // acc[h][d ...] = acc * alpha + sum over keys of p * value, for kWide vectors of the head dim.
  template <size_t kWide>
  HWY_INLINE void AddValues(const float* p, const float* alpha, size_t padded, size_t begin,
                            size_t end, size_t d, float* acc) const {
    const F32 df;
    VF32 sums[kHeads][kWide];
    for (size_t h = 0; h < kHeads; ++h) {
      const VF32 a = hn::Set(df, alpha[h * kKeys]);
      for (size_t i = 0; i < kWide; ++i) {
        sums[h][i] = hn::Mul(a, hn::Load(df, acc + h * padded + d + i * kLanes));
      }
    }
    for (size_t t = begin; t < end; t += kKeys, p += kLanes) {
      const size_t keys = std::min(kKeys, end - t);
      for (size_t j = 0; j < keys; ++j) {
        const Raw* row = v[t + j] + d;
        PrefetchToL2(next_v[t + j], d, kWide * kLanes);
        VF32 value[kWide];
        if constexpr (kWide == 1) {
          value[0] = T::Load(row);
        } else {
          for (size_t i = 0; i < kWide; i += 2) T::LoadPair(row + i * kLanes, value + i);
        }
        for (size_t h = 0; h < kHeads; ++h) {
          const VF32 weight = hn::Set(df, p[h * kKeys + j]);
          for (size_t i = 0; i < kWide; ++i) sums[h][i] = hn::MulAdd(weight, value[i], sums[h][i]);
        }
      }
    }
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t i = 0; i < kWide; ++i)
        hn::Store(sums[h][i], df, acc + h * padded + d + i * kLanes);
    }
  }
};

// The whole of DecodeSplit for one cache type and tile of heads.
template <class T, size_t kHeads>
class SplitDecoder {
 public:
  explicit SplitDecoder(const DecodeTask& task)
      : task_(task),
        p_(*task.problem),
        b_(*task.buffers),
        span_(*task.span),
        padded_(PadHeadDim(p_.head_dim)),
        tiles_(PadGroup(p_.group_size()) / kHeads) {
    const int64_t heads = Partial::NumHeads(p_, span_.rows);
    const int64_t states = heads / kHeads * kLanes;
    const int64_t staged = staging() ? kDecodeBlock * padded_ : 0;
    q_ = ThreadScratch(ScratchSlot::kKernel, heads * padded_ + 2 * states + 2 * staged);
    max_ = q_ + heads * padded_;
    sum_ = max_ + states;
    staged_k_ = sum_ + states;
    staged_v_ = staged_k_ + staged;
    std::fill(max_, max_ + states, kMinusInf);
    std::fill(sum_, sum_ + states, 0.0f);
    std::fill(task.partial.acc, task.partial.acc + heads * padded_, 0.0f);
    LoadQueries();
  }

  void Run() {
    BlockRows blocks[2];
    BlockRows* block = &blocks[0];
    BlockRows* next = &blocks[1];
    const KeyRange keys = task_.keys;
    FindBlock(keys.begin, block);
    for (; block->n > 0; std::swap(block, next)) {
      FindBlock(block->begin + block->n, next);
      for (int64_t head = 0; head < p_.kv_heads; ++head) {
        const bool last = head + 1 == p_.kv_heads;
        const BlockRows& next_rows = last && next->n > 0 ? *next : *block;
        const int64_t next_head = last ? 0 : head + 1;
        if (staging()) {
          RunStaged(*block, head);
        } else {
          RunDirect(*block, head, next_rows, next_head);
        }
      }
    }
    WriteStates();
  }

 private:
  using Raw = typename T::Raw;

  // Rows that are no whole number of vectors are copied, so that no load passes their end.
  bool staging() const { return padded_ != p_.head_dim; }

  // Whether q_ and acc hold pairs of vectors as LoadPair gives them.
  bool even_odd() const { return T::kEvenOdd && !staging(); }

  void ToEvenOdd(float* row) const {
    const F32 df;
    constexpr int64_t kStep = kLanes;
    for (int64_t d = 0; d + 2 * kStep <= padded_; d += 2 * kStep) {
      VF32 even, odd;
      hn::LoadInterleaved2(df, row + d, even, odd);
      hn::Store(even, df, row + d);
      hn::Store(odd, df, row + d + kLanes);
    }
  }

  void ToElementOrder(float* row) const {
    const F32 df;
    constexpr int64_t kStep = kLanes;
    for (int64_t d = 0; d + 2 * kStep <= padded_; d += 2 * kStep) {
      const VF32 even = hn::Load(df, row + d);
      const VF32 odd = hn::Load(df, row + d + kLanes);
      hn::StoreInterleaved2(even, odd, df, row + d);
    }
  }

  void FindBlock(int64_t begin, BlockRows* rows) const {
    rows->Find(p_, span_, begin, std::min(begin + kDecodeBlock, task_.keys.end));
  }

  // [row, kv head, tile] counts tiles; a tile has kHeads rows of q_ and acc, kLanes of max_, sum_.
  int64_t TileIndex(int64_t row, int64_t kv_head, int64_t tile) const {
    return (row * p_.kv_heads + kv_head) * tiles_ + tile;
  }

  void LoadQueries() {
    const int64_t group = p_.group_size();
    for (int64_t row = 0; row < span_.rows; ++row) {
      for (int64_t kv_head = 0; kv_head < p_.kv_heads; ++kv_head) {
        const float factor = QueryFactor<T>(p_, b_, kv_head);
        float* to = q_ + TileIndex(row, kv_head, 0) * kHeads * padded_;
        for (int64_t g = 0; g < group; ++g, to += padded_) {
          const int64_t q_row = span_.row_begin + row;
          const int64_t q_head = kv_head * group + g;
          if constexpr (T::kDot) {
            const auto* query = static_cast<const uint16_t*>(b_.query);
            const int64_t n = p_.head_dim;
            std::copy_n(query + (q_row * p_.q_heads + q_head) * n, n,
                        reinterpret_cast<uint16_t*>(to));
          } else {
            LoadQuery(p_, b_, q_row, q_head, factor, to, padded_);
            if (even_odd()) ToEvenOdd(to);
          }
        }
        std::fill(to, to + (tiles_ * kHeads - group) * padded_, 0.0f);
      }
    }
  }

  const Raw* K(const BlockRows& rows, int64_t i, int64_t head) const {
    return static_cast<const Raw*>(b_.k_cache) + rows.k[i] + head * p_.k.head_stride;
  }
  const Raw* V(const BlockRows& rows, int64_t i, int64_t head) const {
    return static_cast<const Raw*>(b_.v_cache) + rows.v[i] + head * p_.v.head_stride;
  }

  void RunDirect(const BlockRows& rows, int64_t head, const BlockRows& next_rows,
                 int64_t next_head) {
    DecodeHead<T, kHeads> block;
    if (T::kDot) block.logit_factor = QueryFactor<T>(p_, b_, head);
    for (int64_t i = 0; i < rows.n; ++i) {
      block.k[i] = K(rows, i, head);
      block.v[i] = V(rows, i, head);
      const int64_t next = std::min(i, next_rows.n - 1);
      block.next_k[i] = K(next_rows, next, next_head);
      block.next_v[i] = V(next_rows, next, next_head);
    }
    AddAllRows(block, rows, head);
  }

  void RunStaged(const BlockRows& rows, int64_t head) {
    DecodeHead<CacheF32, kHeads> block;
    for (int64_t i = 0; i < rows.n; ++i) {
      block.k[i] = block.next_k[i] = staged_k_ + i * padded_;
      block.v[i] = block.next_v[i] = staged_v_ + i * padded_;
      LoadRow<T>(K(rows, i, head), p_.head_dim, 1.0f, staged_k_ + i * padded_, padded_);
      LoadRow<T>(V(rows, i, head), p_.head_dim, 1.0f, staged_v_ + i * padded_, padded_);
    }
    AddAllRows(block, rows, head);
  }

  // Each query row takes exactly the keys it sees: what it does not see may be NaN.
  template <class Block>
  void AddAllRows(Block& block, const BlockRows& rows, int64_t head) {
    const float soft_cap2 = SoftCap2(p_);
    for (int64_t row = 0; row < span_.rows; ++row) {
      const KeyRange seen = VisibleKeys(p_, span_, span_.pos + row);
      const int64_t begin = std::max(seen.begin - rows.begin, int64_t{0});
      const int64_t end = std::min(seen.end - rows.begin, rows.n);
      if (begin >= end) continue;
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        const int64_t index = TileIndex(row, head, tile);
        block.Add(q_ + index * kHeads * padded_, padded_, begin, end, soft_cap2,
                  task_.partial.acc + index * kHeads * padded_, max_ + index * kLanes,
                  sum_ + index * kLanes);
      }
    }
  }

  void WriteStates() const {
    constexpr size_t kKeys = kLanes / kHeads;
    const int64_t heads = Partial::NumHeads(p_, span_.rows);
    for (int64_t i = 0; i < heads; ++i) {
      const int64_t lane = i / kHeads * kLanes + i % kHeads * kKeys;
      float sum = 0;
      for (size_t j = 0; j < kKeys; ++j) sum += sum_[lane + j];
      if (even_odd()) ToElementOrder(task_.partial.acc + i * padded_);
      task_.partial.sum[i] = sum;
      task_.partial.max[i] = max_[lane];
    }
  }

  const DecodeTask& task_;
  const Problem& p_;
  const Buffers& b_;
  const Span& span_;
  const int64_t padded_;
  const int64_t tiles_;  // of heads, in a group
  float* q_;
  float* max_;
  float* sum_;
  float* staged_k_;
  float* staged_v_;
};

template <class T>
void DecodeSplitAs(const DecodeTask& task) {
  switch (HeadTile(task.problem->group_size())) {
    case 1:
      return SplitDecoder<T, 1>(task).Run();
    case 2:
      return SplitDecoder<T, std::min<size_t>(2, kLanes)>(task).Run();
    default:
      return SplitDecoder<T, std::min<size_t>(4, kLanes)>(task).Run();
  }
}

void DecodeSplit(const DecodeTask& task) {
#if XLA_GPU_HAVE_BF16_DOT
  const Problem& p = *task.problem;
  if (p.query_dtype == DType::kBF16 && p.cache_dtype == DType::kBF16 && p.head_dim % 32 == 0 &&
      MayUse(InstructionSet::kAvx3BF16)) {
    return DecodeSplitAs<DotBF16Cache>(task);
  }
#endif
  WithCacheType(task.problem->cache_dtype,
                [&](auto type) HWY_ATTR { DecodeSplitAs<decltype(type)>(task); });
}

// The weight of each split is exp2(its max - the common one); the order of addition is fixed.
template <class T>
HWY_INLINE void MergeHead(const MergeTask& task, int64_t row, int64_t kv_head, int64_t g) {
  const F32 df;
  const Problem& p = *task.problem;
  const int64_t padded = PadHeadDim(p.head_dim);
  const int64_t index = (row * p.kv_heads + kv_head) * PadGroup(p.group_size()) + g;
  const int64_t stride = Partial::NumFloats(p, task.span->rows);
  const auto split = [&](int64_t i) HWY_ATTR {
    return Partial::At(p, task.span->rows, task.partials + i * stride);
  };
  float max = kMinusInf;
  for (int64_t i = 0; i < task.num_splits; ++i) {
    const float m = split(i).max[index];
    if (std::isnan(m) || m > max) max = m;
  }
  const float base = FiniteBase(max);
  float* acc = split(0).acc + index * padded;
  float sum = 0;
  for (int64_t i = 0; i < task.num_splits; ++i) {
    const Partial partial = split(i);
    const float weight = Exp2(partial.max[index] - base);
    sum += weight * partial.sum[index];
    const VF32 w = hn::Set(df, weight);
    const float* from = partial.acc + index * padded;
    for (int64_t d = 0; d < padded; d += kLanes) {
      const VF32 x = hn::Load(df, from + d);
      hn::Store(i == 0 ? hn::Mul(w, x) : hn::MulAdd(w, x, hn::Load(df, acc + d)), df, acc + d);
    }
  }
  FinishRow<T>(p, *task.buffers, task.span->row_begin + row, kv_head * p.group_size() + g, acc, sum,
               max);
}

void MergeRow(const MergeTask& task, int64_t row) {
  WithCacheType(task.problem->cache_dtype, [&](auto type) HWY_ATTR {
    for (int64_t kv_head = 0; kv_head < task.problem->kv_heads; ++kv_head) {
      for (int64_t g = 0; g < task.problem->group_size(); ++g) {
        MergeHead<decltype(type)>(task, row, kv_head, g);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
