// The warp of the Hopper decode kernel that loads: it finds the pieces of work, and brings their
// keys and values.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LOAD_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LOAD_CUH_

#include "src/ops/paged_attention/cuda/decode_sm90_shared.cuh"
#include "src/ops/paged_attention/cuda/line.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_tile.cuh"

namespace xla_gpu::paged_attention::sm90 {

inline constexpr int kLineRows = LINE_ROWS;
inline constexpr bool kWide = IsWide(kLineRows);
inline constexpr int kWriteWarps = WriteWarps(kLineRows);
inline constexpr int kDecodeThreads = DecodeThreads(kLineRows, BOXES);
static_assert(BOXES || !kWide);  // matrix instructions do not see what CopyAsync has copied
#ifdef CLUSTER
inline constexpr int kClusterBlocks = CLUSTER;  // blocks that share a head: decode_cluster_sm90.cuh
using DecodeMemory = ClusterShared<kHeadDim, sizeof(Cache), kLineRows>;
#else
inline constexpr int kClusterBlocks = 0;
using DecodeMemory = DecodeShared<kHeadDim, sizeof(Cache), kLineRows>;
#endif

// Keys, and values, as they lie in a stage.
inline constexpr int kKeyBytes = kHeadDim * static_cast<int>(sizeof(Cache));
inline constexpr int kBoxBytes = kKeyBytes < kBoxPanels * 128 ? kKeyBytes : kBoxPanels * 128;
inline constexpr int kKeyBoxes = kKeyBytes / kBoxBytes;  // that a key's dimensions take
inline constexpr int kKeyGroupBytes = 8 * kBoxBytes;     // of a box
inline constexpr int kStageBoxBytes = DecodeMemory::kStageKeys * kBoxBytes;
inline constexpr int kKeyPieces = kKeyBytes / 16;
__device__ __forceinline__ unsigned PlaceOfKey(int key, int piece) {
  return key / 8 * kKeyGroupBytes + piece / 8 * 1024 + SwizzledChunk(key % 8, piece % 8);
}

// Rows that are computed for a tile of so many.
__device__ __forceinline__ int ComputedRows(int rows) {
  if constexpr (kWide) return rows <= 16 ? 16 : 32;
  return rows <= 8 ? 8 : 16;
}

// Where boxes do not fit the pages keys are looked up and copied one by one, and two warps do it.
enum class Loads { kAll, kKeys, kValues };

struct Loader {
  const Params& p;
  const TensorMap& key_boxes;
  const TensorMap& value_boxes;
  DecodeMemory& shared;
  const int lane = threadIdx.x % 32;
  // A lane loads one box of a stage: of keys, or, beside it, of their values, since they lie side
  // by side in an interleaved cache.
  const int box_tokens = BOXES ? p.box_tokens : 1;
  const int boxes = DecodeMemory::kStageKeys / box_tokens;  // 2 to 16
  const bool loads = lane < 2 * kKeyBoxes * boxes;
  const bool values = lane % 2 != 0;
  const int of_key = lane / 2 % kKeyBoxes;
  const int lane_box = lane / 2 / kKeyBoxes;
  const int panels_a_head = static_cast<int>(p.head_stride / 128);
  Place<DecodeMemory::kStages> stage = {};
  Place<DecodeMemory::kSlots> slot = {};

  // The piece that was handed over last, as long as its keys are not under way: the first key of
  // the next stage, and which box it is of those whose pages the lanes have. They look them up
  // many at a time, and as many again ahead, so that they are there when they are needed also where
  // memory is busy.
  static constexpr int kLanePages = BOXES ? 1 : DecodeMemory::kStageKeys / 32;
  static constexpr int kBoxes = 32 * kLanePages;
  struct Piece {
    int stages = 0;
    int slot, seq, head, key_begin, key_end, key, box;
    int pages[2][kLanePages];
  } piece;

  __device__ __forceinline__ bool Reads(const Piece& of, int key) const {
    return key < of.key_end && key + box_tokens > of.key_begin;
  }
  __device__ __forceinline__ void LookUp(const Piece& of, int first_box,
                                         int (&pages)[kLanePages]) const {
    const int* const table = p.block_tables + static_cast<long long>(of.seq) * p.max_pages;
#pragma unroll
    for (int j = 0; j < kLanePages; ++j) {
      const int key = of.key + (first_box + j * 32 + lane) * box_tokens;
      pages[j] = Reads(of, key) ? LoadIndex(table + PageIndex(p, key)) : -1;
    }
  }
  __device__ __forceinline__ Piece PieceOf(const Tile& tile) const {
    Piece of;
    of.slot = slot.index;
    of.seq = tile.seq;
    of.head = tile.head;
    of.key_begin = tile.key_begin;
    of.key_end = tile.key_end;
    of.key = tile.key_begin / kSplitTokens * kSplitTokens;
    of.box = 0;
    of.stages =
        tile.key_end > tile.key_begin
            ? (tile.key_end - of.key + DecodeMemory::kStageKeys - 1) / DecodeMemory::kStageKeys
            : 0;
    LookUp(of, 0, of.pages[0]);
    LookUp(of, kBoxes, of.pages[1]);
    return of;
  }

