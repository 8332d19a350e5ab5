// Decode on Hopper: few query rows of a sequence (those of a kv head's group, up to 16) against a
// long range of keys, bound by memory. A block takes ranges of the line of decode work (line.cuh);
// neighbouring blocks have the heads of one range, whose keys lie side by side. One warp loads
// stages of 128 keys and values by the tensor copy engine, a box a page, ahead of the eight that
// compute 16 keys of each stage, and beyond the end of a piece. There four others merge the eight
// softmaxes in shared memory and write the rows, beside the next piece.
//
// What waits on what: slot_full (a piece is taken), full (its keys are there) -> logits, weights,
// sums -> empty; at a piece's end sums_full -> merged -> sums_empty, slot_empty. No wait is for
// another block, and none for a later piece: the loader waits for a slot while the keys of the
// piece before are not loaded yet, but those of the pieces in the slots' earlier uses are.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_compute.cuh"
#include "src/ops/paged_attention/cuda/finish.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kWriters = 1;  // named barrier

// Merges the warps' sums, in a fixed order, and writes the rows, or their partial results.
__device__ __forceinline__ void WriteRows(const Params& p, const Tile& tile, DecodeMemory& shared,
                                          int thread) {
  constexpr int kVector = 4, kVectors = kHeadDim / kVector;
  const float factor = MakeLogitFactor(p, tile.head).factor;
  for (int i = thread; i < tile.num_rows * kVectors; i += kWriteWarps * 32) {
    const int row = i / kVectors, d = i % kVectors * kVector;
    float factors[kDecodeWarps];
    const bool sees =
        WeighWarps(p, tile, row, shared.max[row], shared.sum[row], factor, d == 0, factors);
    Vector<float, kVector> value = {};
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
      const auto x = *reinterpret_cast<const Vector<float, kVector>*>(&shared.sums[w][row][d]);
#pragma unroll
      for (int j = 0; j < kVector; ++j) value.x[j] += x.x[j] * factors[w];
    }
    if (tile.splits > 1) {
      float* const to = p.partial_out + PartialRow(p, tile, row) * kHeadDim + d;
      *reinterpret_cast<Vector<float, kVector>*>(to) = value;
    } else {
      Vector<Out, kVector> out;
#pragma unroll
      for (int j = 0; j < kVector; ++j) out.x[j] = FromFloat<Out>(sees ? value.x[j] : 0.0f);
      Out* const to = static_cast<Out*>(p.out) + QueryRow(p, tile, row) * kHeadDim + d;
      *reinterpret_cast<Vector<Out, kVector>*>(to) = out;
    }
  }
}

__device__ __forceinline__ void WritePieces(const Params& p, DecodeMemory& shared, int warp) {
  const int lane = threadIdx.x % 32;
  const bool leader = warp == 0 && lane == 0;
  const auto sync = [] { SyncThreads(kWriters, kWriteWarps * 32); };
  Place<1> sums;
  for (Place<DecodeMemory::kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const DecodeMemory::Slot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    const Tile tile = slot.tile;
    unsigned* const arrivals = slot.arrivals;
    Wait(At(shared.sums_full, sums), sums.parity);
    WriteRows(p, tile, shared, warp * 32 + lane);
    Arrive(At(shared.sums_empty, sums));
    Arrive(At(shared.slot_empty, at));
    sums.Next();
    if (tile.splits > 1 && ArriveLast(arrivals, tile.splits, leader, sync)) {
      MergeSplits<Out, kHeadDim>(p, tile, warp, kWriteWarps);
    }
  }
}

__device__ __forceinline__ void Decode(const Params& p, const TensorMap& key_boxes,
                                       const TensorMap& value_boxes, char* memory) {
  DecodeMemory& shared = *reinterpret_cast<DecodeMemory*>(memory);
  const int warp = Uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) InitDecodeBarriers(shared);
  __syncthreads();

  // Each warp's part.
  if (warp < kDecodeWarps) {
    ComputePieces(p, shared, warp);
  } else if (warp == kDecodeWarps) {
    Loader{p, key_boxes, value_boxes, shared}.Run();
  } else {
    WritePieces(p, shared, warp - kDecodeWarps - 1);
  }

  // Rows that no piece has.
  __syncthreads();
  if (p.header->has_fills != 0) {
    const int fills = (p.tokens + kFillTokens - 1) / kFillTokens * p.kv_heads;
    for (int i = blockIdx.x; i < fills; i += gridDim.x) {
      FillUnowned<Out, kHeadDim>(p, i / p.kv_heads * kFillTokens, i % p.kv_heads);
      __syncthreads();
    }
  }
  OverwriteBadPages<Out, kHeadDim>(p);
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_CUH_
