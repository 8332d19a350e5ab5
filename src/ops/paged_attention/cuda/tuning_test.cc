// The choices there are, the table of them as text, and what wins: the table where it fits.
#include "src/ops/paged_attention/cuda/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "src/core/file.h"
#include "src/cuda/test_util.h"
#include "src/ops/paged_attention/cuda/config_testing.h"

namespace xla_gpu::paged_attention {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Names(const Problem& problem, const cuda::DeviceInfo& device = kH200) {
  const auto configs = Alternatives(problem, device);
  EXPECT_TRUE(configs.ok()) << configs.status().ToString();
  std::vector<std::string> names;
  for (const Config& config : *configs) names.push_back(NameOf(config));
  return names;
}

Problem MakeOne() {
  Problem one = MakeProblem();
  one.tokens = one.max_seqs = 1;
  return one;
}

TEST(Alternatives, AreWhatTheDeviceHasKernelsFor) {
  EXPECT_THAT(Names(MakeProblem()), ElementsAre("decode", "cluster1", "attend"));
  EXPECT_THAT(Names(MakeOne()),
              ElementsAre("cluster8", "cluster4", "cluster2", "cluster1", "decode", "attend"));
  EXPECT_THAT(Names(MakeChunks()),
              ElementsAre("prefill+attend+decode", "attend+decode", "prefill+attend", "attend"));
  Problem prompts = MakePrefill();
  prompts.max_seqs = 4;
  EXPECT_THAT(Names(prompts), ElementsAre("prefill+attend", "attend"));
  EXPECT_THAT(Names(MakeOne(), kA100), ElementsAre("attend"));
  Problem long_one = MakeOne();  // which the model gives to all multiprocessors
  long_one.max_pages_per_seq = 1 << 14;
  EXPECT_THAT(Names(long_one),
              ElementsAre("decode", "cluster8", "cluster4", "cluster2", "cluster1", "attend"));
  Problem two_heads = MakeOne();
  two_heads.q_heads = 8;
  two_heads.kv_heads = 2;
  EXPECT_THAT(Names(two_heads), testing::Contains("cluster16"));
}

TEST(Alternatives, OfABatchInvariantProblemIsTheModelsAlone) {
  for (Problem problem : {MakeProblem(), MakeOne(), MakeChunks(), MakePrefill()}) {
    problem.batch_invariant = true;
    EXPECT_EQ(Names(problem).size(), 1u);
  }
}

// Each works with the workspace of the problem, which no choice changes: only launches that are
// left out, and clusters, which use none of it.
TEST(Alternatives, LeaveOutLaunchesOfTheModelOrReplaceAll) {
  for (const cuda::DeviceInfo& device : {kA100, kL40, kH200, kB200}) {
    for (const int64_t tokens : {1, 4, 8, 64, 70, 128, 4096}) {
      for (const int64_t seqs : {1, 4, 32, 64}) {
        for (const DType cache : {DType::kBF16, DType::kF8E4M3FN, DType::kF32}) {
          Problem problem = MakeProblem(cache == DType::kF32 ? cache : DType::kBF16, cache);
          problem.tokens = tokens;
          problem.max_seqs = seqs;
          const auto configs = Alternatives(problem, device);
          const Config& model = (*configs)[0];
          EXPECT_EQ(NameOf(model), NameOf(Choose(problem, device)));
          std::set<std::string> names;
          for (const Config& config : *configs) {
            EXPECT_TRUE(names.insert(NameOf(config)).second) << NameOf(config);
            EXPECT_TRUE(!config.decode_launch || IsDecode(problem) || IsMixed(problem));
            EXPECT_LE(config.line_only, model.line_only);
            EXPECT_TRUE(!config.prefill_launch || model.prefill_launch || model.line_only);
            EXPECT_EQ(config.decode_launch, config.why_not_line == nullptr);
            EXPECT_EQ(config.prefill_launch, config.why_not_prefill == nullptr);
            EXPECT_LE(config.decode_cluster * problem.kv_heads, device.num_sms);
          }
          EXPECT_TRUE(names.contains("attend"));
        }
      }
    }
  }
}

TuningTable Saying(const std::string& launches, const Problem& problem,
                   const cuda::DeviceInfo& device = kH200) {
  TuningTable table;
  table.choices[{Describe(device), Describe(problem)}] = launches;
  return table;
}

TEST(TunedConfig, TakesTheTablesChoice) {
  const Problem one = MakeOne();
  for (const std::string& name : Names(one)) {
    const auto config = TunedConfig(one, kH200, Saying(name, one));
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(NameOf(*config), name);
    EXPECT_THAT(Describe(one, *config), HasSubstr("4096 keys: by the table of xla-gpu tune, "));
  }
  EXPECT_THAT(Describe(one, Choose(one, kH200)), HasSubstr("4096 keys: decode_cluster_sm90.cu"));
}

TEST(TunedConfig, IgnoresWhatDoesNotFit) {
  const auto expect_model = [](const Problem& problem, const cuda::DeviceInfo& device,
                               const TuningTable& table) {
    const auto config = TunedConfig(problem, device, table);
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(NameOf(*config), NameOf(Choose(problem, device)));
    EXPECT_FALSE(config->tuned);
  };
  const Problem one = MakeOne();
  testing::internal::CaptureStderr();
  for (const char* launches : {"cluster16", "cluster9", "prefill+attend", "no\nsuch", ""}) {
    expect_model(one, kH200, Saying(launches, one));
  }
  EXPECT_THAT(
      testing::internal::GetCapturedStderr(),
      HasSubstr("says 'cluster9' for bf16[1,32,128], bf16 cache of 8 kv heads, pages of 16, "
                "room for 1 sequences of 4096 keys on a GPU, sm_90a, 132 multiprocessors, "
                "which is none of cluster8, cluster4, cluster2, cluster1, decode, attend; it is "
                "ignored"));
  expect_model(one, kA100, Saying("decode", one));  // of another device
  expect_model(one, kA100, Saying("decode", one, kA100));
  expect_model(MakeProblem(), kH200, Saying("attend", one));
  Problem invariant = one;
  invariant.batch_invariant = true;
  expect_model(invariant, kH200, Saying("decode", one));
  expect_model(invariant, kH200, Saying("decode", invariant));
}

// All that ChooseConfig looks at and a table's text does not tell is checked by Alternatives.
TEST(Describe, TellsProblemsApart) {
  std::set<std::string> texts = {Describe(MakeOne())};
  const auto expect_new = [&texts](auto change) {
    Problem problem = MakeOne();
    change(problem);
    EXPECT_TRUE(texts.insert(Describe(problem)).second) << Describe(problem);
  };
  expect_new([](Problem& p) { p.query_dtype = DType::kF16; });
  expect_new([](Problem& p) { p.cache_dtype = DType::kF8E4M3FN; });
  expect_new([](Problem& p) { p.out_dtype = DType::kF32; });
  expect_new([](Problem& p) { p.tokens = 2; });
  expect_new([](Problem& p) { p.q_heads = 64; });
  expect_new([](Problem& p) { p.kv_heads = 4; });
  expect_new([](Problem& p) { p.head_dim = 64; });
  expect_new([](Problem& p) { p.page_size = 32; });
  expect_new([](Problem& p) { p.max_seqs = 2; });
  expect_new([](Problem& p) { p.max_pages_per_seq = 7; });
  expect_new([](Problem& p) { p.max_query_len = 1; });
  expect_new([](Problem& p) { p.sliding_window = 128; });
  expect_new([](Problem& p) { p.soft_cap = 30; });
  expect_new([](Problem& p) { p.causal = 0; });
  expect_new([](Problem& p) { p.batch_invariant = 1; });
}

TEST(TuningTable, ComesBackFromItsText) {
  TuningTable table = Saying("cluster8", MakeOne());
  table.choices[{"a \"GPU\" \\ \n \xff", "p"}] = "decode";  // whatever a driver says
  table.choices[{"", ""}] = "";
  const std::string text = table.ToJson();
  EXPECT_THAT(text, HasSubstr("\"launches\": \"cluster8\""));
  const auto back = TuningTable::Parse(text);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->choices.size(), 3u);
  EXPECT_EQ(back->ToJson(), text);
  EXPECT_TRUE(TuningTable::Parse(TuningTable().ToJson())->choices.empty());
}

