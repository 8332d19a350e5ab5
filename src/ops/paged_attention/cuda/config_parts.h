// What the files that make a Config share: what a problem's shape and types mean for the kernels.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_PARTS_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/core/ceil_div.h"
#include "src/ops/paged_attention/cuda/attend_shared.cuh"
#include "src/ops/paged_attention/cuda/config.h"

namespace xla_gpu::paged_attention {

inline constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

inline bool IsNarrow(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

inline bool TensorCoresTake(const Problem& problem) {
  return problem.cache_dtype == problem.query_dtype ||
         (IsNarrow(problem.query_dtype) && IsFloat8(problem.cache_dtype));
}

// Each operand of tensor cores is then two words (split.cuh).
inline bool IsSplit(const Problem& problem) { return problem.cache_dtype == DType::kF32; }

// The shared memory of the attend kernels.
inline MmaShared MmaOf(const Problem& problem, int tile_rows = 0, int tile_keys = 0) {
  return {static_cast<int>(problem.head_dim), static_cast<int>(DTypeSize(problem.cache_dtype)),
          tile_rows, tile_keys};
}
inline SimtShared SimtOf(const Problem& problem) { return {static_cast<int>(problem.head_dim)}; }

// Blocks of the attend launch at most: more than the largest devices hold.
inline int64_t MostWorkers(const Problem& problem) { return TensorCoresTake(problem) ? 320 : 640; }

// Whether a decode kernel's tiles may have more than kDecodeTileRows rows; and the most rows.
inline bool TakesWideTiles(const Problem& problem) {
  return !IsFloat8(problem.cache_dtype) && problem.head_dim <= 128 && problem.head_dim != 96;
}
inline int64_t MostLineRows(const Problem& problem) {
  return (TakesWideTiles(problem) ? 2 : 1) * int64_t{kDecodeTileRows};
}

// Rows of a sequence at most, where the call promises that, and one tile holds them or they are of
// one token; else 0: unknown.
inline int64_t PromisedRows(const Problem& problem) {
  const int64_t rows = problem.max_query_len * problem.group_size();
  return problem.max_query_len == 1 || rows <= MostLineRows(problem) ? rows : 0;
}

// Whether a prefill launch could pay, whatever the device: a batch with as many sequences as the
// problem has room for would decode more than two tokens of each; or so many more than one of each
// that an empty launch hardly shows beside them.
inline bool HasPrefill(const Problem& problem) {
  constexpr int64_t kFewTokens = 32;
  return PromisedRows(problem) == 0 &&
         problem.tokens - problem.max_seqs > std::min(problem.max_seqs, kFewTokens);
}

// Tokens that the copy of keys and values of fp8 or f32 has room for (copy.cuh), 0 where there is
// none: bits of batch_invariant calls must not depend on what else fits, and f32 results over fp8
// show how much finer weights of f16 are.
int64_t CopyTokens(const Problem& problem);
// The least rows of a sequence for which it pays: those of fp8 are otherwise converted for each
// piece, of 128 rows, those of f32 multiplied at a third of the rate.
int LeastCopyRows(const Problem& problem);
// The problem as those see it that read a copy of so many tokens. Terms (terms.cuh) lie one after
// the other, as pages of as many more.
Problem CopyOf(const Problem& problem, int64_t tokens);

// Whether the copy engine can load the problem's pages by boxes: a head's elements lie in whole
// panels, and pages of whole groups.
bool BoxesFit(const Problem& problem, const cuda::DeviceInfo& device);
int BoxTokens(const Problem& problem);  // of a box

// Whether a head's values lie right behind its keys, so that decode's boxes bring both.
bool ReadsPairs(const Problem& problem);

// Whether the decode kernels do well whatever the batch is: sequences have few rows by promise, or
// there is at most a token of each sequence that there is room for, or so few that no sequence has
// many rows.
bool IsDecode(const Problem& problem);
// Whether they are worth a launch of their own, beside the one that takes longer sequences.
bool IsMixed(const Problem& problem);
// Why no device would cut the line of decode work into ranges; null where one may.
const char* WhyNoLine(const Problem& problem);
// Rows of a tile of the line of decode work.
int LineRows(const Problem& problem);
inline constexpr int kHalfTile = kDecodeTileRows / 2;
// A token of each sequence at most, or several by promise, whose rows are half a tile at most.
bool HalfTiles(const Problem& problem);
// Rows of partial results of a part of a decode tile, as PartRows of line.cuh; and the most blocks
// of the line of decode work, where it is.
int64_t PartRows(const Problem& problem);
int64_t MostLineBlocks(const Problem& problem);
// As many ranges as, times the heads, keep the multiprocessors equally busy; 0 if there is no room
// for their partial results.
int DecodeRanges(const Problem& problem, int num_sms);

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_PARTS_H_
