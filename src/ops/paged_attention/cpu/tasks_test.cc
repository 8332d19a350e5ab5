// How evenly threads are busy with the tasks of ragged batches, by a model of the schedule: each
// thread takes the next task when it has done its last.
#include "src/ops/paged_attention/cpu/tasks.h"

#include <cstdio>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace xla_gpu::paged_attention {
namespace {

Problem MakeProblem(int64_t kv_heads = 8, int64_t group = 4) {
  Problem p;
  p.query_dtype = p.out_dtype = p.cache_dtype = DType::kBF16;
  p.kv_heads = kv_heads;
  p.q_heads = kv_heads * group;
  p.head_dim = 128;
  p.page_size = 16;
  p.causal = true;
  return p;
}

struct Sequence {
  int64_t rows;
  int64_t context;
};

std::vector<Segment> MakeSegments(const std::vector<Sequence>& sequences) {
  std::vector<Segment> segments;
  int64_t row = 0;
  for (const Sequence& s : sequences) {
    segments.push_back({nullptr, s.context, row, s.rows, s.context - s.rows});
    row += s.rows;
  }
  return segments;
}

// When the last of `threads` is done, over the time of as many that share all work evenly.
double Unevenness(const std::vector<Task>& tasks, int threads) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < threads; ++i) free_at.push(0);
  double end = 0, total = 0;
  for (const Task& task : tasks) {
    const double done = free_at.top() + task.cost;
    free_at.pop();
    free_at.push(done);
    end = std::max(end, done);
    total += task.cost;
  }
  return end / (total / threads);
}

TEST(Tasks, KeepManyThreadsEvenlyBusy) {
  const std::vector<Sequence> one_prompt = {{8192, 8192}}, short_prompt = {{2048, 2048}},
                              one_decode = {{1, 32768}}, short_decode = {{1, 4096}},
                              decodes(8, {1, 4096});
  std::vector<Sequence> ragged, mixed = {{512, 512}};
  for (int64_t i = 0; i < 32; ++i) ragged.push_back({1, 100 + i * i * i});
  for (int64_t i = 0; i < 15; ++i) mixed.push_back({1, 2048});
  std::vector<Sequence> prompts;
  for (int64_t i = 1; i <= 12; ++i) prompts.push_back({i * 97, i * 131});
  const struct {
    const char* name;
    const std::vector<Sequence>& batch;
    double allowed;
  } cases[] = {{"prompt of 8192", one_prompt, 1.1},
               {"prompt of 2048", short_prompt, 1.1},
               {"decode of 32768", one_decode, 1.1},
               {"decode of 4096", short_decode, 1.1},
               {"8 decodes of 4096", decodes, 1.1},
               {"32 decodes of 100 to 29891", ragged, 1.1},
               {"prompt of 512 beside 15 decodes of 2048", mixed, 1.1},
               {"12 ragged prompts", prompts, 1.1}};
  for (const auto& c : cases) {
    const std::vector<Segment> segments = MakeSegments(c.batch);
    std::printf("%-40s", c.name);
    for (const int threads : {2, 8, 16, 32, 64}) {
      const std::vector<Task> tasks = CutIntoTasks(MakeProblem(), segments, threads);
      const double found = Unevenness(tasks, threads);
      std::printf("  %2d threads %4zu tasks %.2f", threads, tasks.size(), found);
      EXPECT_LE(found, c.allowed) << c.name << ", " << threads << " threads";
    }
    std::printf("\n");
  }
}

// Each row and head of prefill, each key and head of decode, in one task; none twice.
TEST(Tasks, CoverEverythingOnce) {
  for (const int threads : {1, 3, 64}) {
    for (const int64_t group : {1, 4, 300}) {
      for (const int64_t kv_heads : {1, 5, 8}) {
        Problem p = MakeProblem(kv_heads, group);
        p.sliding_window = 700;
        const std::vector<Segment> segments =
            MakeSegments({{130, 1300}, {1, 900}, {500, 500}, {2, 100}, {1, 0}});
        std::set<std::vector<int64_t>> seen;
        size_t expected = 0;
        for (const Segment& s : segments) {
          expected += static_cast<size_t>(IsDecode(p, s) ? SplitsOf(p, s).count * kv_heads
                                                         : s.rows * p.q_heads);
        }
        double last = std::numeric_limits<double>::infinity();
        for (const Task& t : CutIntoTasks(p, segments, threads)) {
          EXPECT_LE(t.cost, last);
          last = t.cost;
          for (int64_t i = t.first; i < t.first + t.size; ++i) {
            for (int64_t head = t.first_head; head < t.first_head + t.num_heads; ++head) {
              EXPECT_TRUE(seen.insert({t.segment, i, head}).second);
            }
          }
          const Segment& segment = segments[static_cast<size_t>(t.segment)];
          if (IsDecode(p, segment)) continue;
          EXPECT_LE(t.size * t.num_heads, kPrefillRows);
          EXPECT_EQ(t.first_head / group, (t.first_head + t.num_heads - 1) / group);
        }
        EXPECT_EQ(seen.size(), expected) << threads << " threads, " << group << ", " << kv_heads;
      }
    }
  }
}

// A call that takes next to no time stays with its thread.
TEST(Tasks, ALittleWorkIsOneTask) {
  EXPECT_EQ(CutIntoTasks(MakeProblem(), MakeSegments({{1, 20}}), 64).size(), 1);
}

}  // namespace
}  // namespace xla_gpu::paged_attention
