// paged_attention on a GPU: random problems against the fp64 reference; skipped where there is no
// GPU.
//
// XLA_GPU_TEST_CASES sets the number of problems a kernel kind gets (40), XLA_GPU_TEST_SEED the
// first of the random ones. With XLA_GPU_TEST_GUARDS=0 tensors have no guard bytes around them, for
// compute-sanitizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <functional>
#include <thread>

#include "src/cuda/gpu_call_testing.h"
#include "src/ops/paged_attention/cuda/gpu_reference_testing.h"
#include "src/ops/paged_attention/random_case.h"

namespace xla_gpu::paged_attention {
namespace {

using cuda::Bytes;
using cuda::CasesPerKind;
using cuda::HostBytes;
using cuda::RunOnGpu;

constexpr Kind kKinds[] = {{DType::kBF16, DType::kBF16, "", 128, false},
                           {DType::kBF16, DType::kBF16, "f32", 64, true},
                           {DType::kF16, DType::kF16, "", 128, true},
                           {DType::kF16, DType::kF16, "", 80, false},
                           {DType::kBF16, DType::kBF16, "", 256, false},
                           {DType::kBF16, DType::kBF16, "", 3, false},
                           {DType::kBF16, DType::kF8E4M3FN, "", 128, false},
                           {DType::kF16, DType::kF8E5M2, "", 36, true},
                           {DType::kF32, DType::kF32, "", 128, false},
                           {DType::kF32, DType::kF32, "", 7, true},
                           {DType::kF32, DType::kF8E4M3FN, "", 64, false},
                           {DType::kF32, DType::kBF16, "bf16", 96, false},
                           {DType::kBF16, DType::kBF16, "", 512, false},
                           {DType::kF16, DType::kF16, "f32", 264, true},
                           {DType::kBF16, DType::kF8E4M3FN, "", 512, false},
                           {DType::kBF16, DType::kBF16, "f32", 347, true},
                           {DType::kF32, DType::kF32, "", 512, false},
                           {DType::kBF16, DType::kBF16, "", 192, false},
                           {DType::kBF16, DType::kBF16, "f32", 96, true},
                           {DType::kF32, DType::kF32, "", 64, true},
                           {DType::kF32, DType::kF32, "bf16", 256, false},
                           {DType::kF16, DType::kF16, "f32", 512, true}};

constexpr Kind kF16WithF32Results = {DType::kF16, DType::kF16, "f32", 256, false};
constexpr Kind kE5M2WithCap = {DType::kF16, DType::kF8E5M2, "", 64, true};
constexpr Kind kE5M2 = {DType::kF16, DType::kF8E5M2, "f32", 128, true};
constexpr Kind kThreePanels = {DType::kF16, DType::kF16, "f32", 192, true};
// Whose operands have zeros behind the head's dimensions.
constexpr Kind kPaddedHeads = {DType::kF16, DType::kF16, "", 40, false};

class PagedAttentionGpuTest : public cuda::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    // compute-sanitizer takes seconds for each image that is loaded.
    if (cuda::TestGuards() == cuda::Guards::kOn) CompileAll();
  }