TEST(TuningTable, RefusesWhatIsNoTable) {
  const std::string good = Saying("decode", MakeOne()).ToJson();
  for (size_t size = 0; size + 2 < good.size(); ++size) {
    EXPECT_FALSE(TuningTable::Parse(good.substr(0, size)).ok()) << size;
  }
  const std::string version = "{\"xla_gpu\": \"" XLA_GPU_VERSION "\"";
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", ""},
      {"[]", "an array"},
      {version + "}", "choices"},
      {"{\"choices\": []}", "xla_gpu"},
      {"{\"xla_gpu\": 1, \"choices\": []}", "xla_gpu is the int 1"},
      {version + ", \"choices\": {}}", "choices is an object"},
      {version + ", \"choices\": [1]}", "choices[0] is the int 1"},
      {version + ", \"choices\": [{}]}", "choices[0]"},
      {version + ", \"choices\": [], \"more\": 1}", "more"},
      {version + ", \"choices\": [{\"device\": \"\", \"problem\": \"\", \"launches\": null}]}",
       "choices[0].launches is"},
      {"{\"xla_gpu\": \"0.0.0\", \"choices\": []}", "the table is of xla_gpu 0.0.0, and this is "},
  };
  for (const auto& c : cases) {
    const auto table = TuningTable::Parse(c.text);
    ASSERT_FALSE(table.ok()) << c.text;
    EXPECT_THAT(table.status().message(), HasSubstr(c.message)) << c.text;
  }
}

