// For tests: one call of paged_attention made from a seed, held in exact-size heap buffers so that
// a sanitizer sees any access past them.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_RANDOM_CASE_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_RANDOM_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/strings.h"
#include "src/ops/paged_attention/paged_attention.h"
#include "src/ops/paged_attention/problem.h"
#include "src/ops/paged_attention/reference.h"
#include "src/ops/paged_cache/owned_tensor.h"

namespace xla_gpu::paged_attention {

using paged_cache::Integers;
using paged_cache::IntegersOf;
using paged_cache::kLeastAlignment;
using paged_cache::Layout;
using paged_cache::OwnedTensor;

// Whether two numbers are the same one that is not finite, or both NaN.
inline bool SameNonFinite(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : std::isinf(a) && a == b;
}

// What a case is made of; Fill makes the tensors.
struct CaseSpec {
  DType query_dtype = DType::kF32;
  DType cache_dtype = DType::kF32;
  std::string out_dtype;
  Layout layout = Layout::kInterleaved;
  int64_t kv_heads = 2;
  int64_t group_size = 4;
  int64_t head_dim = 64;
  int64_t page_size = 16;
  int64_t max_pages = 8;
  int64_t spare_pages = 3;  // pages that no sequence uses
  int64_t max_seqs = 4;
  int64_t padding_rows = 3;
  std::vector<int64_t> query_lens;    // of the sequences in use
  std::vector<int64_t> context_lens;  // as query_lens
  double scale = 0.125;
  int64_t sliding_window = 0;
  double soft_cap = 0;
  bool causal = true;
  bool return_lse = true;
  int64_t max_query_len = 0;  // whether sequences keep it or not
  bool sinks = false;
  int64_t k_scale_size = 0;
  int64_t v_scale_size = 0;
  bool k_token_scales = false;  // in their place
  bool v_token_scales = false;
  int64_t non_finite = 0;  // elements of keys and values that are NaN or infinite
  bool disorder = false;   // Disorder of the indices
  bool crowd = false;      // Crowd of them
  bool tight = false;      // there are only the pages that contexts take, and the spare ones
  int64_t shift = 0;       // elements by which tensors start past a multiple of 16 bytes

