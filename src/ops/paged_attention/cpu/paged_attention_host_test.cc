// The Host kernels against the fp64 reference over random problems, and what they promise besides:
// same bits whatever the threads and the rest of the batch, no wrong index followed, no value used
// that a query does not see.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "src/ops/paged_attention/random_case.h"
#include "src/ops/paged_cache/cpu/for_each_target.h"

namespace xla_gpu::paged_attention {
namespace {

// The spacing of an output type's numbers near 1.
double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::ldexp(1.0, -23);
    case DType::kF16:
      return std::ldexp(1.0, -10);
    default:
      return std::ldexp(1.0, -7);
  }
}

// Errors in units of what rounding to the output type and f32 arithmetic allow, by output type.
class Histogram {
 public:
  void Add(DType dtype, double units) {
    auto& bins = bins_[dtype];
    const int bin = units == 0 ? 0 : std::clamp(static_cast<int>(std::ceil(units * 8)), 1, 9);
    ++bins[static_cast<size_t>(bin)];
    worst_[dtype] = std::max(worst_[dtype], units);
  }
  void Print() const {
    std::printf("error in units of the allowed one; share of outputs in each bin\n%-6s%9s", "out",
                "exact");
    for (int i = 1; i <= 8; ++i) std::printf("  <=%d/8  ", i);
    std::printf("   >1    worst\n");
    for (const auto& [dtype, bins] : bins_) {
      double total = 0;
      for (int64_t n : bins) total += static_cast<double>(n);
      std::printf("%-6s", std::string(DTypeName(dtype)).c_str());
      for (int64_t n : bins) std::printf(" %8.5f", static_cast<double>(n) / total);
      std::printf("  %.3f\n", worst_.at(dtype));
    }
  }

 private:
  std::map<DType, std::array<int64_t, 10>> bins_;
  std::map<DType, double> worst_;
};

// Allowed: half a unit in the last place of the output type, and 48 roundings of f32 at magnitude 1
// (the values are normally distributed, times v_scale up to 2). Where query, output and cache are
// bf16, or the cache fp8, weights may be rounded to bf16: half a unit more of the output, and of
// the values.
double Allowed(const Case& c, double expected) {
  const DType out = c.out.dtype, cache = c.kv_cache.dtype;
  const double f32 = 48 * Epsilon(DType::kF32);
  if (out == DType::kF32) return f32;
  const double half_unit = Epsilon(out) * 0.5;
  const bool in_bf16 = out == DType::kBF16 && c.query.dtype == DType::kBF16 &&
                       (cache == DType::kBF16 || IsFloat8(cache));
  const double rounded_weights = in_bf16 ? half_unit * (std::fabs(expected) + 2) : 0;
  return half_unit * std::fabs(expected) + rounded_weights + f32;
}

::testing::AssertionResult Check(const Case& c, const Expected& expected, Histogram* histogram) {
  for (int64_t i = 0; i < c.out.size(); ++i) {
    const double want = expected.out[static_cast<size_t>(i)];
    const double got = c.out.Get(i);
    const int64_t row = i / c.out.shape[2];
    if (SameNonFinite(want, got)) continue;
    const double units = std::fabs(got - want) / Allowed(c, want);
    if (histogram != nullptr) histogram->Add(c.out.dtype, units);
    if (!(units <= 1.0)) {
      return ::testing::AssertionFailure()
             << "out[" << i << "] (row, head " << row << ") is " << got << ", expected " << want;
    }
  }
  for (int64_t i = 0; c.lse.data != nullptr && i < c.lse.size(); ++i) {
    const double want = expected.lse[static_cast<size_t>(i)];
    const double got = c.lse.Get(i);
    if (SameNonFinite(want, got)) continue;
    if (!(std::fabs(got - want) <= 48 * Epsilon(DType::kF32) * std::max(1.0, std::fabs(want)))) {
      return ::testing::AssertionFailure()
             << "lse[" << i << "] is " << got << ", expected " << want;
    }
  }
  return ::testing::AssertionSuccess();
}

#if defined(XLA_GPU_SANITIZED)  // ten times slower, and not there for the numbers
constexpr int kCases = 200, kCasesOfASet = 50;
#else
constexpr int kCases = 3000, kCasesOfASet = 200;
#endif

