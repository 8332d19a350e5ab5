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
  bool silu_mul = false;
  bool factors = false;              // one of both or both
  DType residual = DType::kInvalid;  // kInvalid: none
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
                                  {DType::kF32, 40960},
                                  {DType::kBF16, 14336, DType::kInvalid, true},
                                  {DType::kF32, 14336, DType::kInvalid, true, true},
                                  {DType::kF32, 4096, DType::kBF16, false, true},
                                  {DType::kF16, 1030, DType::kF16, true, true},
                                  {DType::kF32, 33001, DType::kInvalid, true, true},
                                  {DType::kBF16, 3, DType::kInvalid, false, true},
                                  {DType::kF32, 4096, DType::kBF16, false, true, DType::kBF16},
                                  {DType::kBF16, 8192, DType::kBF16, false, false, DType::kBF16},
                                  {DType::kF16, 33, DType::kF32, true, true, DType::kF32},
                                  {DType::kF32, 40000, DType::kF32, false, false, DType::kF16}};

class Case {
 public:
  Case(const Kind& kind, std::mt19937_64& rng) : kind_(kind) {
    const auto rows = static_cast<int64_t>(rng() % 6);
    std::normal_distribution<double> normal(0, 1);
    const int64_t columns = kind.columns * (kind.silu_mul ? 2 : 1);
    x = OwnedTensor(kind.dtype, {rows, columns});
    for (int64_t row = 0; row < rows; ++row) {
      // Of any size that the dtype has, or zeros; of a norm, squares are summed in f32, and so are
      // products of halves.
      const bool small = kind.dtype == DType::kF16 || kind.norm != DType::kInvalid;
      const int exponent = static_cast<int>(rng() % (small ? 20 : 200)) - (small ? 14 : 140);
      const double size = rng() % 8 == 0 ? 0
                          : kind.silu_mul || kind.residual != DType::kInvalid
                              ? 1 + rng() % 3
                              : std::ldexp(1, exponent);
      for (int64_t i = 0; i < columns; ++i) x.Set(row * columns + i, size * normal(rng));
    }
    args_ = {x.view()};
    const auto optional = [&](const char* name, OwnedTensor& tensor, DType dtype, int64_t size) {
      tensor = OwnedTensor(dtype, {size});
      for (int64_t i = 0; i < size; ++i) tensor.Set(i, normal(rng));
      args_.push_back(tensor.view());
      optional_ += StrCat(optional_.empty() ? "" : ",", name);
    };
    if (kind.norm != DType::kInvalid) optional("norm_weight", weight, kind.norm, kind.columns);
    const uint64_t which = kind.factors ? 1 + rng() % 3 : 0;
    if ((which & 1) != 0) optional("row_factor", row_factor, DType::kF32, rows);
    if ((which & 2) != 0) optional("column_factor", column_factor, DType::kF32, columns);
    if (kind.residual != DType::kInvalid) {
      optional("residual", residual, kind.residual, rows * kind.columns);
      residual.shape = {rows, kind.columns};
      args_.back() = residual.view();
    }
    if (!optional_.empty()) {
      EXPECT_TRUE(attributes_.Add("optional_args", std::string_view(optional_)).ok());
    }
    if (kind.silu_mul) {
      EXPECT_TRUE(attributes_.Add("activation", std::string_view("silu_mul")).ok());
    }
    epsilon_ = rng() % 2 == 0 ? 1e-5 : 0.5;
    EXPECT_TRUE(attributes_.Add("epsilon", epsilon_).ok());
    out = OwnedTensor(DType::kF8E4M3FN, {rows, kind.columns});
    scale = OwnedTensor(DType::kF32, {rows});
    results_ = {out.view(), scale.view()};
    if (kind.residual == DType::kInvalid) return;
    sum = OwnedTensor(kind.residual, {rows, kind.columns});
    results_.push_back(sum.view());
  }

  Call call() const { return {args_, results_, &attributes_}; }
  std::string ToString() const {
    std::string text = StrCat("epsilon ", epsilon_, " of");
    for (const TensorView& arg : args_) text += StrCat(" ", arg.ToString());
    return text;
  }

  // Expects the nearest fp8 numbers, by scales of f32's precision; `sums`: none without a residual.
  void ExpectRight(const OwnedTensor& got, const OwnedTensor& scales, const OwnedTensor* sums,
                   const std::string& what) const {
    for (int64_t row = 0; row < x.shape[0]; ++row) {
      const int64_t first = row * kind_.columns;
      std::vector<double> values(static_cast<size_t>(kind_.columns));
      double squares = 0, largest = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const double value = values[i] = Computed(row, static_cast<int64_t>(i));
        squares += value * value;
      }
      for (size_t i = 0; i < values.size() && sums != nullptr; ++i) {
        const double unit = kind_.residual == DType::kBF16  ? 0x1p-8
                            : kind_.residual == DType::kF16 ? 0x1p-11
                                                            : 0x1p-20;
        const double value = sums->Get(first + static_cast<int64_t>(i));
        ASSERT_LE(std::abs(value - values[i]), 1.01 * unit * std::abs(values[i]) + 1e-4)
            << what << ": sum[" << row << ", " << i << "], expected " << values[i];
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

  OwnedTensor x, weight, row_factor, column_factor, residual, out, scale, sum;

 private:
  double Given(int64_t row, int64_t column) const {
    double value = x.Get(row * x.shape[1] + column);
    if (row_factor.data != nullptr) value *= row_factor.Get(row);
    if (column_factor.data != nullptr) value *= column_factor.Get(column);
    return value;
  }
  // What the norm, if there is one, takes.
  double Computed(int64_t row, int64_t column) const {
    double value = Given(row, column);
    if (kind_.silu_mul) {
      value *= Given(row, kind_.columns + column) / (1 + std::exp(-value));
    }
    return residual.data == nullptr ? value : value + residual.Get(row * kind_.columns + column);
  }

  const Kind kind_;
  double epsilon_ = 0;
  std::string optional_;  // the arguments
  std::vector<TensorView> args_, results_;
  Attributes attributes_;
};

}  // namespace xla_gpu::quantize_rows

#endif  // XLA_GPU_OPS_QUANTIZE_ROWS_RANDOM_CASE_H_