  std::string ToString() const {
    return StrCat("query ", DTypeName(query_dtype), " cache ", DTypeName(cache_dtype), " out '",
                  out_dtype, "' layout ", static_cast<int>(layout), " kv_heads ", kv_heads,
                  " group ", group_size, " head_dim ", head_dim, " page_size ", page_size,
                  " max_pages ", max_pages, " query_lens ", StrJoin(query_lens, ","),
                  " context_lens ", StrJoin(context_lens, ","), " scale ", scale, " window ",
                  sliding_window, " cap ", soft_cap, " causal ", causal, " sinks ", sinks,
                  " k_scale ", k_scale_size, " v_scale ", v_scale_size, " token scales ",
                  k_token_scales, v_token_scales, " non_finite ", non_finite, " disorder ",
                  disorder, " crowd ", crowd, " max_seqs ", max_seqs, " padding ", padding_rows,
                  " shift ", shift, " max_query_len ", max_query_len);
  }
  int64_t NumTokens() const {
    return std::accumulate(query_lens.begin(), query_lens.end(), padding_rows);
  }
  int64_t NumPages() const {
    int64_t pages = tight ? 0 : max_seqs * max_pages;
    for (size_t i = 0; tight && i < context_lens.size(); ++i) {
      pages += (context_lens[i] + page_size - 1) / page_size;
    }
    return pages + spare_pages;
  }
};

// Makes the starts of the sequences descend at one place, so that two come to overlap. Which result
// a row of two right sequences gets is not promised, so one of them is given a wrong length.
inline void Disorder(int32_t* starts, int32_t* context_lens, int64_t used, std::mt19937_64& rng) {
  if (used < 2) return;
  const auto in = IntegersOf(rng);
  const int64_t s = in(1, used - 1);
  starts[s] = static_cast<int32_t>(in(-1, starts[s]));
  if (in(0, 1) == 0) {
    context_lens[s] = -1;
    return;
  }
  for (int64_t i = 0; i < s; ++i) {
    if (starts[i + 1] > starts[s]) context_lens[i] = INT32_MAX;
  }
}

// Makes sequences begin and end anywhere, so that many claim the same tokens, some of them with a
// wrong length.
inline void Crowd(int32_t* starts, int32_t* context_lens, int64_t used, int64_t tokens,
                  std::mt19937_64& rng) {
  const auto in = IntegersOf(rng);
  for (int64_t s = 0; s < used; ++s) {
    starts[s] = static_cast<int32_t>(in(-1, tokens + 1));
    if (in(0, 4) == 0) context_lens[s] = -1;
  }
}

// Makes of a case a step of a server: few tokens, with padding, and room for more sequences than a
// warp has lanes, most of which have no tokens.
inline void MakeServedStep(CaseSpec& s, int64_t longest, const Integers& in) {
  s.page_size = in(0, 2) == 0 ? in(1, 40) : 8 * in(1, 5);
  s.max_seqs = in(0, 4) == 0 ? in(261, 1024) : in(33, 260);
  // Those with tokens come first, or lie between others.
  const bool first = in(0, 1) == 0;
  int64_t left = in(0, 9) == 0 ? 1 : in(1, 16);
  s.padding_rows = in(0, 1) == 0 ? 16 - left : in(0, 16 - left);
  s.query_lens.assign(static_cast<size_t>(first ? left : in(left, s.max_seqs)), 0);
  s.context_lens.clear();
  for (size_t i = 0; i < s.query_lens.size(); ++i) {
    s.context_lens.push_back(in(0, 19) == 0 ? in(0, 20) : 0);
  }
  const auto used = static_cast<int64_t>(s.query_lens.size());
  for (int64_t i = 0; left > 0; ++i) {
    const auto seq = static_cast<size_t>(first ? i : in(0, used - 1));
    const int64_t tokens = in(0, 5) == 0 ? in(1, left) : 1;
    s.query_lens[seq] += tokens;
    s.context_lens[seq] = in(s.query_lens[seq], longest);
    left -= tokens;
  }
  // Others take what sees few keys.
  s.max_pages = (in(0, 3) == 0 ? longest : std::max<int64_t>(longest, 1100)) / s.page_size + 1;
  s.spare_pages = in(0, 2);
  s.tight = true;
  s.disorder = in(0, 7) == 0;
  s.crowd = !s.disorder && in(0, 4) == 0;
}

// Lengths and pages of the case's sequences; poison for the others and past each context.
// `unused_start`: where those others begin, 0 for the end of the last one in use.
inline void FillIndices(const CaseSpec& s, int64_t num_pages, int32_t unused_start,
                        int32_t* context_lens, int32_t* starts, int32_t* tables,
                        std::mt19937_64& rng) {
  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), rng);
  const int32_t wild[] = {-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(num_pages)};
  const int64_t sequences = static_cast<int64_t>(s.query_lens.size());
  size_t next = 0;
  for (int64_t i = 0; i < s.max_seqs; ++i) {
    const bool used = i < sequences;
    context_lens[i] = used ? static_cast<int32_t>(s.context_lens[i]) : -12345;
    starts[i + 1] = used                ? starts[i] + static_cast<int32_t>(s.query_lens[i])
                    : unused_start == 0 ? starts[i]
                                        : unused_start;
    for (int64_t j = 0; j < s.max_pages; ++j) {
      const bool read = used && j * s.page_size < s.context_lens[i];
      tables[i * s.max_pages + j] = read ? pages[next++] : wild[(i + j) % 4];
    }
  }
  if (s.disorder) Disorder(starts, context_lens, sequences, rng);
  if (s.crowd) Crowd(starts, context_lens, sequences, s.NumTokens(), rng);
}

// A key or value that is not finite at a token that the last query row of a sequence sees, if any
// row does, and most rows before it do not: one of the new ones.
struct NonFinite {
  size_t seq;
  int64_t token;  // position in the sequence
  bool in_key;
  int64_t head;
  int64_t dim;
  double value;