 private:
  // All kinds at once, each in a compiler process of its own.
  static void CompileAll() {
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
      threads.emplace_back([&next] {
        for (size_t kind; (kind = next++) < std::size(kKinds);) {
          std::mt19937_64 rng(1);
          Case c(SpecOf(kKinds[kind], rng), rng);
          const Op& op = **OpRegistry::Global().Get("paged_attention");
          auto specs = InferTypes(op, Platform::kCuda, {c.call().args, {}, &c.attributes()});
          std::vector<TensorView> results;
          for (const auto& spec : *specs) results.push_back({nullptr, spec.dtype, spec.shape});
          (void)PlanCache::Global().GetOrCreate(op, Platform::kCuda,
                                                {c.call().args, results, &c.attributes()});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

// As many problems: what SpecOf makes of a kind, as `change` alters it, and `spoil` the tensors.
using Change = std::function<void(CaseSpec&, const Integers&)>;
using Spoil = std::function<void(Case&, const Integers&)>;
void ExpectReferences(
    const Kind& kind, int count, const Change& change,
    const Spoil& spoil = [](Case&, const Integers&) {}) {
  Errors errors;
  for (const uint64_t seed : cuda::Seeds(count)) {
    std::mt19937_64 rng(seed);
    const Integers in = IntegersOf(rng);
    CaseSpec spec = SpecOf(kind, rng);
    change(spec, in);
    Case c(spec, rng);
    spoil(c, in);
    ExpectReference(kind, c, errors);
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << "\n" << c.spec().ToString();
  }
  std::printf("worst error %.2f half ulps\n", errors.worst);
}

// One test a kind, so that several processes can share them (GTEST_TOTAL_SHARDS).
class RandomProblemsGpuTest : public PagedAttentionGpuTest,
                              public testing::WithParamInterface<Kind> {};

TEST_P(RandomProblemsGpuTest, AgreeWithReference) {
  const Kind& kind = GetParam();
  Errors errors;
  for (const uint64_t seed : cuda::Seeds(CasesPerKind())) {
    std::mt19937_64 rng(seed);
    Case c(SpecOf(kind, rng), rng);
    ExpectReference(kind, c, errors);
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << c.spec().ToString();
  }
  double total = 0;
  for (int64_t n : errors.bins) total += static_cast<double>(n);
  std::printf(
      "%d problems; error in half ulps of the coarsest type, share up to 1/4, 1/2, 1, 2, 4:",
      CasesPerKind());
  for (size_t i = 0; i < 5; ++i) {
    std::printf(" %.5f", static_cast<double>(errors.bins[i]) / total);
  }
  std::printf("; worst %.2f\n", errors.worst);
}

std::string NameOf(const testing::TestParamInfo<Kind>& info) {
  const Kind& kind = info.param;
  return StrCat(DTypeName(kind.query), "_", DTypeName(kind.cache), "_", kind.out, "_",
                kind.head_dim, kind.soft_cap ? "_cap" : "");
}

INSTANTIATE_TEST_SUITE_P(, RandomProblemsGpuTest, testing::ValuesIn(kKinds), NameOf);

// The random problems are small: here prefill walks over many tiles of rows and keys, mostly of
// pages that the copy engine loads on Hopper, and logits jump by more than weights hold.
class PrefillOfManyTilesGpuTest : public PagedAttentionGpuTest,
                                  public testing::WithParamInterface<Kind> {};

TEST_P(PrefillOfManyTilesGpuTest, AgreeWithReference) {
  const Kind& kind = GetParam();
  ExpectReferences(kind, std::max(CasesPerKind() / 10, 2), [&](CaseSpec& spec, const Integers& in) {
    spec.layout = static_cast<Layout>(in(0, 2));
    spec.kv_heads = in(1, 2);
    spec.group_size = in(1, 5);
    spec.page_size = PageSize(in);
    spec.k_scale_size = spec.v_scale_size = 1;
    spec.disorder = false;
    spec.max_seqs = 3;
    spec.query_lens = {in(60, 150), 1, in(20, 40)};
    spec.context_lens = {spec.query_lens[0] + in(0, 600), in(1, 300), in(100, 900)};
    spec.max_pages = 1000 / spec.page_size + 1;
    if (in(0, 1) == 0) JumpLogits(kind, spec);
  });
}

// Of many rows: each of the kernels of prefill.
constexpr Kind kPrefillKinds[] = {kKinds[0],  kKinds[1],    kKinds[2],          kKinds[4],
                                  kKinds[6],  kE5M2WithCap, kF16WithF32Results, kKinds[12],
                                  kKinds[13], kKinds[14],   kKinds[8],          kKinds[16],
                                  kKinds[19], kKinds[20],   kKinds[21],         kPaddedHeads};

INSTANTIATE_TEST_SUITE_P(, PrefillOfManyTilesGpuTest, testing::ValuesIn(kPrefillKinds), NameOf);

// With room for so many rows that on Hopper heads of up to 64 dimensions have tiles of three
// warpgroups, which the sequences fill or not.
class PrefillOfThreeWarpgroupsGpuTest : public PagedAttentionGpuTest,
                                        public testing::WithParamInterface<Kind> {};

TEST_P(PrefillOfThreeWarpgroupsGpuTest, AgreeWithReference) {
  const Kind& kind = GetParam();
  ExpectReferences(kind, std::max(CasesPerKind() / 10, 2), [&](CaseSpec& spec, const Integers& in) {
    constexpr int64_t kLeastRows = 1536, kLeastHeadRows = 2 * 192 * 132;
    spec.layout = static_cast<Layout>(in(0, 2));
    spec.kv_heads = in(1, 3);
    spec.group_size = in(1, 5);
    spec.page_size = PageSize(in);
    spec.k_scale_size = spec.v_scale_size = 1;
    spec.disorder = false;
    spec.max_seqs = in(0, 1) == 0 ? 3 : 9;
    spec.query_lens = {1};
    spec.context_lens = {in(1, 300)};
    const int64_t longest = in(0, 3) == 0 ? 3000 : 400;
    for (int i = 0; i < 2; ++i) {
      const int64_t rows = std::array{64, 128, 192, 320, 384, 576}[static_cast<size_t>(in(0, 5))];
      const int64_t tokens = std::max<int64_t>((rows + in(-1, 1)) / spec.group_size, 1);
      spec.query_lens.push_back(tokens);
      spec.context_lens.push_back(tokens + in(0, longest));
    }
    spec.max_pages = (longest + 600) / spec.page_size + 1;
    const int64_t least_seen = kLeastRows / spec.group_size + 1;
    spec.sliding_window = in(0, 2) == 0 ? least_seen + in(0, 300) : 0;
    const int64_t q_heads = spec.kv_heads * spec.group_size;
    spec.padding_rows = std::max(kLeastHeadRows / q_heads, spec.max_seqs * least_seen);
    spec.max_query_len = 0;
    if (in(0, 1) == 0) JumpLogits(kind, spec);
  });
}

INSTANTIATE_TEST_SUITE_P(, PrefillOfThreeWarpgroupsGpuTest,
                         testing::Values(Kind{DType::kBF16, DType::kBF16, "", 64, false},
                                         kPaddedHeads,
                                         Kind{DType::kBF16, DType::kF8E4M3FN, "", 64, false}),
                         NameOf);

// Few queries over contexts so long that their keys are split, and the parts merged.
class LongContextsGpuTest : public PagedAttentionGpuTest,
                            public testing::WithParamInterface<Kind> {};

TEST_P(LongContextsGpuTest, AgreeWithReference) {
  const Kind& kind = GetParam();
  ExpectReferences(
      kind, std::max(CasesPerKind() / 10, 2),
      [&](CaseSpec& spec, const Integers& in) {
        spec.kv_heads = in(1, 2);
        spec.group_size = in(1, 4);
        spec.page_size = PageSize(in);
        spec.k_scale_size = spec.v_scale_size = 1;
        spec.disorder = false;
        spec.max_seqs = 3;
        spec.query_lens = {in(20, 60), 1, in(5, 20)};
        spec.context_lens = {in(1200, 3000), in(1, 300), in(100, 1500)};
        if (in(0, 2) == 0) spec.sliding_window = in(520, 2500);  // which parts lie across
        const bool room = in(0, 2) == 0;  // in the table, for prefill's sums of two levels
        spec.max_pages = (room ? 33000 : 3000) / spec.page_size + 1;
        spec.tight = room;
        if (in(0, 3) == 0) JumpLogits(kind, spec);
      },
      [](Case& c, const Integers& in) {
        if (in(0, 3) == 0) c.block_tables.ints()[in(0, 1000 / c.spec().page_size)] = 1 << 20;
      });
}

INSTANTIATE_TEST_SUITE_P(, LongContextsGpuTest, testing::ValuesIn(kPrefillKinds), NameOf);

// Batches that decode at most a token for each sequence that there is room for: on Hopper they have
// a kernel of their own, which cuts the keys of all sequences into equal ranges.
class DecodeOfManyPagesGpuTest : public PagedAttentionGpuTest,
                                 public testing::WithParamInterface<Kind> {};

TEST_P(DecodeOfManyPagesGpuTest, AgreeWithReference) {
  const Kind& kind = GetParam();
  ExpectReferences(kind, std::max(CasesPerKind() / 2, 2), [&](CaseSpec& spec, const Integers& in) {
    spec.layout = static_cast<Layout>(in(0, 2));
    spec.kv_heads = in(1, 3);
    spec.group_size = in(0, 1) == 0 ? 4 : in(1, 20);
    spec.page_size = PageSize(in);
    if (spec.k_scale_size > 1) spec.k_scale_size = spec.kv_heads;
    if (spec.v_scale_size > 1) spec.v_scale_size = spec.kv_heads;
    spec.query_lens.clear();
    spec.context_lens.clear();
    const int64_t longest = in(0, 3) == 0 ? 2000 : 300;
    spec.max_seqs = spec.padding_rows;
    for (int64_t i = in(0, 8); i > 0; --i) {
      spec.query_lens.push_back(in(0, 2) == 0 ? in(0, 6) : 1);
      spec.context_lens.push_back(in(0, 9) == 0 ? 0 : in(1, longest));
      spec.max_seqs += std::max<int64_t>(spec.query_lens.back(), 1);
    }
    spec.max_seqs = std::max<int64_t>(spec.max_seqs, 1);
    spec.max_pages = longest / spec.page_size + 1;
    if (in(0, 2) == 0) {  // of one length: ranges then begin where sequences do
      std::ranges::fill(spec.query_lens, 1);
      std::ranges::fill(spec.context_lens, in(1, longest));
    }
    // No jumps where weights are of f16.
    if (!IsFloat8(kind.cache) && in(0, 3) == 0) JumpLogits(kind, spec);
  });
}

INSTANTIATE_TEST_SUITE_P(, DecodeOfManyPagesGpuTest,
                         testing::Values(kKinds[0], kKinds[1], kKinds[2], kKinds[4], kKinds[6],
                                         kKinds[12], kKinds[14], kE5M2, kKinds[8], kKinds[16],
                                         kKinds[17], kKinds[18], kKinds[19], kKinds[20],
                                         kThreePanels),
                         NameOf);

// So many keys a multiprocessor that blocks on Hopper keep pace with each other.
TEST_F(PagedAttentionGpuTest, DecodeOfManyKeysAgreesWithReference) {
  Errors errors;
  for (const Kind& kind : {kKinds[0], kKinds[6]}) {
    std::mt19937_64 rng(1);
    const auto in = IntegersOf(rng);
    CaseSpec spec = SpecOf(kind, rng);
    spec.kv_heads = 1;
    spec.group_size = 4;
    spec.page_size = 16;
    spec.k_scale_size = spec.v_scale_size = 1;
    spec.query_lens.assign(16, 1);
    spec.context_lens.clear();
    for (int i = 0; i < 16; ++i) spec.context_lens.push_back(in(6000, 10000));
    spec.max_seqs = 16;
    spec.max_pages = 10000 / spec.page_size;
    Case c(spec, rng);
    ExpectReference(kind, c, errors);
  }
  std::printf("worst error %.2f half ulps\n", errors.worst);
}

// Several tokens of each sequence, or large groups: on Hopper up to 32 rows of a sequence go over
// its keys at once, and sequences of more go several times, or have a launch of their own where
// the call does not promise that there are none.
class ManyRowsGpuTest : public PagedAttentionGpuTest, public testing::WithParamInterface<Kind> {};

TEST_P(ManyRowsGpuTest, AgreeWithReference) {
  const Kind& kind = GetParam();
  ExpectReferences(kind, std::max(CasesPerKind() / 2, 3), [&](CaseSpec& spec, const Integers& in) {
    spec.layout = static_cast<Layout>(in(0, 2));
    spec.page_size = PageSize(in);
    spec.k_scale_size = spec.v_scale_size = in(0, 1);
    spec.padding_rows = in(0, 2);
    const int64_t group = in(0, 2);
    spec.kv_heads = group == 2 ? 1 : in(1, 2);
    spec.group_size = group == 0 ? 4 : group == 1 ? in(1, 8) : in(9, 71);
    const int64_t most = group == 2 ? 1 : in(2, 10);  // tokens
    spec.query_lens.clear();
    spec.context_lens.clear();
    const int64_t longest = in(0, 7) == 0 ? 2000 : 300;
    // Few sequences, for which there is a launch; or many, of which some may have another.
    const bool many = in(0, 1) == 0;
    for (int64_t i = many ? in(6, 10) : in(1, 3); i > 0; --i) {
      spec.query_lens.push_back(in(0, 1) == 0 ? most : in(0, most));
      spec.context_lens.push_back(in(0, 9) == 0 ? in(0, most) : in(1, longest));
    }
    if (in(0, 2) == 0) {  // of one length
      std::ranges::fill(spec.query_lens, most);
      std::ranges::fill(spec.context_lens, in(most, longest));
    }
    if (in(0, 4) == 0) spec.query_lens[0] = in(20, 40);
    // A promise that sequences may break.
    spec.max_query_len = in(0, 1) == 0 ? 0 : in(0, 2) == 0 ? 1 : most;
    spec.max_seqs = std::max<int64_t>(static_cast<int64_t>(spec.query_lens.size()), many ? 8 : 1);
    spec.max_pages = longest / spec.page_size + 1;
    if (!IsFloat8(kind.cache) && in(0, 3) == 0) JumpLogits(kind, spec);
  });
}

INSTANTIATE_TEST_SUITE_P(, ManyRowsGpuTest,
                         testing::Values(kKinds[0], kKinds[1], kKinds[2], kKinds[6],
                                         Kind{DType::kBF16, DType::kBF16, "f32", 128, false},
                                         kKinds[4], kKinds[12], kKinds[14], kKinds[8], kKinds[17],
                                         kKinds[18], kKinds[19], kKinds[20]),
                         NameOf);

// Few sequences: on Hopper 8, 4 or 2 blocks share each head, and contexts are cut between all.
using KindAndHeads = std::pair<Kind, int64_t>;
class DecodeOfFewSequencesGpuTest : public PagedAttentionGpuTest,
                                    public testing::WithParamInterface<KindAndHeads> {};

TEST_P(DecodeOfFewSequencesGpuTest, AgreeWithReference) {
  const auto& [kind, kv_heads] = GetParam();
  ExpectReferences(kind, std::max(CasesPerKind() / 10, 3), [&](CaseSpec& spec, const Integers& in) {
    spec.kv_heads = kv_heads;
    spec.group_size = kv_heads == 8 ? in(1, 16) : in(1, 4);
    spec.page_size = PageSize(in);
    spec.k_scale_size = spec.v_scale_size = 1;
    spec.query_lens.assign(static_cast<size_t>(in(1, 4)), in(0, 2) == 0 ? 2 : 1);
    spec.context_lens.clear();
    const int64_t longest = 8000 / kv_heads;
    for (size_t i = 0; i < spec.query_lens.size(); ++i) {
      spec.context_lens.push_back(in(1, longest));
    }
    spec.padding_rows = in(0, 2);
    spec.max_seqs = 6;
    spec.max_pages = longest / spec.page_size + 1;
  });
}

// Few tokens where there is room for many sequences.
TEST_P(DecodeOfFewSequencesGpuTest, ServedStepsAgreeWithReference) {
  const auto& [kind, kv_heads] = GetParam();
  ExpectReferences(
      kind, std::max(CasesPerKind() / 5, 3),
      [&](CaseSpec& spec, const Integers& in) {
        spec.kv_heads = in(0, 1) == 0 ? kv_heads : in(1, 5);
        spec.group_size = in(1, kv_heads == 8 ? 16 : 4);
        spec.k_scale_size = spec.v_scale_size = 1;
        MakeServedStep(spec, in(0, 4) == 0 ? 4000 / spec.kv_heads : 300, in);
      },
      [](Case& c, const Integers& in) {
        const int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};
        const auto used = static_cast<int64_t>(c.spec().query_lens.size());
        const int64_t wrong = in(0, 7);
        if (wrong == 0) c.query_start_loc.ints()[in(0, used)] = wild[in(0, 3)];
        if (wrong == 1) c.context_lens.ints()[in(0, used - 1)] = wild[in(0, 3)];
        if (wrong == 2) c.num_seqs.ints()[0] = wild[in(0, 3)];
        if (wrong == 3) {
          const int64_t page = in(0, used - 1) * c.spec().max_pages + in(0, 1);
          c.block_tables.ints()[page] = wild[in(0, 3)];
        }
      });
}

INSTANTIATE_TEST_SUITE_P(, DecodeOfFewSequencesGpuTest,
                         testing::Values(KindAndHeads{kKinds[0], 8}, KindAndHeads{kKinds[1], 16},
                                         KindAndHeads{kKinds[2], 32}, KindAndHeads{kKinds[6], 8},
                                         KindAndHeads{kE5M2, 16}, KindAndHeads{kKinds[4], 8},
                                         KindAndHeads{kKinds[12], 8}, KindAndHeads{kKinds[14], 8},
                                         KindAndHeads{kKinds[17], 8}, KindAndHeads{kKinds[18], 16}),
                         [](const auto& info) {
                           return NameOf({info.param.first, info.index});
                         });

// One scale for each token and head, of keys, of values, or of both.
class TokenScalesGpuTest : public PagedAttentionGpuTest,
                           public testing::WithParamInterface<Kind> {};

TEST_P(TokenScalesGpuTest, AgreeWithReference) {
  const Kind& kind = GetParam();
  Errors errors;
  for (const uint64_t seed : cuda::Seeds(CasesPerKind())) {
    std::mt19937_64 rng(seed);
    CaseSpec spec = SpecOf(kind, rng);
    if (seed % 8 == 0) {  // split keys, and sums so long that they are carried
      spec.kv_heads = 1;
      spec.group_size = 2;
      spec.page_size = 16;
      spec.disorder = false;
      spec.max_seqs = 3;
      spec.query_lens = {20, 1, 2};
      spec.context_lens = {300, 9000, 5000};
      spec.max_pages = 600;
      spec.k_scale_size = spec.v_scale_size = 1;
    }
    spec.k_token_scales = seed % 3 != 1;
    spec.v_token_scales = seed % 3 != 2;
    Case c(spec, rng);
    ExpectReference(kind, c, errors, {}, seed % 5 == 0 ? &rng : nullptr);
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << c.spec().ToString();
  }
  std::printf("worst error %.2f half ulps\n", errors.worst);
}

INSTANTIATE_TEST_SUITE_P(, TokenScalesGpuTest,
                         testing::Values(Kind{DType::kBF16, DType::kF8E4M3FN, "", 128, false},
                                         Kind{DType::kF16, DType::kF8E5M2, "", 64, true},
                                         Kind{DType::kBF16, DType::kF8E4M3FN, "f32", 256, false},
                                         Kind{DType::kBF16, DType::kF8E4M3FN, "", 512, false},
                                         Kind{DType::kBF16, DType::kBF16, "", 128, false},
                                         Kind{DType::kF16, DType::kF16, "f32", 80, true},
                                         Kind{DType::kF32, DType::kF32, "", 128, false},
                                         Kind{DType::kF32, DType::kF8E4M3FN, "bf16", 96, false}),
                         NameOf);

// Tensors that start at any multiple of their element size have kernels of their own.
class UnalignedGpuTest : public cuda::GpuTest, public testing::WithParamInterface<Kind> {};

TEST_P(UnalignedGpuTest, AgreeWithReference) {
  const Kind& kind = GetParam();
  Errors errors;
  for (const uint64_t seed : cuda::Seeds(std::max(CasesPerKind() / 2, 2))) {
    std::mt19937_64 rng(seed);
    CaseSpec spec = SpecOf(kind, rng);
    if (seed % 8 == 0) {  // split keys, and sums so long that they are carried
      spec.kv_heads = 1;
      spec.group_size = 2;
      spec.page_size = 16;
      spec.k_scale_size = spec.v_scale_size = 1;
      spec.disorder = false;
      spec.max_seqs = 3;
      spec.query_lens = {20, 1, 2};
      spec.context_lens = {300, 9000, 5000};
      spec.max_pages = 600;
    }
    Case c(spec, rng);
    ExpectReference(kind, c, errors, {}, &rng);
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << c.spec().ToString();
  }
  std::printf("worst error %.2f half ulps\n", errors.worst);
}

INSTANTIATE_TEST_SUITE_P(, UnalignedGpuTest,
                         testing::Values(kKinds[0], kKinds[1], kKinds[3], kKinds[5], kKinds[6],
                                         kKinds[7], kKinds[8], kKinds[10], kKinds[12], kKinds[13],
                                         kKinds[18], kKinds[20]),
                         NameOf);

TEST_F(PagedAttentionGpuTest, BadIndicesTouchOnlyTheirSequence) {
  const Op& op = **OpRegistry::Global().Get("paged_attention");
  for (const uint64_t seed : cuda::Seeds(CasesPerKind())) {
    std::mt19937_64 rng(seed);
    CaseSpec spec;
    spec.query_dtype = spec.cache_dtype = DType::kBF16;
    spec.head_dim = 128;
    spec.query_lens = {1, 40, 1, 7};
    spec.context_lens = {90, 100, 33, 64};
    if (seed % 8 < 4) spec.max_seqs = 60;                        // for Hopper's decode
    if (seed % 16 < 8) spec.page_size = 3, spec.max_pages = 40;  // and rows instead of boxes
    Case c(spec, rng);
    const int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};
    const auto random = [&rng](int n) {
      return static_cast<int>(rng() % static_cast<uint64_t>(n));
    };
    switch (seed % 4) {
      case 0:
        c.block_tables.ints()[random(4) * spec.max_pages + random(3)] = wild[random(4)];
        break;
      case 1:
        c.context_lens.ints()[random(4)] = wild[random(4)];
        break;
      case 2:
        c.query_start_loc.ints()[random(5)] = wild[random(4)];
        break;
      default:
        c.num_seqs.ints()[0] = wild[random(4)];
    }
    const Problem p = *ProblemFromCall(c.call());
    std::vector<double> out(static_cast<size_t>(c.out.size()));
    PagedAttentionReference(p, BuffersFromCall(p, c.call()), out.data(), nullptr);
    const auto got = RunOnGpu(op, c.call(), {});
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    for (size_t j = 0; j < out.size(); ++j) {
      const double value = LoadAsDouble((*got)[0].data(), p.out_dtype, static_cast<int64_t>(j));
      if (SameNonFinite(out[j], value)) continue;
      ASSERT_NEAR(value, out[j], 0.05) << "seed " << seed << ", element " << j;
    }
  }
}

}  // namespace
}  // namespace xla_gpu::paged_attention
