#include <cmath>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>
#include <gtest/gtest.h>
#include "src/ops/paged_attention/cuda/config_testing.h"
#include "src/ops/paged_attention/cuda/launch.h"
namespace xla_gpu { using paged_attention::Problem; }
#define IsDecode DeviceIsDecode
#define Shape DeviceShape
#define SCHEDULE_THREADS 128
#define LINE_ONLY 0
#include "src/ops/paged_attention/cuda/schedule.cuh"
#include "src/ops/paged_attention/cuda/prefill_sm90_shared.cuh"
#ifdef FIRST
namespace xla_gpu::paged_attention::sm90 {
inline constexpr int kBlocks = 1;
inline int BlockRank() { return 0; }
using Shared = PrefillShared<128, false>;
using Slot = Shared::Slot;
#include "first.inc"
}
#endif
using namespace xla_gpu; using namespace xla_gpu::paged_attention;
template <class F> void Run(int threads, unsigned block, F f) {
  g_threads = threads; g_block = new std::barrier<>(threads);
  for (int w = 0; w < threads / 32; ++w) g_warp[w] = new std::barrier<>(32);
  std::vector<std::thread> t;
  for (int i = 0; i < threads; ++i) t.emplace_back([=] { threadIdx.x = i; blockIdx.x = block; f(); });
  for (auto& x : t) x.join();
}
int main(int argc, char** argv) {
  std::mt19937 rng(1);
  auto draw = [&](int a, int b) { return a + int(rng() % (b - a + 1)); };
  long checked = 0, known = 0, wrong = 0;
  for (int c = 0; c < atoi(argv[1]); ++c) {
    Problem problem = MakePrefill();
    const int seqs = std::vector<int>{1, 1, 2, 3, 5, 7, 20, 40}[draw(0, 7)];
    if (seqs >= 8 && draw(0, 1)) { problem.head_dim = 80; }
    problem = seqs >= 8 && draw(0, 1) ? MakePrefill(DType::kBF16, 80) : MakePrefill();
    problem.max_seqs = seqs; problem.tokens = 1 << draw(6, 12);
    if (problem.tokens <= 4 * seqs) problem.tokens = 8 * seqs;
    problem.batch_invariant = draw(0, 9) == 0; problem.causal = draw(0, 4) > 0;
    problem.sliding_window = draw(0, 4) == 0 ? draw(1, 3000) : 0;
    const Config config = Choose(problem, kH200);
    if (!config.prefill_sm90) continue;
    auto planned = PlanParams(problem, config);
    std::vector<char> ws(planned.workspace.total_bytes + 256);
    Buffers buffers{};
    char* base = ws.data(); base += (256 - reinterpret_cast<size_t>(base) % 256) % 256;
    buffers.workspace = base;
    Params p = *MakeParams(planned, buffers);
    std::vector<int> starts(seqs + 1), ctx(seqs), table(seqs * p.max_pages);
    const int style = draw(0, 5);
    const int most = problem.max_context();
    for (int s = 0; s < seqs; ++s) {
      int left = p.tokens - starts[s];
      int len = style == 0 ? p.tokens / seqs : style == 1 ? draw(0, left) : std::min(left, draw(0, 3) ? draw(0, 2 * p.tokens / seqs) : draw(0, 5));
      starts[s + 1] = starts[s] + len;
      ctx[s] = std::min(most, len + (draw(0, 1) ? draw(0, most) : 0));
      if (style == 4 && draw(0, 3) == 0) ctx[s] = draw(-3, most + 5);
      if (style == 5 && draw(0, 3) == 0) starts[s + 1] = draw(-1, p.tokens + 2);
    }
    int num = draw(0, 3) ? seqs : draw(-1, seqs + 1);
    p.query_start_loc = starts.data(); p.context_lens = ctx.data(); p.num_seqs = &num; p.block_tables = table.data();
    Run(128, 0, [&] { Schedule(p); });
    const WorkHeader h = *p.header;
    unsigned long long hash = 1469598103934665603ull;
    auto add = [&](const void* x, size_t n) { for (size_t i = 0; i < n; ++i) hash = (hash ^ ((const unsigned char*)x)[i]) * 1099511628211ull; };
    const unsigned det = h.order == kContested ? 0 : h.num_items;
    add(p.items, det * sizeof(WorkItem));
    int whole = 1; for (unsigned i = 0; i < h.num_prefill_items; ++i) whole &= p.items[i].splits == 1;
    printf("%d seqs %d items %u prefill %u order %d merges %u next %u line %d range %d blocks %u fills %d whole %d hash %llx\n", c, seqs, h.num_items, h.num_prefill_items, h.order, h.num_merges, h.next_prefill, h.line, h.line ? h.range_blocks : 0, h.decode_blocks, h.has_fills, whole, hash);
#ifdef FIRST
    if (p.first_pieces) {
      static sm90::Shared shared;
      for (int b : {0, 1, p.prefill_workers / 2, p.prefill_workers - 2, draw(0, p.prefill_workers - 2)}) {
        memset(&shared.slots[0], 0x55, sizeof(shared.slots[0]));
        bool found[32];
        Run(32, b, [&] { found[threadIdx.x] = sm90::FindFirst(p, shared); });
        ++checked;
        for (int i = 1; i < 32; ++i) if (found[i] != found[0]) ++wrong, printf("lanes differ\n");
        if (!found[0]) continue;
        ++known;
        const auto& slot = shared.slots[0];
        const bool stop = unsigned(b) >= h.num_prefill_items * p.kv_heads;
        WorkItem item = p.items[b / p.kv_heads]; WorkItem mine = slot.tile;
        item.partial_begin = mine.partial_begin = 0;
        if (h.order == kContested || !whole || slot.stop != stop || slot.piece != unsigned(b) || slot.redo || slot.zeroed || (!stop && (memcmp(&item, &mine, sizeof(item)) || slot.tile.head != b % p.kv_heads))) ++wrong, printf("WRONG block %d\n", b);
      }
    }
#endif
  }
  fprintf(stderr, "checked %ld known %ld wrong %ld\n", checked, known, wrong);
}
