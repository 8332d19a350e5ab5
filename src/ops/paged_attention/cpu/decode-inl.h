// Decode: few query rows a sequence, so the time goes into reading K and V once.
//
// A task takes one split of the context and walks it in blocks of keys (decode_block-inl.h); in a
// block the keys of all heads, then the values of all, so that whole pages are read though a head's
// rows lie far apart. Meanwhile the rows of a block to come are brought in, as they lie in memory.
#if defined(XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_INL_H_
#undef XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_INL_H_
#else
#define XLA_GPU_OPS_PAGED_ATTENTION_CPU_DECODE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <utility>

#include "hwy/highway.h"
#include "src/ops/paged_attention/cpu/decode_block-inl.h"
#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/cpu/logits-inl.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

// The whole of DecodeSplit for one cache type and tile of heads.
template <class T, size_t kHeads>
class SplitDecoder {
 public:
  explicit SplitDecoder(const DecodeTask& task)
      : task_(task),
        p_(*task.problem),
        b_(*task.buffers),
        segment_(*task.segment),
        padded_(PadHeadDim(p_.head_dim)),
        tiles_(PadGroup(p_.group_size()) / kHeads) {
    const int64_t heads = NumHeads();
    const int64_t states = heads / kHeads * kLanes;
    const int64_t staged = staging() ? kBlock * padded_ : 0;
    const int64_t weights = heads * kMaxBlockKeys;
    const int64_t ahead = 2 * kBlock * task.num_heads * int64_t{sizeof(Stretch) / sizeof(float)};
    const int64_t seen = segment_.rows * int64_t{sizeof(KeyRange) / sizeof(float)};
    const int64_t longs = has_long_sums() ? heads * padded_ + states : 0;
    float* memory =
        ThreadScratch(ScratchSlot::kTask, heads * padded_ + 2 * longs + 2 * states + staged +
                                              weights + ahead + seen + 4 * task.num_heads);
    const auto take = [&memory](int64_t n) { return std::exchange(memory, memory + n); };
    q_ = take(heads * padded_);
    long_acc_ = reinterpret_cast<double*>(take(2 * longs));
    long_sum_ = long_acc_ + heads * padded_;
    max_ = take(states);
    sum_ = take(states);
    staged_ = take(staged);
    weights_ = take(weights);
    ahead_ = reinterpret_cast<Stretch*>(take(ahead));
    seen_ = reinterpret_cast<KeyRange*>(take(seen));
    static_assert(sizeof(LogitScale) == 3 * sizeof(float));
    scales_ = reinterpret_cast<LogitScale*>(take(3 * task.num_heads));
    growths_ = take(task.num_heads);
    for (int64_t i = 0; i < task.num_heads; ++i) {
      scales_[i] = LogitScaleOf<T>(p_, b_, task.first_head + i);
      growths_[i] = MaxGrowth(scales_[i]);
    }
    std::fill(long_acc_, long_acc_ + longs, 0.0);
    std::fill(max_, max_ + states, kMinusInf);
    std::fill(sum_, sum_ + states, 0.0f);
    std::fill(task.partial.acc, task.partial.acc + heads * padded_, 0.0f);
    LoadQueries();
  }

  void Run() {
    Block block;
    short_begin_ = task_.keys.begin;
    BringIn(task_.keys.begin, task_.keys.begin + AheadKeys());
    for (int64_t at = task_.keys.begin; at < task_.keys.end; at += block.n) {
      FindBlock(at, &block);
      if (!staging()) lines_ = FindAhead(at + AheadKeys(), block.n);
      if (at - short_begin_ >= kShortKeys) MoveToLongSums(at);
      FindSeen(block);
      // Keys of all heads, then values: prefetches of those to come pass in the order of addresses.
      RunKeys(block);
      RunSoftmax();
      RunValues(block);
    }
    WriteStates();
  }

 private:
  using Raw = typename T::Raw;
  using Block = BlockRows<Raw>;
  static constexpr int64_t kBlock = kBlockKeys<kHeads>;
  // Sums of f32 over more keys would lose digits: they go on in f64.
  static constexpr int64_t kShortKeys = 512;

  // q heads of the task, those that pad a group included, in all rows.
  int64_t NumHeads() const { return segment_.rows * task_.num_heads * tiles_ * int64_t{kHeads}; }

  // Rows that are no whole number of vectors are copied, so that no load passes their end.
  bool staging() const { return padded_ != p_.head_dim; }

  bool has_long_sums() const { return task_.keys.end - task_.keys.begin > kShortKeys; }

  void MoveToLongSums(int64_t key) {
    const int64_t heads = NumHeads();
    MoveInto(task_.partial.acc, heads * padded_, long_acc_);
    MoveInto(sum_, heads / kHeads * kLanes, long_sum_);
    short_begin_ = key;
  }

