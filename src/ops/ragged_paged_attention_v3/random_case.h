// For tests: one call of ragged_paged_attention_v3 made from a seed, held in exact-size heap
// buffers so that a sanitizer sees any access past them, and the cache that it must leave.
#ifndef XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_RANDOM_CASE_H_
#define XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_RANDOM_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/core/ceil_div.h"
#include "src/ops/paged_attention/random_case.h"
#include "src/ops/ragged_paged_attention_v3/ragged_paged_attention_v3.h"

namespace xla_gpu::ragged_paged_attention_v3 {

using paged_attention::CaseSpec;
using paged_attention::OwnedTensor;

// Of a paged_attention spec: layout, return_lse and the sizes of the scales are not used.
class Case {
 public:
  Case(CaseSpec spec, bool side_by_side, bool update, std::mt19937_64& rng)
      : spec_(std::move(spec)), side_by_side_(side_by_side), update_(update) {
    MakeTensors();
    MakeCall();
    distribution.ints()[2] = static_cast<int32_t>(spec_.query_lens.size());
    paged_attention::FillIndices(spec_, num_pages(), 54321, kv_lens.ints(), cu_q_lens.ints(),
                                 page_indices.ints(), rng);
    std::normal_distribution<double> normal(0, 1);
    for (OwnedTensor* tensor : {&queries, &keys, &values, &sink}) {
      for (int64_t i = 0; tensor->data != nullptr && i < tensor->size(); ++i) {
        tensor->Set(i, normal(rng));
      }
    }
    for (OwnedTensor* scale : {&k_scale, &v_scale}) {
      for (int64_t i = 0; scale->data != nullptr && i < scale->size(); ++i) {
        scale->Set(i, 0.75 / double(1 + i % 3));
      }
    }
    FillCache(rng);
  }

  Call call() const { return {arg_views_, result_views_, &attributes_}; }
  Problem problem() const { return *ProblemFromCall(call()); }
  const CaseSpec& spec() const { return spec_; }
  std::string ToString() const {
    return StrCat(spec_.ToString(), " side_by_side ", side_by_side_, " update ", update_);
  }

  // Runs through the Host plan; in place if `in_place`, else into `new_cache`.
  Status Run(bool in_place, ThreadPool& pool) {
    for (int64_t i = 0; i < out.size(); ++i) out.Set(i, std::nan(""));
    result_views_[1] = in_place ? kv_cache.view() : new_cache.view();
    return RunOp(**OpRegistry::Global().Get(kName), Platform::kHost, call(),
                 {.thread_pool = &pool});
  }

  // The cache before the call with the new tokens of right sequences in their slots, by the
  // contract's words.
  std::vector<char> ExpectedCache() const {
    std::vector<char> cache(kv_cache.data.get(),
                            kv_cache.data.get() + kv_cache.view().size_bytes());
    if (!update_) return cache;
    const paged_attention::Problem p = problem().attention;
    const int64_t num_seqs = std::clamp<int64_t>(distribution.ints()[2], 0, p.max_seqs);
    for (int64_t token = 0; token < p.tokens; ++token) {
      for (int64_t s = num_seqs - 1; s >= 0; --s) {  // the last that has the token
        const int64_t begin = cu_q_lens.ints()[s], end = cu_q_lens.ints()[s + 1];
        const int64_t context = kv_lens.ints()[s];
        const bool right = begin >= 0 && begin <= end && end <= p.tokens && context >= 0 &&
                           context <= p.max_context();
        if (!right || token < begin || token >= end) continue;
        const int64_t position = context - (end - token);
        if (position < 0) break;
        const int64_t page = page_indices.ints()[s * p.max_pages_per_seq + position / p.page_size];
        if (page >= 0 && page < p.num_pages) {
          WriteRow(p, p.k, keys, token, page, position % p.page_size, cache);
          WriteRow(p, p.v, values, token, page, position % p.page_size, cache);
        }
        break;
      }
    }
    return cache;
  }

  OwnedTensor queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens, distribution;
  OwnedTensor sink, k_scale, v_scale;  // without data where the case has none
  OwnedTensor out, new_cache;

 private:
  int64_t num_pages() const { return spec_.NumPages(); }

  void MakeTensors() {
    const CaseSpec& s = spec_;
    const int64_t tokens = s.NumTokens();
    const int64_t packing = 4 / DTypeSize(s.cache_dtype);
    const int64_t heads = RoundUp(side_by_side_ ? s.kv_heads : 2 * s.kv_heads, packing);
    const int64_t width = RoundUp(s.head_dim, 128);
    queries = OwnedTensor(s.query_dtype, {tokens, s.kv_heads * s.group_size, s.head_dim});
    keys = OwnedTensor(s.cache_dtype, {tokens, s.kv_heads, s.head_dim});
    values = OwnedTensor(s.cache_dtype, {tokens, s.kv_heads, s.head_dim});
    const std::vector<int64_t> cache = {num_pages(), s.page_size, heads / packing, packing, width};
    kv_cache = OwnedTensor(s.cache_dtype, cache);
    new_cache = OwnedTensor(s.cache_dtype, cache);
    kv_lens = OwnedTensor(DType::kI32, {s.max_seqs});
    page_indices = OwnedTensor(DType::kI32, {s.max_seqs * s.max_pages});
    cu_q_lens = OwnedTensor(DType::kI32, {s.max_seqs + 1});
    distribution = OwnedTensor(DType::kI32, {3});
    if (s.sinks) sink = OwnedTensor(DType::kF32, {s.kv_heads * s.group_size});
    const auto make_scale = [&](int64_t size, bool of_tokens) {
      return of_tokens  ? OwnedTensor(DType::kF32, {num_pages(), s.page_size, s.kv_heads})
             : size > 0 ? OwnedTensor(DType::kF32, {1})
                        : OwnedTensor();
    };
    k_scale = make_scale(s.k_scale_size, s.k_token_scales);
    v_scale = make_scale(s.v_scale_size, s.v_token_scales);
    const DType type = s.out_dtype.empty() ? s.query_dtype : DTypeFromName(s.out_dtype).value();
    out = OwnedTensor(type, queries.shape);
  }