  static std::vector<NonFinite> Choose(const CaseSpec& s, std::mt19937_64& rng) {
    const auto in = IntegersOf(rng);
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const double values[] = {std::nan(""), kInf, -kInf};
    std::vector<NonFinite> chosen;
    for (int64_t i = 0; i < s.non_finite && !s.query_lens.empty(); ++i) {
      const auto seq = static_cast<size_t>(in(0, static_cast<int64_t>(s.query_lens.size()) - 1));
      const int64_t fresh = std::min(s.query_lens[seq], s.context_lens[seq]);
      if (fresh == 0) continue;
      chosen.push_back({seq, s.context_lens[seq] - in(1, fresh), in(0, 1) == 0,
                        in(0, s.kv_heads - 1), in(0, s.head_dim - 1),
                        values[IsFloat8(s.cache_dtype) ? 0 : in(0, 2)]});  // fp8 saturates
    }
    return chosen;
  }
};

class Case {
 public:
  // Fills every tensor from `rng`. Cache tokens past each context, unused pages and table entries
  // are poison (NaN, page numbers far outside).
  Case(CaseSpec spec, std::mt19937_64& rng) : spec_(std::move(spec)) {
    MakeTensors();
    FillFloats(query, rng, 1.0);
    Poison(kv_cache);
    if (spec_.layout == Layout::kPair) Poison(v_cache);
    num_seqs.ints()[0] = static_cast<int32_t>(spec_.query_lens.size());
    FillIndices(spec_, num_pages(), 0, context_lens.ints(), query_start_loc.ints(),
                block_tables.ints(), rng);
    for (OwnedTensor* scale : {&k_scale, &v_scale}) {
      for (int64_t i = 0; scale->data != nullptr && i < scale->size(); ++i) {
        scale->Set(i, std::uniform_real_distribution<double>(0.5, 2.0)(rng));
      }
    }
    FillCache(rng);
    FillFloats(sinks, rng, 1.0);
    MakeCall();
  }

  // The op through its Host plan; results are poisoned before.
  Status Run(ThreadPool& pool) {
    Poison(out);
    if (spec_.return_lse) Poison(lse);
    return RunOp(**OpRegistry::Global().Get("paged_attention"), Platform::kHost, call(),
                 {.thread_pool = &pool});
  }

  Call call() const { return {arg_views_, result_views_, &attributes_}; }
  const CaseSpec& spec() const { return spec_; }
  const Attributes& attributes() const { return attributes_; }

  OwnedTensor query, kv_cache, context_lens, block_tables, query_start_loc, num_seqs;
  OwnedTensor v_cache, sinks, k_scale, v_scale;  // without data where the case has none
  OwnedTensor out, lse;

 private:
  static void Poison(OwnedTensor& tensor) {
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.Set(i, std::nan(""));
  }
  static void FillFloats(OwnedTensor& tensor, std::mt19937_64& rng, double deviation) {
    std::normal_distribution<double> normal(0, deviation);
    for (int64_t i = 0; tensor.data != nullptr && i < tensor.size(); ++i) {
      tensor.Set(i, normal(rng));
    }
  }

  int64_t num_pages() const { return spec_.NumPages(); }

  void MakeTensors() {
    const CaseSpec& s = spec_;
    const auto make = [&s](DType dtype, std::vector<int64_t> dims) {
      return OwnedTensor(dtype, std::move(dims), kLeastAlignment, s.shift);
    };
    const int64_t tokens = s.NumTokens();
    const int64_t q_heads = s.kv_heads * s.group_size;
    query = make(s.query_dtype, {tokens, q_heads, s.head_dim});
    switch (s.layout) {
      case Layout::kInterleaved:
        kv_cache = make(s.cache_dtype, {num_pages(), s.page_size, 2 * s.kv_heads, s.head_dim});
        break;
      case Layout::kPair:
        kv_cache = make(s.cache_dtype, {num_pages(), s.page_size, s.kv_heads, s.head_dim});
        v_cache = make(s.cache_dtype, {num_pages(), s.page_size, s.kv_heads, s.head_dim});
        break;
      case Layout::kStacked:
        kv_cache = make(s.cache_dtype, {2, num_pages(), s.page_size, s.kv_heads, s.head_dim});
    }
    context_lens = make(DType::kI32, {s.max_seqs});
    block_tables = make(DType::kI32, {s.max_seqs, s.max_pages});
    query_start_loc = make(DType::kI32, {s.max_seqs + 1});
    num_seqs = make(DType::kI32, {1});
    if (s.sinks) sinks = make(DType::kF32, {q_heads});
    const auto make_scale = [&](int64_t size, bool of_tokens) {
      return of_tokens  ? make(DType::kF32, {num_pages(), s.page_size, s.kv_heads})
             : size > 0 ? make(DType::kF32, {size})
                        : OwnedTensor();
    };
    k_scale = make_scale(s.k_scale_size, s.k_token_scales);
    v_scale = make_scale(s.v_scale_size, s.v_token_scales);
    const DType out_dtype =
        s.out_dtype.empty() ? s.query_dtype : DTypeFromName(s.out_dtype).value();
    out = make(out_dtype, {tokens, q_heads, s.head_dim});
    if (s.return_lse) lse = make(DType::kF32, {tokens, q_heads});
  }