class TuningFile : public testing::Test {
 protected:
  cuda::TempFolder folder_;
  cuda::ScopedEnv cache_{"XLA_GPU_CACHE_DIR", folder_.path("cache")};
};

TEST_F(TuningFile, LiesInTheCacheOfKernels) {
  unsetenv("XLA_GPU_TUNING");
  EXPECT_TRUE(TuningTable::Read()->choices.empty());
  ASSERT_TRUE(Saying("decode", MakeOne()).Write().ok());
  EXPECT_EQ(TuningTable::Read()->choices, Saying("decode", MakeOne()).choices);
  EXPECT_THAT(TuningTable::Place(), HasSubstr(folder_.path("cache")));
  cuda::ScopedEnv none("XLA_GPU_CACHE_DIR", "");
  EXPECT_TRUE(TuningTable::Read()->choices.empty());
  EXPECT_EQ(TuningTable().Write().code(), StatusCode::kFailedPrecondition);
}

TEST_F(TuningFile, OrWhereTheUserSays) {
  const std::string path = folder_.path("table.json");
  cuda::ScopedEnv named("XLA_GPU_TUNING", path);
  EXPECT_TRUE(TuningTable::Read()->choices.empty());
  ASSERT_TRUE(Saying("decode", MakeOne()).Write().ok());
  EXPECT_EQ(TuningTable::Read()->choices, Saying("decode", MakeOne()).choices);
  EXPECT_EQ(ListFolder(folder_.path()), std::vector<std::string>{path});
  folder_.Write("table.json", "{");
  EXPECT_THAT(TuningTable::Read().status().message(), HasSubstr(path + ": "));
  for (const std::string& bad : {folder_.path(), std::string("/dev/zero")}) {
    cuda::ScopedEnv other("XLA_GPU_TUNING", bad);
    EXPECT_FALSE(TuningTable::Read().ok()) << bad;
  }
  cuda::ScopedEnv missing("XLA_GPU_TUNING", folder_.path("no/table.json"));
  EXPECT_FALSE(TuningTable().Write().ok());
  cuda::ScopedEnv off("XLA_GPU_TUNING", "");
  EXPECT_TRUE(TuningTable::Read()->choices.empty());
  EXPECT_THAT(TuningTable().Write().message(), HasSubstr("XLA_GPU_TUNING is empty"));
}

TEST_F(TuningFile, AWrongOneIsAWarning) {
  folder_.Write("table.json", "{");
  cuda::ScopedEnv named("XLA_GPU_TUNING", folder_.path("table.json"));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    const auto config = TunedConfig(MakeOne(), kH200);
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(NameOf(*config), "cluster8");
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("table.json: ") /* and why */);
}

}  // namespace
}  // namespace xla_gpu::paged_attention
