// What is not the file it should be, given to every command that reads one: each ends in good time,
// by itself, with a message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/cli/npy.h"
#include "src/cli/program_testing.h"
#include "src/cuda/test_util.h"
#include "src/xla/testing/pjrt_test_plugin.h"

namespace xla_gpu::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSeconds = 20;  // what is read or waited for without end takes longer

class BadInputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::getenv("XLA_GPU_PROGRAM") == nullptr) GTEST_SKIP() << "run this test through ctest";
    ASSERT_EQ(mkfifo(pipe_.c_str(), 0600), 0);
    folder_.Write("sparse", "");
    fs::resize_file(sparse_, uint64_t{1} << 42);
  }
  std::string Plugin() const { return xla::CpuPluginForTest(); }
  std::string Module() const {
    return folder_.Write("ok.mlir",
                         "func.func @main(%a: tensor<4xi32>) -> tensor<4xi32> {\n"
                         "  return %a : tensor<4xi32>\n}\n");
  }
  std::string NpyFile() const {
    EXPECT_TRUE(WriteNpy(folder_.path("a.npy"), HostTensor::Zeros(DType::kI32, {4})).ok());
    return folder_.path("a.npy");
  }
  // What a regular file is sought for and is none, or none of a size that can be read.
  std::vector<std::string> NoFiles() const {
    return {folder_.path(), "/dev/zero", "/dev/full", pipe_, sparse_, "/proc/self/mem", ""};
  }

  cuda::TempFolder folder_;
  const std::string pipe_ = folder_.path("pipe");
  const std::string sparse_ = folder_.path("sparse");
};

TEST_F(BadInputTest, WhatIsNoModule) {
  const std::string plugin = Plugin();
  for (const char* command : {"run", "hlo"}) {
    for (const std::string& file : NoFiles()) {
      if (file == folder_.path() && std::string(command) == "hlo") continue;  // a dump's folder
      const Output output = Program({command, file, "--plugin", plugin}, kSeconds);
      EXPECT_EQ(output.code, 1) << command << " " << file << "\n" << output.err;
      EXPECT_THAT(output.err, HasSubstr(file)) << command;
    }
  }
}

TEST_F(BadInputTest, WhatIsNoTableOfTune) {
  std::vector<std::string> files = NoFiles();
  files.back() = Module();  // in place of "", which is no table
  for (const std::string& file : files) {
    const cuda::ScopedEnv table("XLA_GPU_TUNING", file);
    for (const char* option : {"--list", "--clear", "--ragged"}) {
      const Output output = Program({"tune", option}, kSeconds);
      EXPECT_EQ(output.code, 1) << option << " " << file << "\n" << output.err;
      EXPECT_THAT(output.err, HasSubstr(file)) << option;
    }
  }
}

TEST_F(BadInputTest, WhatIsNoInput) {
  if (Plugin().empty()) GTEST_SKIP() << "needs xla-cpu-pjrt";
  for (const std::string& file : NoFiles()) {
    const Output output =
        Program({"run", Module(), "--plugin", Plugin(), "--input", file}, kSeconds);
    EXPECT_EQ(output.code, 1) << file << "\n" << output.err;
    EXPECT_THAT(output.err, HasSubstr(file));
  }
}

TEST_F(BadInputTest, WhatIsNoPluginAndNoHandler) {
  for (const std::string& file :
       {folder_.path() + "/.", std::string("/dev/zero"), pipe_, sparse_}) {
    const Output plugin = Program({"run", Module(), "--plugin", file}, kSeconds);
    EXPECT_EQ(plugin.code, 1) << file << "\n" << plugin.err;
    EXPECT_THAT(plugin.err, AnyOf(HasSubstr(file), HasSubstr("xla-gpu run"))) << file;
    EXPECT_EQ(Program({"doctor", "--plugin", file}, kSeconds).code, 1) << file;
    EXPECT_EQ(Program({"probe", "--plugin", file, "--no-jax"}, kSeconds).code, 1) << file;
    EXPECT_EQ(Program({"probe", "--child", file, "--first", "29"}, kSeconds).code, 1) << file;
    const Output child = Program({"doctor", "--child", file}, kSeconds);
    EXPECT_EQ(child.code, 0) << file;
    EXPECT_THAT(child.out, HasSubstr("\"problem\":\"")) << file;
    {
      const cuda::ScopedEnv library("XLA_GPU_LIBRARY", file);
      EXPECT_THAT(Program({"doctor", "--plugin", "/no.so"}, kSeconds).out,
                  HasSubstr("NO  XLA_GPU_LIBRARY: " + file));
    }
    if (Plugin().empty()) continue;
    const Output handler = Program({"run", Module(), "--plugin", Plugin(), "--input", NpyFile(),
                                    "--handler", "x=" + file + ":f"},
                                   kSeconds);
    EXPECT_EQ(handler.code, 1) << file << "\n" << handler.err;
    EXPECT_THAT(handler.err, HasSubstr("--handler x=" + file));
  }
}