  // Real keys and values, and scales of theirs, for the tokens of each context alone.
  void FillCache(std::mt19937_64& rng) {
    std::normal_distribution<double> normal(0, 1.0);
    MakeCall();
    const Problem p = *ProblemFromCall(call());
    OwnedTensor& values = spec_.layout == Layout::kPair ? v_cache : kv_cache;
    const auto at = [&](const CacheLayout& layout, size_t s, int64_t t, int64_t h, int64_t d) {
      const int64_t page = block_tables.ints()[s * p.max_pages_per_seq + t / p.page_size];
      return layout.At(page, t % p.page_size, h) + d;
    };
    const CacheLayout of_scales{0, p.page_size * p.kv_heads, p.kv_heads, 1};
    const std::pair<OwnedTensor&, bool> scales[] = {{k_scale, p.k_token_scales},
                                                    {v_scale, p.v_token_scales}};
    for (const auto& [scale, of_tokens] : scales) {
      if (of_tokens) Poison(scale);
    }
    for (size_t s = 0; s < spec_.context_lens.size(); ++s) {
      for (int64_t t = 0; t < spec_.context_lens[s]; ++t) {
        for (int64_t h = 0; h < p.kv_heads; ++h) {
          for (int64_t d = 0; d < p.head_dim; ++d) {
            kv_cache.Set(at(p.k, s, t, h, d), normal(rng));
            values.Set(at(p.v, s, t, h, d), normal(rng));
          }
          for (const auto& [scale, of_tokens] : scales) {  // of both signs, 2^-7 to 2
            if (!of_tokens) continue;
            const double x = std::uniform_real_distribution<double>(-7, 1)(rng);
            scale.Set(at(of_scales, s, t, h, 0), std::copysign(std::exp2(x), x + 5));
          }
        }
      }
    }
    for (const NonFinite& x : NonFinite::Choose(spec_, rng)) {
      const auto& [scale, of_tokens] = scales[x.in_key ? 0 : 1];
      if (of_tokens && x.dim % 2 == 0) {
        scale.Set(at(of_scales, x.seq, x.token, x.head, 0), x.value);
        continue;
      }
      (x.in_key ? kv_cache : values)
          .Set(at(x.in_key ? p.k : p.v, x.seq, x.token, x.head, x.dim), x.value);
    }
  }

  void MakeCall() {
    arg_views_ = {query.view(),        kv_cache.view(),        context_lens.view(),
                  block_tables.view(), query_start_loc.view(), num_seqs.view()};
    std::vector<std::string> names;
    const auto optional = [&](const char* name, const OwnedTensor& tensor) {
      if (tensor.data == nullptr) return;
      names.push_back(name);
      arg_views_.push_back(tensor.view());
    };
    optional("v_cache", v_cache);
    optional("sinks", sinks);
    optional("k_scale", k_scale);
    optional("v_scale", v_scale);
    optional_args_ = StrJoin(names, ",");
    result_views_ = {out.view()};
    if (spec_.return_lse) result_views_.push_back(lse.view());
    attributes_ = Attributes();
    Add("scale", spec_.scale);
    if (spec_.sliding_window != 0) Add("sliding_window", spec_.sliding_window);
    if (spec_.soft_cap != 0) Add("soft_cap", spec_.soft_cap);
    Add("causal", spec_.causal);
    Add("return_lse", spec_.return_lse);
    Add("max_query_len", spec_.max_query_len);
    Add("out_dtype", std::string_view(spec_.out_dtype));
    Add("optional_args", std::string_view(optional_args_));
  }
  void Add(std::string_view name, AttrValue value) {
    if (!attributes_.Add(name, value).ok()) std::abort();
  }

