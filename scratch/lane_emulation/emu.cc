#include <cmath>
#include <cstdio>
#include <random>
#include <map>
#include <thread>
#include <vector>
#include <gtest/gtest.h>
#include "src/ops/paged_attention/cuda/config_testing.h"
#include "src/ops/paged_attention/cuda/launch.h"
namespace xla_gpu { using paged_attention::Problem; }
#define IsDecode DeviceIsDecode
#define Shape DeviceShape
#define SCHEDULE_THREADS 128
#define LINE_ONLY 1
#ifndef ROWS
#define ROWS 32
#endif
#include "src/ops/paged_attention/cuda/schedule.cuh"
#define LINE_ROWS ROWS
#define PAIRS 1
#include "src/ops/paged_attention/cuda/decode_sm90_load.cuh"
using namespace xla_gpu; using namespace xla_gpu::paged_attention;
template <class F> void Run(int threads, unsigned block, F f) {
  g_threads = threads; g_block = new std::barrier<>(threads);
  for (int w = 0; w < (threads + 31) / 32; ++w) g_warp[w] = new std::barrier<>(32);
  std::vector<std::thread> t;
  for (int i = 0; i < threads; ++i) t.emplace_back([=] { threadIdx.x = i; blockIdx.x = block; f(); });
  for (auto& x : t) x.join();
}
int main(int argc, char** argv) {
  std::mt19937 rng(atoi(argv[2]));
  auto draw = [&](int a, int b) { return a + int(rng() % (b - a + 1)); };
  long cases = 0, pieces = 0, wrong = 0;
  for (int c = 0; c < atoi(argv[1]); ++c) {
    Problem problem = MakeProblem();
    const int seqs = std::vector<int>{9, 20, 33, 64, 100}[draw(0, 4)];
    problem.max_seqs = seqs; problem.tokens = seqs;
    problem.kv_heads = draw(1, 3); problem.q_heads = problem.kv_heads * (ROWS == 32 ? draw(17, 40) : draw(1, 8));
    problem.causal = true; problem.sliding_window = draw(0, 4) == 0 ? draw(1, 3000) : 0;
    const Config config = Choose(problem, kH200);
    if (!config.line_only || config.decode_cluster || PlanParams(problem, config).params.line_rows != ROWS) { printf("skip\n"); continue; }
    auto planned = PlanParams(problem, config);
    std::vector<char> ws(planned.workspace.total_bytes + 256);
    Buffers buffers{};
    char* base = ws.data(); base += (256 - reinterpret_cast<size_t>(base) % 256) % 256;
    buffers.workspace = base;
    Params p = *MakeParams(planned, buffers);
    std::vector<int> starts(seqs + 1), ctx(seqs), table(seqs * p.max_pages);
    const int style = draw(0, 3), most = std::min<int>(problem.max_context(), draw(0, 1) ? 3000 : 300);
    for (int s = 0; s < seqs; ++s) {
      int left = p.tokens - starts[s];
      int len = style == 0 ? 1 : std::min(left, draw(0, 4) ? draw(0, 2) : draw(0, 9));
      starts[s + 1] = starts[s] + len;
      ctx[s] = style == 1 ? most : len + draw(0, most - 10);
      if (style == 3 && draw(0, 5) == 0) ctx[s] = -1;
    }
    int num = seqs;
    p.query_start_loc = starts.data(); p.context_lens = ctx.data(); p.num_seqs = &num; p.block_tables = table.data();
    Run(128, 0, [&] { Schedule(p); });
    const WorkHeader h = *p.header;
    ++cases;
    static sm90::DecodeMemory shared;
    Run(sm90::kDecodeThreads, 0, [&] { sm90::FindOwnLine(p, shared); });
    // rows of a sequence -> parts
    struct Part { int begin, end, split, splits, partial, rows; };
    std::map<std::pair<int, int>, std::vector<Part>> found;
    std::map<unsigned*, std::pair<int,int>> by_arrivals;
    sm90::Loader::Work got{};
    for (int b = 0; b < p.decode_workers; ++b) {
      unsigned n = 0;
      std::function<void()> record = [&] {
        const auto& slot = shared.slots[n++ % sm90::DecodeMemory::kSlots];
        if (slot.stop) return;
        const Tile& t = slot.tile;
        if (t.head != 0) return;
        found[{t.seq, t.first_row}].push_back({t.key_begin, t.key_end, t.split, t.splits, t.partial_begin, t.num_rows});
        ++pieces;
        if (t.splits > 1) { auto [it, fresh] = by_arrivals.insert({slot.arrivals, {t.seq, t.first_row}}); if (it->second != std::pair<int,int>{t.seq, t.first_row}) ++wrong, printf("arrivals shared\n"); }
      };
      g_arrive = &record;
      xla_gpu::TensorMap keys{};
      Run(32, b, [&] { sm90::Loader loader{p, keys, keys, shared}; loader.Run(); });
      g_arrive = nullptr;
    }
    const int group = p.group_size;
    for (int s = 0; s < seqs; ++s) {
      const int len = starts[s + 1] - starts[s];
      if (ctx[s] < 0) continue;
      for (int row = 0; row < len * group; row += ROWS) {
        auto parts = found[{s, row}]; found.erase({s, row});
        const int rows = std::min(ROWS, len * group - row);
        const int first_pos = ctx[s] - len;
        int begin = p.window ? std::max(0, first_pos + row / group - p.window + 1) : 0;
        int end = std::max(first_pos + (row + rows - 1) / group + 1, begin);
        std::sort(parts.begin(), parts.end(), [](auto& a, auto& b) { return a.split < b.split; });
        bool ok = !parts.empty(); int at = begin;
        for (size_t i = 0; i < parts.size(); ++i) {
          ok &= parts[i].split == int(i) && parts[i].splits == int(parts.size()) && parts[i].rows == rows && parts[i].partial == parts[0].partial;
          if (parts[i].end > parts[i].begin) { ok &= parts[i].begin == at; at = parts[i].end; }
        }
        ok &= at == end || end <= begin;
        if (!ok) { ++wrong; printf("WRONG case %d seq %d row %d len %d ctx %d parts %zu at %d begin %d end %d\n", c, s, row, len, ctx[s], parts.size(), at, begin, end); }
      }
    }
    for (auto& [k, v] : found) if (!v.empty()) ++wrong, printf("extra seq %d row %d\n", k.first, k.second);
    if (h.order != kContested && h.has_fills != shared.has_fills) ++wrong, printf("fills %d %d\n", h.has_fills, shared.has_fills);
  }
  fprintf(stderr, "rows %d cases %ld pieces %ld wrong %ld\n", ROWS, cases, pieces, wrong);
}