TEST_F(BadInputTest, AFunctionThatIsNoHandler) {
  if (Plugin().empty()) GTEST_SKIP() << "needs xla-cpu-pjrt";
  const std::string module = folder_.Write(
      "call.mlir",
      "func.func @main(%a: tensor<4xi32>) -> tensor<4xi32> {\n"
      "  %c = stablehlo.custom_call @x(%a) {api_version = 4 : i32} : (tensor<4xi32>) -> "
      "tensor<4xi32>\n  return %c : tensor<4xi32>\n}\n");
  for (const char* symbol : {"getpid", "abort", "_exit", "pause", "environ"}) {
    for (const char* command : {"run", "hlo"}) {
      std::vector<std::string> args = {command,  module,      "--plugin",
                                       Plugin(), "--handler", std::string("x=libc.so.6:") + symbol};
      if (std::string(command) == "run") args.insert(args.end(), {"--input", NpyFile()});
      const Output output = Program(args, /*timeout_s=*/60);
      EXPECT_EQ(output.code, 1) << symbol;
      EXPECT_THAT(output.err, HasSubstr("handler 'x'")) << symbol;
    }
  }
}

TEST_F(BadInputTest, WhatIsNoFolderForOutputs) {
  if (Plugin().empty()) GTEST_SKIP() << "needs xla-cpu-pjrt";
  for (const std::string& folder : {std::string("/dev/null"), pipe_, sparse_, sparse_ + "/x",
                                    folder_.path() + "/" + std::string(300, 'x')}) {
    const Output output = Program(
        {"run", Module(), "--plugin", Plugin(), "--input", NpyFile(), "--output-dir", folder},
        kSeconds);
    EXPECT_EQ(output.code, 1) << folder;
    EXPECT_THAT(output.err, HasSubstr("--output-dir " + folder));
  }
}

TEST_F(BadInputTest, WhatIsNoDump) {
  ASSERT_EQ(mkfifo(folder_.path("m.after_optimizations.txt").c_str(), 0600), 0);
  const Output output = Program({"hlo", folder_.path()}, kSeconds);
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.err, HasSubstr("is a pipe"));
}

// A module of 750 KB that opens a call again and again.
TEST_F(BadInputTest, AModuleOfUnclosedCalls) {
  std::string text = "func.func @main() {\n";
  for (int i = 0; i < 50'000; ++i) text += "custom_call @a(";
  const std::string file = folder_.Write("calls.mlir", text);
  for (const char* command : {"run", "hlo"}) {
    EXPECT_EQ(Program({command, file, "--plugin", Plugin()}, kSeconds).code, 1);
  }
}

TEST_F(BadInputTest, PipesWherePackagesAreSought) {
  fs::create_directories(folder_.path("site/jax_plugins/x"));
  fs::create_directories(folder_.path("site/jax-1.0.dist-info"));
  fs::create_directories(folder_.path("site/jaxlib/include/xla/ffi/api"));
  for (const char* name :
       {"jax_plugins/x/plugin.so", "jax-1.0.dist-info/METADATA", "jax-1.0.dist-info/RECORD",
        "jax-1.0.dist-info/entry_points.txt", "jaxlib/include/xla/ffi/api/c_api.h"}) {
    ASSERT_EQ(mkfifo(folder_.path(std::string("site/") + name).c_str(), 0600), 0);
  }
  const Output output = Program({"doctor", "--site-packages", folder_.path("site")}, kSeconds);
  EXPECT_THAT(output.out, HasSubstr("none found"));
  EXPECT_EQ(output.code, 1);
}

TEST_F(BadInputTest, APathThatIsNoUtf8) {
  const std::string path = folder_.path("\xff\xfe.so");
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"probe", "--json", "--no-jax", "--plugin", path},
           {"doctor", "--json", "--site-packages", folder_.path("\xff")}}) {
    const Output output = Program(args, kSeconds);
    EXPECT_EQ(output.code, 1) << output.err;
    EXPECT_TRUE(nlohmann::json::accept(output.out)) << output.out;
  }
}

TEST_F(BadInputTest, OutputThatCannotBeWritten) {
  const cuda::ScopedEnv cache("XLA_GPU_CACHE_DIR", folder_.path("cache"));
  for (const char* args :
       {"--version", "help", "run --help", "ops", "ops --json", "ops --markdown", "ops simple_add",
        "cache --help", "cache list", "cache list --json", "cache clear",
        "doctor --plugin /no/such.so", "doctor --site-packages /no/such"}) {
    const Output output =
        RunToEnd({"sh", "-c", "exec \"$0\" " + std::string(args) + " >/dev/full", ProgramPath()});
    EXPECT_EQ(output.code, 1) << args;
    EXPECT_THAT(output.err, HasSubstr("the output could not be written")) << args;
  }
  if (Plugin().empty()) return;
  fs::create_directories(folder_.path("out"));
  fs::create_symlink("/dev/full", folder_.path("out/output_0.npy"));
  const std::vector<std::string> run = {"run",     Module(),  "--plugin",     Plugin(),
                                        "--input", NpyFile(), "--output-dir", folder_.path("out")};
  EXPECT_THAT(Program(run).err, HasSubstr("output_0.npy is a device"));
  // A disk that takes 1 KiB of an output of 4 KiB.
  std::vector<std::string> limited = {"sh", "-c", "trap '' XFSZ; ulimit -f 2; exec \"$@\"", "sh",
                                      ProgramPath()};
  const std::string large = folder_.path("large.npy");
  ASSERT_TRUE(WriteNpy(large, HostTensor::Zeros(DType::kI32, {1024})).ok());
  const std::string module =
      folder_.Write("large.mlir",
                    "func.func @main(%a: tensor<1024xi32>) -> tensor<1024xi32> {\n"
                    "  return %a : tensor<1024xi32>\n}\n");
  limited.insert(limited.end(), {"run", module, "--plugin", Plugin(), "--input", large,
                                 "--output-dir", folder_.path("out2")});
  const Output output = RunToEnd(limited);
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.err, HasSubstr("output_0.npy: cannot be written: File too large"));
  EXPECT_FALSE(fs::exists(folder_.path("out2/output_0.npy")));
}

