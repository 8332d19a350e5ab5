// xla-gpu tune, as a user runs it: where there is no GPU, and against a driver that does nothing
// (tests/cuda/fake_libcuda.cc), for which each call takes a millisecond.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "src/cli/program_testing.h"
#include "src/cli/tune_shape.h"
#include "src/cuda/compile_protocol.h"
#include "src/cuda/test_util.h"

namespace xla_gpu::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TuneCommand : public testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("XLA_GPU_PROGRAM") == nullptr) GTEST_SKIP() << "run this test through ctest";
  }
  // A driver, a compiler and an NVRTC that are fakes.
  void UseFakes() {
    const std::string driver = folder_.path("driver");
    std::filesystem::create_directory(driver);
    std::filesystem::create_symlink(std::getenv("XLA_GPU_FAKE_DRIVER"), driver + "/libcuda.so.1");
    folder_.Write("nvrtc/libnvrtc.so.12", "");
    folder_.Write("nvrtc/libnvrtc-builtins.so.12.8", "");
    using cuda::CompileResponse;
    const std::string answer = folder_.Write(
        "answer",
        cuda::Encode(CompileResponse{CompileResponse::Outcome::kOk, "", cuda::TinyCubin("cubin")}));
    library_path_.emplace("LD_LIBRARY_PATH", driver);
    nvrtc_.emplace("XLA_GPU_NVRTC", folder_.path("nvrtc"));
    compiler_.emplace("XLA_GPU_COMPILER",
                      folder_.WriteScript("compiler", "cat >/dev/null; cat " + answer));
  }
  static Output Run(std::vector<std::string> args) {
    args.insert(args.begin(), "tune");
    return Program(args);
  }

  cuda::TempFolder folder_;
  const std::string table_ = folder_.path("table.json");
  cuda::ScopedEnv cache_{"XLA_GPU_CACHE_DIR", folder_.path("cache")};
  cuda::ScopedEnv tuning_{"XLA_GPU_TUNING", table_};
  std::optional<cuda::ScopedEnv> library_path_, nvrtc_, compiler_;
};

TEST_F(TuneCommand, KeepsAChoiceForEachContext) {
  UseFakes();
  const Output output = Run({"--seqs", "2", "--context", "64", "--context", "100", "--ragged",
                             "--max-seqs", "4", "--max-context", "128"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(
      output.out,
      AllOf(HasSubstr("Fake GPU, sm_90a, 132 multiprocessors\nbf16[2,32,128], bf16 cache of "
                      "8 kv heads, pages of 16, room for 4 sequences of 128 keys\n"
                      "      1000.0 us  cluster8  the model's choice  <- taken\n"),
            HasSubstr("us  attend"), HasSubstr("kept in " + table_ + " (1 choices)")));
  EXPECT_THAT(Run({"--list"}).out,
              HasSubstr("room for 4 sequences of 128 keys: cluster8\n1 choices in " + table_));
  EXPECT_EQ(Run({"--clear"}).out, "1 choices removed\n");
  EXPECT_EQ(Run({"--list"}).out, "0 choices in " + table_ + "\n");
}

TEST_F(TuneCommand, ADryRunKeepsNothing) {
  UseFakes();
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--chunk", "40", "--context", "30", "--chunk-context", "64"},
           {"--cache-dtype", "f8e4m3fn", "--context", "64", "--window", "8", "--soft-cap", "5",
            "--max-query-len", "1"},
           {"--dtype", "f32", "--context", "70", "--max-tokens", "20", "--head-dim", "7"}}) {
    std::vector<std::string> all = args;
    all.push_back("--dry-run");
    const Output output = Run(all);
    EXPECT_EQ(output.code, 0) << output.err;
    EXPECT_THAT(output.out, AllOf(HasSubstr("<- taken"), Not(HasSubstr("kept"))));
  }
  EXPECT_FALSE(std::filesystem::exists(table_));
}

