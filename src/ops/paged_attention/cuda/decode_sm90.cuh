// Decode on Hopper: few query rows of a sequence (those of a kv head's group, up to 16) against a
// long range of keys, bound by memory. A block takes ranges of the line of decode work (line.cuh);
// neighbouring blocks have the heads of one range, whose keys lie side by side. One warp loads
// stages of 128 keys and values by the tensor copy engine, a box a page, ahead of the eight that
// compute 16 keys of each stage, and beyond the end of a piece. There four others merge the eight
// softmaxes in shared memory and write the rows, beside the next piece.
//
// Keys and values are the first operands of the products, queries and weights the second: logits
// and sums lie transposed in the registers, and eight rows cost no more than they must.
//
// What waits on what: slot_full (a piece is taken), full (its keys are there) -> logits, weights,
// sums -> empty; at a piece's end sums_full -> merged -> sums_empty, slot_empty. No wait is for
// another block, and none for a later piece: the loader waits for a slot while the keys of the
// piece before are not loaded yet, but those of the pieces in the slots' earlier uses are.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_load.cuh"
#include "src/ops/paged_attention/cuda/decode_sm90_softmax.cuh"
#include "src/ops/paged_attention/cuda/finish.cuh"
#include "src/ops/paged_attention/cuda/non_finite.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kWarpBytes = kStepKeys * kHeadDim * 2;  // of a warp's keys in a stage
// So many steps of a warp are added up in the tensor cores' accumulators, whose sums lose a little
// every time, before they go to a second level.
inline constexpr int kLevelSteps = 4096 / kStepKeys;
inline constexpr int kWriters = 1;  // named barrier

// 8x8 elements of 16 bits, transposed.
__device__ __forceinline__ unsigned Transposed(unsigned x) {
  unsigned y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Where a lane's rows of matrices lie: those of the keys, as they are, and those of the values, as
// they are transposed.
struct LanePlaces {
  unsigned keys, values;
};
__device__ __forceinline__ LanePlaces MakeLanePlaces() {
  const int lane = threadIdx.x % 32;
  return {lane / 8 % 2 * kGroupBytes + SwizzledChunk(lane % 8, lane / 16),
          lane / 16 * kGroupBytes + SwizzledChunk(lane % 8, lane / 8 % 2)};
}

// The query rows of a piece as second operands of the products, with the sign that makes the
// scales of the logits positive.
template <int kTiles>
__device__ __forceinline__ void LoadQueryFragments(const char* rows, bool negate,
                                                   unsigned (&q)[kDimBlocks][kTiles][2]) {
  const int lane = threadIdx.x % 32;
  const char* const own = rows + lane / 4 * DecodeMemory::kQueryStride + lane % 4 * 4;
  const unsigned sign = negate ? 0x80008000u : 0u;
#pragma unroll
  for (int block = 0; block < kDimBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const char* const at = own + i * 8 * DecodeMemory::kQueryStride + block * 32 + j * 16;
        q[block][i][j] = *reinterpret_cast<const unsigned*>(at) ^ sign;
      }
    }
  }
}

// Adds a step's 16 keys and values.
template <int kTiles>
__device__ __forceinline__ void AddStep(const unsigned (&q)[kDimBlocks][kTiles][2], unsigned keys,
                                        unsigned values, const LanePlaces& lane, float cap_in,
                                        bool mask, int key0, const Visible (&visible)[kTiles][2],
                                        Softmax<kTiles>& softmax) {
  // Logits.
  float s[kTiles][4] = {};
#pragma unroll
  for (int block = 0; block < kDimBlocks; ++block) {
    unsigned a[4];
    LoadMatrix4(a, keys + block / 4 * 1024 + (lane.keys ^ block % 4 << 5));
#pragma unroll
    for (int i = 0; i < kTiles; ++i) Mma<Operand>(s[i], a, q[block][i][0], q[block][i][1]);
  }

  // Softmax.
  if constexpr (SOFT_CAP) Cap(s, {cap_in, cap_in});
  if (mask) {
    const int first = key0 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = first + j / 2 * 8;
        const Visible& seen = visible[i][j % 2];
        if (key < seen.begin || key >= seen.end) s[i][j] = -Infinity();
      }
    }
  }
  softmax.Weigh(s);

  // Values times weights.
  unsigned b[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    b[i][0] = Transposed(Pack2<Operand>(s[i][0], s[i][1]));
    b[i][1] = Transposed(Pack2<Operand>(s[i][2], s[i][3]));
  }
#pragma unroll
  for (int block = 0; block < kDimBlocks; ++block) {
    unsigned a[4];
    LoadMatrix4Transposed(a, values + block / 4 * 1024 + (lane.values ^ block % 4 << 5));
#pragma unroll
    for (int i = 0; i < kTiles; ++i) AddProducts<kRoundedDecode>(softmax.o[block][i], a, b[i]);
  }
}

// Zeroes a warp's values of keys outside of [begin, end), of 16. A weight of 0 does not hide a NaN.
__device__ __forceinline__ void ZeroOutside(unsigned values, int begin, int end) {
  const int lane = threadIdx.x % 32;
  for (int i = lane; i < kStepKeys * kPieces; i += 32) {
    const int key = i / kPieces;
    if (key >= begin && key < end) continue;
    StoreShared(values + PlaceInTile(key, i % kPieces), make_uint4(0, 0, 0, 0));
  }
}

