#include "src/cuda/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "src/cuda/nvrtc.h"
#include "src/cuda/test_util.h"

namespace xla_gpu::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CompileRequest RequestFor(std::vector<std::pair<std::string, std::string>> sources) {
  CompileRequest request;
  request.options = {"--gpu-architecture=sm_80", "--std=c++20"};
  request.sources = std::move(sources);
  return request;
}

TEST(CompileProtocol, MessagesComeBackAsTheyWere) {
  CompileRequest request = RequestFor({{"a.cu", std::string("text\0with NUL", 13)}, {"b", ""}});
  request.nvrtc = "/lib/libnvrtc.so";
  const auto back = DecodeRequest(Encode(request));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->nvrtc, request.nvrtc);
  EXPECT_EQ(back->options, request.options);
  EXPECT_EQ(back->sources, request.sources);

  const CompileResponse response = {CompileResponse::Outcome::kCompileError, "log", "cubin"};
  const std::string bytes = Encode(response);
  ASSERT_TRUE(DecodeResponse(bytes).has_value());
  EXPECT_EQ(DecodeResponse(bytes)->outcome, response.outcome);
  EXPECT_EQ(DecodeResponse(bytes)->cubin, response.cubin);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeResponse(bytes.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(DecodeResponse(bytes + "x").has_value());
  EXPECT_FALSE(DecodeRequest(bytes).has_value());
}

// With programs of ours in the place of xla-gpu-compile.
class FakeCompiler : public testing::Test {
 protected:
  Status CompileWith(const std::string& script) {
    ScopedEnv env("XLA_GPU_COMPILER", folder_.WriteScript("compiler", script));
    return CompileInChild(RequestFor({{"k.cu", "text"}}), "the_kernel").status();
  }

  TempFolder folder_;
};

TEST_F(FakeCompiler, ACrashIsAnError) {
  const Status status = CompileWith("cat >/dev/null; echo dying >&2; kill -SEGV $$");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("the_kernel"), HasSubstr("signal 11"),
                                      HasSubstr("dying"), HasSubstr("pip install -U")));
}

TEST_F(FakeCompiler, ACrashIsAnErrorWhereSigchldIsIgnored) {
  const auto old = signal(SIGCHLD, SIG_IGN);
  const Status status = CompileWith("kill -SEGV $$");
  signal(SIGCHLD, old);
  EXPECT_THAT(status.message(), HasSubstr("without an answer"));
}

TEST_F(FakeCompiler, OneThatTakesTooLongIsKilled) {
  ScopedEnv env("XLA_GPU_COMPILE_TIMEOUT", "0.3");
  const Status status = CompileWith("sleep 100");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("within 0.3 s"), HasSubstr("XLA_GPU_COMPILE_TIMEOUT")));
}

TEST_F(FakeCompiler, AnAnswerOfOneThatFailsIsNotTaken) {
  const std::string answer =
      folder_.Write("answer", Encode(CompileResponse{CompileResponse::Outcome::kOk, "", "code"}));
  EXPECT_TRUE(CompileWith("cat >/dev/null; cat " + answer).ok());
  EXPECT_THAT(CompileWith("cat " + answer + "; exit 3").message(), HasSubstr("exit code 3"));
  EXPECT_THAT(CompileWith("cat " + answer + "; kill -BUS $$").message(), HasSubstr("signal 7"));
}

TEST_F(FakeCompiler, NonsenseIsNoAnswer) {
  EXPECT_THAT(CompileWith("echo hello").message(), HasSubstr("exit code 0 without an answer"));
  EXPECT_THAT(CompileWith("printf 'xla-gpu compile response 1\\n'").message(),
              HasSubstr("without an answer"));
}

TEST_F(FakeCompiler, SettingsThatMakeNoSenseAreErrors) {
  for (const char* timeout : {"0", "-1", "abc", "5s", "nan", "1e300"}) {
    ScopedEnv env("XLA_GPU_COMPILE_TIMEOUT", timeout);
    EXPECT_THAT(CompileTimeout().status().message(), HasSubstr(timeout));
  }
  const ScopedGermanLocale german;  // 0.5 it is all the same
  const ScopedEnv half("XLA_GPU_COMPILE_TIMEOUT", "0.5");
  EXPECT_TRUE(CompileTimeout().ok()) << CompileTimeout().status().message();
  ScopedEnv env("XLA_GPU_COMPILER", "/nowhere/compiler");
  EXPECT_THAT(CompileInChild(RequestFor({{"k.cu", ""}}), "k").status().message(),
              HasSubstr("XLA_GPU_COMPILER is /nowhere/compiler, which is not an executable"));
}

