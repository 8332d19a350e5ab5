// The commands run, hlo and probe end to end: the real program, the real xla-cpu-pjrt.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/cli/child_process.h"
#include "src/cli/npy.h"
#include "src/cli/program_testing.h"
#include "src/cuda/test_util.h"
#include "src/xla/testing/pjrt_test_plugin.h"

namespace xla_gpu::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ProgramsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    plugin_ = xla::CpuPluginForTest();
    if (plugin_.empty() || std::getenv("XLA_GPU_PROGRAM") == nullptr) {
      GTEST_SKIP() << "needs xla-cpu-pjrt (XLA_GPU_TEST_SITE_PACKAGES) and XLA_GPU_PROGRAM, which "
                      "ctest sets";
    }
  }

  std::string Npy(const std::string& name, DType dtype, std::vector<int64_t> shape,
                  uint8_t fill) const {
    HostTensor tensor = HostTensor::Zeros(dtype, std::move(shape));
    for (size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = fill;
    EXPECT_TRUE(WriteNpy(folder_.path(name), tensor).ok());
    return folder_.path(name);
  }

  // a + b by a custom call of this API version, on tensors of this type.
  std::string AddModule(int api_version, const std::string& type = "tensor<4xi32>",
                        const std::string& target = "XlaGpuSimpleAdd") const {
    return folder_.Write(
        "add.mlir", "module {\n  func.func public @main(%a: " + type + ", %b: " + type + ") -> " +
                        type + " {\n    %c = stablehlo.custom_call @" + target +
                        "(%a, %b) {api_version = " + std::to_string(api_version) +
                        " : i32, backend_config = " + (api_version == 4 ? "{}" : "\"\"") + "} : (" +
                        type + ", " + type + ") -> " + type + "\n    return %c : " + type +
                        "\n  }\n}\n");
  }

  std::string plugin_;
  cuda::TempFolder folder_;
};

TEST_F(ProgramsTest, RunsAModule) {
  const std::string a = Npy("a.npy", DType::kI32, {4}, 1);
  const Output output = Program({"run", AddModule(4), "--plugin", plugin_, "--input", a, "--input",
                                 a, "--output-dir", folder_.path("out")});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(output.out, "output 0: i32[4] = 33686018 33686018 33686018 33686018\n");
  const auto result = ReadNpy(folder_.path("out/output_0.npy"), DType::kInvalid);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->data, std::vector<uint8_t>(16, 2));
}

TEST_F(ProgramsTest, TheOutputFolderIsMadeForOutputsAlone) {
  const std::string nothing = folder_.Write("nothing.mlir", "func.func @main() {\n  return\n}\n");
  const Output output =
      Program({"run", nothing, "--plugin", plugin_, "--output-dir", folder_.path("out")});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_EQ(Program({"run", folder_.Write("broken.mlir", "func.func @main() { ret }"), "--plugin",
                     plugin_, "--output-dir", folder_.path("out")})
                .code,
            1);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("out")));
}

TEST_F(ProgramsTest, RunsBf16AndFp8) {
  const std::string a = Npy("a.npy", DType::kBF16, {2, 3}, 0x3f);
  const Output add = Program(
      {"run", AddModule(4, "tensor<2x3xbf16>"), "--plugin", plugin_, "--input", a, "--input", a});
  EXPECT_EQ(add.code, 0) << add.err;
  EXPECT_THAT(add.out, HasSubstr("bf16[2,3] = 1.4921875"));
  const std::string identity = folder_.Write(
      "fp8.mlir",
      "func.func @main(%a: tensor<3xf8E4M3FN>) -> tensor<3xf8E4M3FN> {\n  return %a : "
      "tensor<3xf8E4M3FN>\n}\n");
  const Output fp8 = Program(
      {"run", identity, "--plugin", plugin_, "--input", Npy("f.npy", DType::kF8E4M3FN, {3}, 0x38)});
  EXPECT_EQ(fp8.code, 0) << fp8.err;
  EXPECT_EQ(fp8.out, "output 0: f8e4m3fn[3] = 1 1 1\n");
}