  __device__ __forceinline__ bool IsPage(int page) const {
    return static_cast<unsigned>(page) < static_cast<unsigned>(p.num_pages);
  }

  // Starts to copy the queries of a piece. Rows that do not exist become zeros.
  __device__ __forceinline__ void LoadQueries(const Tile& tile) {
#pragma unroll 1
    for (int row = lane / 2; row < ComputedRows(tile.num_rows); row += 16) {
      const bool exists = row < tile.num_rows;
      const Query* from = static_cast<const Query*>(p.query);
      if (exists) from += QueryRow(p, tile, row) * kHeadDim;
#pragma unroll
      for (int i = lane % 2; i < kTileDims / 8; i += 2) {
        const unsigned place =
            kWide ? PlaceInTile(row, i) : row * DecodeMemory::kQueryStride + i * 16;
        CopyAsync<16>(SharedAddress(shared.queries[slot.index]) + place, from + i * 8, exists);
      }
    }
  }

  // Hands a piece to the warps that compute and write, and then loads the keys of the one before:
  // so this one's pages, and the next piece, are found meanwhile.
  __device__ __forceinline__ void Take(const Tile& tile, unsigned* arrivals, bool bad = false) {
    const Piece next = PieceOf(tile);
    Wait(At(shared.slot_empty, slot), slot.parity ^ 1);
    DecodeSlot& to = shared.slots[slot.index];
    LoadQueries(tile);
    if (lane == 0) {
      to.tile = tile;
      to.first_key = next.key;
      to.stages = next.stages;
      to.arrivals = arrivals;
      to.stop = 0;
      to.bad = bad;
    }
    HandOver();
    LoadPiece();
    piece = next;
  }

  __device__ __forceinline__ void HandOver() {
    ArriveCopied(At(shared.slot_full, slot));
    if (lane == 0) Arrive(At(shared.slot_full, slot));
    slot.Next();
  }

  // What this warp loads of the piece that waits, if there is one.
  __device__ __forceinline__ void LoadPiece() {
    if constexpr (BOXES) {
      LoadStages<Loads::kAll>();
    } else {
      LoadStages<Loads::kKeys>();
    }
  }
  template <Loads kLoads>
  __device__ __forceinline__ void LoadStages() {
    for (; piece.stages > 0; --piece.stages) {
      if (piece.box == 0) {
        bool bad = false;
#pragma unroll
        for (int j = 0; j < kLanePages; ++j) {
          const bool is_page = IsPage(piece.pages[0][j]);
          bad |= !is_page && Reads(piece, piece.key + (j * 32 + lane) * box_tokens);
          if (!is_page) piece.pages[0][j] = -1;  // zeros
        }
        if (kLoads != Loads::kValues && __any_sync(kAllLanes, bad) && lane == 0) {
          shared.slots[piece.slot].bad = 1;
        }
      }
      if constexpr (kLoads == Loads::kAll) {
        LoadBoxes();
      } else {
        LoadRows<kLoads == Loads::kValues>();
      }
      stage.Next();
    }
  }

  // The pages of the next stage.
  __device__ __forceinline__ void NextPages() {
    piece.key += DecodeMemory::kStageKeys;
    piece.box = (piece.box + boxes) % kBoxes;
    if (piece.box != 0) return;
#pragma unroll
    for (int j = 0; j < kLanePages; ++j) piece.pages[0][j] = piece.pages[1][j];
    LookUp(piece, kBoxes, piece.pages[1]);
  }

  // The keys and values of a stage.
  __device__ __forceinline__ void LoadBoxes() {
    const int lane_key = lane_box * box_tokens, key = piece.key + lane_key;
    const int page = __shfl_sync(kAllLanes, piece.pages[0][0], piece.box + lane_box);
    const bool read = loads && Reads(piece, key);
    const int group = (key - PageIndex(p, key) * p.page_size) / 8;
    const int bytes = __popc(__ballot_sync(kAllLanes, read)) * box_tokens * kBoxBytes;
    NextPages();
    Wait(At(shared.empty, stage), stage.parity ^ 1);
    const unsigned full = At(shared.full, stage);
    if (lane == 0) ArriveExpecting(full, bytes);
    __syncwarp();
    if (!read) return;
    DecodeMemory::Stage& to = shared.stages[stage.index];
    CopyBox(SharedAddress(values ? to.values : to.keys) + of_key * kStageBoxBytes +
                lane_key * kBoxBytes,
            values ? &value_boxes : &key_boxes, full, 0, 0,
            piece.head * panels_a_head + of_key * kBoxPanels, group, page);
  }

