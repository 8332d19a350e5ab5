// For tests: one call of rotary_embedding made from a seed, held in exact-size heap buffers so that
// a sanitizer sees any access past them, and what its results may be by f64.
#ifndef XLA_GPU_OPS_ROTARY_EMBEDDING_RANDOM_CASE_H_
#define XLA_GPU_OPS_ROTARY_EMBEDDING_RANDOM_CASE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/strings.h"
#include "src/ops/paged_cache/owned_tensor.h"
#include "src/ops/rotary_embedding/rotary_embedding.h"

namespace xla_gpu::rotary_embedding {

using paged_cache::OwnedTensor;

// What decides which kernel is compiled; everything else of a problem is random.
struct Kind {
  DType dtype;
  DType cos_sin_dtype;
  int64_t q_heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t rotary_dim;
  bool interleaved = false;
  DType norm = DType::kInvalid;  // kInvalid: none
  DType out = DType::kInvalid;   // kInvalid: dtype, without factors
};

// Vectors of 16 bytes and of fewer, parts of a head that are copied, groups with threads to spare
// and such whose threads have several units, several blocks a token.
inline constexpr Kind kKinds[] = {
    {DType::kBF16, DType::kBF16, 32, 8, 128, 128},
    {DType::kBF16, DType::kBF16, 8, 2, 64, 64, true},
    {DType::kBF16, DType::kF32, 6, 2, 128, 32},
    {DType::kF16, DType::kF16, 5, 5, 80, 80},
    {DType::kF16, DType::kBF16, 4, 1, 96, 48, true},
    {DType::kF32, DType::kF32, 3, 1, 64, 64},
    {DType::kF32, DType::kF16, 7, 1, 10, 6, true},
    {DType::kF32, DType::kF32, 1, 1, 2, 2},
    {DType::kBF16, DType::kBF16, 2, 1, 512, 512},
    {DType::kBF16, DType::kBF16, 9, 3, 134, 66},
    {DType::kBF16, DType::kBF16, 32, 8, 128, 128, false, DType::kBF16},
    {DType::kF16, DType::kF16, 3, 2, 80, 48, true, DType::kF32},
    {DType::kF32, DType::kF32, 5, 1, 134, 66, false, DType::kF16},
    {DType::kF32, DType::kBF16, 32, 8, 128, 128, false, DType::kInvalid, DType::kBF16},
    {DType::kF32, DType::kBF16, 4, 2, 128, 128, false, DType::kBF16, DType::kBF16},
    {DType::kF16, DType::kF16, 3, 1, 80, 48, true, DType::kInvalid, DType::kF32}};

class Case {
 public:
  Case(const Kind& kind, std::mt19937_64& rng) : kind_(kind) {
    const auto integer = paged_cache::IntegersOf(rng);
    const int64_t tokens = integer(0, 6);
    max_positions_ = integer(0, 8) == 0 ? 0 : integer(1, 40);
    std::normal_distribution<double> normal(0, 1);
    const auto fill = [&](OwnedTensor& tensor, double size) {
      for (int64_t i = 0; i < tensor.size(); ++i) tensor.Set(i, size * normal(rng));
    };
    qkv = OwnedTensor(kind.dtype, {tokens, (kind.q_heads + 2 * kind.kv_heads) * kind.head_dim});
    fill(qkv, std::ldexp(1, static_cast<int>(integer(-8, 8))));
    positions = OwnedTensor(DType::kI32, {tokens});
    for (int64_t i = 0; i < tokens; ++i) {
      positions.ints()[i] = static_cast<int32_t>(integer(0, std::max<int64_t>(max_positions_, 1)));
    }
    if (tokens > 0 && integer(0, 3) == 0) {
      const int32_t outside[] = {-1, std::numeric_limits<int32_t>::min(),
                                 std::numeric_limits<int32_t>::max()};
      positions.ints()[integer(0, tokens - 1)] = outside[integer(0, 2)];
    }
    cos_sin = OwnedTensor(kind.cos_sin_dtype, {max_positions_, kind.rotary_dim});
    fill(cos_sin, 1);
    args_ = {qkv.view(), positions.view(), cos_sin.view()};
    EXPECT_TRUE(attributes_.Add("q_heads", kind.q_heads).ok());
    EXPECT_TRUE(attributes_.Add("kv_heads", kind.kv_heads).ok());
    EXPECT_TRUE(attributes_.Add("interleaved", kind.interleaved).ok());
    epsilon_ = integer(0, 1) == 0 ? 1e-5 : 0.5;
    EXPECT_TRUE(attributes_.Add("epsilon", epsilon_).ok());
    const auto optional = [&](const char* name, OwnedTensor& tensor, DType dtype, int64_t size) {
      tensor = OwnedTensor(dtype, {size});
      fill(tensor, 1);
      args_.push_back(tensor.view());
      optional_ += StrCat(optional_.empty() ? "" : ",", name);
    };
    if (kind.norm != DType::kInvalid) {
      optional("q_norm", norms[0], kind.norm, kind.head_dim);
      optional("k_norm", norms[1], kind.norm, kind.head_dim);
    }
    out_ = kind.out == DType::kInvalid ? kind.dtype : kind.out;
    if (kind.out != DType::kInvalid) {
      const int64_t which = integer(1, 3);
      if ((which & 1) != 0) optional("row_factor", row_factor, DType::kF32, tokens);
      if ((which & 2) != 0) optional("column_factor", column_factor, DType::kF32, qkv.shape[1]);
      EXPECT_TRUE(attributes_.Add("out_dtype", InfoOf(kind.out).name).ok());
    }
    if (!optional_.empty()) {
      EXPECT_TRUE(attributes_.Add("optional_args", std::string_view(optional_)).ok());
    }
    for (const int64_t heads : {kind.q_heads, kind.kv_heads, kind.kv_heads}) {
      results.emplace_back(out_, std::vector{tokens, heads * kind.head_dim});
      results_.push_back(results.back().view());
    }
  }

  Call call() const { return {args_, results_, &attributes_}; }
  std::string ToString() const {
    std::string text = StrCat(kind_.q_heads, " heads", kind_.interleaved ? ", interleaved" : "");
    for (const TensorView& arg : args_) text += StrCat(" ", arg.ToString());
    return text;
  }

  void ExpectRight(const std::vector<OwnedTensor>& got, const std::string& what) const {
    const int64_t heads[] = {kind_.q_heads, kind_.kv_heads, kind_.kv_heads};
    int64_t at = 0;
    for (int64_t token = 0; token < qkv.shape[0]; ++token) {
      for (size_t i = 0; i < 3; ++i) {
        for (int64_t head = 0; head < heads[i]; ++head, at += kind_.head_dim) {
          const int64_t begin = (token * heads[i] + head) * kind_.head_dim;
          const auto is_right = [&](int64_t element, double want, double error) {
            const double value = got[i].Get(begin + element);
            ASSERT_TRUE(std::isnan(want) ? std::isnan(value) : std::abs(value - want) <= error)
                << what << ": "
                << "qkv"[i] << "[" << token << ", " << head << ", " << element << "] is " << value
                << ", expected " << want;
          };
          ExpectHead(i, token, at, is_right);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }

  OwnedTensor qkv, positions, cos_sin, norms[2], row_factor, column_factor;
  std::vector<OwnedTensor> results;

 private:
  // What is turned, of queries (0), keys (1) or values.
  std::vector<double> Head(size_t of, int64_t at) const {
    std::vector<double> x(static_cast<size_t>(kind_.head_dim));
    double squares = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t element = at + static_cast<int64_t>(i), columns = qkv.shape[1];
      x[i] = qkv.Get(element);
      if (row_factor.data != nullptr) x[i] *= row_factor.Get(element / columns);
      if (column_factor.data != nullptr) x[i] *= column_factor.Get(element % columns);
      squares += x[i] * x[i];
    }
    if (of < 2 && kind_.norm != DType::kInvalid) {
      const double root = std::sqrt(squares / static_cast<double>(kind_.head_dim) + epsilon_);
      for (size_t i = 0; i < x.size(); ++i) x[i] *= norms[of].Get(static_cast<int64_t>(i)) / root;
    }
    return x;
  }

  // is_right(element, value, error) of each element of the head that begins at `at` of qkv.
  template <typename IsRight>
  void ExpectHead(size_t of, int64_t token, int64_t at, const IsRight& is_right) const {
    const std::vector<double> head = Head(of, at);
    const auto x = [&](int64_t i) { return head[static_cast<size_t>(i)]; };
    const bool exact = kind_.out == DType::kInvalid && (of == 2 || kind_.norm == DType::kInvalid);
    const auto expect = [&](int64_t element, double a, double b) {
      const double ulp = out_ == DType::kBF16 ? 0x1p-8 : out_ == DType::kF16 ? 0x1p-11 : 0x1p-24;
      const double least = out_ == DType::kF16 ? 0x1p-25 : 0;
      const double rounded = std::max(ulp * std::abs(a + b), least);
      const double summed = (exact ? 0x1p-22 : 0x1p-20) * (std::abs(a) + std::abs(b));
      is_right(element, a + b, 1.001 * rounded + summed);
    };
    const int64_t end = of < 2 ? kind_.rotary_dim : 0, half = end / 2;
    for (int64_t i = end; i < kind_.head_dim; ++i) {
      exact ? is_right(i, x(i), 0) : expect(i, x(i), 0);
    }
    const int64_t position = positions.ints()[token], row = position * kind_.rotary_dim;
    const bool known = position >= 0 && position < max_positions_;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t first = kind_.interleaved ? 2 * i : i;
      const int64_t second = kind_.interleaved ? 2 * i + 1 : i + half;
      const double cosine = known ? cos_sin.Get(row + i) : std::nan("");
      const double sine = known ? cos_sin.Get(row + half + i) : std::nan("");
      expect(first, x(first) * cosine, -x(second) * sine);
      expect(second, x(second) * cosine, x(first) * sine);
    }
  }

  const Kind kind_;
  int64_t max_positions_ = 0;
  double epsilon_ = 0;
  DType out_ = DType::kInvalid;
  std::string optional_;  // the arguments
  std::vector<TensorView> args_, results_;
  Attributes attributes_;
};

}  // namespace xla_gpu::rotary_embedding

#endif  // XLA_GPU_OPS_ROTARY_EMBEDDING_RANDOM_CASE_H_