TEST(PagedAttentionHost, AgreesWithReferenceOnRandomProblems) {
  Histogram histogram;
  for (int i = 0; i < kCases; ++i) {
    std::mt19937_64 rng(static_cast<uint64_t>(i) + 1);
    CaseSpec spec = RandomSpec(rng);
    spec.shift = i % 4;  // tensors may start anywhere
    Case c(spec, rng);
    const Status status = c.Run(DefaultThreadPool());
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_TRUE(Check(c, Expected(c), &histogram))
        << "seed " << i + 1 << ": " << c.spec().ToString();
  }
  histogram.Print();
}

TEST(PagedAttentionHost, AgreesWithReferenceOnEveryInstructionSet) {
  ForEachTarget([](const char* target) {
    for (uint64_t seed = 10'001; seed <= 10'000 + kCasesOfASet; ++seed) {
      std::mt19937_64 rng(seed);
      CaseSpec spec = RandomSpec(rng);
      spec.shift = static_cast<int64_t>(seed % 3);
      Case c(spec, rng);
      ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
      ASSERT_TRUE(Check(c, Expected(c), nullptr))
          << target << ", seed " << seed << ": " << c.spec().ToString();
    }
  });
}

std::vector<char> Bytes(const OwnedTensor& tensor) {
  return {tensor.data.get(), tensor.data.get() + tensor.view().size_bytes()};
}

// Three sequences long enough for several splits and prefill blocks, one of a few tokens.
CaseSpec LongSpec() {
  CaseSpec spec;
  spec.head_dim = 48;
  spec.max_pages = 128;
  spec.max_seqs = 5;
  spec.query_lens = {1, 150, 3, 1};
  spec.context_lens = {1900, 700, 1100, 5};
  return spec;
}

void ExpectSameBits(Case& c, ThreadPool& pool, const std::vector<char>& out,
                    const std::vector<char>& lse) {
  ASSERT_TRUE(c.Run(pool).ok());
  EXPECT_TRUE(Bytes(c.out) == out);
  EXPECT_TRUE(Bytes(c.lse) == lse);
}

// 64 threads take fewer rows and heads a task than one does.
TEST(PagedAttentionHost, SameBitsWhateverTheThreads) {
  std::unique_ptr<ThreadPool> one = MakeThreadPool(1);
  std::unique_ptr<ThreadPool> many[] = {MakeThreadPool(2), MakeThreadPool(8), MakeThreadPool(64)};
  // Two of the four combinations: under TSan each takes a minute.
  for (const auto& [dtype, window] : {std::pair{DType::kF32, 0}, {DType::kBF16, 700}}) {
    std::mt19937_64 rng(7);
    CaseSpec spec = LongSpec();
    spec.query_dtype = spec.cache_dtype = dtype;
    spec.out_dtype = dtype == DType::kF32 ? "f32" : "bf16";
    spec.sliding_window = window;
    spec.max_pages = 192;
    spec.query_lens = {1, 100, 3, 1};
    spec.context_lens = {1900, 2500, 1100, 5};
    Case c(spec, rng);
    const Expected expected(c);
    ForEachTarget([&](const char* target) {
      ASSERT_TRUE(c.Run(*one).ok());
      ASSERT_TRUE(Check(c, expected, nullptr)) << target << ", window " << spec.sliding_window;
      const std::vector<char> out = Bytes(c.out), lse = Bytes(c.lse);
      for (const std::unique_ptr<ThreadPool>& pool : many) {
        ExpectSameBits(c, *pool, out, lse);
        ASSERT_FALSE(HasFailure()) << target << ", " << pool->num_threads() << " threads";
      }
    });
  }
}

