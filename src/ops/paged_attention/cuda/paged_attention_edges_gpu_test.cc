// paged_attention on a GPU at its edges: rows that overlap or see nothing, values that are not
// finite, factors at the ends of f32, contexts of millions of tokens. Skipped where there is no
// GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "src/core/strings.h"
#include "src/cuda/gpu_call_testing.h"
#include "src/ops/paged_attention/random_case.h"
#include "src/ops/paged_attention/reference.h"

namespace xla_gpu::paged_attention {
namespace {

using cuda::Bytes;

struct Kind {
  DType query, cache;
  double tolerance;
  int64_t head_dim = 64;
};

constexpr Kind kKinds[] = {{DType::kBF16, DType::kBF16, 0.03},
                           {DType::kF16, DType::kF16, 0.004},
                           {DType::kBF16, DType::kF8E4M3FN, 0.03},
                           {DType::kF16, DType::kF8E5M2, 0.03},
                           {DType::kF32, DType::kF32, 2e-5},
                           {DType::kBF16, DType::kBF16, 0.03, 256},
                           {DType::kBF16, DType::kF8E4M3FN, 0.03, 128},
                           {DType::kBF16, DType::kBF16, 0.03, 512},
                           {DType::kBF16, DType::kF8E4M3FN, 0.03, 512},
                           {DType::kF32, DType::kF32, 2e-5, 256},
                           {DType::kF32, DType::kF32, 2e-5, 512},
                           {DType::kBF16, DType::kBF16, 0.03, 96},
                           {DType::kF16, DType::kF16, 0.004, 192}};

CaseSpec SpecOf(const Kind& kind, std::vector<int64_t> query_lens,
                std::vector<int64_t> context_lens) {
  CaseSpec spec;
  spec.query_dtype = kind.query;
  spec.cache_dtype = kind.cache;
  spec.out_dtype = "f32";
  spec.head_dim = kind.head_dim;
  spec.padding_rows = 0;
  spec.query_lens = std::move(query_lens);
  spec.context_lens = std::move(context_lens);
  spec.max_seqs = static_cast<int64_t>(spec.query_lens.size());
  return spec;
}

// The same with room for a sequence a token, which is what decode has and what chooses its kernel.
CaseSpec WithRoom(CaseSpec spec) {
  spec.max_seqs = spec.padding_rows;
  for (const int64_t rows : spec.query_lens) spec.max_seqs += rows;
  return spec;
}

// The same keys in pages that the copy engine has no boxes for.
CaseSpec InOddPages(CaseSpec spec) {
  constexpr int64_t kPageSize = 3;
  spec.max_pages = spec.max_pages * spec.page_size / kPageSize + 1;
  spec.page_size = kPageSize;
  return spec;
}

class PagedAttentionEdgesGpuTest : public cuda::GpuTest {
 protected:
  static std::vector<Bytes> Run(const Case& c, std::mt19937_64* shifts = nullptr) {
    auto got = cuda::RunOnGpu(**OpRegistry::Global().Get("paged_attention"), c.call(), {}, nullptr,
                              shifts);
    if (!got.ok()) ADD_FAILURE() << got.status().ToString();
    return got.ok() ? *got : std::vector<Bytes>(2);
  }

