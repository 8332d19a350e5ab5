// Decode and prefill on the Host, and how fast memory can be read at all. Decode of one sequence of
// 2048 is from the processor's cache; where all sequences' pages are one it is from a core's own,
// and the arithmetic alone counts:
//   ninja -C build/release paged_attention_bench && build/release/paged_attention_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "src/core/plan_cache.h"
#include "src/ops/paged_attention/random_case.h"

namespace xla_gpu::paged_attention {
namespace {

// A batch of equal sequences over a cache of random finite values, its pages shuffled, or one page
// for all.
struct Batch {
  Batch(int64_t seqs, int64_t query_len, int64_t context, DType query_dtype, DType cache_dtype,
        bool one_page = false) {
    constexpr int64_t kPageSize = 16, kQueryHeads = 32, kKvHeads = 8, kHeadDim = 128;
    const int64_t pages = context / kPageSize;
    query = OwnedTensor(query_dtype, {seqs * query_len, kQueryHeads, kHeadDim});
    // As XLA's CPU client gives out memory: on a cache line.
    cache = OwnedTensor(cache_dtype, {seqs * pages, kPageSize, 2 * kKvHeads, kHeadDim},
                        std::align_val_t{64});
    context_lens = OwnedTensor(DType::kI32, {seqs});
    block_tables = OwnedTensor(DType::kI32, {seqs, pages});
    starts = OwnedTensor(DType::kI32, {seqs + 1});
    num_seqs = OwnedTensor(DType::kI32, {1});
    out = OwnedTensor(query_dtype, query.shape);
    num_seqs.ints()[0] = static_cast<int32_t>(seqs);
    std::mt19937_64 rng(1);
    for (int64_t i = 0; i < query.size(); ++i) query.Set(i, Uniform(rng));
    // One page of values, repeated: making all of them takes longer than the benchmark.
    const int64_t page_bytes = cache.view().size_bytes() / (seqs * pages);
    for (int64_t i = 0; i < kPageSize * 2 * kKvHeads * kHeadDim; ++i) {
      StoreFromDouble(cache.data.get(), cache_dtype, i, Uniform(rng));
    }
    for (int64_t i = 1; i < seqs * pages; ++i) {
      std::memcpy(cache.data.get() + i * page_bytes, cache.data.get(),
                  static_cast<size_t>(page_bytes));
    }
    std::iota(block_tables.ints(), block_tables.ints() + seqs * pages, 0);
    std::shuffle(block_tables.ints(), block_tables.ints() + seqs * pages, rng);
    if (one_page) std::fill_n(block_tables.ints(), seqs * pages, 0);
    for (int64_t s = 0; s < seqs; ++s) {
      context_lens.ints()[s] = static_cast<int32_t>(context);
      starts.ints()[s + 1] = static_cast<int32_t>((s + 1) * query_len);
    }
    args = {query.view(),        cache.view(),  context_lens.view(),
            block_tables.view(), starts.view(), num_seqs.view()};
    results = {out.view()};
    if (!attributes.Add("scale", 0.08838834764831845).ok()) std::abort();
  }

  static double Uniform(std::mt19937_64& rng) {
    return std::uniform_real_distribution<double>(-1, 1)(rng);
  }

  void Run() {
    const Op& op = **OpRegistry::Global().Get("paged_attention");
    if (!RunOp(op, Platform::kHost, {args, results, &attributes}, {}).ok()) std::abort();
  }

  OwnedTensor query, cache, context_lens, block_tables, starts, num_seqs, out;
  std::vector<TensorView> args, results;
  Attributes attributes;
};

constexpr double kGiga = 1e9;

void Decode(benchmark::State& state, DType dtype) {
  Batch batch(state.range(0), 1, state.range(1), IsFloat8(dtype) ? DType::kBF16 : dtype, dtype,
              state.range(2) != 0);
  for (auto _ : state) batch.Run();
  state.counters["KV_GB/s"] =
      benchmark::Counter(static_cast<double>(batch.cache.view().size_bytes()) / kGiga,
                         benchmark::Counter::kIsIterationInvariantRate);
}

void Prefill(benchmark::State& state, DType dtype) {
  const int64_t n = state.range(0);
  Batch batch(1, n, n, dtype, dtype);
  for (auto _ : state) batch.Run();
  // Two products of n^2/2 x head_dim for each of 32 heads.
  const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n + 1) * 128 * 32;
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops / kGiga, benchmark::Counter::kIsIterationInvariantRate);
}

// The sum of 1 GiB on all cores: what the decode figures are to be held against.
void ReadMemory(benchmark::State& state) {
  constexpr int64_t kBytes = int64_t{1} << 30, kChunk = int64_t{1} << 20;
  std::vector<uint64_t> data(kBytes / sizeof(uint64_t), 3);
  std::atomic<uint64_t> sum{0};
  for (auto _ : state) {
    DefaultThreadPool().ParallelFor(kBytes / kChunk, [&](int64_t i) {
      const uint64_t* from = data.data() + i * (kChunk / 8);
      uint64_t s[32] = {};
      for (int64_t j = 0; j < kChunk / 8; j += 32) {
        for (int64_t k = 0; k < 32; ++k) s[k] += from[j + k];
      }
      uint64_t total = 0;
      for (uint64_t x : s) total += x;
      sum.fetch_add(total, std::memory_order_relaxed);
    });
    benchmark::DoNotOptimize(sum.load());
  }
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(kBytes) / kGiga,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(ReadMemory)->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);
#define DECODE(name, dtype)                       \
  BENCHMARK_CAPTURE(Decode, name, dtype)          \
      ->ArgNames({"seqs", "context", "one_page"}) \
      ->Args({8, 4096, 0})                        \
      ->Args({1, 32768, 0})                       \
      ->Args({1, 2048, 0})                        \
      ->Args({1, 32768, 1})                       \
      ->MeasureProcessCPUTime()                   \
      ->UseRealTime()                             \
      ->Unit(benchmark::kMillisecond)
DECODE(f32, DType::kF32);
DECODE(bf16, DType::kBF16);
DECODE(f16, DType::kF16);
DECODE(f8e4m3fn, DType::kF8E4M3FN);
DECODE(f8e5m2, DType::kF8E5M2);
BENCHMARK_CAPTURE(Prefill, f32, DType::kF32)
    ->Arg(2048)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Prefill, bf16, DType::kBF16)
    ->Arg(2048)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace xla_gpu::paged_attention

BENCHMARK_MAIN();