TEST_F(ProgramsTest, RunRefusesWhatIsWrong) {
  const std::string good = Npy("a.npy", DType::kI32, {4}, 1);
  const std::string wrong_shape = Npy("b.npy", DType::kI32, {5}, 1);
  const std::string wrong_type = Npy("c.npy", DType::kF32, {4}, 1);
  const std::string module = AddModule(4);
  const std::string text = folder_.Write("text.txt", "this is no module @main(");
  const std::string broken =
      folder_.Write("broken.mlir", "func.func @main() -> tensor<f32> { return %x : tensor<f32> }");
  const struct {
    std::vector<std::string> args;
    int code;
    const char* message;
  } cases[] = {
      {{}, 2, "FILE.mlir is missing"},
      {{module, module}, 2, "is one too many"},
      {{module, "--what"}, 2, "option --what is unknown\n"},
      {{module, "--inptu", good}, 2, "option --inptu is unknown; did you mean --input?"},
      {{module, "--output-dir", good}, 1, "a.npy is there and is no folder"},
      {{module, "--input"}, 2, "--input needs a value"},
      {{"/no/such.mlir"}, 1, "/no/such.mlir: cannot be read: No such file"},
      {{folder_.path()}, 1, "is a folder"},
      {{text}, 1, "no func.func @main"},
      {{broken}, 1, "use of undeclared SSA value"},
      {{module, "--input", good}, 1, "@main takes 2 arguments (i32[4], i32[4]) but 1 --input came"},
      {{module, "--input", good, "--input", "/no/such.npy"}, 1, "/no/such.npy: cannot be read"},
      {{module, "--input", good, "--input", module}, 1, "this is no .npy file"},
      {{module, "--input", good, "--input", wrong_shape},
       1,
       "b.npy is i32[5] but argument 1 of @main is i32[4]"},
      {{module, "--input", good, "--input", wrong_type}, 1, "c.npy is f32[4] but argument 1"},
      {{module, "--input", good, "--input", good, "--output-dir", "/proc/no"}, 1, "/proc/no"},
      {{module, "--input", good, "--input", good, "--handler", "x"},
       1,
       "the form is NAME=LIBRARY.so:SYMBOL[:API_VERSION]"},
      {{module, "--input", good, "--input", good, "--handler", "x=/no.so:f"}, 1, "/no.so"},
      {{module, "--input", good, "--input", good, "--handler", "x=libc.so.6:abs:7"},
       1,
       "API version '7' is none of 1, 2, 3, 4"},
      {{module, "--input", good, "--input", good, "--handler", "x=libc.so.6:no_such_symbol"},
       1,
       "no_such_symbol"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> args = {"run", "--plugin", plugin_};
    args.insert(args.end(), c.args.begin(), c.args.end());
    const Output output = Program(args);
    EXPECT_EQ(output.code, c.code) << c.message;
    EXPECT_THAT(output.err, HasSubstr(c.message));
  }
}

TEST_F(ProgramsTest, RunRefusesPluginsAndVersionsThatDoNotFit) {
  const std::string a = Npy("a.npy", DType::kI32, {4}, 1);
  const auto run = [&](const std::string& module, const std::string& plugin) {
    return Program({"run", module, "--plugin", plugin, "--input", a, "--input", a});
  };
  EXPECT_THAT(run(AddModule(4), "/no/such.so").err, HasSubstr("'/no/such.so' is no file"));
  EXPECT_THAT(run(AddModule(4), a).err, HasSubstr("cannot be loaded"));
  EXPECT_THAT(run(AddModule(4), "tpu").err, HasSubstr("cpu, cuda, cuda12, cuda13"));
  const char* library = std::getenv("XLA_GPU_LIBRARY");
  if (library != nullptr) {
    EXPECT_THAT(run(AddModule(4), library).err, HasSubstr("it exports no GetPjrtApi"));
  }
  EXPECT_THAT(run(AddModule(3), plugin_).err, HasSubstr("takes typed FFI handlers only"));
  EXPECT_THAT(run(AddModule(4, "tensor<4xi32>", "nobody"), plugin_).err,
              AllOf(HasSubstr("No FFI handler registered for nobody"),
                    HasSubstr("knows the targets XlaGpuSimpleAdd, xla_gpu_all_reduce, "),
                    HasSubstr("; --handler adds one of yours\n")));
  const std::string typo = AddModule(4, "tensor<4xi32>", "XlaGpuSimpelAdd");
  EXPECT_THAT(run(typo, plugin_).err, HasSubstr("did you mean XlaGpuSimpleAdd?"));
  EXPECT_THAT(Program({"hlo", typo, "--plugin", plugin_}).err,
              HasSubstr("did you mean XlaGpuSimpleAdd?"));
  EXPECT_THAT(run(AddModule(4, "tensor<4xi8>"), plugin_).err, HasSubstr("argument 0"));
}

TEST_F(ProgramsTest, HloListsCustomCallsAndSeesFoldedOnes) {
  const Output kept =
      Program({"hlo", AddModule(4), "--plugin", plugin_, "--expect", "XlaGpuSimpleAdd"});
  EXPECT_EQ(kept.code, 0) << kept.err;
  EXPECT_THAT(kept.out, HasSubstr("HloModule"));
  EXPECT_THAT(kept.out, HasSubstr("// 1 custom call:"));
  EXPECT_THAT(kept.out, HasSubstr("XlaGpuSimpleAdd, API version 4 (typed FFI), result s32[4]{0}"));

  const std::string unused = folder_.Write(
      "unused.mlir",
      "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
      "  %c = stablehlo.custom_call @XlaGpuSimpleAdd(%a, %a) {api_version = 4 : i32} : "
      "(tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>\n  return %a : tensor<4xf32>\n}\n");
  const Output folded =
      Program({"hlo", unused, "--plugin", plugin_, "--expect", "XlaGpuSimpleAdd"});
  EXPECT_EQ(folded.code, 1);
  EXPECT_THAT(folded.out, HasSubstr("// 0 custom calls"));
  EXPECT_THAT(folded.err, HasSubstr("folded it away"));
}

TEST_F(ProgramsTest, HloReadsADumpFolder) {
  folder_.Write("module_0001.main.cpu_after_optimizations.txt",
                "HloModule m\n  ROOT %c = (f32[2]{0}, u8[16]{0}) custom-call(%a), "
                "custom_call_target=\"X\", output_to_operand_aliasing={{0}: (0, {})}, "
                "api_version=API_VERSION_STATUS_RETURNING_UNIFIED\n");
  folder_.Write("module_0001.main.before_optimizations.txt", "%d = f32[] custom-call(), x");
  const Output output = Program({"hlo", folder_.path(), "--expect", "X"});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("%c: X, API version 3 (status returning, unified), result "
                                    "(f32[2]{0}, u8[16]{0}), aliasing {0}: (0, {})"));
  EXPECT_THAT(output.out, Not(HasSubstr("%d")));
  std::filesystem::create_directories(folder_.path("empty"));
  EXPECT_THAT(Program({"hlo", folder_.path("empty")}).err, HasSubstr("--xla_dump_hlo_as_text"));
}