  // Whether q_ and acc hold pairs of vectors as LoadPair gives them.
  bool even_odd() const {
    if constexpr (T::kDot) {
      return false;
    } else {
      return T::kEvenOdd && !staging();
    }
  }

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

  void FromEvenOdd(float* row) const {
    const F32 df;
    constexpr int64_t kStep = kLanes;
    for (int64_t d = 0; d + 2 * kStep <= padded_; d += 2 * kStep) {
      const VF32 even = hn::Load(df, row + d);
      const VF32 odd = hn::Load(df, row + d + kLanes);
      hn::StoreInterleaved2(even, odd, df, row + d);
    }
  }

  void FindBlock(int64_t begin, Block* block) const {
    block->begin = begin;
    block->n = std::clamp<int64_t>(task_.keys.end - begin, 0, kBlock);
    if (block->n == 0) return;
    const auto* k = static_cast<const Raw*>(b_.k_cache) + p_.k.At(0, 0, task_.first_head);
    const auto* v = static_cast<const Raw*>(b_.v_cache) + p_.v.At(0, 0, task_.first_head);
    int64_t index = begin / p_.page_size;
    int64_t in_page = begin % p_.page_size;
    for (int64_t i = 0; i < block->n; ++i) {
      const int64_t page = segment_.pages[index];
      block->k[i] = k + page * p_.k.page_stride + in_page * p_.k.token_stride;
      block->v[i] = v + page * p_.v.page_stride + in_page * p_.v.token_stride;
      if (++in_page == p_.page_size) {
        in_page = 0;
        ++index;
      }
    }
    std::fill(block->k + block->n, block->k + Block::kEntries, block->k[block->n - 1]);
    std::fill(block->v + block->n, block->v + Block::kEntries, block->v[block->n - 1]);
  }

  // [kv head, row, tile] counts tiles; a tile has kHeads rows of q_ and acc, kLanes of max_, sum_.
  // Here and below kv heads are counted from the task's first.
  int64_t TileIndex(int64_t row, int64_t kv_head, int64_t tile) const {
    return (kv_head * segment_.rows + row) * tiles_ + tile;
  }

  void LoadQueries() {
    const int64_t group = p_.group_size();
    for (int64_t row = 0; row < segment_.rows; ++row) {
      for (int64_t kv_head = 0; kv_head < task_.num_heads; ++kv_head) {
        const float factor = scales_[kv_head].query;
        float* to = q_ + TileIndex(row, kv_head, 0) * kHeads * padded_;
        if (tiles_ * int64_t{kHeads} > group) std::fill(to, to + tiles_ * kHeads * padded_, 0.0f);
        for (int64_t g = 0; g < group; ++g, to += padded_) {
          const int64_t q_row = segment_.row_begin + row;
          const int64_t q_head = (task_.first_head + kv_head) * group + g;
          if constexpr (T::kDot) {
            // Steps of the first of kHeads rows, the second and so on, then the next steps: more
            // pointers than registers would cost as much as the products.
            const int64_t h = g % kHeads;
            const auto* query = static_cast<const uint16_t*>(b_.query) +
                                (q_row * p_.q_heads + q_head) * p_.head_dim;
            auto* words = reinterpret_cast<uint16_t*>(to - h * padded_) + h * T::kStep;
            for (int64_t d = 0; d < p_.head_dim; d += T::kStep) {
              T::ToWords(query + d, factor < 0 ? 0x8000 : 0, words + d * kHeads);
            }
          } else {
            LoadQuery(p_, b_, q_row, q_head, factor, to, padded_);
            if (even_odd()) ToEvenOdd(to);
          }
        }
      }
    }
  }

  // Keys between those that are computed with and those that are brought in.
  int64_t AheadKeys() const {
    constexpr int64_t kBytes = 16 << 10;
    const int64_t key_bytes = 2 * task_.num_heads * p_.head_dim * int64_t{sizeof(Raw)};
    return std::max(kBlock, (kBytes + key_bytes - 1) / key_bytes);
  }

  // The memory of n keys from `begin` on in the order of its addresses, but none past the task's
  // end.
  LinesAhead FindAhead(int64_t begin, int64_t n) {
    Block block;
    FindBlock(begin, &block);
    const int64_t heads = task_.num_heads;
    n = std::min(n, block.n);
    Stretch* to = ahead_;
    const auto add = [&to](const Raw* row, int64_t size) {
      const auto* const bytes = reinterpret_cast<const char*>(row);
      *to++ = {bytes, bytes + size * int64_t{sizeof(Raw)}};
    };
    const int64_t row = p_.head_dim;
    for (int64_t i = 0; i < n; ++i) {
      const Raw *const k = block.k[i], *const v = block.v[i];
      if (std::abs(v - k) == row && p_.k.head_stride == 2 * row && p_.v.head_stride == 2 * row) {
        add(std::min(k, v), 2 * heads * row);
        continue;
      }
      const auto add_rows = [&](const Raw* first, int64_t stride) {
        if (stride == row) return add(first, heads * row);
        for (int64_t head = 0; head < heads; ++head) add(first + head * stride, row);
      };
      add_rows(k, p_.k.head_stride);
      add_rows(v, p_.v.head_stride);
    }
    return {ahead_, to};
  }

