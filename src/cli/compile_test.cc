// xla-gpu compile end to end, with a real NVRTC; no GPU is needed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/cli/program_testing.h"
#include "src/core/elf.h"
#include "src/core/test_util.h"
#include "src/cuda/nvrtc.h"

namespace xla_gpu::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSource[] = R"(#include "size.h"
template <typename T> __global__ void __launch_bounds__(128) scale(const T* x, T* out, int n) {
  __shared__ T part[SIZE];
  int unused;
  part[threadIdx.x % SIZE] = x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x < n) out[threadIdx.x] = FACTOR * part[(threadIdx.x + 1) % SIZE];
}
__global__ void plain(float* x) {
  float y[100];
  for (int i = 0; i < 100; ++i) y[i] = x[i];
  x[0] = y[(int)x[1]];
}
)";

class CompileTest : public testing::Test {
 protected:
  void SetUp() override {
    if (auto nvrtc = cuda::SelectNvrtc(0); !nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
    source_ = folder_.Write("scale.cu", kSource);
    folder_.Write("include/size.h", "#define SIZE 64\n");
  }
  Output Compile(std::vector<std::string> args) const {
    args.insert(args.begin(), {"compile", source_, "--arch", "sm_90a", "-DFACTOR=3",
                               "-I" + folder_.path("include")});
    return Program(args);
  }
  TempFolder folder_;
  std::string source_;
};

TEST_F(CompileTest, ShowsWhatAKernelUses) {
  const Output one = Compile({"--entry", "scale<double>"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, AllOf(HasSubstr("void scale<double>(double const*, double*, int)\n"),
                             HasSubstr("shared memory          512  bytes a block"),
                             HasSubstr("spilled, stores          0  bytes a thread"),
                             HasSubstr("most threads           128  a block"),
                             Not(HasSubstr("constant memory          0 ")),
                             Not(HasSubstr("registers                0 "))));
  EXPECT_THAT(one.err, AllOf(HasSubstr("scale.cu(4): warning"), HasSubstr("int unused;\n        ^"),
                             Not(HasSubstr("ptxas info"))));
  const Output all = Compile({"--resources"});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_THAT(all.out, AllOf(HasSubstr("plain(float*)\n"), HasSubstr("local memory           400"),
                             Not(HasSubstr("scale"))));
}

TEST_F(CompileTest, WritesPtxAndMachineCode) {
  const Output ptx = Compile({"--ptx", "--entry", "plain"});
  EXPECT_EQ(ptx.code, 0) << ptx.err;
  EXPECT_THAT(ptx.out, AllOf(HasSubstr(".target sm_90a"), HasSubstr(".entry _Z5plainPf(")));
  const std::string file = folder_.path("out");
  EXPECT_EQ(Compile({"--ptx", "--entry", "plain", "--output", file}).code, 0);
  EXPECT_EQ(ReadWhole(file), ptx.out);
  EXPECT_EQ(Compile({"--cubin", "--output", file}).code, 0);
  EXPECT_GT(ElfSectionSize(ReadWhole(file), ".text._Z5plainPf"), 0u);
  EXPECT_EQ(ElfSectionSize(ReadWhole(file), ".text.none"), 0u);
}

TEST_F(CompileTest, ErrorsShowTheLine) {
  const std::string broken =
      folder_.Write("broken.cu", "__global__ void f(float* x) {\n  x[0] = oops;\n}\n");
  const Output output = Program({"compile", broken, "--arch", "sm_90a"});
  EXPECT_EQ(output.code, 1);
  EXPECT_THAT(output.err, AllOf(HasSubstr("broken.cu(2): error: identifier \"oops\" is undefined"),
                                HasSubstr("x[0] = oops;\n           ^")));
  const std::string templates =
      folder_.Write("templates.cu", "template <typename T> __global__ void f(T* x) { *x = 1; }\n");
  const Output nothing = Program({"compile", templates, "--arch", "sm_90a"});
  EXPECT_EQ(nothing.code, 1);
  EXPECT_THAT(nothing.err, HasSubstr("templates.cu has no kernel (__global__) that is no templ"));
  EXPECT_THAT(Compile({"--entry", "nothing"}).err, HasSubstr("nothing"));
  EXPECT_THAT(Program({"compile", source_, "--arch", "sm_7"}).err, HasSubstr("sm_7"));
}

TEST_F(CompileTest, WrongUsage) {
  const struct {
    std::vector<std::string> args;
    int code;
    const char* message;
  } cases[] = {{{"--ptx", "--cubin"}, 2, "exclude each other"},
               {{"--cubin"}, 2, "--cubin needs --output FILE"},
               {{"--output", "x"}, 2, "--output is for --ptx or --cubin"},
               {{"--cubin", "--output", "/no/such/folder/x"}, 1, "/no/such/folder/x"},
               {{"--etnry", "f"}, 2, "option --etnry is unknown; did you mean --entry?"},
               {{"-I"}, 2, "-I needs a value"},
               {{"more"}, 2, "argument more is one too many"}};
  for (const auto& c : cases) {
    const Output output = Compile(c.args);
    EXPECT_EQ(output.code, c.code) << output.err;
    EXPECT_THAT(output.err, HasSubstr(c.message));
  }
  EXPECT_THAT(Program({"compile", "/no/such.cu", "--arch", "sm_90a"}).err,
              HasSubstr("/no/such.cu"));
}

}  // namespace
}  // namespace xla_gpu::cli
