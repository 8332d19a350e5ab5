// How the keys and values of a piece come to the stages of the Hopper decode kernels: by boxes of
// the tensor copy engine, from the warp that finds the pieces; or, where boxes do not fit the
// pages, row by row, from warps of their own.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_KEYS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_KEYS_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_shared.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kLineRows = LINE_ROWS;
inline constexpr bool kWide = IsWide(kLineRows);
// Else pages hold no boxes, and warps of their own copy single rows.
inline constexpr bool kBoxes = BOXES != 0;
#ifdef CLUSTER
inline constexpr int kClusterBlocks = CLUSTER;  // blocks that share a head: decode_cluster_sm90.cuh
#else
inline constexpr int kClusterBlocks = 0;
#endif
#ifdef PAIRED
inline constexpr bool kPaired = true;  // two clusters share a head, each with whole sequences
#else
inline constexpr bool kPaired = false;
#endif
inline constexpr int kHeadBlocks = kPaired ? 2 * kClusterBlocks : kClusterBlocks;
inline constexpr bool kTokens = kClusterBlocks == 1;  // decode_tokens_sm90.cuh
#ifdef MANY_SEQS
inline constexpr bool kManySeqs = true;  // room for more than a warp has lanes, in clusters
#else
inline constexpr bool kManySeqs = false;
#endif
inline constexpr int kLineWarps = kTokens ? kTokenWarps : kDecodeWarps;
inline constexpr int kFirstWriteWarp = FirstWriteWarp(kBoxes, kLineWarps);
inline constexpr int kWriteWarps = WriteWarps(kLineRows, kBoxes, kTokens);
inline constexpr int kWriteThreads = 32 * kWriteWarps;
inline constexpr int kDecodeThreads = DecodeThreads(kLineRows, kBoxes, kTokens);
#if !defined(CLUSTER)
using DecodeMemory = DecodeShared<kHeadDim, sizeof(Cache), kLineRows, kBoxes>;
#elif CLUSTER > 1
using DecodeMemory = ClusterShared<kHeadDim, sizeof(Cache), kLineRows>;
#else
using DecodeMemory = TokenShared<kHeadDim, sizeof(Cache), kLineRows>;
#endif
// Else the warp that finds the pieces: in clusters its way to the first key counts, elsewhere what
// a short piece takes the warps that write.
inline constexpr bool kWritersLoadQueries = kClusterBlocks > 1;

// Keys, and values, as they lie in a stage.
inline constexpr int kOwnBytes = kHeadDim * static_cast<int>(sizeof(Cache));
inline constexpr int kKeyBytes = PanelBytes(kOwnBytes);
// Where a head's values lie behind its keys in the cache (PAIRS) a box brings both: of each eight
// tokens first the keys, then the values.
inline constexpr bool kPairs = PAIRS != 0;
// Of heads that do not fill their panels a box is of one panel, whose end is zeros; but the values
// of pairs begin where the keys end, in the middle of a panel, and fill the last one.
inline constexpr bool kPadded = kKeyBytes != kOwnBytes && !kPairs;
inline constexpr bool kShifted = kKeyBytes != kOwnBytes && kPairs;
inline constexpr int kBoxBytes = !kBoxes                        ? kKeyBytes
                                 : kPadded                      ? 128
                                 : kKeyBytes > kBoxPanels * 128 ? kBoxPanels * 128
                                                                : kOwnBytes;
inline constexpr int kKeyBoxes = kKeyBytes / kBoxBytes;  // that a key's dimensions take
static_assert(!kPairs || (kBoxes && kKeyBoxes == 1));
inline constexpr int kBoxTokenBytes = (kPairs ? 2 : 1) * kBoxBytes;
inline constexpr int kKeyGroupBytes = 8 * kBoxTokenBytes;  // from eight tokens to the next ones
// From a key to the values; if kShifted to the first whole panel of them.
inline constexpr int kToValues = kShifted ? 2048
                                 : kPairs ? 8 * kBoxBytes
                                          : DecodeMemory::kTileBytes;
inline constexpr int kStageBoxBytes = DecodeMemory::kStageKeys * kBoxBytes;
// Where a panel of a key begins.
__device__ __forceinline__ constexpr int PlaceOfPanel(int panel) {
  const int at = panel * 128;
  return at / kBoxBytes * kStageBoxBytes + at % kBoxBytes / 128 * 1024;
}
__device__ __forceinline__ unsigned PlaceOfKey(int key, int piece) {
  return key / 8 * kKeyGroupBytes + piece / 8 * 1024 + SwizzledChunk(key % 8, piece % 8);
}

__device__ __forceinline__ bool IsPage(const Params& p, int page) {
  return static_cast<unsigned>(page) < static_cast<unsigned>(p.num_pages);
}