  // What is needed before anything has brought it in.
  void BringIn(int64_t begin, int64_t end) {
    if (staging()) return;
    for (; begin < end; begin += kBlock) {
      LinesAhead lines = FindAhead(begin, std::min(kBlock, end - begin));
      while (!lines.done()) LinesAhead::Bring<Raw, 1, 1>(lines.Take<1>(), 0);
    }
  }

  // seen_: each query row's keys of the block, exactly those, as others may be NaN.
  void FindSeen(const Block& block) {
    for (int64_t row = 0; row < segment_.rows; ++row) {
      const KeyRange keys = VisibleKeys(p_, segment_, segment_.pos + row);
      seen_[row] = {std::max<int64_t>(keys.begin - block.begin, 0),
                    std::min(keys.end - block.begin, block.n)};
    }
  }

  void RunKeys(const Block& block) {
    ForEachHead(block, block.k, p_.k.head_stride, [&](auto& tile, int64_t head) HWY_ATTR {
      const float cap = scales_[head].inner;
      ForEachTile(head, tile, [&](int64_t index) HWY_ATTR {
        tile.Score(q_ + index * kHeads * padded_, cap, padded_);
      });
    });
  }

  // A pass of its own, as a tile's logits are ready long after the last instruction for them.
  void RunSoftmax() {
    DecodeTile<T, kHeads> tile;
    for (int64_t head = 0; head < task_.num_heads; ++head) {
      tile.unit = scales_[head].unit;
      tile.growth = growths_[head];
      ForEachTile(head, tile, [&](int64_t index) HWY_ATTR {
        tile.Softmax(max_ + index * kLanes, sum_ + index * kLanes, long_sum_ + index * kLanes,
                     padded_);
      });
    }
  }

  void RunValues(const Block& block) {
    ForEachHead(block, block.v, p_.v.head_stride, [&](auto& tile, int64_t head) HWY_ATTR {
      ForEachTile(head, tile, [&](int64_t) HWY_ATTR { tile.AddValues(padded_); });
    });
  }

  // Calls f(tile with the head's rows, head) for all kv heads; `rows`: the block's k or v.
  template <class F>
  HWY_INLINE void ForEachHead(const Block& block, const Raw* const* rows, int64_t stride,
                              const F& f) {
    if constexpr (!T::kDot) {
      if (staging()) {
        const float* staged[Block::kEntries];
        for (int64_t i = 0; i < Block::kEntries; ++i) {
          staged[i] = staged_ + std::min(i, block.n - 1) * padded_;
        }
        DecodeTile<CacheF32, kHeads> tile;
        tile.rows = {staged, 0};
        for (int64_t head = 0; head < task_.num_heads; ++head) {
          for (int64_t i = 0; i < block.n; ++i) {
            LoadRow<T>(rows[i] + head * stride, p_.head_dim, 1.0f, staged_ + i * padded_, padded_);
          }
          f(tile, head);
        }
        return;
      }
    }
    DecodeTile<T, kHeads> tile;
    tile.rows = {rows, 0};
    for (int64_t head = 0; head < task_.num_heads; ++head, tile.rows.head += stride) f(tile, head);
  }

  // All tiles of the kv head.
  template <class Tile, class F>
  HWY_INLINE void ForEachTile(int64_t head, Tile& tile, const F& f) {
    LinesAhead none = LinesAhead::None();
    tile.ahead = &lines_;  // for the first that reads the rows
    for (int64_t row = 0; row < segment_.rows; ++row) {
      const KeyRange keys = seen_[row];
      if (keys.begin >= keys.end) continue;
      tile.begin = keys.begin;
      tile.end = keys.end;
      for (int64_t i = 0; i < tiles_; ++i) {
        const int64_t index = TileIndex(row, head, i);
        tile.acc = task_.partial.acc + index * kHeads * padded_;
        tile.long_acc = has_long_sums() ? long_acc_ + index * kHeads * padded_ : nullptr;
        tile.weights = weights_ + index * kHeads * kMaxBlockKeys;
        f(index);
        tile.ahead = &none;
      }
    }
  }