  // The keys, or the values, of a stage: eight lanes copy one.
  template <bool kValues>
  __device__ __forceinline__ void LoadRows() {
    constexpr int kPanels = kKeyPieces / 8;
    const char* const base = (kValues ? p.v_cache : p.k_cache) + piece.head * p.head_stride;
    unsigned long long rows[kLanePages];
#pragma unroll
    for (int j = 0; j < kLanePages; ++j) {
      const int page = piece.pages[0][j], key = piece.key + j * 32 + lane;
      const int in_page = key - PageIndex(p, key) * p.page_size;
      const char* const row = base + page * p.page_stride + in_page * p.token_stride;
      rows[j] = page < 0 ? 0 : reinterpret_cast<unsigned long long>(row);
    }
    NextPages();
    Wait(At(shared.empty, stage), stage.parity ^ 1);
    DecodeMemory::Stage& to = shared.stages[stage.index];
    const unsigned tile = SharedAddress(kValues ? to.values : to.keys);
    const int first = lane / 8, chunk = lane % 8;
    const unsigned places[2] = {tile + PlaceOfKey(first, chunk),
                                tile + PlaceOfKey(first + 4, chunk)};
#pragma unroll
    for (int i = 0; i < DecodeMemory::kStageKeys; i += 4) {
      const unsigned long long row = __shfl_sync(kAllLanes, rows[i / 32], i % 32 + first);
      const char* const from = reinterpret_cast<const char*>(row) + chunk * 16;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        CopyAsync<16>(places[i / 4 % 2] + i / 8 * kKeyGroupBytes + panel * 1024, from + panel * 128,
                      row != 0);
      }
    }
    ArriveCopied(At(shared.full, stage));
    if (!kValues && lane == 0) Arrive(At(shared.full, stage));  // what it says of bad pages
  }

  // A warp of its own where boxes do not fit: the values of all pieces.
  __device__ __forceinline__ void LoadValues() {
    for (;; slot.Next()) {
      Wait(At(shared.slot_full, slot), slot.parity);
      if (shared.slots[slot.index].stop != 0) return;
      piece = PieceOf(shared.slots[slot.index].tile);
      Arrive(At(shared.slot_empty, slot));
      LoadStages<Loads::kValues>();
    }
  }

  // Sequences [first_seq, first_seq + 32), one a lane.
  SequenceInfo info = {};
  LinePart part = {};
  int first_seq = 0;
  __device__ __forceinline__ SequenceInfo Sequence(int seq, int count) const {
    return seq < count ? p.sequences[seq] : SequenceInfo{0, 0, 0, 0x7fffffff};
  }
  __device__ __forceinline__ void LookAt(int seq, const SequenceInfo& of_lane) {
    first_seq = seq;
    info = of_lane;
    part = LinePartOf(p, info);
  }

  // All tiles, or parts of them, that lie in [begin, begin + length) of the line.
  __device__ __forceinline__ void LoadRange(int begin, int length, int num_seqs, int head) {
    // The sequence at the range's begin: the first that ends behind it.
    int low = 0, count = num_seqs;
    while (count > 32) {
      const int step = (count + 31) / 32;
      const int last = min(low + (lane + 1) * step, low + count) - 1;
      const unsigned behind = __ballot_sync(kAllLanes, p.sequences[last].line_end > begin);
      const int of = __ffs(static_cast<int>(behind)) - 1;
      const int end = low + count;
      low += of * step;
      count = min(step, end - low);
    }
    if (low != first_seq) LookAt(low, Sequence(low + lane, num_seqs));
    int at = __ffs(static_cast<int>(__ballot_sync(kAllLanes, info.line_end > begin))) - 1;
    const int end = begin + length;
    const auto from = [&](int x) { return __shfl_sync(kAllLanes, x, at); };
    while (first_seq + at < num_seqs) {
      const LinePart of = {from(part.tiles), from(part.first_block), from(part.blocks)};
      const SequenceInfo seq = {from(info.query_begin), from(info.query_len),
                                from(info.context_len), from(info.line_end)};
      const int tile_length = of.TileLength();
      const int first = seq.line_end - of.tiles * tile_length;
      if (first >= end) return;
      int tile = of.tiles > 1 && first < begin ? (begin - first) / tile_length : 0;
      for (; tile < of.tiles; ++tile) {
        const int place = first + tile * tile_length;
        if (place >= end) return;
        LoadTile(seq, of, first_seq + at, tile, place, begin, length, head);
      }
      if (++at == 32) {
        LookAt(first_seq + 32, Sequence(first_seq + 32 + lane, num_seqs));
        at = 0;
      }
    }
  }

