// Decode and prefill on the Host, and what bounds decode: how fast memory can be read at all
// (ReadMemory), how fast in decode's order (ReadPages), and the arithmetic alone, which counts
// where all sequences' pages are one, in a core's own cache (one_page), and what AMX gives
// (AmxProducts). One sequence of 2048 is in the cache that cores share:
//   ninja -C build/release paged_attention_bench && build/release/paged_attention_bench
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "src/core/plan_cache.h"
#include "src/ops/paged_attention/random_case.h"
#include "src/ops/paged_cache/cpu/amx.h"

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

  void Run(ThreadPool& pool) {
    const Op& op = **OpRegistry::Global().Get("paged_attention");
    ExecutionContext context;
    context.thread_pool = &pool;
    if (!RunOp(op, Platform::kHost, {args, results, &attributes}, context).ok()) std::abort();
  }

  OwnedTensor query, cache, context_lens, block_tables, starts, num_seqs, out;
  std::vector<TensorView> args, results;
  Attributes attributes;
};

constexpr double kGiga = 1e9;

void CountCacheBytes(benchmark::State& state, const Batch& batch) {
  state.counters["KV_GB/s"] =
      benchmark::Counter(static_cast<double>(batch.cache.view().size_bytes()) / kGiga,
                         benchmark::Counter::kIsIterationInvariantRate);
}

void Decode(benchmark::State& state, DType dtype) {
  Batch batch(state.range(0), 1, state.range(1), IsFloat8(dtype) ? DType::kBF16 : dtype, dtype,
              state.range(2) != 0);
  const std::unique_ptr<ThreadPool> pool = MakeThreadPool(static_cast<int>(state.range(3)));
  for (auto _ : state) batch.Run(*pool);
  CountCacheBytes(state, batch);
}

// What AMX gives a thread at all, of operands in L1: little while another guest of the machine uses
// the same core's.
void AmxProducts(benchmark::State& state) {
  const paged_cache::AmxUnit* const amx = paged_cache::UsableAmx();
  if (amx == nullptr) return state.SkipWithError("no AMX that this process may use");
  constexpr int64_t kRows = 2 * paged_cache::kAmxRows, kColumns = 2 * paged_cache::kAmxWords;
  constexpr int64_t kDepth = 4 * paged_cache::kAmxWords;
  alignas(64) static float a[kRows * kDepth], b[kDepth * kColumns], c[kRows * kColumns];
  amx->begin(0);
  for (auto _ : state) {
    amx->multiply({a, kDepth, b, kColumns, kDepth, c, kColumns, kRows, false});
  }
  amx->end();
  state.counters["GFLOP/s"] =
      benchmark::Counter(static_cast<double>(4 * kRows * kColumns * kDepth) / kGiga,
                         benchmark::Counter::kIsIterationInvariantRate);
}

// What decode reads, in its order and with prefetches as for most processors, no arithmetic: a
// word of each line.
void ReadPages(benchmark::State& state, DType dtype) {
  constexpr int64_t kSplit = 512, kStreams = 8, kTile = 4, kLine = 64;
  const int64_t context = state.range(1);
  Batch batch(state.range(0), 1, context, DType::kBF16, dtype);
  const auto& shape = batch.cache.shape;
  const int64_t row_bytes = shape[3] * DTypeSize(dtype);
  const int64_t run = IsFloat8(dtype) ? 2 : 1;  // keys of a stream in a block
  const int64_t blocks = kSplit / kStreams / run;
  // The rows of the i-th key of a block.
  const auto rows_of = [&](int64_t split, int64_t block, int64_t i) {
    const int64_t key = split * kSplit + (i / run * blocks + block) * run + i % run;
    const int64_t page = batch.block_tables.ints()[key / shape[1]];
    return batch.cache.data.get() + (page * shape[1] + key % shape[1]) * shape[2] * row_bytes;
  };
  const std::unique_ptr<ThreadPool> pool = MakeThreadPool(static_cast<int>(state.range(2)));
  std::atomic<uint64_t> sum{0};
  const auto read_split = [&](int64_t split) {
    uint64_t total = 0;
    const char *rows[2 * kStreams], *later[2 * kStreams];
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = 0; i < kStreams * run; ++i) {
        rows[i] = rows_of(split, block, i);
        later[i] = rows_of(split, std::min(block + 1, blocks - 1), i);
      }
      for (int64_t row = 0; row < shape[2]; ++row) {  // of a kv head its keys, then its values
        for (int64_t i = 0; i < kStreams * run; ++i) {
          const int64_t part = (row * kStreams * run + i) / kTile;  // of a tile of keys
          const char* const ahead =
              later[part / shape[2] * kTile + i % kTile] + part % shape[2] * row_bytes;
          for (int64_t at = 0; at < row_bytes; at += kLine) {
            uint64_t word;
            std::memcpy(&word, rows[i] + row * row_bytes + at, sizeof(word));
            total += word;
            __builtin_prefetch(ahead + at, 0, 2);
          }
        }
      }
    }
    sum.fetch_add(total, std::memory_order_relaxed);
  };
  for (auto _ : state) {
    pool->ParallelFor(state.range(0) * context / kSplit, read_split);
    benchmark::DoNotOptimize(sum.load());
  }
  CountCacheBytes(state, batch);
}

void Prefill(benchmark::State& state, DType dtype) {
  const int64_t n = state.range(0);
  Batch batch(1, n, n, dtype, dtype);
  for (auto _ : state) batch.Run(DefaultThreadPool());
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

void Measured(benchmark::internal::Benchmark* benchmark) {
  benchmark->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);
}
BENCHMARK(ReadMemory)->Apply(Measured);

// On one thread and on all.
void ReadArgs(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"seqs", "context", "threads"})->Apply(Measured);
  for (const int64_t threads : {1, DefaultThreadPool().num_threads()}) {
    benchmark->Args({8, 4096, threads})->Args({1, 32768, threads});
  }
}
BENCHMARK(AmxProducts)->UseRealTime();
BENCHMARK_CAPTURE(ReadPages, f32, DType::kF32)->Apply(ReadArgs);
BENCHMARK_CAPTURE(ReadPages, bf16, DType::kBF16)->Apply(ReadArgs);
BENCHMARK_CAPTURE(ReadPages, f8e4m3fn, DType::kF8E4M3FN)->Apply(ReadArgs);

void DecodeArgs(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"seqs", "context", "one_page", "threads"})->Apply(Measured);
  for (const int64_t threads : {1, DefaultThreadPool().num_threads()}) {
    benchmark->Args({8, 4096, 0, threads})
        ->Args({1, 32768, 0, threads})
        ->Args({1, 2048, 0, threads})
        ->Args({1, 32768, 1, threads});
  }
}
BENCHMARK_CAPTURE(Decode, f32, DType::kF32)->Apply(DecodeArgs);
BENCHMARK_CAPTURE(Decode, bf16, DType::kBF16)->Apply(DecodeArgs);
BENCHMARK_CAPTURE(Decode, f16, DType::kF16)->Apply(DecodeArgs);
BENCHMARK_CAPTURE(Decode, f8e4m3fn, DType::kF8E4M3FN)->Apply(DecodeArgs);
BENCHMARK_CAPTURE(Decode, f8e5m2, DType::kF8E5M2)->Apply(DecodeArgs);
BENCHMARK_CAPTURE(Prefill, f32, DType::kF32)->Arg(2048)->Apply(Measured);
BENCHMARK_CAPTURE(Prefill, bf16, DType::kBF16)->Arg(2048)->Apply(Measured);

}  // namespace
}  // namespace xla_gpu::paged_attention

BENCHMARK_MAIN();