  // Leaves the sums, until now as tiles keep them, and the states as Partial has them.
  void WriteStates() {
    constexpr size_t kKeys = kLanes / kHeads;
    const int64_t heads = NumHeads();
    if (has_long_sums()) {
      MoveToLongSums(task_.keys.end);
      RoundInto(long_acc_, heads * padded_, task_.partial.acc);
    }
    const int64_t tile_size = kHeads * padded_;
    DecodeTile<T, kHeads> tile;
    tile.acc = q_;  // the queries have served
    for (float* acc = task_.partial.acc; acc != task_.partial.acc + heads * padded_;
         acc += tile_size) {
      std::copy(acc, acc + tile_size, tile.acc);
      tile.StoreRows(padded_, acc);
    }
    for (int64_t i = 0; i < heads; ++i) {
      const int64_t lane = i / kHeads * kLanes + i % kHeads * kKeys;
      double sum = 0;
      for (size_t j = 0; j < kKeys; ++j) {
        sum += has_long_sums() ? long_sum_[lane + j] : sum_[lane + j];
      }
      float* row = task_.partial.acc + i * padded_;
      if constexpr (T::kDot) {
        T::ToElementOrder(row, padded_);
      } else if (even_odd()) {
        FromEvenOdd(row);
      }
      task_.partial.sum[i] = static_cast<float>(sum);
      task_.partial.max[i] = max_[lane];
    }
  }

  const DecodeTask& task_;
  const Problem& p_;
  const Buffers& b_;
  const Segment& segment_;
  const int64_t padded_;
  const int64_t tiles_;  // of heads, in a group
  float* q_;
  double* long_acc_;  // as partial.acc, of the keys before short_begin_; where has_long_sums()
  double* long_sum_;
  float* max_;
  float* sum_;
  float* staged_;
  float* weights_;      // of a block, [kMaxBlockKeys * kHeads] for each tile
  LogitScale* scales_;  // of each kv head of the task
  float* growths_;      // MaxGrowth of each
  Stretch* ahead_;      // of lines_
  KeyRange* seen_;      // of the block, by each query row
  LinesAhead lines_ = LinesAhead::None();
  int64_t short_begin_ = 0;
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

// As WithComputeType, but rows that are no whole steps are taken as f32.
template <class F>
HWY_INLINE void WithDecodeType(const Problem& p, const F& f) {
  WithComputeType(p, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    if constexpr (T::kDot) {
      if (p.head_dim % T::kStep != 0) return WithCacheType(p.cache_dtype, f);
    }
    f(type);
  });
}

void DecodeSplit(const DecodeTask& task) {
  WithDecodeType(*task.problem, [&](auto type) HWY_ATTR { DecodeSplitAs<decltype(type)>(task); });
}

// The weight of each split is that of its max below the common one; the order of addition is fixed.
template <class T>
HWY_INLINE void MergeQueryHead(const MergeTask& task, int64_t row, int64_t kv_head, int64_t g) {
  const Problem& p = *task.problem;
  const int64_t padded = PadHeadDim(p.head_dim);
  const int64_t index = (kv_head * task.segment->rows + row) * PadGroup(p.group_size()) + g;
  const int64_t stride = Partial::NumFloats(p, task.segment->rows);
  const LogitScale scale = LogitScaleOf<T>(p, *task.buffers, kv_head);
  const auto split = [&](int64_t i) HWY_ATTR {
    return Partial::At(p, task.segment->rows, task.partials + i * stride);
  };
  float max = kMinusInf;
  for (int64_t i = 0; i < task.num_splits; ++i) {
    const float m = split(i).max[index];
    if (std::isnan(m) || m > max) max = m;
  }
  const float base = FiniteBase(max);
  HWY_ALIGN double acc[kMaxHeadDim];
  HWY_ALIGN float out[kMaxHeadDim];
  std::fill(acc, acc + padded, 0.0);
  double sum = 0;
  for (int64_t i = 0; i < task.num_splits; ++i) {
    const Partial partial = split(i);
    const double weight = Exp2((partial.max[index] - base) * scale.unit);
    sum += weight * partial.sum[index];
    AddScaled(weight, partial.acc + index * padded, padded, acc);
  }
  RoundInto(acc, padded, out);
  FinishRow<T>(p, *task.buffers, task.segment->row_begin + row, kv_head * p.group_size() + g, out,
               sum, max, scale);
}

void MergeHead(const MergeTask& task, int64_t kv_head) {
  WithDecodeType(*task.problem, [&](auto type) HWY_ATTR {
    for (int64_t row = 0; row < task.segment->rows; ++row) {
      for (int64_t g = 0; g < task.problem->group_size(); ++g) {
        MergeQueryHead<decltype(type)>(task, row, kv_head, g);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace xla_gpu::paged_attention
HWY_AFTER_NAMESPACE();

#endif  // include guard