TEST_F(ProgramsTest, BenchTimesTheShapeThatIsAsked) {
  const Output one =
      Program({"bench", "--plugin",  plugin_, "--seqs",     "2", "--context",  "33", "--query-len",
               "3",     "--q-heads", "4",     "--kv-heads", "2", "--head-dim", "20", "--page-size",
               "7",     "--dtype",   "f32",   "--json"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("\"batch\": \"2 sequences, 6 tokens, context 33\""));
  EXPECT_THAT(one.out, HasSubstr("\"kv_bytes\": 21120.0"));  // 2 * 33 * 2 * 2 * 20 * 4
  EXPECT_THAT(one.out, HasSubstr("\"median_s\""));
}

TEST_F(ProgramsTest, BenchRefusesWhatIsWrong) {
  const struct {
    std::vector<std::string> args;
    int code;
    const char* message;
  } cases[] = {
      {{"now"}, 2, "argument now is unknown"},
      {{"--context", "0"}, 2, "--context is '0'; it must be a whole number from 1"},
      {{"--seqs", "2x"}, 2, "--seqs is '2x'"},
      {{"--seqs", "99999999999999999999"}, 2, "--seqs is '99999999999999999999'"},
      {{"--context", "4", "--query-len", "5"}, 2, "--context is 4 but --query-len is 5"},
      {{"--query-len", "5000"}, 2, "--context is 4096 but --query-len is 5000"},
      {{"--context", "4", "--seqs", "1", "--q-heads", "16777216", "--head-dim", "16777216"},
       2,
       "at most 32 are allowed"},
      {{"--context", "16777216", "--kv-heads", "16777216", "--head-dim", "16777216"},
       2,
       "at most 32 are allowed"},
      {{"--dtype", "i32", "--context", "4"}, 2, "--dtype is 'i32'; allowed: f32, bf16, f16"},
      {{"--seqs", "10000", "--context", "100000"}, 2, "at most 32 are allowed"},
      {{"--q-heads", "3", "--context", "4"}, 1, "q_heads must be a multiple of kv_heads"},
  };
  for (const auto& c : cases) {
    std::vector<std::string> args = {"bench", "--plugin", plugin_};
    args.insert(args.end(), c.args.begin(), c.args.end());
    const Output output = Program(args);
    EXPECT_EQ(output.code, c.code) << output.err;
    EXPECT_THAT(output.err, HasSubstr(c.message));
  }
}

TEST_F(ProgramsTest, ProbeTriesEveryCell) {
  const Output output = Program({"probe", "--json", "--no-jax", "--plugin", plugin_});
  EXPECT_EQ(output.code, 0) << output.err;
  const auto runtimes = nlohmann::json::parse(output.out);
  ASSERT_EQ(runtimes.size(), 1u);
  EXPECT_EQ(runtimes[0]["pjrt"], "0.81");
  EXPECT_EQ(runtimes[0]["ffi"], "0.2");
  ASSERT_EQ(runtimes[0]["cells"].size(), 30u);
  for (const auto& cell : runtimes[0]["cells"]) {
    const bool host = cell["platform"] == "Host" || cell["platform"] == "cpu";
    EXPECT_EQ(cell["ok"].get<bool>(), host && cell["api_version"] == 4) << cell.dump();
    EXPECT_EQ(cell["message"] == "", cell["ok"].get<bool>()) << cell.dump();
  }
  EXPECT_EQ(Program({"probe", "--plugin", "/no/such.so", "--no-jax"}).code, 1);
}

TEST(ChildProcessTest, CrashesAndHangsAreSurvived) {
  const auto crash = RunLines({"sh", "-c", "echo one; echo oops >&2; kill -SEGV $$"}, 20,
                              [](const std::string& line) { return line != "one"; });
  ASSERT_TRUE(crash.ok());
  EXPECT_EQ(crash->HowItEnded(), "was killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(crash->err, "oops\n");
  const auto hang = RunLines({"sleep", "600"}, 1, [](const std::string&) { return false; });
  ASSERT_TRUE(hang.ok());
  EXPECT_TRUE(hang->timed_out);
  EXPECT_FALSE(RunLines({"/no/such/program"}, 1, [](const std::string&) { return false; }).ok());
}

}  // namespace
}  // namespace xla_gpu::cli
