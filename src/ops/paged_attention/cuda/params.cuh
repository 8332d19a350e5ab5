// What the Host hands to the kernels of one call, and what the kernels hand to each other in the
// workspace. Included by Host and device code: no type of uncertain size, no header that is not so
// too.
//
// Two to four launches make a call:
//   schedule  one block reads the lengths and writes the list of work items
//   decode    where there is a kernel for it: it takes ranges of the line of decode work (line.cuh,
//             decode_sm90.cuh)
//   prefill   where there is a kernel for it: it takes the prefill items (prefill_sm90.cuh), beside
//             decode, which leaves it multiprocessors; over a cache of fp8 or f32 it may be two:
//             one copies keys and values, the next one reads the copy (copy.cuh)
//   attend    as many blocks as the device holds take items from the list until it is empty
// or, for decode alone, two:
//   schedule  the same, but for the list
//   decode    takes everything
// or, for decode of few sequences, one: a cluster of blocks a head (decode_cluster_sm90.cuh); and
// for decode of tokens that see few keys (decode_tokens_sm90.cuh).
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PARAMS_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PARAMS_CUH_

#include "src/ops/paged_attention/options.cuh"

namespace xla_gpu::paged_attention {

// A row is one (query token, query head of the group) pair of a sequence and kv head:
// row = query token * group size + head in group. Items are tiles of consecutive rows.
inline constexpr int kDecodeTileRows = 16;  // the M of one tensor-core instruction
inline constexpr int kMostTileBlocks = 3;   // of Params::tile_blocks
inline constexpr int kSplitTokens = 64;     // KV ranges of decode's splits are multiples of this
inline constexpr int kPrefillSplitTokens = 128;  // and those of prefill's of this
// Batch-invariant mode: the split of a sequence depends on its own length alone.
inline constexpr int kInvariantSplitTokens = 1024;
inline constexpr int kInvariantMaxSplits = 8;

// Sums over more keys go over a carry in the workspace: see carry.cuh. In f32 the errors of others
// would not hide those of the sums.
inline constexpr int kCarryKeys = 8192;
inline constexpr int kF32CarryKeys = 4096;

inline constexpr int kFillTokens = 64;  // of a fill item

inline constexpr int kCopyTokens = 16;  // of a box of the copy of keys and values (copy.cuh)
// Of f32 numbers, in the copy: see terms.cuh.
inline constexpr int kTermsOfDots = 2;  // of keys, and of queries
inline constexpr int kTermsOfValues = 3;

inline constexpr int kCopyThreads = 1024;   // of a block of the launch that makes terms
inline constexpr int kAttendThreads = 128;  // of a block of the attend launch
inline constexpr int kAttendWarps = kAttendThreads / 32;

// A fill item writes the rows of a range of tokens that no sequence owns.
enum ItemKind : int { kDecodeItem = 0, kPrefillItem = 1, kFillItem = 2 };

// A tile of rows of a sequence over a part of its keys: all that attend has to know of it, so that
// its first loads wait for one load alone. Each item stands for kv_heads pieces of work.
struct alignas(16) WorkItem {
  int kind;
  int seq;
  int query_begin;  // row of `query` of the sequence's first query token
  int first_row;    // of the tile, in the sequence; of a fill item: first token of `query`
  int num_rows;     // of the tile
  int rows;         // of the sequence
  int first_pos;    // position of the sequence's first query token
  int key_begin;    // keys of this item that some row may see
  int key_end;      // at least key_begin
  int split;
  int splits;         // 1: the item writes the output itself
  int partial_begin;  // the sequence's first row in the partial results, if splits > 1
};

// One piece of work: an item for one of the kv heads.
struct Tile : WorkItem {
  int head;
  // 1: the prefill launch has done it; of its rows only those count that it marked (by a NaN in
  // their first element, or in their sum if there are splits) or that come out not finite.
  int again;
};

enum SequenceState : int { kUnused = 0, kValid = 1, kInvalid = 2 };

// Without rows, but for line_end all zero, if the sequence is invalid.
struct alignas(16) SequenceInfo {
  int query_begin;  // query_start_loc
  int query_len;
  int context_len;
  // Of its tiles on the line of decode work (line.cuh), if that is cut into ranges; of its tokens
  // in the copy, if there may be one (copy.cuh).
  int line_end;
};

// Of the line of decode work: so many, which share so many blocks equally, and, but for the first,
// begin so many blocks before their shares.
struct LineRanges {
  int count;
  int blocks;
  int before;
};

// What is worst among the sequences.
enum Order : int {
  kProper = 0,
  kSomeInvalid = 1,  // lengths that cannot be meant
  kContested = 2,    // starts descend and rows may be of several sequences: see contested.cuh
};

struct WorkHeader {
  unsigned num_items;     // of the list
  unsigned next_item;     // the next (item, kv head) that nobody has taken
  unsigned num_seqs;      // clamped to [0, max_seqs]
  int order;              // Order
  unsigned any_bad_page;  // 1: some item met a page out of range
  unsigned blocks_done;   // of attend
  // For a prefill launch. The list begins with the prefill items.
  unsigned num_prefill_items;
  unsigned next_prefill;  // the next (item, kv head) of them that nobody has taken
  unsigned num_redo;      // of Params::redo
  unsigned num_merges;    // of Params::merges
  // Of the prefill items the last so many read the copy: they are for the launch behind.
  unsigned num_copied;
  unsigned next_copied;  // as next_prefill, counted from the last
  int copied_tokens;     // of the copy, that are in use
  // For a decode launch.
  int line;                // the length of the line of decode work, 0 if there is none
  LineRanges ranges;       // that it is cut into
  unsigned decode_blocks;  // the first so many work, the others leave their room to prefill
  unsigned next_unit;      // the next (range, kv head), or (item, kv head), that nobody has taken
  unsigned turns;          // of the rings of all its blocks
  int has_fills;           // 1: some rows belong to no sequence, and no item fills them
};

// x / d for 0 <= x < 2^31 is (x * magic) >> (32 + shift), if d is not 1: then magic is 0.
struct Divisor {
  unsigned magic;
  int shift;
};

struct Params : Options {
  // Tensors. The cache bases have the layout's offset applied.
  const void* query;
  const char* k_cache;
  const char* v_cache;
  const int* context_lens;
  const int* block_tables;
  const int* query_start_loc;
  const int* num_seqs;
  const float* sinks;
  const float* k_scale;
  const float* v_scale;
  const float* k_token_scales;  // [num_pages, page_size, kv_heads]
  const float* v_token_scales;
  void* out;
  float* lse;