  void MakeCall() {
    arg_views_ = {queries.view(), keys.view(),         values.view(),    kv_cache.view(),
                  kv_lens.view(), page_indices.view(), cu_q_lens.view(), distribution.view()};
    std::vector<std::string> names;
    for (const auto& [name, tensor] :
         {std::pair<const char*, OwnedTensor*>{"attention_sink", &sink},
          {"k_scale", &k_scale},
          {"v_scale", &v_scale}}) {
      if (tensor->data == nullptr) continue;
      names.push_back(name);
      arg_views_.push_back(tensor->view());
    }
    optional_args_ = StrJoin(names, ",");
    result_views_ = {out.view(), kv_cache.view()};
    Add("sm_scale", spec_.scale);
    if (spec_.sliding_window != 0) Add("sliding_window", spec_.sliding_window);
    if (spec_.soft_cap != 0) Add("soft_cap", spec_.soft_cap);
    Add("use_causal_mask", spec_.causal);
    Add("update_kv_cache", update_);
    Add("cache_layout", std::string_view(side_by_side_ ? "side_by_side" : "interleaved"));
    Add("max_query_len", spec_.max_query_len);
    Add("out_dtype", std::string_view(spec_.out_dtype));
    Add("optional_args", std::string_view(optional_args_));
  }
  void Add(std::string_view name, AttrValue value) {
    if (!attributes_.Add(name, value).ok()) std::abort();
  }

  // Numbers for the tokens that are there before the call, NaN everywhere else.
  void FillCache(std::mt19937_64& rng) {
    for (int64_t i = 0; i < kv_cache.size(); ++i) kv_cache.Set(i, std::nan(""));
    std::normal_distribution<double> normal(0, 1);
    const paged_attention::Problem p = problem().attention;
    const auto at = [&](const paged_attention::CacheLayout& layout, size_t s, int64_t t,
                        int64_t head, int64_t d) {
      const int64_t page = page_indices.ints()[s * p.max_pages_per_seq + t / p.page_size];
      return layout.At(page, t % p.page_size, head) + d;
    };
    for (size_t s = 0; s < spec_.context_lens.size(); ++s) {
      const int64_t there = spec_.context_lens[s] - (update_ ? spec_.query_lens[s] : 0);
      for (int64_t t = 0; t < there; ++t) {
        for (const auto& layout : {p.k, p.v}) {
          for (int64_t i = 0; i < p.kv_heads * p.head_dim; ++i) {
            kv_cache.Set(at(layout, s, t, i / p.head_dim, i % p.head_dim), normal(rng));
          }
        }
      }
    }
    for (const auto& x : paged_attention::NonFinite::Choose(spec_, rng)) {
      if (update_) {
        const int64_t row = cu_q_lens.ints()[x.seq + 1] - spec_.context_lens[x.seq] + x.token;
        if (row < 0 || row >= p.tokens) continue;  // of a sequence in disorder
        (x.in_key ? keys : values).Set((row * p.kv_heads + x.head) * p.head_dim + x.dim, x.value);
      } else {
        kv_cache.Set(at(x.in_key ? p.k : p.v, x.seq, x.token, x.head, x.dim), x.value);
      }
    }
  }

  static void WriteRow(const paged_attention::Problem& p,
                       const paged_attention::CacheLayout& layout, const OwnedTensor& from,
                       int64_t token, int64_t page, int64_t in_page, std::vector<char>& cache) {
    const int64_t element = DTypeSize(p.cache_dtype);
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      std::memcpy(cache.data() + layout.At(page, in_page, head) * element,
                  from.data.get() + (token * p.kv_heads + head) * p.head_dim * element,
                  static_cast<size_t>(p.head_dim * element));
    }
  }

  CaseSpec spec_;
  bool side_by_side_;
  bool update_;
  std::string optional_args_;
  std::vector<TensorView> arg_views_;
  std::vector<TensorView> result_views_;
  Attributes attributes_;
};

// Puts one index wrong.
inline void PutWrong(Case& c, std::mt19937_64& rng) {
  const int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};
  const auto any = [&rng](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(rng);
  };
  OwnedTensor* tensors[] = {&c.page_indices, &c.kv_lens, &c.cu_q_lens, &c.distribution};
  OwnedTensor& tensor = *tensors[any(4)];
  if (tensor.size() > 0) tensor.ints()[any(tensor.size())] = wild[any(4)];
}

}  // namespace xla_gpu::ragged_paged_attention_v3

#endif  // XLA_GPU_OPS_RAGGED_PAGED_ATTENTION_V3_RANDOM_CASE_H_
