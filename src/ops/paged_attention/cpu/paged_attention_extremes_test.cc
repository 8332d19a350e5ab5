// The Host kernels where f32 is at its end: contexts so long that errors would grow with them, and
// factors, sinks and queries so large that a logit would leave the range.
//
// XLA_GPU_TEST_CONTEXT sets the longest context (2^24 tokens; up to 2^31-1).
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/ops/paged_attention/random_case.h"
#include "src/ops/paged_cache/cpu/for_each_target.h"

namespace xla_gpu::paged_attention {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

int64_t LongestContext() {
  const char* set = std::getenv("XLA_GPU_TEST_CONTEXT");
  if (set != nullptr) return std::atoll(set);
#if defined(XLA_GPU_SANITIZED)
  return 1 << 20;
#else
  return 1 << 24;
#endif
}

// One sequence whose pages are all the same one, so that a long context takes little memory.
class LongContext {
 public:
  static constexpr int64_t kPageSize = 1 << 16, kHeadDim = 16;

  LongContext(int64_t rows, int64_t context)
      : query_(DType::kF32, {rows, 1, kHeadDim}),
        k_cache_(DType::kF32, {1, kPageSize, 1, kHeadDim}),
        v_cache_(DType::kF32, {1, kPageSize, 1, kHeadDim}),
        context_(DType::kI32, {1}),
        table_(DType::kI32, {1, (context + kPageSize - 1) / kPageSize}),
        starts_(DType::kI32, {2}),
        num_seqs_(DType::kI32, {1}),
        out_(DType::kF32, {rows, 1, kHeadDim}),
        lse_(DType::kF32, {rows, 1}) {
    context_.ints()[0] = static_cast<int32_t>(context);
    starts_.ints()[1] = static_cast<int32_t>(rows);
    num_seqs_.ints()[0] = 1;
  }

  // Every logit 0 and every value `value`, or all of them random.
  void FillConstant(double value) {
    for (int64_t i = 0; i < v_cache_.size(); ++i) v_cache_.Set(i, value);
  }
  void FillRandom() {
    std::mt19937_64 rng(1);
    std::normal_distribution<double> normal(0, 1);
    for (OwnedTensor* tensor : {&query_, &k_cache_, &v_cache_}) {
      for (int64_t i = 0; i < tensor->size(); ++i) tensor->Set(i, normal(rng));
    }
  }

  // The largest error of out, in units of the weighted mean of |value|, and of lse.
  struct Errors {
    double out = 0;
    double lse = 0;
  };
  Errors Run() {
    Attributes attributes;
    const bool added = attributes.Add("scale", 0.25).ok() &&
                       attributes.Add("return_lse", true).ok() &&
                       attributes.Add("optional_args", std::string_view("v_cache")).ok();
    EXPECT_TRUE(added);
    const std::vector<TensorView> args = {query_.view(),  k_cache_.view(), context_.view(),
                                          table_.view(),  starts_.view(),  num_seqs_.view(),
                                          v_cache_.view()};
    const std::vector<TensorView> results = {out_.view(), lse_.view()};
    ExecutionContext context;
    context.thread_pool = &DefaultThreadPool();
    const Status status = RunOp(**OpRegistry::Global().Get("paged_attention"), Platform::kHost,
                                {args, results, &attributes}, context);
    EXPECT_TRUE(status.ok()) << status.ToString();
    Errors errors;
    for (int64_t row = 0; row < query_.shape[0]; ++row) AddErrors(row, errors);
    return errors;
  }

 private:
  void AddErrors(int64_t row, Errors& errors) const {
    const int64_t keys = context_.ints()[0] - query_.shape[0] + row + 1;
    std::vector<double> sums(kHeadDim), magnitudes(kHeadDim);
    double total = 0;
    for (int64_t k = 0; k < std::min(keys, kPageSize); ++k) {
      double dot = 0;
      for (int64_t d = 0; d < kHeadDim; ++d) {
        dot += query_.Get(row * kHeadDim + d) * k_cache_.Get(k * kHeadDim + d);
      }
      const double times = static_cast<double>((keys - 1 - k) / kPageSize + 1);
      const double weight = times * std::exp(0.25 * dot);
      total += weight;
      for (int64_t d = 0; d < kHeadDim; ++d) {
        sums[d] += weight * v_cache_.Get(k * kHeadDim + d);
        magnitudes[d] += weight * std::fabs(v_cache_.Get(k * kHeadDim + d));
      }
    }
    for (int64_t d = 0; d < kHeadDim; ++d) {
      const double error = std::fabs(out_.Get(row * kHeadDim + d) - sums[d] / total);
      errors.out = std::max(errors.out, error / (magnitudes[d] / total));
    }
    errors.lse = std::max(errors.lse, std::fabs(lse_.Get(row) - std::log(total)));
  }

