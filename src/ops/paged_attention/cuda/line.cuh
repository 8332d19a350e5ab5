// The line of decode work: all tiles of all sequences one after the other, each as long as its
// keys, in blocks of kSplitTokens, and Params::tile_blocks more for its start and end. Cut into
// ranges of one length, to within a block, it keeps equal workers busy to the same moment, whatever
// the lengths; a tile that a cut goes through is split there.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_LINE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_LINE_CUH_

#include "src/cuda/ptx.cuh"
#include "src/ops/paged_attention/cuda/params.cuh"

namespace xla_gpu::paged_attention {

struct Keys {
  int begin;
  int end;
};

// Keys that some of a sequence's rows [first_row, first_row + num_rows) sees.
__device__ __forceinline__ Keys KeysOf(const Params& p, const SequenceInfo& info, int first_row,
                                       int num_rows) {
  const int first_pos = info.context_len - info.query_len;
  const auto pos_of = [&](int row) { return first_pos + Quotient(row, p.by_group); };
  Keys keys = {0, info.context_len};
  if (p.window > 0) keys.begin = max(0, pos_of(first_row) - p.window + 1);
  if (p.causal) keys.end = pos_of(first_row + num_rows - 1) + 1;
  return keys;
}

// At most `rows` rows of a token from `row` on, over all keys that they see.
__device__ __forceinline__ WorkItem ItemOfToken(const Params& p, int seq, const SequenceInfo& of,
                                                int token, int row, int rows) {
  WorkItem item = {};
  item.kind = kDecodeItem;
  item.seq = seq;
  item.query_begin = of.query_begin;
  item.first_row = (token - of.query_begin) * p.group_size + row;
  item.num_rows = min(rows, p.group_size - row);
  item.first_pos = of.context_len - of.query_len;
  const Keys keys = KeysOf(p, of, item.first_row, item.num_rows);
  item.key_begin = keys.begin;
  item.key_end = max(keys.end, keys.begin);
  item.splits = 1;
  return item;
}

// Rows of a tile. What computes them knows that when it is compiled.
__device__ __forceinline__ int LineRows([[maybe_unused]] const Params& p) {
#ifdef LINE_ROWS
  return LINE_ROWS;
#else
  return p.line_rows;
#endif
}

// A sequence's place on the line: so many tiles, each of so many blocks of keys from the first on.
struct LinePart {
  int tiles;
  int first_block;
  int blocks;
  int tile_length;

  __device__ __forceinline__ int Length() const { return tiles * tile_length; }
};

__device__ __forceinline__ LinePart LinePartOf(const Params& p, const SequenceInfo& info) {
  const int rows = info.query_len * p.group_size;
  if (rows == 0 || rows > p.decode_max_rows) return {};
  const int first_pos = info.context_len - info.query_len;
  const int first_key = p.window == 0 ? 0 : max(0, first_pos - p.window + 1);
  const int first_block = first_key / kSplitTokens;
  const int end = (info.context_len + kSplitTokens - 1) / kSplitTokens;
  const auto tile_rows = static_cast<unsigned>(LineRows(p));
  const auto tiles = static_cast<int>((static_cast<unsigned>(rows) + tile_rows - 1) / tile_rows);
  const int blocks = max(end - first_block, 0);
  return {tiles, first_block, blocks, blocks + p.tile_blocks};
}

// Whether a sequence's lengths can be meant: a wrong one has no rows.
__device__ __forceinline__ bool AreValid(const Params& p, int begin, int end, int context) {
  return begin >= 0 && begin <= end && end <= p.tokens && context >= 0 && context <= p.max_context;
}

// Makes of the lanes' ends and lengths the greatest end, and the sum of lengths, up to each lane;
// gives the greatest end before it.
__device__ __forceinline__ int ScanLanes(int& end, int& length) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int of_end = __shfl_up_sync(kAllLanes, end, step);
    const int of_length = __shfl_up_sync(kAllLanes, length, step);
    if (lane >= step) end = max(end, of_end), length += of_length;
  }
  const int before = __shfl_up_sync(kAllLanes, end, 1);
  return lane == 0 ? 0 : before;
}