TEST_F(TuneCommand, ATableOfAnotherVersionIsMadeAnew) {
  UseFakes();
  folder_.Write("table.json", "{\"xla_gpu\": \"0.0.0\", \"choices\": []}");
  const Output output = Run({"--context", "64"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.err, HasSubstr("the table is of xla_gpu 0.0.0"));
  EXPECT_THAT(Run({"--list"}).out, HasSubstr("1 choices"));
  // But a file that is none is the user's.
  const std::string other = folder_.Write("table.json", "precious");
  for (const char* option : {"--list", "--clear", "--ragged"}) {
    const Output refused = Run({option});
    EXPECT_EQ(refused.code, 1) << option;
    EXPECT_THAT(refused.err, HasSubstr("xla-gpu tune: INVALID_ARGUMENT: " + other)) << option;
  }
  EXPECT_EQ(cuda::ReadWhole(other), "precious");
}

TEST_F(TuneCommand, FailuresSayWhy) {
  cuda::ScopedEnv no_gpu("CUDA_VISIBLE_DEVICES", "");
  const Output no_device = Run({});
  EXPECT_EQ(no_device.code, 1);
  EXPECT_THAT(no_device.err, HasSubstr("xla-gpu tune: UNAVAILABLE: cuda: "));
  UseFakes();
  {
    cuda::ScopedEnv nowhere("XLA_GPU_TUNING", "");
    const Output no_place = Run({});
    EXPECT_EQ(no_place.code, 1);
    EXPECT_THAT(no_place.err, HasSubstr("XLA_GPU_TUNING is empty"));
  }
  {
    cuda::ScopedEnv fails("FAKE_CUDA_FAIL", "cuEventSynchronize=700");
    const Output wrong = Run({"--context", "64"});
    EXPECT_EQ(wrong.code, 1);
    EXPECT_THAT(wrong.err, HasSubstr("waiting for the GPU failed: CUDA_ERROR_FAKE 700"));
  }
  const Output heads = Run({"--q-heads", "5", "--kv-heads", "2", "--context", "64"});
  EXPECT_EQ(heads.code, 1);
  EXPECT_THAT(heads.err, HasSubstr("q_heads must be a multiple of kv_heads"));
  EXPECT_FALSE(std::filesystem::exists(table_));
}

TEST_F(TuneCommand, WrongUsageHasItsExitCode) {
  const struct {
    std::vector<std::string> args;
    const char* message;
  } cases[] = {
      {{"x"}, "argument x is unknown"},
      {{"--list", "--clear"}, "--list and --clear exclude each other"},
      {{"--contxt", "5"}, "did you mean --context?"},
      {{"--seqs", "0"}, "--seqs is '0'; it must be a whole number from 1"},
      {{"--dtype", "f64"}, "--dtype is 'f64'; allowed: f32, bf16, f16"},
      {{"--cache-dtype", "fp8"}, "allowed: f32, bf16, f16, f8e4m3fn, f8e5m2"},
      {{"--query-len", "9", "--context", "8"}, "--context is 8 but --query-len is 9"},
      {{"--chunk", "9", "--context", "8"}, "--context is 8 but --chunk is 9"},
      {{"--chunk", "9", "--chunk-context", "8"}, "--chunk-context is 8 but --chunk is 9"},
      {{"--seqs", "16777216", "--context", "16777216"}, "at most 64 are allowed"},
      {{"--max-seqs", "16777216", "--max-context", "16777216"}, "at most 64 are allowed"},
      {{"--max-tokens", "16777216", "--head-dim", "512"}, "at most 64 are allowed"},
  };
  for (const auto& c : cases) {
    const Output output = Run(c.args);
    EXPECT_EQ(output.code, 2) << c.message;
    EXPECT_THAT(output.err, HasSubstr(c.message));
  }
}

TEST(Tune, TakesTheFastestUnlessTheModelsIsAsFast) {
  EXPECT_EQ(BestOf({{"a", 100}}), 0u);
  EXPECT_EQ(BestOf({{"a", 100}, {"b", 99}}), 0u);
  EXPECT_EQ(BestOf({{"a", 100}, {"b", 97}}), 1u);
  EXPECT_EQ(BestOf({{"a", 100}, {"b", 90}, {"c", 80}, {"d", 85}}), 2u);
  EXPECT_EQ(BestOf({{"a", 50}, {"b", 90}}), 0u);
}

TEST(Tune, ErrorsAreRelative) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float a[] = {3, 4}, b[] = {3, 5}, nan[] = {kNan, 4}, zeros[] = {0, 0};
  EXPECT_EQ(RelativeError(a, a, DType::kF32, 2), 0);
  EXPECT_EQ(RelativeError(zeros, zeros, DType::kF32, 2), 0);
  EXPECT_DOUBLE_EQ(RelativeError(b, a, DType::kF32, 2), 0.2);
  EXPECT_EQ(RelativeError(b, zeros, DType::kF32, 2), INFINITY);
  EXPECT_TRUE(std::isnan(RelativeError(nan, a, DType::kF32, 2)));
  EXPECT_TRUE(std::isnan(RelativeError(a, nan, DType::kF32, 2)));
}

}  // namespace
}  // namespace xla_gpu::cli