  // Workspace.
  WorkHeader* header;
  SequenceInfo* sequences;  // [max_seqs]
  int* owner_end;           // [max_seqs]: rows of valid sequences end here; not if contested
  int* state;               // [max_seqs]: SequenceState
  WorkItem* items;          // [item_capacity]
  unsigned* redo;           // [item_capacity * kv_heads]: (item, kv head) pairs that the prefill
                            // launch leaves to attend
  int* merges;              // [item_capacity]: the first items of prefill tiles that are split
  float* partial_max;       // [partial_capacity], natural logarithm units
  float* partial_sum;       // [partial_capacity]
  float* partial_out;       // [partial_capacity, head_dim], not normalised
  float* carry;             // null unless the context may exceed kCarryKeys
  char* copied_keys;        // [terms, copy_capacity / kCopyTokens, kv_heads, kCopyTokens, head_dim]
  char* copied_values;      // of the query's type, or the terms'
  unsigned* arrivals;       // [partial_capacity]: splits done, at the tile's first row of split 0;
                            // behind a prefill launch those to be done again (kAgainDone)

  // Cache strides in bytes, the same for K and V.
  long long page_stride;
  long long token_stride;
  long long head_stride;

  int tokens;
  int q_heads;
  int kv_heads;
  int group_size;
  int head_dim;
  int num_pages;
  int page_size;
  Divisor by_group;  // of rows
  Divisor by_page;   // of keys
  int box_tokens;    // of one copy of keys or values by the tensor copy engine
  int max_seqs;
  int max_pages;
  int k_scale_step;  // 0: one scale for all heads, 1: one a head
  int v_scale_step;
  int window;  // 0: none

  // For the schedule.
  int max_context;
  int workers;  // blocks of the attend launch
  int workers_per_sm;
  int prefill_workers;    // blocks of the launch that takes the prefill items
  int prefill_launch;     // 1: there is such a launch, 0: they are of attend
  int copied_only;        // 1: it takes those that read the copy, attend the others
  int prefill_tile_rows;  // a power of two, or three times one
  int own_work;  // 1: the launch behind the schedule finds its first work from the lengths, if it
                 // can
  int appended;  // 1: the launch in front writes keys and values too: they are read behind its end
  int copy_capacity;    // tokens; 0: nothing is copied
  int least_copy_rows;  // of a sequence that see a key, for which a copy pays
  int copied_workers;   // as prefill_workers and prefill_tile_rows, of the launch that reads the
                        // copy
  int copied_tile_rows;
  int decode_max_rows;   // sequences of at most so many rows go the decode way, on the line or not
  int decode_ranges;     // most ranges of the line of decode work; 0: decode items
  int line_rows;         // of a tile of the line
  int tile_blocks;       // that a tile's start and end take on the line
  int line_partials;     // first row of the line's partial results
  int line_only;         // 1: the decode launch does all work, also such as is in items
  int decode_workers;    // blocks of that launch
  int partial_capacity;  // of items
  int item_capacity;
};

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_PARAMS_CUH_