TEST(PagedAttentionHost, ConcurrentCallsDoNotDisturbEachOther) {
  std::mt19937_64 rng(8);
  Case first(LongSpec(), rng);
  CaseSpec other = LongSpec();
  other.head_dim = 64;
  other.cache_dtype = DType::kBF16;
  Case second(other, rng);
  ASSERT_TRUE(first.Run(DefaultThreadPool()).ok());
  ASSERT_TRUE(second.Run(DefaultThreadPool()).ok());
  const std::vector<char> expected[] = {Bytes(first.out), Bytes(second.out)};
  std::vector<std::thread> threads;
  for (Case* c : {&first, &second}) {
    threads.emplace_back([c] {
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(c->Run(DefaultThreadPool()).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Bytes(first.out) == expected[0]);
  EXPECT_TRUE(Bytes(second.out) == expected[1]);
}

// The bits of a sequence's rows with the others in the batch and with them reduced to nothing.
TEST(PagedAttentionHost, ASequenceDoesNotDependOnTheRestOfTheBatch) {
  std::mt19937_64 rng(9);
  Case c(LongSpec(), rng);
  ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
  const std::vector<char> together = Bytes(c.out);
  const int64_t row_bytes = c.out.view().size_bytes() / c.out.shape[0];
  int32_t* starts = c.query_start_loc.ints();
  const std::vector<int32_t> all(starts, starts + 6);
  for (int alone = 0; alone < 4; ++alone) {
    for (int i = 0; i < 6; ++i) starts[i] = i <= alone ? all[alone] : all[alone + 1];
    ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
    const std::vector<char> single = Bytes(c.out);
    for (int64_t i = all[alone] * row_bytes; i < all[alone + 1] * row_bytes; ++i) {
      ASSERT_EQ(single[i], together[i]) << "sequence " << alone << ", byte " << i;
    }
  }
}

// One value of an index argument made wrong: the sequences it belongs to give NaN, the others keep
// their bits, and nothing outside the buffers is touched (they have their exact size on the heap).
class BadIndex : public ::testing::Test {
 protected:
  BadIndex() : rng_(10), case_(LongSpec(), rng_) {
    EXPECT_TRUE(case_.Run(DefaultThreadPool()).ok());
    good_ = Bytes(case_.out);
  }

  // Rows of `bad` sequences are NaN in out and lse, all others as before.
  void ExpectNaN(std::initializer_list<int> bad, const std::string& what) {
    ASSERT_TRUE(case_.Run(DefaultThreadPool()).ok()) << what;
    const std::vector<int> rows = {0, 1, 151, 154, 155};
    const int64_t row_size = case_.out.size() / case_.out.shape[0];
    const int64_t row_bytes = row_size * 4;
    for (int s = 0; s < 4; ++s) {
      const bool is_bad = std::find(bad.begin(), bad.end(), s) != bad.end();
      for (int row = rows[s]; row < rows[s + 1]; ++row) {
        if (is_bad) {
          for (int64_t i = 0; i < row_size; ++i) {
            ASSERT_TRUE(std::isnan(case_.out.Get(row * row_size + i))) << what << ", row " << row;
          }
          ASSERT_TRUE(std::isnan(case_.lse.Get(row * case_.lse.shape[1]))) << what;
        } else {
          ASSERT_EQ(std::memcmp(case_.out.data.get() + row * row_bytes,
                                good_.data() + row * row_bytes, row_bytes),
                    0)
              << what << ", row " << row;
        }
      }
    }
    ASSERT_TRUE(Check(case_, Expected(case_), nullptr)) << what;
  }

  std::mt19937_64 rng_;
  Case case_;
  std::vector<char> good_;
};

TEST_F(BadIndex, InBlockTables) {
  const int32_t num_pages = static_cast<int32_t>(case_.kv_cache.shape[0]);
  for (int32_t wrong : {-1, num_pages, INT32_MIN, INT32_MAX}) {
    for (int page : {0, 1, 43}) {  // of sequence 1, which reads 44 pages
      int32_t& entry = case_.block_tables.ints()[1 * 128 + page];
      const int32_t right = std::exchange(entry, wrong);
      ExpectNaN({1}, StrCat("page ", page, " is ", wrong));
      entry = right;
    }
  }
}

TEST_F(BadIndex, InContextLens) {
  for (int32_t wrong : {-1, 128 * 16 + 1, INT32_MIN, INT32_MAX}) {
    int32_t& entry = case_.context_lens.ints()[2];
    const int32_t right = std::exchange(entry, wrong);
    ExpectNaN({2}, StrCat("context_len is ", wrong));
    entry = right;
  }
}

TEST_F(BadIndex, InQueryStartLoc) {
  int32_t* starts = case_.query_start_loc.ints();
  // Past the end: sequence 3 becomes [154, 1000).
  starts[4] = 1000;
  ASSERT_TRUE(case_.Run(DefaultThreadPool()).ok());
  EXPECT_TRUE(Check(case_, Expected(case_), nullptr));
  EXPECT_TRUE(std::isnan(case_.out.Get(154 * case_.out.size() / case_.out.shape[0])));
  // Any numbers at all: as the reference, and no crash.
  for (int i = 0; i < 300; ++i) {
    for (int j = 0; j < 6; ++j) {
      const int64_t kind = std::uniform_int_distribution<int64_t>(0, 9)(rng_);
      starts[j] = kind == 0   ? INT32_MIN
                  : kind == 1 ? INT32_MAX
                              : std::uniform_int_distribution<int32_t>(-20, 180)(rng_);
    }
    for (int j = 0; j < 5; ++j) {
      case_.context_lens.ints()[j] = std::uniform_int_distribution<int32_t>(-5, 80)(rng_);
    }
    ASSERT_TRUE(case_.Run(DefaultThreadPool()).ok());
    ASSERT_TRUE(Check(case_, Expected(case_), nullptr)) << "iteration " << i;
  }
}

TEST_F(BadIndex, InNumSeqs) {
  // Sequence 4 is padding with a wild context_len, but has no rows.
  for (int32_t wrong : {5, 6, INT32_MAX}) {
    case_.num_seqs.ints()[0] = wrong;
    ExpectNaN({}, StrCat("num_seqs is ", wrong));
  }
  for (int32_t none : {0, -1, INT32_MIN}) {
    case_.num_seqs.ints()[0] = none;
    ASSERT_TRUE(case_.Run(DefaultThreadPool()).ok());
    for (int64_t i = 0; i < case_.out.size(); ++i) ASSERT_EQ(case_.out.Get(i), 0.0);
  }
}

TEST(PagedAttentionHost, PagesBeforeTheWindowNeedNotExist) {
  std::mt19937_64 rng(11);
  CaseSpec spec = LongSpec();
  spec.sliding_window = 40;
  Case c(spec, rng);
  for (int i = 0; i < (1900 - 40) / 16; ++i) c.block_tables.ints()[i] = -7;
  ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
  EXPECT_TRUE(Check(c, Expected(c), nullptr));
  EXPECT_FALSE(std::isnan(c.out.Get(0)));
}

// A key and value of NaN at one position: rows that stand before it, or whose window has left it
// behind, do not see it.
TEST(PagedAttentionHost, NoRowIsTouchedByWhatItDoesNotSee) {
  const auto expect_untouched = [](DType cache, int64_t window, int64_t rows) {
    std::mt19937_64 rng(12);
    CaseSpec spec;
    spec.cache_dtype = cache;
    if (cache != DType::kF32) spec.query_dtype = DType::kBF16;
    spec.layout = Layout::kPair;
    spec.max_pages = 20;
    spec.query_lens = {rows};
    spec.context_lens = {300};
    spec.sliding_window = window;
    Case c(spec, rng);
    const int64_t poisoned = 300 - rows + 1;  // the second row's own position
    const int64_t token = c.block_tables.ints()[poisoned / 16] * 16 + poisoned % 16;
    const int64_t size = 2 * 64;
    for (int64_t i = 0; i < size; ++i) {
      c.kv_cache.Set(token * size + i, std::nan(""));
      c.v_cache.Set(token * size + i, std::nan(""));
    }
    const Expected expected(c);
    ForEachTarget([&](const char* target) {
      ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
      ASSERT_TRUE(Check(c, expected, nullptr)) << target << ": " << c.spec().ToString();
      EXPECT_FALSE(std::isnan(c.out.Get(0)));
      EXPECT_TRUE(std::isnan(c.out.Get(8 * 64)));
    });
  };
  for (DType cache : {DType::kF32, DType::kBF16, DType::kF8E4M3FN}) {
    for (int64_t window : {0, 30}) {
      for (int64_t rows : {4, 200}) expect_untouched(cache, window, rows);  // decode, prefill
    }
  }
}

// XLA runs Host calls with subnormals flushed to zero; fp8 and f16 subnormals must still count.
TEST(PagedAttentionHost, SmallNumbersSurviveFlushToZero) {
#if defined(__SSE2__)
  for (DType dtype : {DType::kF8E4M3FN, DType::kF8E5M2, DType::kF16}) {
    std::mt19937_64 rng(13);
    CaseSpec spec;
    spec.cache_dtype = dtype;
    spec.layout = Layout::kPair;
    spec.query_lens = {1, 20};
    spec.context_lens = {1, 20};
    Case c(spec, rng);
    const double smallest = dtype == DType::kF16      ? 0x1p-24
                            : dtype == DType::kF8E5M2 ? 0x1p-16
                                                      : 0x1p-9;
    for (int64_t i = 0; i < c.v_cache.size(); ++i) {
      if (!std::isnan(c.v_cache.Get(i))) c.v_cache.Set(i, smallest);
    }
    std::unique_ptr<ThreadPool> one = MakeThreadPool(1);
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    const Status status = c.Run(*one);
    _mm_setcsr(mode);
    ASSERT_TRUE(status.ok());
    for (int64_t i = 0; i < 21 * 8 * 64; ++i) {
      ASSERT_NEAR(c.out.Get(i), smallest, smallest * 1e-5) << DTypeName(dtype);
    }
  }
#endif
}

}  // namespace
}  // namespace xla_gpu::paged_attention