TEST_F(BadInputTest, ATemporaryFolderWithBlanksAndQuotes) {
  if (Plugin().empty()) GTEST_SKIP() << "needs xla-cpu-pjrt";
  const std::string name = "a \"b\" 'c' \\d";
  fs::create_directories(folder_.path(name));
  {
    const cuda::ScopedEnv temporary("TMPDIR", folder_.path(name));
    const Output output = Program({"hlo", Module(), "--plugin", Plugin()});
    EXPECT_EQ(output.code, 0) << output.err;
    EXPECT_THAT(output.out, HasSubstr("HloModule"));
    EXPECT_TRUE(fs::is_empty(folder_.path(name)));
  }
  const cuda::ScopedEnv gone("TMPDIR", folder_.path("gone"));
  EXPECT_THAT(Program({"hlo", Module(), "--plugin", Plugin()}).err, HasSubstr("(TMPDIR)"));
}

TEST_F(BadInputTest, FlagsOfXlaInAFile) {
  if (Plugin().empty()) GTEST_SKIP() << "needs xla-cpu-pjrt";
  const cuda::ScopedEnv flags("XLA_FLAGS",
                              folder_.Write("flags", "--xla_cpu_enable_fast_math=false\n"));
  const Output output = Program({"hlo", Module(), "--plugin", Plugin()});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(output.out, HasSubstr("HloModule"));
}

TEST_F(BadInputTest, AModuleInItsGenericForm) {
  if (Plugin().empty()) GTEST_SKIP() << "needs xla-cpu-pjrt";
  const std::string module = folder_.Write("generic.mlir", R"("builtin.module"() ({
    "func.func"() <{function_type = (tensor<4xi32>) -> tensor<4xi32>, sym_name = "main"}> ({
    ^bb0(%a: tensor<4xi32>):
      "func.return"(%a) : (tensor<4xi32>) -> ()
    }) : () -> ()
  }) : () -> ())");
  const Output output = Program({"run", module, "--plugin", Plugin(), "--input", NpyFile()});
  EXPECT_EQ(output.code, 0) << output.err;
  EXPECT_THAT(Program({"run", module, "--plugin", Plugin()}).err, HasSubstr("takes 1 arguments"));
}

// `python -c` would take a jax.py of the current folder for JAX.
TEST_F(BadInputTest, ProbeRunsNoCodeOfTheCurrentFolder) {
  const std::string trap = "import os; open('" + folder_.path("ran") + "', 'w')\n";
  for (const char* name : {"jax.py", "runpy.py", "json.py", "itertools.py"}) {
    folder_.Write(std::string("here/") + name, trap);
  }
  RunToEnd(
      {"sh", "-c", "cd \"$0\" && exec \"$1\" probe --json", folder_.path("here"), ProgramPath()});
  EXPECT_FALSE(fs::exists(folder_.path("ran")));
}

// Anyone may put a .venv into a folder above a program in /tmp.
TEST_F(BadInputTest, DoctorTakesNoVenvOfAStrangersFolder) {
  fs::create_directories(folder_.path("top/build/release"));
  fs::copy_file(ProgramPath(), folder_.path("top/build/release/xla-gpu"));
  folder_.Write("top/.venv/lib/python3.11/site-packages/jax-9.9.dist-info/METADATA",
                "Name: jax\nVersion: 9.9\n");
  const auto doctor = [&] {
    return RunToEnd({folder_.path("top/build/release/xla-gpu"), "doctor"});
  };
  EXPECT_THAT(doctor().out, Not(HasSubstr("top/.venv")));
  folder_.Write("top/include/xla_gpu/xla_gpu.h", "");  // a checkout of this user's
  EXPECT_THAT(doctor().out, HasSubstr("top/.venv"));
  if (lchown(folder_.path("top/.venv").c_str(), geteuid() + 1, getegid()) != 0) return;
  EXPECT_THAT(doctor().out, Not(HasSubstr("top/.venv")));
}

}  // namespace
}  // namespace xla_gpu::cli
