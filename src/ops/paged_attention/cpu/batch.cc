#include "src/ops/paged_attention/cpu/batch.h"

#include <algorithm>

namespace xla_gpu::paged_attention {
namespace {

// Whether the sequence's indices are as problem.h wants them; only entries of block_tables that a
// query of the sequence reads are looked at.
bool IsValid(const Problem& p, const Buffers& b, int64_t seq) {
  const int64_t begin = b.query_start_loc[seq];
  const int64_t end = b.query_start_loc[seq + 1];
  const int64_t context = b.context_lens[seq];
  if (begin < 0 || begin > end || end > p.tokens) return false;
  if (context < 0 || context > p.max_context()) return false;
  if (begin == end) return true;
  const int32_t* pages = b.block_tables + seq * p.max_pages_per_seq;
  const Segment segment{pages, context, begin, end - begin, context - (end - begin)};
  const int64_t first_page = VisibleKeys(p, segment, segment.pos).begin / p.page_size;
  const int64_t end_page = (context + p.page_size - 1) / p.page_size;
  return std::all_of(pages + first_page, pages + end_page,
                     [&p](int32_t page) { return page >= 0 && page < p.num_pages; });
}

}  // namespace

void Batch::Read(const Problem& p, const Buffers& b) {
  segments.clear();
  invalid_rows.clear();
  unowned_rows.clear();
  const int64_t num_seqs = std::clamp<int64_t>(b.num_seqs[0], 0, p.max_seqs);
  int64_t next = 0;  // rows before it have their owner
  for (int64_t seq = 0; seq < num_seqs; ++seq) {
    const int64_t begin = b.query_start_loc[seq];
    const int64_t end = b.query_start_loc[seq + 1];
    if (begin < next || end < begin || end > p.tokens) return ReadOverlapping(p, b, num_seqs);
    if (begin > next) unowned_rows.push_back({next, begin});
    AddRows(p, b, seq, {begin, end});
    next = end;
  }
  if (next < p.tokens) unowned_rows.push_back({next, p.tokens});
}

void Batch::AddRows(const Problem& p, const Buffers& b, int64_t seq, RowRange rows) {
  if (rows.begin == rows.end) return;
  if (!IsValid(p, b, seq)) {
    invalid_rows.push_back(rows);
    return;
  }
  const int64_t context = b.context_lens[seq];
  segments.push_back({b.block_tables + seq * p.max_pages_per_seq, context, rows.begin,
                      rows.end - rows.begin, context - b.query_start_loc[seq + 1] + rows.begin});
}

// query_start_loc is wrong somewhere: give each row its owner, then take runs of one owner.
void Batch::ReadOverlapping(const Problem& p, const Buffers& b, int64_t num_seqs) {
  segments.clear();
  invalid_rows.clear();
  unowned_rows.clear();
  owners_.assign(static_cast<size_t>(p.tokens), -1);
  for (const bool valid : {false, true}) {
    for (int64_t seq = 0; seq < num_seqs; ++seq) {
      if (IsValid(p, b, seq) != valid) continue;
      const int64_t begin = std::max(b.query_start_loc[seq], 0);
      const int64_t end = std::min<int64_t>(b.query_start_loc[seq + 1], p.tokens);
      for (int64_t row = begin; row < end; ++row) owners_[row] = static_cast<int32_t>(seq);
    }
  }
  for (int64_t begin = 0, end = 0; begin < p.tokens; begin = end) {
    const int32_t owner = owners_[begin];
    while (end < p.tokens && owners_[end] == owner) ++end;
    if (owner < 0) {
      unowned_rows.push_back({begin, end});
    } else {
      AddRows(p, b, owner, {begin, end});
    }
  }
}

}  // namespace xla_gpu::paged_attention
