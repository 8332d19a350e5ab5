// The program's commands: their help, their examples, and what they say of wrong words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "src/cli/npy.h"
#include "src/cli/program_testing.h"
#include "src/core/file.h"
#include "src/cuda/nvrtc.h"
#include "src/cuda/test_util.h"
#include "src/xla/testing/pjrt_test_plugin.h"

namespace xla_gpu::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("XLA_GPU_PROGRAM") == nullptr) GTEST_SKIP() << "run this test through ctest";
  }
  // As `xla-gpu help` lists them: "  cache list    show ...".
  static std::vector<std::string> Commands() {
    std::vector<std::string> names;
    const std::string help = Program({"help"}).out;
    for (const std::string_view line : Lines(help)) {
      if (line.starts_with("  ")) names.emplace_back(line.substr(2, line.find("  ", 2) - 2));
    }
    return names;
  }
  static Output Shell(const std::string& text) {
    return RunToEnd({"sh", "-c", "exec \"$0\" " + text, ProgramPath()});
  }
};

TEST_F(CliTest, EveryCommandHasHelp) {
  EXPECT_EQ(Commands().size(), 13u);
  for (const std::string& command : Commands()) {
    const Output help = Shell(command + " --help");
    EXPECT_EQ(help.code, 0) << help.err;
    EXPECT_THAT(help.out, AllOf(StartsWith("usage: xla-gpu " + command),
                                HasSubstr("\nexample: xla-gpu " + command)));
    for (const std::string_view line : Lines(help.out)) EXPECT_LE(line.size(), 100u) << line;
    EXPECT_EQ(Shell(command + " --no-such-option -h").out, help.out);
    EXPECT_EQ(Shell("help " + command).out, help.out);
  }
  EXPECT_EQ(Program({"--help"}).out, Program({"help"}).out);
  EXPECT_EQ(Program({}).code, 2);
  EXPECT_EQ(Program({"cache"}).code, 2);
  EXPECT_EQ(Program({"cache", "--help"}).out, Program({"help", "cache"}).out);
}

// But demo's, which takes long.
TEST_F(CliTest, EveryExampleRuns) {
  if (xla::CpuPluginForTest().empty()) GTEST_SKIP() << "needs xla-cpu-pjrt";
  const cuda::TempFolder folder;
  const cuda::ScopedEnv plugin("XLA_GPU_PJRT_PLUGIN", xla::CpuPluginForTest());
  const cuda::ScopedEnv cache("XLA_GPU_CACHE_DIR", folder.path("cache"));
  folder.Write("add.mlir",
               "func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {\n"
               "  %c = stablehlo.custom_call @XlaGpuSimpleAdd(%a, %b) {api_version = 4 : i32} : "
               "(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>\n"
               "  return %c : tensor<4xf32>\n}\n");
  folder.Write("scale.cu",
               "template <typename T> __global__ void scale(T* x, T by) { x[threadIdx.x] *= by; }");
  ASSERT_TRUE(WriteNpy(folder.path("x.npy"), HostTensor::Zeros(DType::kF32, {4})).ok());
  for (const std::string& command : Commands()) {
    if (command == "demo") continue;
    const bool compiles = command == "cache warm" || command == "compile";
    if (compiles && !cuda::SelectNvrtc(0).ok()) continue;
    const std::string help = Shell(command + " --help").out;
    constexpr std::string_view kBefore = "example: xla-gpu ";
    const std::string example = help.substr(help.find(kBefore) + kBefore.size());
    const Output output = RunToEnd({"sh", "-c", "cd \"$0\" && \"$1\" " + example, folder.path(),
                                    std::filesystem::absolute(ProgramPath())});
    EXPECT_EQ(output.code, 0) << example << output.err;
    EXPECT_NE(output.out, "") << example;
  }
}

