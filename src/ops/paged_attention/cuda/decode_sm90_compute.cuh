// The warps of the Hopper decode kernels that compute: 16 keys of each stage each. Keys and values
// are the first operands of the products, queries and weights the second: logits and sums lie
// transposed in the registers, and eight rows cost no more than they must.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_COMPUTE_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_COMPUTE_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_load.cuh"
#include "src/ops/paged_attention/cuda/decode_sm90_softmax.cuh"
#include "src/ops/paged_attention/cuda/non_finite.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kWarpBytes = kStepKeys * kHeadDim * 2;  // of a warp's keys in a stage
// So many steps of a warp are added up in the tensor cores' accumulators, whose sums lose a little
// every time, before they go to a second level.
inline constexpr int kLevelSteps = 4096 / kStepKeys;

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

__device__ __forceinline__ void ComputePieces(const Params& p, DecodeMemory& shared, int warp) {
  Place<DecodeMemory::kStages> stage;
  Place<1> sums;
  for (Place<DecodeMemory::kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    const DecodeMemory::Slot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    if (kLineRows == 8 || slot.tile.num_rows <= 8) {
      ComputePiece<1>(p, shared, slot, stage, sums, warp);
    } else if constexpr (kLineRows > 8) {
      ComputePiece<2>(p, shared, slot, stage, sums, warp);
    }
  }
}

__device__ __forceinline__ void InitDecodeBarriers(DecodeMemory& shared) {
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

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_COMPUTE_CUH_