// A warp's part of a piece of up to 8 * kTiles rows; leaves its sums in shared memory.
template <int kTiles>
__device__ __forceinline__ void ComputePiece(const Params& p, DecodeMemory& shared,
                                             const DecodeMemory::Slot& slot,
                                             Place<DecodeMemory::kStages>& stage, Place<1>& sums,
                                             int warp) {
  const int lane = threadIdx.x % 32;
  const Tile tile = slot.tile;
  const LogitFactor logit = MakeLogitFactor(p, tile.head);

  // The queries, and what the rows see.
  unsigned q[kDimBlocks][kTiles][2];
  LoadQueryFragments(slot.query, logit.negate, q);
  const Visible by_all = SeenByAll(p, tile);
  Visible visible[kTiles][2];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) visible[i][h] = VisibleKeys(p, tile, i * 8 + lane % 4 * 2 + h);
  }
  const LanePlaces places = MakeLanePlaces();
  Softmax<kTiles> softmax(logit.factor);
  SoftmaxLevel<kTiles> memory;
  SoftmaxLevel<kTiles>* level = &memory;
  asm volatile("" : "+l"(level));  // else the compiler would keep it in registers
  bool in_level = false, found = false;

  // Steps that have keys which some row does not see; there are none if all are of one token.
  const auto has_hidden = [&](int key) {
    return (key < by_all.begin && by_all.begin > tile.key_begin) ||
           (key + kStepKeys > by_all.end && by_all.end < tile.key_end);
  };
  int key0 = slot.first_key + warp * kStepKeys;
  const unsigned ring = SharedAddress(shared.stages) + warp * kWarpBytes;
  for (int i = 0; i < slot.stages; ++i, key0 += kDecodeKeys) {
    // Wait for the keys and values.
    Wait(At(shared.full, stage), stage.parity);
    if (key0 < tile.key_end && key0 + kStepKeys > tile.key_begin) {
      const unsigned keys = ring + stage.index * static_cast<int>(sizeof(DecodeMemory::Stage));
      const unsigned values = keys + DecodeMemory::kTileBytes;
      const bool mask = key0 < by_all.begin || key0 + kStepKeys > by_all.end;
      if (mask) {
        ZeroOutside(values, tile.key_begin - key0, tile.key_end - key0);
        __syncwarp();
        if (has_hidden(key0)) {
          found |= ZeroNonFinite<kStepKeys, kHeadDim * 2, kHeadDim * 2>(values, lane, 32);
          __syncwarp();
        }
        FenceForMatrixReads();  // before the copy engine writes there again
      }
      AddStep(q, keys, values, places, logit.cap_in, mask, key0, visible, softmax);
    }
    // Free the stage.
    __syncwarp();
    if (lane == 0) Arrive(At(shared.empty, stage));
    stage.Next();
    if (i % kLevelSteps == kLevelSteps - 1) {
      level->Take(softmax, !in_level);
      in_level = true;
    }
  }

  // Finish the sums.
  if (in_level) level->Give(softmax);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      softmax.sum[i][h] = ColumnReduce(softmax.sum[i][h], [](float a, float b) { return a + b; });
    }
  }

  // Values that are not finite.
  if (__any_sync(kAllLanes, found)) {
    for (int key0 = slot.first_key + warp * kStepKeys; key0 < tile.key_end; key0 += kDecodeKeys) {
      if (!has_hidden(key0)) continue;
      ForKeys(p, tile, key0, kStepKeys, [&](int key, bool finite, const Cache* values) {
#pragma unroll
        for (int block = 0; block < kDimBlocks; ++block) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float x = ToFloat(values[block * 16 + lane / 4 + j / 2 * 8]);
#pragma unroll
            for (int i = 0; i < kTiles; ++i) {
              AddIfNonFinite(x, visible[i][j % 2], key, finite && softmax.sum[i][j % 2] != 0.0f,
                             softmax.o[block][i][j]);
            }
          }
        }
      });
    }
  }

  // Hand the sums over.
  Wait(At(shared.sums_empty, sums), sums.parity ^ 1);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = i * 8 + lane % 4 * 2 + h;
      if (row >= tile.num_rows) continue;
      if (lane < 4) {
        shared.max[row][warp] = softmax.max[i][h];
        shared.sum[row][warp] = softmax.sum[i][h];
      }
      float* const to = shared.sums[warp][row] + lane / 4;
#pragma unroll
      for (int block = 0; block < kDimBlocks; ++block) {
        to[block * 16] = softmax.o[block][i][h];
        to[block * 16 + 8] = softmax.o[block][i][h + 2];
      }
    }
  }
  Arrive(At(shared.sums_full, sums));
  sums.Next();
}

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

__device__ __forceinline__ void ComputePieces(const Params& p, DecodeMemory& shared, int warp) {
  Place<DecodeMemory::kStages> stage;
  Place<1> sums;
  for (Place<DecodeMemory::kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const DecodeMemory::Slot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    if (slot.tile.num_rows <= 8) {
      ComputePiece<1>(p, shared, slot, stage, sums, warp);
    } else {
      ComputePiece<2>(p, shared, slot, stage, sums, warp);
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
  if (threadIdx.x == 0) {
    const auto init = [](const auto& barriers, int count) {
      for (const auto& barrier : barriers) InitBarrier(SharedAddress(&barrier), count);
    };
    init(shared.slot_full, 32 + 1);
    init(shared.slot_empty, kWriteWarps * 32);
    init(shared.full, 1);
    init(shared.empty, kDecodeWarps);
    init(shared.sums_full, kDecodeWarps * 32);
    init(shared.sums_empty, kWriteWarps * 32);
    FenceBarrierInit();
  }
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