// Loads the boxes of all pieces; one warp.
struct KeyBoxes {
  const Params& p;
  const TensorMap& key_boxes;
  const TensorMap& value_boxes;
  DecodeMemory& shared;
  const int lane = threadIdx.x % 32;
  // A lane loads one box of a stage: of keys and values, or of keys, beside one of their values;
  // where keys are padded both.
  static constexpr int kLanesOfKey = kPairs ? 1 : kPadded ? kKeyBoxes : 2 * kKeyBoxes;
  const int boxes = DecodeMemory::kStageKeys / p.box_tokens;  // 2 to 16
  const bool loads = lane < kLanesOfKey * boxes;
  const bool values = !kPairs && !kPadded && lane % 2 != 0;
  const int of_key = (kPadded ? lane : lane / 2) % kKeyBoxes;
  const int lane_key = lane / kLanesOfKey * p.box_tokens;
  const int panels_a_head = kPadded ? 1 : static_cast<int>(p.head_stride / 128);
  Place<DecodeMemory::kStages> stage = {};

  // Blocks with equal work end together if those that memory serves best ask for less: one that has
  // turned its ring half a turn more than the mean fills the rest of it as its other half comes.
  // What they leave to others is no bandwidth lost as long as requests queue.
  unsigned paced = 0;  // blocks that keep pace
  unsigned turns = 0;  // of the ring, the one under way included
  unsigned of_all = 0;
  bool ahead = false;
  __device__ __forceinline__ void KeepPace() {
    constexpr int kHalf = DecodeMemory::kStages / 2;
    if (stage.index == 0) {
      if (turns++ == 0) return;
      WaitForLaunchesBefore();  // the schedule sets the counter
      if (lane == 0) of_all = atomicAdd(&p.header->turns, 1u) + 1;
      return;
    }
    if (stage.index == 1) {
      ahead = (turns - 1) * paced > __shfl_sync(kAllLanes, of_all, 0) + paced / 2;
    }
    if (!ahead) return;
    const bool same_turn = stage.index >= kHalf;
    Wait(At(shared.full, {same_turn ? stage.index - kHalf : stage.index + kHalf, 0}),
         same_turn ? stage.parity : stage.parity ^ 1);
  }

  // The piece that was handed over last, as long as its keys are not under way: the lane's first
  // key of the next stage. Pages are looked up for 32 boxes at a time, a lane one: those of the
  // next stage begin at `box`, and others behind them are on their way.
  struct Piece {
    int stages = 0;
    int slot, seq, key_begin, key_end, panel, key, box;
    int pages[2];
  } piece;

  __device__ __forceinline__ bool Reads(const Piece& of, int key) const {
    return key < of.key_end && key + p.box_tokens > of.key_begin;
  }
  // Of eight tokens.
  __device__ __forceinline__ int GroupInPage(int key) const {
    return (key - PageIndex(p, key) * p.page_size) / 8;
  }
  __device__ __forceinline__ int PageAt(const Piece& of, int key) const {
    if (!Reads(of, key)) return -1;
    return LoadIndex(p.block_tables + static_cast<long long>(of.seq) * p.max_pages +
                     PageIndex(p, key));
  }

  // The piece that is the next one, and on their way its first pages.
  __device__ __forceinline__ Piece Look(const Tile& tile, int slot, int first_key,
                                        int stages) const {
    Piece next;
    next.stages = stages;
    next.slot = slot;
    next.seq = tile.seq;
    next.key_begin = tile.key_begin;
    next.key_end = tile.key_end;
    next.panel = tile.head * panels_a_head;
    next.key = first_key + lane_key;
    next.box = 0;
    next.pages[0] = PageAt(next, first_key + lane * p.box_tokens);
    next.pages[1] = PageAt(next, first_key + (32 + lane) * p.box_tokens);
    return next;
  }

  // Has the first keys and values of a piece brought to the L2.
  __device__ __forceinline__ void Prefetch(const Piece& of) const {
#pragma unroll 1
    for (int i = 0; i < min(of.stages, min(DecodeMemory::kStages, 32 / boxes)); ++i) {
      const int page = __shfl_sync(kAllLanes, of.pages[0], i * boxes + lane / kLanesOfKey);
      const int key = of.key + i * DecodeMemory::kStageKeys;
      if (!loads || !Reads(of, key) || !IsPage(p, page)) continue;
      if constexpr (kPadded) {
        const int dim = of_key * kPanelDims, group = GroupInPage(key);
        PrefetchBox(&key_boxes, dim, 0, group, page, of.panel);
        PrefetchBox(&value_boxes, dim, 0, group, page, of.panel);
      } else {
        PrefetchBox(values ? &value_boxes : &key_boxes, 0, 0, of.panel + of_key * kBoxPanels,
                    GroupInPage(key), page);
      }
    }
  }