  OwnedTensor query_, k_cache_, v_cache_, context_, table_, starts_, num_seqs_, out_, lse_;
};

// numpy's pairwise sum of 0.1 is off by 1.5e-7 at any length.
TEST(PagedAttentionExtremes, ErrorsDoNotGrowWithTheContext) {
  for (int64_t rows : {1, 5}) {  // decode, prefill
    for (int64_t context : {int64_t{1} << 15, int64_t{1} << 20, LongestContext()}) {
      LongContext attention(rows, context);
      attention.FillConstant(0.1);
      const auto constant = attention.Run();
      attention.FillRandom();
      const auto random = attention.Run();
      std::printf("%lld rows, %10lld tokens: out of 0.1 is off by %.1e, random by %.1e; lse %.1e\n",
                  static_cast<long long>(rows), static_cast<long long>(context), constant.out,
                  random.out, std::max(constant.lse, random.lse));
      EXPECT_LE(constant.out, 1e-6) << rows << " rows, " << context << " tokens";
      EXPECT_LE(random.out, 1e-6) << rows << " rows, " << context << " tokens";
      EXPECT_LE(std::max(constant.lse, random.lse), 2e-6);
    }
  }
}

// Logits that rise with the context: `max` moves again and again, and old sums with it.
TEST(PagedAttentionExtremes, RisingLogitsDoNotDriftEither) {
  for (int64_t rows : {1, 5}) {
    for (double rise : {1e-4, 0.5}) {  // a key
      std::mt19937_64 rng(2);
      CaseSpec spec;
      spec.layout = Layout::kPair;
      spec.kv_heads = spec.group_size = 1;
      spec.head_dim = 16;
      spec.page_size = 64;
      spec.max_pages = 512;
      spec.max_seqs = 1;
      spec.query_lens = {rows};
      spec.context_lens = {1 << 15};
      spec.scale = 1;
      Case c(spec, rng);
      for (int64_t i = 0; i < c.query.size(); ++i) c.query.Set(i, i % 16 == 0 ? 1 : 0);
      for (int64_t t = 0; t < 1 << 15; ++t) {
        const int64_t at = (int64_t{c.block_tables.ints()[t / 64]} * 64 + t % 64) * 16;
        c.kv_cache.Set(at, rise * static_cast<double>(t));
      }
      ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
      const Expected expected(c);
      for (int64_t i = 0; i < rows * 16; ++i) {
        ASSERT_NEAR(c.out.Get(i), expected.out[static_cast<size_t>(i)], 2e-6)
            << rows << ", " << rise;
      }
    }
  }
}

// Everything finite, so the results are, and right, though f32 holds no logit.
struct Extreme {
  const char* name;
  double scale = 0.125;
  double soft_cap = 0;
  float k_scale = 1;
  float v_scale = 1;
  float sink = 0;
  double query = 1;  // factor of the queries
};

void ExpectRight(const Extreme& extreme, DType query, DType cache, int64_t rows,
                 const char* target) {
  std::mt19937_64 rng(3);
  CaseSpec spec;
  spec.query_dtype = query;
  spec.cache_dtype = cache;
  spec.out_dtype = "f32";
  spec.query_lens = {rows};
  spec.context_lens = {rows + 40};
  spec.scale = extreme.scale;
  spec.soft_cap = extreme.soft_cap;
  spec.sinks = extreme.sink != 0;
  spec.k_scale_size = spec.v_scale_size = 1;
  Case c(spec, rng);
  c.k_scale.floats()[0] = extreme.k_scale;
  c.v_scale.floats()[0] = extreme.v_scale;
  for (int64_t i = 0; spec.sinks && i < c.sinks.size(); i += 2) c.sinks.Set(i, extreme.sink);
  for (int64_t i = 0; i < c.query.size(); ++i) c.query.Set(i, c.query.Get(i) * extreme.query);
  ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
  const Expected expected(c);
  const std::string what = StrCat(target, ": ", extreme.name, ", ", c.spec().ToString());
  for (int64_t i = 0; i < c.out.size(); ++i) {
    // Large logits keep the relative error of q.k; no two of them are so near.
    ASSERT_NEAR(c.out.Get(i) / extreme.v_scale,
                expected.out[static_cast<size_t>(i)] / extreme.v_scale, 1e-4)
        << "out[" << i << "], " << what;
  }
  for (int64_t i = 0; i < c.lse.size(); ++i) {
    const double want = expected.lse[static_cast<size_t>(i)];
    const double rounded = std::fabs(want) > 3.4e38 ? std::copysign(kInf, want) : want;
    if (SameNonFinite(rounded, c.lse.Get(i))) continue;
    ASSERT_NEAR(c.lse.Get(i), want, 1e-4 * std::max(1.0, std::fabs(want))) << "lse, " << what;
  }
}

TEST(PagedAttentionExtremes, FiniteArgumentsGiveTheRightRow) {
  const Extreme extremes[] = {
      {.name = "scale 0", .scale = 0},
      {.name = "scale 1e-40", .scale = 1e-40},
      {.name = "scale 1e20", .scale = 1e20},
      {.name = "scale -1e20", .scale = -1e20},
      {.name = "cap 1e-20", .soft_cap = 1e-20},
      {.name = "cap 1e20", .soft_cap = 1e20},
      {.name = "scale, cap 1e20", .scale = 1e20, .soft_cap = 1e20, .query = 0.05},
      {.name = "scale 1e20, cap 1e-20", .scale = 1e20, .soft_cap = 1e-20},
      {.name = "k_scale 1e38", .k_scale = 1e38f},
      {.name = "k_scale -3.4e38", .scale = 1e20, .k_scale = -3.4e38f},
      {.name = "k_scale 1e-38", .k_scale = 1e-38f},
      {.name = "k_scale 1e38, cap", .soft_cap = 2, .k_scale = 1e38f},
      {.name = "v_scale 1e37", .v_scale = 1e37f},
      {.name = "v_scale 1e-30", .v_scale = 1e-30f},
      {.name = "sink 3.4e38", .sink = 3.4e38f},
      {.name = "sink -3.4e38", .sink = -3.4e38f},
      {.name = "queries 1e10", .query = 1e10},
      {.name = "queries 1e30, scale 1e-30", .scale = 1e-30, .query = 1e30}};
  ForEachTarget([&](const char* target) {
    for (const Extreme& extreme : extremes) {
      for (DType cache : {DType::kF32, DType::kBF16, DType::kF8E4M3FN}) {
        for (int64_t rows : {1, 30}) {  // decode, prefill
          const DType query = cache == DType::kF32 ? DType::kF32 : DType::kBF16;
          ExpectRight(extreme, query, cache, rows, target);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

// Products q.k of any finite size, of even and of odd keys and those in the middle, which lie in
// other splits of decode.
struct Products {
  const char* name;
  double even, odd, middle;
  double scale = 1;
  double soft_cap = 0;
  float k_scale = 1;
  float v_scale = 1;
  double sink = -kInf;
  double query = 0;  // what queries are; 0: about as large as keys
};

void ExpectRightRows(const Products& products, DType query, DType cache, const char* out,
                     int64_t rows, const char* target) {
  constexpr int64_t kKeys = 1100, kHeadDim = 32, kPageSize = 16;
  std::mt19937_64 rng(5);
  CaseSpec spec;
  spec.query_dtype = query;
  spec.cache_dtype = cache;
  spec.out_dtype = out;
  spec.layout = Layout::kPair;
  spec.kv_heads = 1;
  spec.group_size = 4;
  spec.head_dim = kHeadDim;
  spec.max_pages = kKeys / kPageSize + 1;
  spec.max_seqs = 1;
  spec.query_lens = {rows};
  spec.context_lens = {kKeys};
  spec.scale = products.scale;
  spec.soft_cap = products.soft_cap;
  spec.sinks = spec.return_lse = true;
  spec.k_scale_size = spec.v_scale_size = 1;
  Case c(spec, rng);
  c.k_scale.floats()[0] = products.k_scale;
  c.v_scale.floats()[0] = products.v_scale;
  for (int64_t i = 0; i < c.sinks.size(); ++i) c.sinks.Set(i, products.sink);
  const double most = std::max(std::fabs(products.even), std::fabs(products.odd));
  const double of_query = products.query != 0 ? products.query : std::exp2(std::ilogb(most) / 2);
  for (int64_t i = 0; i < c.query.size(); ++i) c.query.Set(i, i % kHeadDim == 0 ? of_query : 0);
  for (int64_t t = 0; t < kKeys; ++t) {
    const double dot = t >= 512 && t < 1024 ? products.middle
                       : t % 2 == 0         ? products.even
                                            : products.odd;
    const int64_t page = c.block_tables.ints()[t / kPageSize];
    for (int64_t d = 0; d < kHeadDim; ++d) {
      c.kv_cache.Set((page * kPageSize + t % kPageSize) * kHeadDim + d,
                     d == 0 ? dot / of_query : 0);
    }
  }
  ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
  const Expected expected(c);
  const std::string what = StrCat(target, ": ", products.name, ", ", c.spec().ToString());
  double size = 0;
  for (double x : expected.out) size = std::max(size, std::isfinite(x) ? std::fabs(x) : 0.0);
  for (int64_t i = 0; i < c.out.size(); ++i) {
    const double want = expected.out[static_cast<size_t>(i)];
    if (SameNonFinite(want, c.out.Get(i))) continue;
    ASSERT_NEAR(c.out.Get(i), want, 0.02 * size) << "out[" << i << "], " << what;
  }
  for (int64_t i = 0; i < c.lse.size(); ++i) {
    const double want = expected.lse[static_cast<size_t>(i)];
    const double rounded = std::fabs(want) > 3.4028235e38 ? std::copysign(kInf, want) : want;
    if (SameNonFinite(rounded, c.lse.Get(i))) continue;
    ASSERT_NEAR(c.lse.Get(i), want, 1e-4 * std::max(1.0, std::fabs(want))) << "lse, " << what;
  }
}

void ExpectRightRows(const std::vector<Products>& all) {
  ForEachTarget([&](const char* target) {
    for (const Products& products : all) {
      for (int64_t rows : {1, 20}) {  // decode, prefill
        ExpectRightRows(products, DType::kF32, DType::kF32, "f32", rows, target);
        ExpectRightRows(products, DType::kBF16, DType::kBF16, "bf16", rows, target);
        ExpectRightRows(products, DType::kBF16, DType::kF8E4M3FN, "bf16", rows, target);
        if (::testing::Test::HasFatalFailure()) return;
      }
#if defined(XLA_GPU_SANITIZED)  // ten times slower, and not there for the numbers
      break;
#endif
    }
  });
}

TEST(PagedAttentionExtremes, AnyFiniteProductsGiveTheRightRow) {
  constexpr double kMost = 3.38e38;
  ExpectRightRows({
      {.name = "differences past f32", .even = kMost, .odd = -kMost, .middle = 0, .scale = 1e-38},
      {.name = "of splits", .even = -kMost, .odd = -kMost, .middle = kMost, .scale = 2e-39},
      {.name = "scale 1e-40", .even = kMost, .odd = 1e38, .middle = 0, .scale = 1e-40},
      {.name = "scale 16", .even = 1e38, .odd = 0, .middle = 0, .scale = 16},
      {.name = "negative", .even = -1e38, .odd = -2e38, .middle = -kMost, .scale = 1e20},
      {.name = "sink", .even = 1e38, .odd = 2, .middle = 1, .scale = 100, .sink = 3.4e38},
      {.name = "queries 1e30", .even = 1, .odd = 2, .middle = 1, .scale = 1e20, .query = 1e30},
      {.name = "cap 1", .even = kMost, .odd = 1e38, .middle = 0, .scale = 1e-38, .soft_cap = 1},
      {.name = "cap 1e20",
       .even = kMost,
       .odd = 1e38,
       .middle = 0,
       .scale = 1e-20,
       .soft_cap = 1e20},
      {.name = "cap, scale 1e-38",
       .even = kMost,
       .odd = 1e38,
       .middle = 0,
       .scale = 1e-38,
       .soft_cap = 1e20},
      {.name = "k_scale 3e38",
       .even = 1e20,
       .odd = 2e20,
       .middle = 1,
       .scale = 1e20,
       .k_scale = 3e38f},
      {.name = "small", .even = 1e-35, .odd = 2e-35, .middle = 0, .scale = 1e20, .k_scale = 3e38f},
      {.name = "k_scale 0", .even = kMost, .odd = 1e38, .middle = 0, .k_scale = 0},
  });
}

TEST(PagedAttentionExtremes, AKeyScaleThatIsNotFiniteGivesNaN) {
  for (const float k_scale : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    ExpectRightRows(
        {{.name = "", .even = 1, .odd = 2, .middle = 1, .k_scale = k_scale},
         {.name = "", .even = -1, .odd = -2, .middle = -1, .k_scale = k_scale},
         {.name = "", .even = 1, .odd = 2, .middle = 1, .soft_cap = 2, .k_scale = k_scale}});
  }
}

// The values' weights leave f32, but not times v_scale.
TEST(PagedAttentionExtremes, ALargeSinkBesideALargeValueScale) {
  ExpectRightRows({{.name = "", .even = 1, .odd = 2, .middle = 1, .v_scale = 1e38f, .sink = 110}});
}

// A key whose value is near the end of f32 comes late, of a logit somewhat above the others'.
TEST(PagedAttentionExtremes, AValueAtTheEndOfF32) {
  ForEachTarget([](const char* target) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      for (int64_t rows : {1, 20}) {
        std::mt19937_64 rng(6);
        CaseSpec spec;
        spec.query_dtype = spec.cache_dtype = dtype;
        spec.layout = Layout::kPair;
        spec.kv_heads = 1;
        spec.page_size = 16;
        spec.max_pages = 20;
        spec.query_lens = {rows};
        spec.context_lens = {300};
        spec.scale = 1;
        Case c(spec, rng);
        for (int64_t i = 0; i < c.query.size(); ++i) c.query.Set(i, i % 64 == 0 ? 1 : 0);
        for (int64_t t = 0; t < 300; ++t) {
          const int64_t at = (c.block_tables.ints()[t / 16] * 16 + t % 16) * 64;
          c.kv_cache.Set(at, t == 200 ? 5 : 0);
          for (int64_t d = 0; t == 200 && d < 64; ++d) c.v_cache.Set(at + d, 3.3e38);
        }
        ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
        const Expected expected(c);
        for (int64_t i = 0; i < rows * c.spec().group_size * 64; ++i) {
          const double want = expected.out[static_cast<size_t>(i)];
          ASSERT_NEAR(c.out.Get(i), want, 0.02 * want) << target << ", " << rows << " rows";
        }
      }
    }
  });
}

// A key with a logit of -inf: without a cap it has no weight, with one its logit is -soft_cap. A
// row that sees no other key sees nothing.
TEST(PagedAttentionExtremes, AKeyOfMinusInfinity) {
  for (double soft_cap : {0.0, 2.0}) {
    for (int64_t rows : {1, 3, 30}) {
      std::mt19937_64 rng(4);
      CaseSpec spec;
      spec.layout = Layout::kPair;
      spec.kv_heads = spec.group_size = 1;
      spec.query_lens = {rows};
      spec.context_lens = {rows};
      spec.soft_cap = soft_cap;
      Case c(spec, rng);
      for (int64_t i = 0; i < c.query.size(); ++i) c.query.Set(i, std::fabs(c.query.Get(i)));
      c.kv_cache.Set(c.block_tables.ints()[0] * 16 * 64, -kInf);
      ASSERT_TRUE(c.Run(DefaultThreadPool()).ok());
      const Expected expected(c);
      for (int64_t i = 0; i < c.out.size(); ++i) {
        ASSERT_NEAR(c.out.Get(i), expected.out[static_cast<size_t>(i)], 1e-5)
            << rows << ", " << soft_cap;
      }
      EXPECT_EQ(c.out.Get(0) == 0, soft_cap == 0);
      EXPECT_EQ(c.lse.Get(0) == -kInf, soft_cap == 0);
    }
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention
