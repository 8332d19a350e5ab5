// Decode: few query rows a sequence, so the time goes into reading K and V once.
//
// A task takes one split of the context and walks it in blocks of keys (decode_block-inl.h), of
// each the heads in their order, keys and then values. A block has a few neighbours of each of 8
// equal parts of the split: each part is so read in the order of its addresses, where keys and
// values lie side by side, and a processor's prefetchers follow. What is read of a block to come is
// asked for on the way. docs/design.md tells what that gives.
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
#include "src/ops/paged_attention/cpu/decode_amx-inl.h"
#include "src/ops/paged_attention/cpu/decode_block-inl.h"
#include "src/ops/paged_attention/cpu/kernels.h"
#include "src/ops/paged_attention/cpu/logits-inl.h"
#include "src/ops/paged_attention/cpu/numeric-inl.h"

HWY_BEFORE_NAMESPACE();
namespace xla_gpu::paged_attention {
namespace HWY_NAMESPACE {

// The whole of DecodeSplit for one cache type and tile of heads.
template <class Tile>
class SplitDecoder {
  using T = typename Tile::CacheType;
  static constexpr size_t kHeads = Tile::kTileHeads;
  static constexpr int64_t kMaxBlockKeys = Tile::kMaxKeys;

 public:
  explicit SplitDecoder(const DecodeTask& task)
      : task_(task),
        p_(*task.problem),
        b_(*task.buffers),
        segment_(*task.segment),
        padded_(PadHeadDim(p_.head_dim)),
        tiles_(PadGroup(p_.group_size()) / kHeads),
        as_zen5_(is_zen5 && Tile::kMayAskAsZen5),
        past_pair_(as_zen5_ ? reinterpret_cast<uintptr_t>(b_.k_cache) % 128 / sizeof(Raw) : 0) {
    const int64_t heads = NumHeads();
    const int64_t states = heads / kHeads * kLanes;
    const int64_t staged = staging() || Tile::kAmx ? kBlock * padded_ : 0;
    const int64_t weights = heads * kMaxBlockKeys;
    const int64_t seen = segment_.rows * int64_t{sizeof(KeyRange) / sizeof(float)};
    const int64_t longs = has_long_sums() ? heads * padded_ + states : 0;
    float* memory =
        ThreadScratch(ScratchSlot::kTask, heads * padded_ + 2 * longs + 2 * states + staged +
                                              weights + seen + 4 * task.num_heads);
    const auto take = [&memory](int64_t n) { return std::exchange(memory, memory + n); };
    q_ = take(heads * padded_);
    long_acc_ = reinterpret_cast<double*>(take(2 * longs));
    long_sum_ = long_acc_ + heads * padded_;
    max_ = take(states);
    sum_ = take(states);
    staged_ = take(staged);
    weights_ = take(weights);
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
    if constexpr (Tile::kAmx) queue_.Begin(kHeads);
    const KeyRange first = VisibleKeys(p_, segment_, segment_.pos);
    const KeyRange last = VisibleKeys(p_, segment_, segment_.pos + segment_.rows - 1);
    // What all rows see.
    const int64_t begin = std::clamp(last.begin, task_.keys.begin, task_.keys.end);
    const int64_t end = std::clamp(first.end, begin, task_.keys.end);
    const int64_t blocks = (end - begin) / kBlock;
    RunNeighbours(task_.keys.begin, begin);
    RunStreams(begin, kStreams, kBlock / kStreams, blocks);
    RunNeighbours(begin + blocks * kBlock, task_.keys.end);
    if constexpr (Tile::kAmx) queue_.End();
    WriteStates();
  }

 private:
  using Raw = typename T::Raw;
  using Block = BlockRows<Raw, kMaxBlockKeys>;
  // As many as a processor's prefetchers follow.
  static constexpr int64_t kStreams = 8;
  // More keys mean less loading and storing of sums and waiting for the softmax, fewer that
  // memory's order is kept. A whole tile in any case, and AMX's.
  static constexpr int64_t kBlock =
      sizeof(Raw) == 1 || Tile::kAmx ? kMaxBlockKeys : std::max<int64_t>(kStreams, kLanes / kHeads);
  // Sums of f32 over more keys would lose digits: they go on in f64.
  static constexpr int64_t kShortKeys = 512;
  static constexpr int64_t kMaxAhead = 8;  // blocks

