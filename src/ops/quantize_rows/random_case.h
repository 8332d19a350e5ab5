// For tests: one call of quantize_rows made from a seed, held in exact-size heap buffers so that a
// sanitizer sees any access past them, and what its results may be by f64.
#ifndef XLA_GPU_OPS_QUANTIZE_ROWS_RANDOM_CASE_H_
#define XLA_GPU_OPS_QUANTIZE_ROWS_RANDOM_CASE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/strings.h"
#include "src/ops/paged_cache/owned_tensor.h"
#include "src/ops/quantize_rows/quantize_rows.h"

namespace xla_gpu::quantize_rows {

using paged_cache::OwnedTensor;

// What decides which kernel is compiled; everything else of a problem is random.
struct Kind {
  DType dtype;
  int64_t columns;
  DType norm = DType::kInvalid;  // kInvalid: none
};

// Threads with one vector and with several, some without any, rows of odd lengths, and such as do
// not stay in registers.
inline constexpr Kind kKinds[] = {{DType::kBF16, 4096},
                                  {DType::kBF16, 4096, DType::kBF16},
                                  {DType::kBF16, 14336},
                                  {DType::kBF16, 200, DType::kF32},
                                  {DType::kF16, 2050, DType::kF16},
                                  {DType::kF16, 7},
                                  {DType::kF32, 5120},
                                  {DType::kF32, 1, DType::kBF16},
                                  {DType::kF32, 36, DType::kF32},
                                  {DType::kBF16, 20480, DType::kBF16},
                                  {DType::kBF16, 33001, DType::kBF16},
                                  {DType::kF32, 40960}};

class Case {
 public:
  Case(const Kind& kind, std::mt19937_64& rng) : kind_(kind) {
    const auto rows = static_cast<int64_t>(rng() % 6);
    std::normal_distribution<double> normal(0, 1);
    x = OwnedTensor(kind.dtype, {rows, kind.columns});
    for (int64_t row = 0; row < rows; ++row) {
      // Of any size that the dtype has, or zeros; of a norm, squares are summed in f32.
      const bool small = kind.dtype == DType::kF16 || kind.norm != DType::kInvalid;
      const int exponent = static_cast<int>(rng() % (small ? 20 : 200)) - (small ? 14 : 140);
      const double size = rng() % 8 == 0 ? 0 : std::ldexp(1, exponent);
      for (int64_t i = 0; i < kind.columns; ++i) x.Set(row * kind.columns + i, size * normal(rng));
    }
    args_ = {x.view()};
    if (kind.norm != DType::kInvalid) {
      weight = OwnedTensor(kind.norm, {kind.columns});
      for (int64_t i = 0; i < kind.columns; ++i) weight.Set(i, normal(rng));
      args_.push_back(weight.view());
      EXPECT_TRUE(attributes_.Add("optional_args", std::string_view("norm_weight")).ok());
    }
    epsilon_ = rng() % 2 == 0 ? 1e-5 : 0.5;
    EXPECT_TRUE(attributes_.Add("epsilon", epsilon_).ok());
    out = OwnedTensor(DType::kF8E4M3FN, {rows, kind.columns});
    scale = OwnedTensor(DType::kF32, {rows});
    results_ = {out.view(), scale.view()};
  }

  Call call() const { return {args_, results_, &attributes_}; }
  std::string ToString() const {
    std::string text = StrCat("epsilon ", epsilon_, " of");
    for (const TensorView& arg : args_) text += StrCat(" ", arg.ToString());
    return text;
  }

  // Expects the nearest fp8 numbers, by scales of f32's precision.
  void ExpectRight(const OwnedTensor& got, const OwnedTensor& scales,
                   const std::string& what) const {
    for (int64_t row = 0; row < x.shape[0]; ++row) {
      const int64_t first = row * kind_.columns;
      std::vector<double> values(static_cast<size_t>(kind_.columns));
      double squares = 0, largest = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const double value = values[i] = x.Get(first + static_cast<int64_t>(i));
        squares += value * value;
      }
      const double mean = squares / static_cast<double>(kind_.columns);
      for (size_t i = 0; i < values.size(); ++i) {
        if (kind_.norm != DType::kInvalid) {
          values[i] *= weight.Get(static_cast<int64_t>(i)) / std::sqrt(mean + epsilon_);
        }
        largest = std::max(largest, std::abs(values[i]));
      }
      const double scale = scales.Get(row);
      const double want = std::max<double>(largest / kLargest, kLeastScale);
      ASSERT_LE(std::abs(scale - want), 1e-6 * want) << what << ": scale[" << row << "]";
      for (size_t i = 0; i < values.size(); ++i) {
        const double value = got.Get(first + static_cast<int64_t>(i)) * scale;
        const double most = std::max(0x1p-4 * std::abs(values[i]), 0x1p-10 * scale);
        ASSERT_LE(std::abs(value - values[i]), 1.0001 * most)
            << what << ": out[" << row << ", " << i << "], expected " << values[i];
      }
    }
  }

  OwnedTensor x, weight, out, scale;

 private:
  const Kind kind_;
  double epsilon_ = 0;
  std::vector<TensorView> args_, results_;
  Attributes attributes_;
};

}  // namespace xla_gpu::quantize_rows

#endif  // XLA_GPU_OPS_QUANTIZE_ROWS_RANDOM_CASE_H_