  // The part of a tile, which begins at `place`, in the range.
  __device__ __forceinline__ void LoadTile(const SequenceInfo& info, const LinePart& of, int seq,
                                           int index, int place, int begin, int length, int head) {
    const int from = max(begin - place, 0), to = min(begin + length - place, of.blocks);
    if (from > 0 && from >= to) return;  // of the tile only its end
    Tile tile;
    tile.kind = kDecodeItem;
    tile.seq = seq;
    tile.query_begin = info.query_begin;
    tile.first_row = index * kLineRows;
    tile.num_rows = min(kLineRows, info.query_len * p.group_size - tile.first_row);
    tile.rows = PartRows(p);
    tile.first_pos = info.context_len - info.query_len;
    const Keys keys = KeysOf(p, info, tile.first_row, tile.num_rows);
    tile.key_begin = max(keys.begin, (of.first_block + from) * kSplitTokens);
    tile.key_end = max(tile.key_begin, min(keys.end, (of.first_block + to) * kSplitTokens));
    const auto range_of = [&](int place) {
      if constexpr (kClusterBlocks == 0) return place / length;
      return __popc(__ballot_sync(kAllLanes, place >= (lane + 1) * length));  // no more than 32
    };
    const int first = range_of(place);
    tile.split = range_of(begin) - first;
    tile.splits = range_of(place + max(of.blocks, 1) - 1) - first + 1;
    // Tiles that are split begin in different ranges, and end before, or in, the next one's first:
    // of twice as many places as there are ranges each has its own.
    tile.partial_begin = p.line_partials + 2 * first * p.kv_heads * tile.rows - tile.first_row;
    tile.head = head;
    tile.again = 0;
    // Other tiles of the sequence may see keys that this one does not.
    const int seen = p.window == 0 ? 0 : max(0, tile.first_pos - p.window + 1);
    const bool bad =
        of.tiles > 1 && HasBadPage(seq, max(seen, (of.first_block + from) * kSplitTokens),
                                   min(info.context_len, (of.first_block + to) * kSplitTokens));
    unsigned* arrivals = nullptr;
    if constexpr (kClusterBlocks == 0)
      arrivals = p.arrivals + p.line_partials + first * p.kv_heads + head;
    Take(tile, arrivals, bad);
  }

  // Whether a page of keys [begin, end) of a sequence is out of range.
  __device__ __forceinline__ bool HasBadPage(int seq, int begin, int end) const {
    bool bad = false;
    const int pages = end > begin ? PageIndex(p, end - 1) + 1 : 0;
#pragma unroll 1
    for (int i = PageIndex(p, begin) + lane; i < pages; i += 32) {
      bad |= !IsPage(LoadIndex(p.block_tables + static_cast<long long>(seq) * p.max_pages + i));
    }
    return __any_sync(kAllLanes, bad);
  }

  __device__ __forceinline__ void Run() {
    WaitForLaunchesBefore();
    LetNextLaunchBegin();  // not before: prefill does not wait for the schedule
    const SequenceInfo early = Sequence(lane, p.max_seqs);  // beside the header, not after it
    const WorkHeader header = *p.header;
    if (lane == 0) shared.has_fills = header.has_fills;
    const int num_seqs = static_cast<int>(header.num_seqs);
    LookAt(0, lane < num_seqs ? early : Sequence(lane, 0));
    const unsigned kv_heads = static_cast<unsigned>(p.kv_heads);
    const unsigned units = header.line > 0
                               ? static_cast<unsigned>((header.line - 1) / header.range_blocks + 1)
                           : p.line_only != 0 ? header.num_items
                                              : 0;
    const bool works = blockIdx.x < header.decode_blocks;
    for (unsigned unit = blockIdx.x; works && unit < units * kv_heads;) {
      unsigned next = 0;
      if (lane == 0) next = atomicAdd(&p.header->next_unit, 1u);
      const unsigned at = unit / kv_heads;
      const int head = static_cast<int>(unit - at * kv_heads);
      if (header.line > 0) {
        LoadRange(static_cast<int>(at) * header.range_blocks, header.range_blocks, num_seqs, head);
      } else if (p.items[at].kind == kDecodeItem) {
        Take(Tile{p.items[at], head, 0}, nullptr);
      }
      LoadPiece();
      unit = __shfl_sync(kAllLanes, next, 0);
    }
    Stop();
  }

  __device__ __forceinline__ void Stop() {
    Wait(At(shared.slot_empty, slot), slot.parity ^ 1);
    if (lane == 0) shared.slots[slot.index].stop = 1;
    HandOver();
  }
};

}  // namespace xla_gpu::paged_attention::sm90

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_DECODE_SM90_LOAD_CUH_