  // q heads of the task, those that pad a group included, in all rows.
  int64_t NumHeads() const { return segment_.rows * task_.num_heads * tiles_ * int64_t{kHeads}; }

  // Rows that are no whole number of vectors are copied, so that no load passes their end; so are
  // those with scales of their own.
  bool staging() const { return padded_ != p_.head_dim || p_.has_token_scales(); }

  bool has_long_sums() const { return task_.keys.end - task_.keys.begin > kShortKeys; }

  void MoveToLongSums() {
    if constexpr (Tile::kAmx) queue_.RunAll();
    const int64_t heads = NumHeads();
    MoveInto(task_.partial.acc, heads * padded_, long_acc_);
    MoveInto(sum_, heads / kHeads * kLanes, long_sum_);
    short_keys_ = 0;
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

  void RunNeighbours(int64_t begin, int64_t end) {
    for (; begin < end; begin += kBlock) RunStreams(begin, 1, std::min(end - begin, kBlock), 1);
  }

  // `count` streams of `blocks` times `run` keys, one behind the other from `begin` on. A block has
  // `run` neighbours of each.
  void RunStreams(int64_t begin, int64_t count, int64_t run, int64_t blocks) {
    const int64_t n = count * run;
    FindSeen(begin, n);
    struct {
      const int32_t* page;
      int64_t token;
    } streams[kStreams];
    for (int64_t i = 0; i < count; ++i) {
      const int64_t key = begin + i * blocks * run;
      streams[i] = {segment_.pages + key / p_.page_size, key % p_.page_size};
    }
    const auto* k = static_cast<const Raw*>(b_.k_cache) + p_.k.At(0, 0, task_.first_head);
    const auto* v = static_cast<const Raw*>(b_.v_cache) + p_.v.At(0, 0, task_.first_head);
    Block ring[2 * kMaxAhead];  // in turn
    int64_t found = 0;
    const auto find_next = [&] {
      Block& block = ring[found++ % std::size(ring)];
      block.n = n;
      for (int64_t key = 0, i = 0; i < count; ++i) {
        auto& [page, token] = streams[i];
        for (const int64_t end = key + run; key < end; ++key) {
          block.k[key] = k + *page * p_.k.page_stride + token * p_.k.token_stride;
          block.v[key] = v + *page * p_.v.page_stride + token * p_.v.token_stride;
          block.slot[key] = *page * p_.page_size + token;
          if (++token == p_.page_size) {
            token = 0;
            ++page;
          }
        }
      }
      std::fill(block.k + n, block.k + Block::kEntries, block.k[n - 1]);
      std::fill(block.v + n, block.v + Block::kEntries, block.v[n - 1]);
    };
    const int64_t ahead = AheadBlocks();
    for (int64_t i = 0; i < blocks; ++i) {
      while (found < std::min(i + ahead + 1, blocks)) find_next();
      RunBlock(ring[i % std::size(ring)], ring[(found - 1) % std::size(ring)]);
    }
  }

  // From the block that is computed with to the one that is asked for.
  int64_t AheadBlocks() const {
    constexpr int64_t kBytes = 32 << 10;
    const int64_t key_bytes = 2 * task_.num_heads * p_.head_dim * int64_t{sizeof(Raw)};
    return std::clamp<int64_t>(kBytes / (kBlock * key_bytes), 1, kMaxAhead);
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
            const int64_t h = g % kHeads;
            const auto* query = static_cast<const uint16_t*>(b_.query) +
                                (q_row * p_.q_heads + q_head) * p_.head_dim;
            Tile::PackQuery(query, factor, h, padded_, to - h * padded_);
          } else {
            LoadQuery(p_, b_, q_row, q_head, factor, to, padded_);
            if (even_odd()) ToEvenOdd(to);
          }
        }
      }
    }
  }

  // seen_: each query row's keys of a block, exactly those, as others may be NaN. Where keys are no
  // neighbours, all rows see them.
  void FindSeen(int64_t begin, int64_t n) {
    for (int64_t row = 0; row < segment_.rows; ++row) {
      const KeyRange keys = VisibleKeys(p_, segment_, segment_.pos + row);
      seen_[row] = {std::max<int64_t>(keys.begin - begin, 0), std::min(keys.end - begin, n)};
    }
  }

  void RunBlock(const Block& block, const Block& later) {
    if (short_keys_ >= kShortKeys) MoveToLongSums();
    short_keys_ += block.n;
    asked_ = {later.k, later.v};
    for (int64_t head = 0; head < task_.num_heads; ++head) {
      RunKeys(block, head);
      RunValues(block, head);
    }
  }

  void RunKeys(const Block& block, int64_t head) {
    WithHead(block, block.k, p_.k, b_.k_token_scales, head, [&](auto& tile) HWY_ATTR {
      ForEachTile(head, tile, [&](int64_t index) HWY_ATTR {
        tile.Score(q_ + index * kHeads * padded_, padded_);
        tile.AskNoMore();
      });
    });
  }

  void RunSoftmax(int64_t head) {
    Tile tile;
    tile.growth = growths_[head];
    ForEachTile(head, tile, [&](int64_t index) HWY_ATTR {
      tile.Softmax(max_ + index * kLanes, sum_ + index * kLanes, long_sum_ + index * kLanes,
                   padded_);
    });
  }

  void RunValues(const Block& block, int64_t head) {
    WithHead(block, block.v, p_.v, b_.v_token_scales, head, [&](auto& tile) HWY_ATTR {
      if constexpr (Tile::kAmx) {
        ForEachTile(head, tile, [&](int64_t) HWY_ATTR { tile.StageValues(padded_); });
      }
      RunSoftmax(head);
      ForEachTile(head, tile, [&](int64_t) HWY_ATTR {
        tile.AddValues(padded_);
        tile.AskNoMore();
      });
    });
  }

  // What to ask for next of a block to come: of so many keys a head's part of K, its part of V, the
  // next head's, so that memory sees few rows at once and reads each to its end; then of the next.
  HWY_INLINE HeadRows<Raw> NextAsked(size_t keys) {
    const HeadRows<Raw> found = {
        asked_.is_value ? asked_.v : asked_.k,
        asked_.head * (asked_.is_value ? p_.v : p_.k).head_stride - past_pair_};
    asked_.head += asked_.is_value;
    asked_.is_value = !asked_.is_value;
    if (asked_.head == task_.num_heads) asked_ = {asked_.k + keys, asked_.v + keys};
    return found;
  }

  // Calls f(tile with a head's part of `rows`, times their `scales`).
  template <class F>
  HWY_INLINE void WithHead(const Block& block, const Raw* const* rows, const CacheLayout& layout,
                           const float* scales, int64_t head, const F& f) {
    const int64_t offset = head * layout.head_stride;
    if constexpr (!T::kDot) {
      if (staging()) {
        const float* staged[Block::kEntries];
        for (int64_t i = 0; i < Block::kEntries; ++i) {
          staged[i] = staged_ + std::min(i, block.n - 1) * padded_;
        }
        for (int64_t i = 0; i < block.n; ++i) {
          const float scale = TokenScale(p_, scales, block.slot[i], task_.first_head + head);
          LoadRow<T>(rows[i] + offset, p_.head_dim, scale, staged_ + i * padded_, padded_);
        }
        DecodeTile<CacheF32, kHeads> tile;
        tile.rows = {staged, 0};
        tile.AskNoMore();
        return f(tile);
      }
    }
    Tile tile;
    tile.rows = {rows, offset};
    tile.as_zen5 = as_zen5_;
    if constexpr (Tile::kAmx) {
      tile.queue = &queue_;
      tile.staged = staged_ + (rows == block.v ? kBlock / 2 * padded_ : 0);
    }
    const size_t together = as_zen5_ ? tile.kAsked : tile.kKeys;
    HeadRows<Raw> asked = {};
    const auto n = static_cast<size_t>(block.n);
    for (size_t i = 0; i < n || i % tile.kKeys != 0; i += tile.kAsked) {  // whole tiles
      asked = i % together == 0 ? NextAsked(together) : asked.From(tile.kAsked);
      tile.later[i / tile.kAsked] = asked;
    }
    f(tile);
  }

  // All tiles of the kv head.
  template <class AnyTile, class F>
  HWY_INLINE void ForEachTile(int64_t head, AnyTile& tile, const F& f) {
    for (int64_t row = 0; row < segment_.rows; ++row) {
      const KeyRange keys = seen_[row];
      if (keys.begin >= keys.end) continue;
      tile.scale = scales_[head];
      tile.begin = keys.begin;
      tile.end = keys.end;
      for (int64_t i = 0; i < tiles_; ++i) {
        const int64_t index = TileIndex(row, head, i);
        tile.acc = task_.partial.acc + index * kHeads * padded_;
        tile.long_acc = has_long_sums() ? long_acc_ + index * kHeads * padded_ : nullptr;
        tile.weights = weights_ + index * kHeads * kMaxBlockKeys;
        f(index);
      }
    }
  }

  // Leaves the sums, until now as tiles keep them, and the states as Partial has them.
  void WriteStates() {
    constexpr size_t kKeys = kLanes / kHeads;
    const int64_t heads = NumHeads();
    if (has_long_sums()) {
      MoveToLongSums();
      RoundInto(long_acc_, heads * padded_, task_.partial.acc);
    }
    const int64_t tile_size = kHeads * padded_;
    Tile tile;
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
  const int64_t tiles_;      // of heads, in a group
  const bool as_zen5_;       // it brings lines in by aligned pairs, so whole ones are asked for:
  const int64_t past_pair_;  // where the cache begins in one
  float* q_;
  double* long_acc_;  // as partial.acc, of keys before; where has_long_sums()
  double* long_sum_;
  float* max_;
  float* sum_;
  float* staged_;
  float* weights_;      // of a block, [kMaxBlockKeys * kHeads] for each tile
  LogitScale* scales_;  // of each kv head of the task
  float* growths_;      // MaxGrowth of each
  KeyRange* seen_;      // of the block, by each query row
  AmxQueue queue_{Tile::kAmx ? paged_cache::UsableAmx() : nullptr};
  int64_t short_keys_ = 0;  // that are not in long_acc_ and long_sum_
  struct {                  // what NextAsked gives
    const Raw* const* k;
    const Raw* const* v;
    int64_t head = 0;
    bool is_value = false;
  } asked_ = {};
};

