// The Host kernels against the fp64 reference over random problems, and what they promise besides:
// same bits whatever the threads and the rest of the batch, no wrong index followed, no value used
// that a query does not see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "src/ops/paged_attention/random_case.h"
#include "src/ops/paged_attention/reference.h"

namespace xla_gpu::paged_attention {
namespace {

struct Expected {
  explicit Expected(const Case& c)
      : out(static_cast<size_t>(c.out.size())),
        lse(static_cast<size_t>(c.out.shape[0] * c.out.shape[1])) {
    const Problem problem = *ProblemFromCall(c.call());
    PagedAttentionReference(problem, BuffersFromCall(problem, c.call()), out.data(), lse.data());
  }
  std::vector<double> out;
  std::vector<double> lse;
};

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
// (the values are normally distributed, times v_scale up to 2).
double Allowed(DType out_dtype, double expected) {
  const double f32 = 48 * Epsilon(DType::kF32);
  if (out_dtype == DType::kF32) return f32;
  return Epsilon(out_dtype) * 0.5 * std::fabs(expected) + f32;
}

::testing::AssertionResult Check(const Case& c, const Expected& expected, Histogram* histogram) {
  for (int64_t i = 0; i < c.out.size(); ++i) {
    const double want = expected.out[static_cast<size_t>(i)];
    const double got = c.out.Get(i);
    const int64_t row = i / c.out.shape[2];
    if (std::isnan(want) || std::isnan(got)) {
      if (std::isnan(want) && std::isnan(got)) continue;
      return ::testing::AssertionFailure()
             << "out[" << i << "] (row, head " << row << ") is " << got << ", expected " << want;
    }
    const double units = std::fabs(got - want) / Allowed(c.out.dtype, want);
    if (histogram != nullptr) histogram->Add(c.out.dtype, units);
    if (!(units <= 1.0)) {
      return ::testing::AssertionFailure()
             << "out[" << i << "] (row, head " << row << ") is " << got << ", expected " << want;
    }
  }
  for (int64_t i = 0; c.lse.data != nullptr && i < c.lse.size(); ++i) {
    const double want = expected.lse[static_cast<size_t>(i)];
    const double got = c.lse.Get(i);
    if (std::isnan(want) && std::isnan(got)) continue;
    if (std::isinf(want) && want == got) continue;
    if (!(std::fabs(got - want) <= 48 * Epsilon(DType::kF32) * std::max(1.0, std::fabs(want)))) {
      return ::testing::AssertionFailure()
             << "lse[" << i << "] is " << got << ", expected " << want;
    }
  }
  return ::testing::AssertionSuccess();
}

TEST(PagedAttentionHost, AgreesWithReferenceOnRandomProblems) {
  constexpr int kCases = 3000;
  Histogram histogram;
  for (int i = 0; i < kCases; ++i) {
    std::mt19937_64 rng(static_cast<uint64_t>(i) + 1);
    Case c(RandomSpec(rng), rng);
    const Status status = c.Run(DefaultThreadPool());
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_TRUE(Check(c, Expected(c), &histogram))
        << "seed " << i + 1 << ": " << c.spec().ToString();
  }
  histogram.Print();
}

}  // namespace
}  // namespace xla_gpu::paged_attention