TEST_F(CliTest, WrongWords) {
  const struct {
    const char* args;
    const char* message;
  } cases[] = {
      {"dcotor", "no command is named 'dcotor'; did you mean doctor?"},
      {"help rnu", "no command is named 'rnu'; did you mean run?"},
      {"cache wram", "no command is named 'cache wram'; did you mean cache warm?"},
      {"''", "no command is named ''\n"},
      {"--version now", "no command is named '--version'"},
      {"ops simple_ad", "simple_add, update_kv_cache; did you mean simple_add?"},
      {"ops XlaGpuSimpelAdd", "did you mean XlaGpuSimpleAdd?"},
      {"ops --json --markdown", "one of --json and --markdown is allowed"},
      {"ops --jsn", "option --jsn is unknown; did you mean --json?"},
      {"doctor --plugin", "--plugin needs a value"},
      {"doctor --plugin cpu --site-packages x", "one of --plugin and --site-packages"},
      {"doctor now", "argument now is unknown"},
      {"demo --plugn cpu", "did you mean --plugin?"},
      {"probe --firts 1", "option --firts is unknown\n"},
      {"probe --child x --first -1", "--first is '-1'"},
      {"hlo", "FILE is missing"},
      {"hlo a b", "argument b is one too many"},
      {"run", "FILE.mlir is missing"},
  };
  for (const auto& c : cases) {
    const Output output = Shell(c.args);
    EXPECT_EQ(output.code, 2) << c.args;
    EXPECT_EQ(output.out, "") << c.args;
    EXPECT_THAT(output.err, HasSubstr(c.message)) << c.args;
  }
}

TEST_F(CliTest, OneOp) {
  const Output text = Shell("ops XlaGpuSimpleAdd");
  EXPECT_THAT(text.out, StartsWith("simple_add (custom-call target XlaGpuSimpleAdd)\n"));
  EXPECT_THAT(text.out, Not(HasSubstr("paged_attention")));
  EXPECT_THAT(Shell("ops paged_attention").out,
              HasSubstr("\n  attribute  sliding_window (int, none): keys a query sees"));
  EXPECT_THAT(Shell("ops paged_attention").out, HasSubstr("causal (bool, default true): "));
  EXPECT_THAT(Shell("ops update_kv_cache").out, HasSubstr("shares the buffer of `kv_cache`"));
  EXPECT_THAT(
      Shell("ops simple_add --json").out,
      AllOf(StartsWith("[\n  {\n    \"name\": \"simple_add\""), Not(HasSubstr("paged_attention"))));
  EXPECT_THAT(Shell("ops simple_add --markdown").out, HasSubstr("## simple_add\n"));
}

TEST_F(CliTest, DoctorLooksAndLeavesNothing) {
  const cuda::TempFolder folder;
  const cuda::ScopedEnv home("HOME", folder.path("home"));
  const cuda::ScopedEnv xdg("XDG_CACHE_HOME", nullptr);
  const cuda::ScopedEnv cache("XLA_GPU_CACHE_DIR", nullptr);
  const Output output = Program({"doctor", "--plugin", "/no/such.so"});
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.out, HasSubstr("NO  PJRT plugin /no/such.so: "));
  EXPECT_THAT(output.out, HasSubstr(folder.path("home/.cache/xla_gpu")));
  EXPECT_FALSE(std::filesystem::exists(folder.path("home")));
  // What is said is said once.
  std::set<std::string_view> said;
  for (const std::string_view line : Lines(output.out)) {
    if (line.size() > 40) {
      EXPECT_TRUE(said.insert(line).second) << line;
    }
  }
}

TEST_F(CliTest, DoctorTellsAForeignLibrary) {
  const char* ours = std::getenv("XLA_GPU_LIBRARY");
  const cuda::TempFolder folder;
  const std::string text = folder.Write("libxla_gpu.so", "no library");
  const auto doctor = [](const std::string& library) {
    const cuda::ScopedEnv env("XLA_GPU_LIBRARY", library);
    return Program({"doctor", "--plugin", "/no/such.so"}).out;
  };
  if (ours != nullptr) {
    EXPECT_THAT(doctor(ours), HasSubstr("ok  XLA_GPU_LIBRARY: Python loads "));
  }
  for (const std::string& file : {text, ProgramPath(), folder.path("none"), folder.path()}) {
    EXPECT_THAT(doctor(file), HasSubstr("NO  XLA_GPU_LIBRARY: " + file)) << file;
  }
  EXPECT_THAT(doctor(""), Not(HasSubstr("XLA_GPU_LIBRARY")));
}

}  // namespace
}  // namespace xla_gpu::cli