template <class T>
void DecodeSplitAs(const DecodeTask& task) {
  const int64_t group = PadGroup(task.problem->group_size());
#if XLA_GPU_HAVE_BF16_DOT
  if constexpr (T::kDot) {
    // With fewer products for a key's bytes memory binds, which likes smaller blocks.
    const bool pays = task.segment->rows * group >= 4 * int64_t{sizeof(typename T::Raw)};
    if (group % 4 == 0 && pays && paged_cache::UsableAmx() != nullptr) {
      if (group % 8 == 0) return SplitDecoder<AmxDecodeTile<T, 8>>(task).Run();
      return SplitDecoder<AmxDecodeTile<T, 4>>(task).Run();
    }
  }
#endif
  switch (group) {
    case 1:
      return SplitDecoder<DecodeTile<T, 1>>(task).Run();
    case 2:
      return SplitDecoder<DecodeTile<T, std::min<size_t>(2, kLanes)>>(task).Run();
    default:
      return SplitDecoder<DecodeTile<T, std::min<size_t>(4, kLanes)>>(task).Run();
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
  HWY_ALIGN double acc[kMaxHeadDim];
  HWY_ALIGN float out[kMaxHeadDim];
  std::fill(acc, acc + padded, 0.0);
  double sum = 0;
  for (int64_t i = 0; i < task.num_splits; ++i) {
    const Partial partial = split(i);
    const float m = partial.max[index];
    // In double, as in FinishRow.
    const double weight = m == kMinusInf ? 0.0 : std::exp2((double{m} - max) * scale.unit);
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
