#include "src/ops/paged_attention/cpu/tasks.h"

#include <algorithm>
#include <tuple>

#include "src/core/ceil_div.h"

namespace xla_gpu::paged_attention {
namespace {

// A split is long enough to be worth its merging, and a context has at most kMaxSplits.
constexpr int64_t kMinSplitKeys = 512;
constexpr int64_t kMaxSplits = 64;

// A byte of keys and values that decode reads costs as much as so many multiplications and
// additions of prefill, packing a block of keys as much as so many rows more.
constexpr double kOpsPerByte = 16;
constexpr double kPackingRows = 32;
// To hand a task to another thread costs some microseconds: none is cut for less than this.
constexpr double kLeastOps = 2e6;
// What decode loses where a task has few kv heads of a page: as much as this part of a head.
constexpr double kSeekingHeads = 0.5;

// How many parts share a block of kPrefillRows rows, or the kv heads of a split.
struct Cut {
  int64_t row_parts = 1;
  int64_t head_parts = 1;
};

// One segment's tasks that cost the same: they differ in their heads alone.
struct Cell {
  int64_t segment;
  int64_t first;
  int64_t size;
  int64_t heads;  // of a task
  double cost;    // of a task
  int64_t count;
};

// Rows of a part are whole tiles of every form but of AMX's, which pads them.
int64_t RowsOf(const Cut& cut) { return kPrefillRows / cut.row_parts; }

template <class F>
void ForEachPrefillCell(const Problem& p, const Segment& segment, const Cut& cut, const F& f) {
  const int64_t group = p.group_size(), rows = RowsOf(cut);
  const int64_t tokens = std::max<int64_t>(1, rows / group), heads = std::min(group, rows);
  for (int64_t token = 0; token < segment.rows; token += tokens) {
    const int64_t size = std::min(tokens, segment.rows - token);
    const KeyRange first = VisibleKeys(p, segment, segment.pos + token);
    const KeyRange last = VisibleKeys(p, segment, segment.pos + token + size - 1);
    const auto keys = static_cast<double>(last.end - first.begin);
    const double cost = 4 * keys * static_cast<double>(p.head_dim) *
                        (static_cast<double>(size * heads) + kPackingRows);
    f(Cell{0, token, size, heads, cost, p.kv_heads * CeilDiv(group, heads)});
  }
}

template <class F>
void ForEachDecodeCell(const Problem& p, const Segment& segment, const Cut& cut, const F& f) {
  const Splits splits = SplitsOf(p, segment);
  const int64_t heads = CeilDiv(p.kv_heads, cut.head_parts);
  const double ops = 2 * kOpsPerByte * static_cast<double>(DTypeSize(p.cache_dtype)) +
                     4 * static_cast<double>(segment.rows * p.group_size());
  const double of_key =
      (static_cast<double>(heads) + kSeekingHeads) * ops * static_cast<double>(p.head_dim);
  for (int64_t i = 0; i < splits.count; ++i) {
    const KeyRange keys = splits.At(i);
    const double cost = of_key * static_cast<double>(keys.end - keys.begin);
    f(Cell{0, i, 1, heads, cost, CeilDiv(p.kv_heads, heads)});
  }
}

template <class F>
void ForEachCell(const Problem& p, const Segment& segment, const Cut& cut, const F& f) {
  if (IsDecode(p, segment)) return ForEachDecodeCell(p, segment, cut, f);
  ForEachPrefillCell(p, segment, cut, f);
}

// All tasks of a kind under one cut.
struct Sum {
  double total = 0;
  double largest = 0;
};
Sum SumOf(const Problem& p, const std::vector<Segment>& segments, bool decode, const Cut& cut) {
  Sum sum;
  for (const Segment& segment : segments) {
    if (IsDecode(p, segment) != decode) continue;
    ForEachCell(p, segment, cut, [&](const Cell& cell) {
      sum.total += cell.cost * static_cast<double>(cell.count);
      sum.largest = std::max(sum.largest, cell.cost);
    });
  }
  return sum;
}

// The cut after which threads are done first, by the bound for tasks taken longest first: each
// thread's share, and at the end one task that the others wait for.
Cut BestCut(const Problem& p, const std::vector<Segment>& segments, int threads) {
  Cut best;
  double least = -1;
  const auto try_cut = [&](const Cut& cut, const Sum& prefill, const Sum& decode) {
    const double largest = std::max(prefill.largest, decode.largest);
    const double time = prefill.total + decode.total + largest * (threads - 1);
    if (least >= 0 && (time >= least || largest < kLeastOps)) return;
    least = time;
    best = cut;
  };
  std::vector<Sum> decode;
  for (int64_t parts = 1; parts == 1 || parts <= p.kv_heads; parts *= 2) {
    decode.push_back(SumOf(p, segments, true, {1, parts}));
  }
  for (const int64_t row_parts : {1, 2, 5}) {
    const Sum prefill = SumOf(p, segments, false, {row_parts, 1});
    for (size_t i = 0; i < decode.size(); ++i) {
      try_cut({row_parts, int64_t{1} << i}, prefill, decode[i]);
    }
  }
  return best;
}

}  // namespace

Splits SplitsOf(const Problem& p, const Segment& segment) {
  const int64_t begin = VisibleKeys(p, segment, segment.pos).begin;
  const int64_t end = VisibleKeys(p, segment, segment.pos + segment.rows - 1).end;
  const int64_t longest = CeilDiv(end - begin, kMaxSplits);
  const int64_t keys = std::max(kMinSplitKeys, CeilDiv(longest, kMinSplitKeys) * kMinSplitKeys);
  return {begin, end, keys, CeilDiv(end - begin, keys)};
}

std::vector<Task> CutIntoTasks(const Problem& p, const std::vector<Segment>& segments,
                               int threads) {
  const Cut cut = threads > 1 ? BestCut(p, segments, threads) : Cut();
  std::vector<Cell> cells;
  for (size_t i = 0; i < segments.size(); ++i) {
    ForEachCell(p, segments[i], cut, [&](Cell cell) {
      cell.segment = static_cast<int64_t>(i);
      cells.push_back(cell);
    });
  }
  // Of equal cost in their order; std::stable_sort would ask for memory.
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) {
    return std::tie(b.cost, a.segment, a.first) < std::tie(a.cost, b.segment, b.first);
  });
  std::vector<Task> tasks;
  for (const Cell& cell : cells) {
    const bool decode = IsDecode(p, segments[static_cast<size_t>(cell.segment)]);
    const int64_t group = decode ? p.kv_heads : p.group_size();  // that no task goes across
    for (int64_t first = 0; first < (decode ? p.kv_heads : p.q_heads); first += group) {
      for (int64_t head = 0; head < group; head += cell.heads) {
        tasks.push_back({cell.segment, cell.first, cell.size, first + head,
                         std::min(cell.heads, group - head), cell.cost});
      }
    }
  }
  return tasks;
}

}  // namespace xla_gpu::paged_attention