  // The keys and values of the piece that waits, if there is one: of so many stages at most.
  __device__ __forceinline__ void Load(int most = 0x7fffffff) {
    for (; piece.stages > 0 && most > 0;
         --most, --piece.stages, piece.key += DecodeMemory::kStageKeys) {
      int page = __shfl_sync(kAllLanes, piece.pages[0], piece.box + lane / kLanesOfKey);
      piece.box += boxes;
      if (piece.box == 32) {
        const int key = piece.key - lane_key + DecodeMemory::kStageKeys;  // of the next stage
        piece.box = 0;
        piece.pages[0] = piece.pages[1];
        piece.pages[1] = PageAt(piece, key + (32 + lane) * p.box_tokens);
      }
      const bool read = loads && Reads(piece, piece.key);
      const bool bad = read && !IsPage(p, page);
      if (bad) page = -1;  // zeros
      if (__any_sync(kAllLanes, bad) && lane == 0) shared.slots[piece.slot].bad = 1;
      const int group = GroupInPage(piece.key);
      const int bytes = __popc(__ballot_sync(kAllLanes, read)) * p.box_tokens *
                        (kPadded ? 2 * kBoxTokenBytes : kBoxTokenBytes);
      if (paced > 0) KeepPace();
      Wait(At(shared.empty, stage), stage.parity ^ 1);
      const unsigned full = At(shared.full, stage);
      if (lane == 0) ArriveExpecting(full, bytes);
      __syncwarp();
      if (read) {
        DecodeMemory::Stage& to = shared.stages[stage.index];
        const unsigned place = SharedAddress(values ? to.values : to.keys) +
                               of_key * kStageBoxBytes + lane_key * kBoxTokenBytes;
        if constexpr (kPadded) {
          const int dim = of_key * kPanelDims;
          CopyBox(place, &key_boxes, full, dim, 0, group, page, piece.panel);
          CopyBox(place + kToValues, &value_boxes, full, dim, 0, group, page, piece.panel);
        } else {
          CopyBox(place, values ? &value_boxes : &key_boxes, full, 0, 0,
                  piece.panel + of_key * kBoxPanels, group, page);
        }
      }
      stage.Next();
    }
  }
};

// Copies the rows of all pieces: each of kRowWarps warps those of its share of a stage's keys, of
// which a lane looks up one, a stage ahead. Eight lanes copy a row, 16 bytes each at a time. Rows
// that the piece does not see, and those of pages out of range, leave what lies there: no result
// depends on it.
__device__ __forceinline__ void CopyKeys(const Params& p, DecodeMemory& shared, int warp) {
  constexpr int kOwnKeys = DecodeMemory::kStageKeys / kRowWarps;
  static_assert(kOwnKeys % 8 == 0 && kOwnKeys <= 32);
  const int lane = threadIdx.x % 32, of_four = lane / 8, chunk = lane % 8;
  const int lane_key = warp * kOwnKeys + lane % kOwnKeys;
  const long long to_values = p.v_cache - p.k_cache;
  const unsigned own = SharedAddress(shared.stages) + PlaceOfKey(warp * kOwnKeys, 0);
  const unsigned places[2] = {own + PlaceOfKey(of_four, chunk),
                              own + PlaceOfKey(of_four + 4, chunk)};
  Place<DecodeMemory::kStages> stage;
  for (Place<DecodeMemory::kSlots> at;; at.Next()) {
    Wait(At(shared.slot_full, at), at.parity);
    DecodeSlot& slot = shared.slots[at.index];
    if (slot.stop != 0) return;
    if (kClusterBlocks == 0 && warp == 0 && lane == 0) Arrive(At(shared.begun, at));
    const int key_begin = slot.tile.key_begin, key_end = slot.tile.key_end;
    const int* const table = p.block_tables + static_cast<long long>(slot.tile.seq) * p.max_pages;
    const char* const head = p.k_cache + slot.tile.head * p.head_stride + chunk * 16;
    const auto reads = [&](int key) { return key >= key_begin && key < key_end; };
    const auto page_at = [&](int key) {
      return reads(key) ? LoadIndex(table + PageIndex(p, key)) : -1;
    };
    int key = slot.first_key + lane_key;
    int page = page_at(key);
    for (int i = slot.stages; i > 0; --i) {
      const bool exists = IsPage(p, page);
      if (reads(key) && !exists) {
        slot.bad = 1;
        __threadfence_block();  // what announces copies does not release it
      }
      const int in_page = key - PageIndex(p, key) * p.page_size;
      const long long row = exists ? page * p.page_stride + in_page * p.token_stride : -1;
      key += DecodeMemory::kStageKeys;
      page = page_at(key);
      Wait(At(shared.empty, stage), stage.parity ^ 1);
      const int to_stage = stage.index * static_cast<int>(sizeof(DecodeMemory::Stage));
#pragma unroll
      for (int j = 0; j < kOwnKeys; j += 4) {
        const long long of = __shfl_sync(kAllLanes, row, j + of_four);
        if (of < 0) continue;
        const unsigned to = places[j / 4 % 2] + to_stage + j / 8 * kKeyGroupBytes;
#pragma unroll
        for (int values = 0; values < 2; ++values) {
          const char* const from = head + of + (values != 0 ? to_values : 0);
#pragma unroll
          for (int panel = 0; panel < kKeyBytes / 128; ++panel) {
            if (kPadded && panel * 128 + chunk * 16 >= kOwnBytes) continue;
            CopyAsync<16>(to + values * kToValues + panel * 1024, from + panel * 128, true);
          }
        }
      }
      ArriveCopied(At(shared.full, stage));
      stage.Next();
    }
    Arrive(At(shared.slot_empty, at));
  }
}

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_KEYS_CUH_