TEST_F(FakeCompiler, TheProgramIsFoundBesideTheLibrary) {
  ScopedEnv env("XLA_GPU_COMPILER", nullptr);
  const auto found = FindCompilerProgram();
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_THAT(*found, testing::EndsWith("xla-gpu-compile"));
}

TEST(Compiler, ALibraryThatIsNoNvrtcIsUnavailable) {
  TempFolder folder;
  CompileRequest request = RequestFor({{"k.cu", ""}});
  request.nvrtc = folder.Write("libnvrtc.so.13", "no library");
  const Status status = CompileInChild(request, "k").status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(request.nvrtc));
  request.nvrtc = "libc.so.6";
  EXPECT_THAT(CompileInChild(request, "k").status().message(), HasSubstr("nvrtcCreateProgram"));
}

class RealCompiler : public testing::Test {
 protected:
  void SetUp() override {
    auto nvrtc = SelectNvrtc(0);
    if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
    nvrtc_ = *nvrtc;
  }
  StatusOr<CompileResult> Compile(CompileRequest request) {
    request.nvrtc = nvrtc_.path;
    request.builtins = nvrtc_.builtins;
    return CompileInChild(request, "the_kernel");
  }

  NvrtcLibrary nvrtc_;
};

TEST_F(RealCompiler, GivesMachineCode) {
  auto result =
      Compile(RequestFor({{"k.cu", "extern \"C\" __global__ void k(int* p) { *p = 1; }"}}));
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_THAT(result->cubin, testing::StartsWith("\177ELF"));
  EXPECT_EQ(result->log, "");
}

TEST_F(RealCompiler, IncludesNameOtherSourcesByTheirWholePath) {
  auto result = Compile(RequestFor({
      {"src/a/k.cu",
       "#include \"src/b/x.cuh\"\n#include \"src/b/y.cuh\"\n"
       "extern \"C\" __global__ void k(int* p) { *p = X + Y; }"},
      {"src/b/x.cuh", "#pragma once\n#include \"src/b/y.cuh\"\nconstexpr int X = Y;"},
      {"src/b/y.cuh", "#pragma once\nconstexpr int Y = 2;"},
  }));
  EXPECT_TRUE(result.ok()) << result.status().ToString();
}

TEST_F(RealCompiler, ErrorsCarryFileLineAndText) {
  const Status status = Compile(RequestFor({{"src/k.cu", "\n\nint x = nonsense;\n"}})).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("kernel the_kernel does not compile"),
                                      HasSubstr("src/k.cu(3)"), HasSubstr("nonsense")));
  EXPECT_THAT(Compile(RequestFor({{"k.cu", "#include \"missing.cuh\"\n"}})).status().message(),
              HasSubstr("missing.cuh"));
}

TEST_F(RealCompiler, WarningsComeInTheLog) {
  auto result = Compile(RequestFor({{"k.cu", "__device__ int f() { int unused; return 1; }"}}));
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->log, HasSubstr("never referenced"));
}

TEST_F(RealCompiler, BigSourcesAndLogsPassThrough) {
  std::string big = "//" + std::string(3'000'000, 'x') + "\n";
  for (int i = 0; i < 200; ++i) big += "int x" + std::to_string(i) + " = nonsense;\n";
  const Status status = Compile(RequestFor({{"k.cu", big}})).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
  EXPECT_LT(status.message().size(), 10'000u);
}

TEST_F(RealCompiler, AnUnknownArchitectureIsAnError) {
  CompileRequest request = RequestFor({{"k.cu", ""}});
  request.options = {"--gpu-architecture=sm_999"};
  EXPECT_THAT(Compile(request).status().message(), HasSubstr("gpu-architecture"));
}

}  // namespace
}  // namespace xla_gpu::cuda
