// Random problems on a GPU against the fp64 reference. For tests only.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_GPU_REFERENCE_TESTING_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_GPU_REFERENCE_TESTING_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "src/cuda/gpu_call_testing.h"
#include "src/ops/paged_attention/random_case.h"
#include "src/ops/paged_attention/reference.h"

namespace xla_gpu::paged_attention {

// What decides which kernels are compiled; everything else of a problem is random.
struct Kind {
  DType query, cache;
  const char* out;
  int64_t head_dim;
  bool soft_cap;
};

inline CaseSpec SpecOf(const Kind& kind, std::mt19937_64& rng) {
  CaseSpec spec = RandomSpec(rng);
  spec.query_dtype = kind.query;
  spec.cache_dtype = kind.cache;
  spec.out_dtype = kind.out;
  spec.head_dim = kind.head_dim;
  spec.scale = std::copysign(1.0 / std::sqrt(static_cast<double>(kind.head_dim)), spec.scale);
  spec.k_token_scales = spec.v_token_scales = false;  // which fewer kernels take
  // Of logits that all are beyond the cap, of those that all are far below, and of some of each.
  if (!kind.soft_cap) {
    spec.soft_cap = 0;
  } else if (spec.soft_cap == 0) {
    spec.soft_cap = spec.padding_rows == 0 ? 3.0 : 6.0;
  } else if (spec.soft_cap > 6) {
    spec.non_finite = 0;  // +-inf is +-cap: a weight of exp(-60) is 0 in f16
  }
  if (!spec.return_lse) {  // calls for which kernels are compiled with PLAIN=1
    spec.sinks = false;
    spec.k_scale_size = spec.v_scale_size = 0;
    spec.scale = std::fabs(spec.scale);
  }
  return spec;
}

// Of pages that the copy engine takes, or of whatever size; one token is what some servers have.
template <typename In>
int64_t PageSize(const In& in) {
  return in(0, 1) == 0 ? 8 * in(1, 5) : in(0, 1) == 0 ? 1 : in(2, 40);
}

// Makes one key of a row outweigh most others. Not by all that f16 weights hold where the values
// are of fp8: some of its own are 0, and then the others are what counts.
inline void JumpLogits(const Kind& kind, CaseSpec& spec) {
  if (kind.query == DType::kF32) return;  // the unit is of smaller logits
  spec.scale *= IsFloat8(kind.cache) ? 5 : 100;
  if (IsFloat8(kind.cache)) spec.k_scale_size = 0;
  spec.non_finite = 0;  // of a weight that is 0 in f32 an infinity makes NaN
}

inline double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::ldexp(1.0, -24);
    case DType::kF16:
      return std::ldexp(1.0, -11);
    case DType::kBF16:
      return std::ldexp(1.0, -8);
    default:
      return 0;  // fp8 is exact in f16
  }
}

// The unit that errors are counted in: half an ulp of the coarsest of the types involved, at the
// magnitude of the sum of |weight * value|.
inline double RelativeUnit(const Kind& kind, DType out) {
  const double unit = std::max({Epsilon(kind.query), Epsilon(kind.cache), Epsilon(out)});
  // In f32 throughout, the logits' own rounding (|x| to some 20) dominates.
  return kind.query == DType::kF32 && out == DType::kF32 ? 16 * unit : unit;
}

inline void TakeMagnitudes(Case& c, const Problem& p) {
  OwnedTensor& values = p.separate_v ? c.v_cache : c.kv_cache;
  for (int64_t page = 0; page < p.num_pages; ++page) {
    for (int64_t t = 0; t < p.page_size; ++t) {
      for (int64_t h = 0; h < p.kv_heads; ++h) {
        for (int64_t d = 0; d < p.head_dim; ++d) {
          const int64_t at =
              p.v.offset + page * p.v.page_stride + t * p.v.token_stride + h * p.v.head_stride + d;
          values.Set(at, std::fabs(values.Get(at)));
        }
      }
    }
  }
  for (int64_t i = 0; p.v_token_scales && i < c.v_scale.size(); ++i) {
    c.v_scale.Set(i, std::fabs(c.v_scale.Get(i)));
  }
}

// Errors in half ulps of the coarsest type.
struct Errors {
  void Add(double error) {
    const double edges[] = {0.25, 0.5, 1, 2, 4};
    ++bins[static_cast<size_t>(std::lower_bound(edges, edges + 5, error) - edges)];
    worst = std::max(worst, error);
  }
  std::array<int64_t, 6> bins{};
  double worst = 0;
};

// Of the op's own plan, or of each of `plans`.
inline void ExpectReference(const Kind& kind, Case& c, Errors& errors,
                            const std::vector<std::unique_ptr<Plan>>& plans = {},
                            std::mt19937_64* shifts = nullptr) {
  const Op& op = **OpRegistry::Global().Get("paged_attention");
  const Problem p = *ProblemFromCall(c.call());
  const Buffers b = BuffersFromCall(p, c.call());
  std::vector<double> out(static_cast<size_t>(c.out.size())), magnitude(out.size());
  std::vector<double> lse(static_cast<size_t>(p.tokens * p.q_heads));
  PagedAttentionReference(p, b, out.data(), lse.data());
  std::vector<std::vector<cuda::Bytes>> all;
  for (size_t i = 0; i < std::max<size_t>(plans.size(), 1); ++i) {
    const Plan* const plan = plans.empty() ? nullptr : plans[i].get();
    auto got = cuda::RunOnGpu(op, c.call(), {}, plan, shifts);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    all.push_back(*std::move(got));
    if (shifts != nullptr) continue;
    got = cuda::RunOnGpu(op, c.call(), {}, plan);  // once more: the same bits
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (size_t j = 0; j <= (p.return_lse ? 1u : 0u); ++j) {
      EXPECT_TRUE(all.back()[j] == (*got)[j]) << "run " << i << ": other bits in result " << j;
    }
  }
  TakeMagnitudes(c, p);
  PagedAttentionReference(p, b, magnitude.data(), nullptr);
  const double unit = RelativeUnit(kind, p.out_dtype);
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<cuda::Bytes>& got = all[i];
    for (size_t j = 0; j < out.size(); ++j) {
      const double value = LoadAsDouble(got[0].data(), p.out_dtype, static_cast<int64_t>(j));
      if (SameNonFinite(out[j], value)) continue;
      // Numbers are no denser than subnormals, and those of f32 may become 0 on the way.
      const double error =
          std::fabs(value - out[j]) /
          (unit * magnitude[j] + std::ldexp(1.0, p.out_dtype == DType::kF16 ? -24 : -126));
      errors.Add(error);
      ASSERT_LE(error, 8) << "run " << i << ": out[" << j << "] is " << value << ", expected "
                          << out[j];
    }
    for (size_t j = 0; p.return_lse && j < lse.size(); ++j) {
      const double value = LoadAsDouble(got[1].data(), DType::kF32, static_cast<int64_t>(j));
      if (value == lse[j] || (std::isnan(value) && std::isnan(lse[j]))) continue;
      ASSERT_LE(std::fabs(value - lse[j]), 1e-4 * std::max(1.0, std::fabs(lse[j])))
          << "run " << i << ": lse[" << j << "]";
    }
  }
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_GPU_REFERENCE_TESTING_H_