// A warp's sequences, a lane each.
struct LaneSequence {
  SequenceInfo info;  // line_end: from the first lane's sequence on
  int end;            // the greatest of valid sequences up to this one
  bool contested;     // in all lanes: a row is of two of them
};
__device__ __forceinline__ LaneSequence FindSequences(const Params& p, bool valid, int begin,
                                                      int end, int context) {
  LaneSequence found = {};
  if (valid) found.info = {begin, end - begin, context, 0};
  found.end = valid ? end : 0;
  found.info.line_end = LinePartOf(p, found.info).Length();
  const int before = ScanLanes(found.end, found.info.line_end);
  found.contested =
      __any_sync(kAllLanes, found.info.query_len > 0 && before > found.info.query_begin);
  return found;
}

// How a line is cut, into `most` ranges at most. The last tile's end is not waited for.
__device__ __forceinline__ LineRanges RangesOf(const Params& p, int most, int line) {
  // Shorter ones would cost more for their start and end than they save.
  constexpr int kLeast = 2;
  const int blocks = max(line - p.tile_blocks, 0);
  return {max(min(most, (blocks + kLeast - 1) / kLeast), 1), blocks, 0};
}
// The same where the line is of `num_seqs` sequences. If those are equally long, cuts go where they
// begin, and into equal parts of each, or between them alone, unless that makes ranges longer by
// more than a piece's start and end, or a sixteenth: then no range has an end and a start.
__device__ __forceinline__ LineRanges RangesOf(const Params& p, int most, int line, int num_seqs) {
  const LineRanges ranges = RangesOf(p, most, line);
  // Halves are added so that quotients are right but for their rounding.
  const auto half_more = [](int x) { return static_cast<float>(x) + 0.5f; };
  const auto quotient = [&](int x, int y) {
    return static_cast<int>(half_more(x) * Reciprocal(static_cast<float>(y)));
  };
  const int seqs = max(num_seqs, 1);
  const float by_seqs = Reciprocal(static_cast<float>(seqs));  // beside what finds the line
  if (static_cast<int>(half_more(line) * by_seqs) * seqs != line) return ranges;
  int aligned = seqs * static_cast<int>(half_more(ranges.count) * by_seqs);
  if (aligned == 0) {
    const int together = quotient(seqs - 1, ranges.count) + 1;
    aligned = quotient(seqs, together);
    if (aligned * together != seqs) return ranges;
  }
  const auto blocks = static_cast<float>(line), count = static_cast<float>(ranges.count);
  const float most_blocks = 1.0625f * blocks + static_cast<float>(2 * p.tile_blocks) * count;
  if (blocks * count > most_blocks * static_cast<float>(aligned)) return ranges;
  return {aligned, line, p.tile_blocks / 2};  // in the middle of a tile's end
}

// Where the ranges begin: in proportion, so that those of tiles of one length keep their distance
// from the tiles. Blocks have to agree on it, no more: f32 does.
struct LineCuts {
  int ranges;
  float length;
  int before;

  __device__ __forceinline__ explicit LineCuts(const LineRanges& of)
      : ranges(of.count),
        length(static_cast<float>(of.blocks) * Reciprocal(static_cast<float>(of.count))),
        before(of.before) {}

  __device__ __forceinline__ int Begin(int range) const {
    return range > 0 ? __float2int_rn(static_cast<float>(range) * length) - before : 0;
  }
  __device__ __forceinline__ int End(int range) const {
    return range + 1 < ranges ? Begin(range + 1) : 0x7fffffff;
  }
  // The range that a place lies in.
  __device__ __forceinline__ int Of(int place) const {
    const auto from = static_cast<float>(place + before);
    const int at = min(static_cast<int>(from * Reciprocal(length)), ranges - 1);
    return at + (place >= End(at) ? 1 : place < Begin(at) ? -1 : 0);
  }
};

// Rows of the partial results of one part of a tile.
__device__ __forceinline__ int PartRows(const Params& p) {
  return min(LineRows(p), p.tokens * p.group_size);
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_LINE_CUH_