  CaseSpec spec_;
  std::string optional_args_;
  std::vector<TensorView> arg_views_;
  std::vector<TensorView> result_views_;
  Attributes attributes_;
};

// What the fp64 reference says of a case.
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

// A case from the whole space of features, small enough for the fp64 reference.
inline CaseSpec RandomSpec(std::mt19937_64& rng) {
  const auto in = IntegersOf(rng);
  const auto chance = [&in](int64_t percent) { return in(0, 99) < percent; };
  const auto pick = [&in]<typename T>(const std::vector<T>& of) {
    return of[static_cast<size_t>(in(0, static_cast<int64_t>(of.size()) - 1))];
  };
  const std::vector<DType> compute = {DType::kF32, DType::kBF16, DType::kF16};
  CaseSpec s;
  s.query_dtype = pick(compute);
  s.cache_dtype = pick(
      std::vector<DType>{DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3FN, DType::kF8E5M2});
  if (chance(30)) s.out_dtype = std::string(DTypeName(pick(compute)));
  s.layout = static_cast<Layout>(in(0, 2));
  s.head_dim = chance(50) ? pick(std::vector<int64_t>{16, 32, 64, 80, 96, 128, 256, 512})
                          : (chance(75) ? in(1, 72) : in(73, 512));
  s.page_size = chance(50) ? pick(std::vector<int64_t>{1, 8, 16, 32, 64}) : in(1, 70);
  s.kv_heads = in(1, 3);
  s.group_size = chance(60) ? pick(std::vector<int64_t>{1, 2, 4, 8}) : in(1, 12);
  // Now and then heads alone exceed a prefill task's rows.
  if (chance(1)) s.group_size = 250;
  const int64_t budget = 150'000 / (s.kv_heads * s.group_size * s.head_dim);  // of (row, key) pairs
  s.max_seqs = in(1, 5);
  const int64_t used = in(0, s.max_seqs);
  int64_t longest = 1;
  for (int64_t i = 0; i < used; ++i) {
    const int64_t share = std::max<int64_t>(budget / (used * 2), 1);
    int64_t rows = chance(10) ? 0 : chance(50) ? 1 : (chance(60) ? in(0, 6) : in(0, 160));
    rows = std::min(rows, share);
    const int64_t most = std::min<int64_t>(700, share / std::max<int64_t>(rows, 1));
    s.query_lens.push_back(rows);
    // Some sequences have nothing in the cache, or less than their query rows, as padding has.
    s.context_lens.push_back(chance(10)   ? 0
                             : chance(15) ? in(0, rows)
                             : chance(15) ? rows
                                          : rows + in(0, std::max<int64_t>(most, 1)));
    longest = std::max(longest, s.context_lens.back());
  }
  s.max_pages = (longest + s.page_size - 1) / s.page_size + in(0, 2);
  s.spare_pages = in(0, 2);
  s.padding_rows = chance(50) ? 0 : in(1, 5);
  s.scale = chance(80) ? 1.0 / std::sqrt(static_cast<double>(s.head_dim)) : -0.05;
  if (chance(30)) s.sliding_window = chance(50) ? in(1, 20) : in(21, 400);
  if (chance(30)) s.soft_cap = chance(50) ? 30.0 : 0.7;
  s.causal = chance(85);
  s.return_lse = chance(70);
  s.sinks = chance(30);
  const bool fp8 = IsFloat8(s.cache_dtype);
  if (chance(fp8 ? 80 : 10)) s.k_scale_size = chance(50) ? 1 : s.kv_heads;
  if (chance(fp8 ? 80 : 10)) s.v_scale_size = chance(50) ? 1 : s.kv_heads;
  s.k_token_scales = chance(fp8 ? 20 : 5);
  s.v_token_scales = chance(fp8 ? 20 : 5);
  if (chance(25)) s.non_finite = in(1, 4);
  s.disorder = chance(15);
  if (chance(20)) s.max_query_len = in(1, 6);
  return s;
}

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_RANDOM_CASE_H_