  static void ExpectRight(const Case& c, double tolerance, const std::string& what,
                          std::mt19937_64* shifts = nullptr) {
    const Problem p = *ProblemFromCall(c.call());
    std::vector<double> out(static_cast<size_t>(c.out.size()));
    std::vector<double> lse(static_cast<size_t>(p.tokens * p.q_heads));
    PagedAttentionReference(p, BuffersFromCall(p, c.call()), out.data(), lse.data());
    const std::vector<Bytes> got = Run(c, shifts);
    if (HasFailure()) return;
    int wrong = 0;
    const auto compare = [&](const std::vector<double>& expected, const Bytes& bytes,
                             double allowed, const char* name) {
      for (size_t i = 0; i < expected.size(); ++i) {
        const double value = LoadAsDouble(bytes.data(), DType::kF32, static_cast<int64_t>(i));
        const double want = static_cast<double>(static_cast<float>(expected[i]));
        const bool right = SameNonFinite(want, value) ||
                           std::fabs(value - want) <= allowed * std::max(1.0, std::fabs(want));
        if (!right && ++wrong <= 3) {
          ADD_FAILURE() << what << ": " << name << "[" << i << "] (row "
                        << i / (expected.size() / static_cast<size_t>(p.tokens)) << ") is " << value
                        << ", expected " << want;
        }
      }
    };
    compare(out, got[0], tolerance, "out");
    compare(lse, got[1], std::max(tolerance / 10, 1e-5), "lse");
    if (wrong > 3) ADD_FAILURE() << what << ": " << wrong << " numbers are wrong";
  }
};

TEST_F(PagedAttentionEdgesGpuTest, AValidSequenceKeepsItsRows) {
  struct Batch {
    std::vector<int64_t> query_lens, context_lens;  // what the cache holds
    std::vector<int32_t> starts;                    // what the call says
    int bad_page_of;                                // a sequence, or -1
  };
  const Batch batches[] = {
      {{4, 1, 1}, {20, 10, 33}, {0, 4, 2, 6}, 0},
      {{1, 1, 1, 1, 1}, {5, 0, 5, 9, 9}, {0, 1, 2, 3, 0, 4}, -1},
      {{10, 5, 5}, {20, 10, 33}, {10, 20, 0, 15}, -1},
      {{10, 5, 5}, {20, 10, 33}, {10, 20, 0, 15}, 0},
      {{10, 10, 10, 10, 0}, {60, 50, 33, 12, 7}, {0, 40, 5, 12, -1, 9}, 2},
  };
  for (const Kind& kind : kKinds) {
    for (const Batch& batch : batches) {
      const CaseSpec spec = SpecOf(kind, batch.query_lens, batch.context_lens);
      for (const CaseSpec& s : {spec, WithRoom(spec), InOddPages(WithRoom(spec))}) {
        std::mt19937_64 rng(5);
        Case c(s, rng);
        std::copy(batch.starts.begin(), batch.starts.end(), c.query_start_loc.ints());
        if (batch.bad_page_of >= 0) {
          c.block_tables.ints()[batch.bad_page_of * c.spec().max_pages] = 1 << 20;
        }
        ExpectRight(c, kind.tolerance,
                    StrCat("starts ", StrJoin(batch.starts, ","), ": ", c.spec().ToString()));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(PagedAttentionEdgesGpuTest, RowsThatSeeNothingAreZero) {
  for (const Kind& kind : kKinds) {
    for (const bool sinks : {false, true}) {
      std::mt19937_64 rng(6);
      CaseSpec spec = SpecOf(kind, {3, 1, 40, 100, 9}, {0, 0, 7, 99, 120});
      spec.sinks = sinks;
      spec.padding_rows = 70;
      for (const CaseSpec& s : {spec, WithRoom(spec), InOddPages(WithRoom(spec))}) {
        Case c(s, rng);
        ExpectRight(c, kind.tolerance, s.ToString());
      }
    }
  }
}

// Tables of 2^31 tokens, a window as long, and queries that begin thousands of positions before the
// first key: the window's begin is before what 32 bits hold.
TEST_F(PagedAttentionEdgesGpuTest, ALongWindowBeforeTheFirstKey) {
  for (const Kind& kind : {kKinds[0], kKinds[4]}) {
    for (const bool causal : {false, true}) {
      std::mt19937_64 rng(13);
      CaseSpec spec = SpecOf(kind, {5000, 1}, {50, 70});
      spec.kv_heads = spec.group_size = 1;
      spec.causal = causal;
      spec.sliding_window = 0x7fffffff;
      spec.page_size = 2048;
      spec.max_pages = 1 << 20;
      spec.tight = true;
      Case c(spec, rng);
      ExpectRight(c, kind.tolerance, c.spec().ToString());
    }
  }
}

// Calls in a row share a workspace, and maybe what copies between them write: their launches begin
// before those in front of them have ended, which must not show.
TEST_F(PagedAttentionEdgesGpuTest, CallsInARowDoNotDisturbEachOther) {
  using Buffer = cuda::DeviceBuffer<char>;
  using Copy = cuda::CUresult(cuda::DevicePointer, cuda::DevicePointer, size_t, cuda::CUstream);
  // compute-sanitizer lets no launch begin before the one in front has ended: each kernel once.
  const size_t calls = cuda::TestGuards() == cuda::Guards::kOn ? 40 : 2;
  const Op& op = **OpRegistry::Global().Get("paged_attention");
  for (const std::vector<int64_t>& query_lens :
       std::vector<std::vector<int64_t>>{{1500}, {300, 5, 40}, {20}, {16, 700}}) {
    CaseSpec spec = SpecOf({DType::kBF16, DType::kBF16, 0, 128}, query_lens, query_lens);
    for (int64_t& context : spec.context_lens) context = context * 2 + 1000;
    spec.max_pages = 300;
    // Two batches of one shape, with other lengths.
    std::mt19937_64 rng(11);
    Case first(spec, rng);
    std::ranges::reverse(spec.query_lens);
    std::ranges::reverse(spec.context_lens);
    Case second(spec, rng);
    second.query_start_loc.ints()[query_lens.size()] -= 7;
    second.context_lens.ints()[0] -= 3;
    std::vector<Bytes> expected;
    std::vector<std::vector<std::unique_ptr<Buffer>>> args(3);  // of both; what calls read
    for (const Case* c : {&first, &second}) {
      expected.push_back(Run(*c)[0]);
      for (const TensorView& arg : c->call().args) {
        args[expected.size() - 1].push_back(std::make_unique<Buffer>(cuda::HostBytes(arg)));
        if (c == &first) args[2].push_back(std::make_unique<Buffer>(cuda::HostBytes(arg)));
      }
    }
    const auto inferred =
        InferResults(op, Platform::kCuda, {first.call().args, {}, first.call().attributes});
    ASSERT_TRUE(inferred.ok()) << inferred.status().ToString();
    for (const bool copies : {false, true}) {
      std::vector<std::vector<std::unique_ptr<Buffer>>> results(calls);
      std::vector<std::unique_ptr<Buffer>> workspace;
      cuda::Stream stream;
      for (size_t i = 0; i < calls; ++i) {
        for (const auto& result : *inferred) {
          TensorView view{nullptr, result.type.dtype, result.type.shape};
          const bool scratch = result.spec->kind == ResultKind::kScratch;
          if (scratch && i > 0) continue;
          (scratch ? workspace : results[i])
              .push_back(
                  std::make_unique<Buffer>(Bytes(static_cast<size_t>(view.size_bytes()), '\xff')));
        }
      }
      for (size_t i = 0; i < calls; ++i) {
        std::vector<TensorView> views, to;
        for (size_t j = 0; j < first.call().args.size(); ++j) {
          const Buffer& own = *args[i % 2][j];
          const Buffer& read = copies ? *args[2][j] : own;
          if (copies) {
            cuda::CallDriver("cuMemcpyDtoDAsync_v2", static_cast<Copy*>(nullptr),
                             reinterpret_cast<cuda::DevicePointer>(read.data()),
                             reinterpret_cast<cuda::DevicePointer>(own.data()), own.size(),
                             stream.get());
          }
          const TensorView& arg = first.call().args[j];
          views.push_back({read.data(), arg.dtype, arg.shape});
        }
        size_t next = 0;
        for (const auto& result : *inferred) {
          const bool scratch = result.spec->kind == ResultKind::kScratch;
          to.push_back({(scratch ? workspace[0] : results[i][next++])->data(), result.type.dtype,
                        result.type.shape});
        }
        const Status status = RunOp(op, Platform::kCuda, {views, to, first.call().attributes},
                                    {.stream = stream.get()});
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      stream.Synchronize();
      for (size_t i = 0; i < calls; ++i) {
        ASSERT_TRUE(results[i][0]->ToHost() == expected[i % 2])
            << "call " << i << (copies ? ", behind copies" : "");
      }
    }
  }
}

// The last of 40 keys is not finite in one dimension: the last query alone sees that.
TEST_F(PagedAttentionEdgesGpuTest, ANonFiniteValueStaysInItsRows) {
  for (const Kind& kind : kKinds) {
    for (const int64_t queries : {4, 9, 40}) {
      for (const int64_t variant : {0, 1, 2, 3, 4, 5}) {
        std::mt19937_64 rng(7);
        const int64_t context = variant % 2 == 0 ? 40 : 100;
        CaseSpec spec = SpecOf(kind, {queries}, {context});
        if (variant >= 2) spec = WithRoom(spec);
        if (variant >= 4) spec = InOddPages(spec);
        Case c(spec, rng);
        const std::vector<Bytes> before = Run(c);
        const Problem p = *ProblemFromCall(c.call());
        const int64_t token = context - 1;
        const int64_t page = c.block_tables.ints()[token / p.page_size];
        const int64_t at =
            p.v.offset + page * p.v.page_stride + token % p.page_size * p.v.token_stride + 1;
        for (const double value : {std::nan(""), -HUGE_VAL}) {
          if (std::isinf(value) && IsFloat8(kind.cache)) continue;  // saturates
          c.kv_cache.Set(at, value);
          ExpectRight(c, kind.tolerance, StrCat(queries, " queries: ", spec.ToString()));
          // Rows that do not see the key keep their bits.
          const std::vector<Bytes> after = Run(c);
          const auto earlier = static_cast<int64_t>(before[0].size()) / queries * (queries - 1);
          EXPECT_TRUE(std::equal(before[0].begin(), before[0].begin() + earlier, after[0].begin()))
              << queries << " queries: " << spec.ToString();
        }
        if (HasFailure()) return;
      }
    }
  }
}

// What takes long, a test a kind.
class EdgesOfAKindGpuTest : public PagedAttentionEdgesGpuTest,
                            public testing::WithParamInterface<Kind> {};

// A token of each sequence, of more of them than a warp, or a block, has threads.
TEST_P(EdgesOfAKindGpuTest, ManySequencesOfWhichSomeAreWrong) {
  enum class Fault { kNone, kNegativeContext, kPastTheEnd, kStartsDescend };
  const Kind& kind = GetParam();
  if (kind.query == DType::kF32) return;  // no other way than fewer have
  for (const auto& [count, odd_pages] :
       {std::pair{70, false}, {450, false}, {450, true}, {1030, true}}) {
    std::vector<int64_t> query_lens, context_lens;
    for (int64_t i = 0; i < count; ++i) {
      query_lens.push_back(i % 5 == 4 ? 0 : 1);
      context_lens.push_back(i % 7 == 0 ? 0 : i * 37 % 120);
    }
    for (const Fault fault :
         {Fault::kNone, Fault::kNegativeContext, Fault::kPastTheEnd, Fault::kStartsDescend}) {
      std::mt19937_64 rng(8);
      CaseSpec spec = SpecOf(kind, query_lens, context_lens);
      if (odd_pages) spec = InOddPages(spec);
      Case c(spec, rng);
      int32_t* const starts = c.query_start_loc.ints();
      if (fault == Fault::kNegativeContext) c.context_lens.ints()[count / 2] = -1;
      if (fault == Fault::kPastTheEnd) starts[count] += 5;
      if (fault == Fault::kStartsDescend) starts[40] = 3;
      ExpectRight(c, kind.tolerance,
                  StrCat(count, " sequences, fault ", static_cast<int>(fault), ", pages of ",
                         spec.page_size));
      if (HasFailure()) return;
    }
  }
}

// Factors and sinks at the ends of what is allowed; logits of 1e10: each kind compiles a dozen
// kernels.
TEST_P(EdgesOfAKindGpuTest, ExtremesAreRight) {
  struct Extreme {
    double scale, soft_cap;
    float k_scale, sink;
    double query;  // factor
  };
  const Extreme extremes[] = {
      {1e20, 0, 1, 0, 1},      {-1e20, 0, 1, 0, 1},        {0.1, 0, 1e38f, 0, 1},
      {0.1, 0, -1e38f, 0, 1},  {1e20, 0, 1e38f, 0, 1},     {0, 0, 1, 0, 1},
      {0.1, 0, 1, 3.4e38f, 1}, {0.1, 0, 1, -3.4e38f, 1},   {0.1, 1e-20, 1, 0, 1},
      {0.1, 1e20, 1, 0, 1},    {1e20, 1e-20, 1e38f, 0, 1}, {0.1, 1e4, 1, 0, 1},
      {0.1, 0, 1, 0, 1e10},    {0.1, 30, 1, 0, 1e10},      {1, 0, 3e38f, 0, 1e-3}};
  const Kind& kind = GetParam();
  for (const Extreme& extreme : extremes) {
    if (kind.query == DType::kF16 && extreme.query != 1) continue;  // beyond f16
    // bf16 rounds queries, so that near ties among large logits fall either way: see the keys.
    std::mt19937_64 rng(8);
    CaseSpec spec = SpecOf(kind, {1, 40}, {90, 77});
    spec.scale = extreme.scale;
    spec.soft_cap = extreme.soft_cap;
    spec.sinks = extreme.sink != 0;
    spec.k_scale_size = 1;
    for (const CaseSpec& s : {spec, WithRoom(spec)}) {
      Case c(s, rng);
      for (int64_t i = 0; i < c.query.size(); ++i) c.query.Set(i, c.query.Get(i) * extreme.query);
      for (int64_t i = 0; s.sinks && i < c.sinks.size(); ++i) c.sinks.Set(i, extreme.sink);
      c.k_scale.Set(0, extreme.k_scale);
      ExpectRight(c, kind.tolerance, s.ToString());
      if (HasFailure()) return;
    }
  }
}

// Dot products of -2^127 and 2^127, whose difference f32 does not hold, by scales of which they are
// logits of -0.5 and 0.5: by turns, so that warps, parts and blocks of keys have either alone.
TEST_P(EdgesOfAKindGpuTest, MaximaLieFurtherApartThanF32Reaches) {
  const Kind& kind = GetParam();
  if (kind.query == DType::kF16) return;  // beyond f16
  const double key = IsFloat8(kind.cache) ? 0x1p8 : 0x1p63, query = 0x1p127 / key;
  for (const int64_t turn : {16, 64, 300}) {
    CaseSpec long_ones = SpecOf(kind, {1, 1}, {600, 300});
    long_ones.max_pages = 40;
    CaseSpec many = long_ones, prefill = long_ones;
    many.query_lens.assign(20, 1);
    many.context_lens.assign(20, 600);
    prefill.query_lens = {1, 40};
    prefill.context_lens = {600, 500};
    for (CaseSpec s :
         {long_ones, InOddPages(long_ones), WithRoom(many), prefill, WithRoom(prefill)}) {
      s.scale = 1e-20;
      s.k_scale_size = 1;
      std::mt19937_64 rng(12);
      Case c(s, rng);
      c.k_scale.Set(0, static_cast<float>(0x1p-128 / s.scale));
      const Problem p = *ProblemFromCall(c.call());
      for (int64_t i = 0; i < c.query.size(); ++i) c.query.Set(i, i % p.head_dim == 5 ? query : 0);
      for (size_t seq = 0; seq < s.context_lens.size(); ++seq) {
        const int32_t* const pages =
            c.block_tables.ints() + static_cast<int64_t>(seq) * p.max_pages_per_seq;
        for (int64_t i = 0; i < s.context_lens[seq] * p.kv_heads * p.head_dim; ++i) {
          const int64_t d = i % p.head_dim, head = i / p.head_dim % p.kv_heads;
          const int64_t token = i / p.head_dim / p.kv_heads;
          c.kv_cache.Set(p.k.At(pages[token / p.page_size], token % p.page_size, head) + d,
                         d != 5                  ? 0
                         : token / turn % 2 == 0 ? -key
                                                 : key);
        }
      }
      for (std::mt19937_64* const shifts : {static_cast<std::mt19937_64*>(nullptr), &rng}) {
        ExpectRight(c, kind.tolerance, StrCat("turns of ", turn, ": ", s.ToString()), shifts);
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EdgesOfAKindGpuTest, testing::ValuesIn(kKinds), [](const auto& info) {
  const Kind& kind = info.param;
  return StrCat(DTypeName(kind.query), "_", DTypeName(kind.cache), "_", kind.head_dim);
});

// f32 is multiplied as the sum of two halves: operands at the ends of its range are not to become
// infinite or NaN on the way, and infinite ones stay what they are.
TEST_F(PagedAttentionEdgesGpuTest, LargeAndInfiniteOperandsOfF32) {
  constexpr double kMost = 3.4028234663852886e38;
  for (const int64_t head_dim : {64, 128, 256, 512}) {
    const Kind kind = {DType::kF32, DType::kF32, 2e-5, head_dim};
    for (const auto& spec : {SpecOf(kind, {1, 1}, {70, 3}), SpecOf(kind, {60, 1}, {70, 3})}) {
      for (const double value : {kMost, -kMost, HUGE_VAL, -HUGE_VAL}) {
        for (int where = 0; where < 4; ++where) {
          std::mt19937_64 rng(10);
          Case c(spec, rng);
          const Problem p = *ProblemFromCall(c.call());
          // Of the first token, which all rows see, or, the last time, of one that only some see.
          const int64_t token = where == 3 ? 40 : 0;
          const auto at = [&](const CacheLayout& layout) {
            return layout.offset + c.block_tables.ints()[token / p.page_size] * layout.page_stride +
                   token % p.page_size * layout.token_stride + 5;
          };
          if (where % 3 == 0) c.kv_cache.Set(at(p.v), value);
          if (where == 1) c.kv_cache.Set(at(p.k), value);
          if (where == 2) c.query.Set(5, value);
          // Logits of large operands stay below f32's largest.
          for (int64_t i = 0; where == 1 && i < c.query.size(); ++i) {
            if (std::isfinite(value)) c.query.Set(i, c.query.Get(i) * 1e-20);
          }
          for (int64_t i = 0; where == 2 && i < 70 && std::isfinite(value); ++i) {
            const int64_t page = c.block_tables.ints()[i / p.page_size];
            const int64_t key =
                p.k.offset + page * p.k.page_stride + i % p.page_size * p.k.token_stride + 5;
            c.kv_cache.Set(key, c.kv_cache.Get(key) * 1e-20);
          }
          ExpectRight(c, kind.tolerance, StrCat("head_dim ", head_dim, " ", value, " at ", where));
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Tables that name the same few pages over and over hold contexts of any length: each of kKeys keys
// is seen so and so often.
TEST_F(PagedAttentionEdgesGpuTest, SumsDoNotDriftWithTheContext) {
  constexpr int64_t kPageSize = 1024, kPages = 16, kKeys = kPageSize * kPages;
  struct Shape {
    const char* name;
    int64_t seqs, queries;
  };
  const Shape shapes[] = {
      {"decode", 1, 1}, {"decode", 64, 1}, {"prefill", 1, 128}, {"prefill", 64, 128}};
  std::printf("largest relative error of f32 results, V = 0.1 and V random in [0, 1)\n");
  using Run = std::pair<Kind, bool>;  // true: of tensors that start anywhere
  for (const auto& [kind, unaligned] : {Run{kKinds[0], true},
                                        {kKinds[4], true},
                                        {kKinds[0], false},
                                        {kKinds[1], false},
                                        {kKinds[2], false},
                                        {kKinds[4], false},
                                        {kKinds[5], false},
                                        {kKinds[6], false},
                                        {kKinds[7], false}}) {
    const bool f32_arithmetic = unaligned || kind.query == DType::kF32;
    for (const Shape& shape : shapes) {
      double least[2] = {HUGE_VAL, HUGE_VAL};  // error of the contexts so far
      for (const int64_t context : {int64_t{1} << 15, int64_t{1} << 20, int64_t{1} << 23}) {
        // Some ten seconds of f32 arithmetic.
        if (shape.seqs * shape.queries * context > int64_t{1} << 33) continue;
        if (f32_arithmetic && shape.seqs * shape.queries * context > int64_t{1} << 31) continue;
        CaseSpec spec = SpecOf(kind, {}, {});
        spec.kv_heads = 1;
        spec.group_size = 2;
        spec.page_size = kPageSize;
        spec.max_pages = context / kPageSize;
        spec.spare_pages = 0;
        spec.max_seqs = 1;
        spec.return_lse = false;
        spec.padding_rows = shape.seqs * shape.queries;
        double worst[2];
        for (const bool random_values : {false, true}) {
          std::mt19937_64 rng(9);
          // The tensors of a small case, but tables and lengths of a long one.
          CaseSpec small = spec;
          small.max_pages = kPages;
          Case c(small, rng);
          OwnedTensor tables(DType::kI32, {shape.seqs, spec.max_pages});
          OwnedTensor lens(DType::kI32, {shape.seqs}), starts(DType::kI32, {shape.seqs + 1});
          for (int64_t i = 0; i < tables.size(); ++i)
            tables.ints()[i] = static_cast<int>(i % kPages);
          for (int64_t s = 0; s <= shape.seqs; ++s) {
            starts.ints()[s] = static_cast<int>(s * shape.queries);
            if (s < shape.seqs) lens.ints()[s] = static_cast<int>(context);
          }
          c.num_seqs.ints()[0] = static_cast<int>(shape.seqs);
          const Problem p = *ProblemFromCall(c.call());
          std::normal_distribution<double> normal(0, 1);
          std::uniform_real_distribution<double> uniform(0, 1);
          for (int64_t t = 0; t < kKeys; ++t) {
            for (int64_t d = 0; d < p.head_dim; ++d) {
              const auto at = [&](const CacheLayout& layout) {
                return layout.offset + t / kPageSize * layout.page_stride +
                       t % kPageSize * layout.token_stride + d;
              };
              c.kv_cache.Set(at(p.k), normal(rng) / 2);
              c.kv_cache.Set(at(p.v), random_values ? uniform(rng) : 0.1);
            }
          }
          Call call = c.call();
          std::vector<TensorView> args(call.args.begin(), call.args.end());
          args[2] = lens.view(), args[3] = tables.view(), args[4] = starts.view();
          call.args = args;
          const auto got = cuda::RunOnGpu(**OpRegistry::Global().Get("paged_attention"), call, {},
                                          nullptr, unaligned ? &rng : nullptr);
          ASSERT_TRUE(got.ok()) << got.status().ToString();
          worst[random_values] = 0;
          for (int64_t row : {int64_t{0}, shape.seqs * shape.queries - 1}) {
            const int64_t sees = context - shape.queries + row % shape.queries + 1;
            for (int64_t head = 0; head < 2; ++head) {
              const int64_t q = (row * 2 + head) * p.head_dim;
              std::vector<double> sums(static_cast<size_t>(p.head_dim));
              double sum = 0;
              for (int64_t t = 0; t < kKeys; ++t) {
                const auto at = [&](const CacheLayout& layout) {
                  return layout.offset + t / kPageSize * layout.page_stride +
                         t % kPageSize * layout.token_stride;
                };
                double dot = 0;
                for (int64_t d = 0; d < p.head_dim; ++d) {
                  dot += c.query.Get(q + d) * c.kv_cache.Get(at(p.k) + d);
                }
                const double weight = std::exp(dot * p.scale) *
                                      static_cast<double>(sees / kKeys + (t < sees % kKeys));
                sum += weight;
                for (int64_t d = 0; d < p.head_dim; ++d) {
                  sums[static_cast<size_t>(d)] += weight * c.kv_cache.Get(at(p.v) + d);
                }
              }
              for (int64_t d = 0; d < p.head_dim; ++d) {
                const double want = sums[static_cast<size_t>(d)] / sum;
                const double value = LoadAsDouble((*got)[0].data(), DType::kF32, q + d);
                worst[random_values] =
                    std::max(worst[random_values], std::fabs(value - want) / want);
              }
            }
          }
        }
        std::printf("%-4s %s of %2lld sequences, context %7lld: %.1e %.1e\n",
                    std::string(DTypeName(kind.cache)).c_str(), shape.name,
                    static_cast<long long>(shape.seqs), static_cast<long long>(context), worst[0],
                    worst[1]);
        // Weights are rounded, to bf16 or f16: an error that falls with the number of different
        // keys and does not grow with the context.
        const double allowed = kind.query == DType::kF32    ? 4e-6
                               : kind.cache == DType::kBF16 ? 1.5e-4
                                                            : 1.5e-5;
        for (int i = 0; i < 2; ++i) {
          EXPECT_LE(worst[i], std::min(allowed, 2 * least[i] + allowed / 2));
          least[i] = std::min(least[i], worst[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention
