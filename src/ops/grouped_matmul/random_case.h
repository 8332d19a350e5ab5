// For tests: one call of grouped_matmul made from a seed, held in exact-size heap buffers so that a
// sanitizer sees any access past them, and the product in f64 with its bound.
#ifndef XLA_GPU_OPS_GROUPED_MATMUL_RANDOM_CASE_H_
#define XLA_GPU_OPS_GROUPED_MATMUL_RANDOM_CASE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/strings.h"
#include "src/ops/grouped_matmul/grouped_matmul.h"
#include "src/ops/paged_cache/owned_tensor.h"

namespace xla_gpu::grouped_matmul {

using paged_cache::OwnedTensor;

// What decides which kernels are compiled; everything else of a problem is random.
struct Kind {
  DType lhs, rhs, out;
  int64_t inner, columns;
  int64_t mean_rows;  // of a group, at most
  int64_t scale_blocks = 0;
};

class Case {
 public:
  Case(const Kind& kind, std::mt19937_64& rng) : kind_(kind) {
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(rng() % static_cast<uint64_t>(n));
    };
    const int64_t groups = 1 + below(rng() % 4 == 0 ? 70 : 9);
    sizes = OwnedTensor(DType::kI32, {groups});
    int64_t rows = 0;
    for (int64_t i = 0; i < groups; ++i) {
      const int64_t size = rng() % 3 == 0 ? 0 : below(2 * kind.mean_rows + 1);
      sizes.ints()[i] = static_cast<int32_t>(size);
      rows += size;
    }
    rows = std::max<int64_t>(rows + below(20) - 8, 0);  // more than the groups have, or fewer
    if (rng() % 4 == 0) sizes.ints()[below(groups)] = rng() % 2 == 0 ? -5 : 2147483647;
    lhs = OwnedTensor(kind.lhs, {rows, kind.inner});
    rhs = OwnedTensor(kind.rhs, {groups, kind.inner, kind.columns});
    std::normal_distribution<double> normal(0, 1);
    for (int64_t i = 0; i < lhs.size(); ++i) lhs.Set(i, normal(rng));
    for (int64_t i = 0; i < rhs.size(); ++i) {
      if (kind.rhs == DType::kI8) {
        reinterpret_cast<int8_t*>(rhs.data.get())[i] = static_cast<int8_t>(rng());
      } else {
        rhs.Set(i, normal(rng));
      }
    }
    out = OwnedTensor(kind.out, {rows, kind.columns});
    args_ = {lhs.view(), rhs.view(), sizes.view()};
    if (kind.scale_blocks > 0) {
      scale = OwnedTensor(DType::kF32, {groups, kind.scale_blocks, kind.columns});
      for (int64_t i = 0; i < scale.size(); ++i) scale.Set(i, 0.5 + std::abs(normal(rng)));
      args_.push_back(scale.view());
      EXPECT_TRUE(attributes_.Add("optional_args", std::string_view("rhs_scale")).ok());
    }
    EXPECT_TRUE(attributes_.Add("out_dtype", DTypeName(kind.out)).ok());
    result_ = out.view();
  }

  Call call() const { return {args_, {&result_, 1}, &attributes_}; }
  std::string ToString() const {
    std::string text = StrCat(lhs.view().ToString(), " @ ", rhs.view().ToString(), " -> ",
                              out.view().ToString(), " scales ", kind_.scale_blocks, " sizes");
    for (int64_t i = 0; i < sizes.size(); ++i) text += StrCat(" ", sizes.ints()[i]);
    return text;
  }

  // Whether `got` is the product: in f32 sums of any order, rounded once.
  void ExpectRight(const OwnedTensor& got, const std::string& what) const {
    const int64_t inner = kind_.inner, columns = kind_.columns, rows = got.shape[0];
    const double unit = kind_.out == DType::kF32    ? 0x1p-24
                        : kind_.out == DType::kBF16 ? 0x1p-8
                                                    : 0x1p-11;
    std::vector<double> sums(static_cast<size_t>(columns)), sizes_of(sums.size());
    int64_t row = 0;
    for (int64_t group = 0; group <= sizes.size(); ++group) {
      const bool none = group == sizes.size();
      const int64_t end =
          none ? rows : std::min<int64_t>(row + std::max(sizes.ints()[group], 0), rows);
      for (; row < end; ++row) {
        std::fill(sums.begin(), sums.end(), 0);
        std::fill(sizes_of.begin(), sizes_of.end(), 0);
        for (int64_t k = 0; !none && k < inner; ++k) {
          const double a = lhs.Get(row * inner + k);
          for (int64_t j = 0; j < columns; ++j) {
            double b = RhsAt((group * inner + k) * columns + j);
            if (kind_.scale_blocks > 0) {
              const int64_t block = k / (inner / kind_.scale_blocks);
              b *= scale.Get((group * kind_.scale_blocks + block) * columns + j);
            }
            sums[static_cast<size_t>(j)] += a * b;
            sizes_of[static_cast<size_t>(j)] += std::abs(a * b);
          }
        }
        for (int64_t j = 0; j < columns; ++j) {
          const double want = sums[static_cast<size_t>(j)];
          const double most = 1.01 * unit * std::abs(want) +
                              0x1p-24 * static_cast<double>(std::min<int64_t>(inner + 4, 64)) *
                                  sizes_of[static_cast<size_t>(j)];
          ASSERT_LE(std::abs(got.Get(row * columns + j) - want), most)
              << what << ": out[" << row << ", " << j << "], expected " << want;
        }
      }
    }
  }

  OwnedTensor lhs, rhs, sizes, scale, out;

 private:
  double RhsAt(int64_t i) const {
    return kind_.rhs == DType::kI8 ? reinterpret_cast<const int8_t*>(rhs.data.get())[i]
                                   : rhs.Get(i);
  }

  const Kind kind_;
  std::vector<TensorView> args_;
  TensorView result_;
  Attributes attributes_;
};

}  // namespace xla_gpu::grouped_matmul

#endif  // XLA_GPU_OPS_GROUPED_MATMUL_RANDOM_CASE_H_
