// What a function takes against what is said of it, by the compilers of both platforms.
#include "src/ops/user_kernel/parameter_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "src/core/strings.h"
#include "src/core/test_util.h"
#include "src/cuda/kernel_image.h"
#include "src/cuda/nvrtc.h"
#include "src/ops/user_kernel/cpu/host_compiler.h"

namespace xla_gpu::user_kernel {
namespace {

using ::testing::HasSubstr;

// An entry of the text, and the parameters that the definition gives; empty: the text's.
struct Case {
  const char* entry;
  const char* parameters;
  bool fits;
};

// Macros of names that a check could use, and types of the text's own.
constexpr char kText[] = R"(
#define T float
#define value 3
#define List
enum Mode : short { kMode };
struct Pair { int a, b; };
typedef double real;
template <typename X> KERNEL void scale(const X* x, X* out, X by, long n) {}
KERNEL void numbers(const T* x, T* out, real by, Mode mode, unsigned n) {}
KERNEL void words(const T* x, unsigned long long out, Pair pair, signed char small) {}
KERNEL void plain(const T* x, T* out, float by) {}
)";
constexpr Case kCases[] = {
    {"scale<float>", "", true},
    {"scale<double>", "", false},
    {"scale<int>", "", false},
    {"scale<float>", R"(["x", "out", "by", {"value": 3, "type": "u64"}])", true},
    {"scale<float>", R"(["x", "out", "by"])", false},
    {"scale<float>", R"(["x", "out", "by", {"value": 3, "type": "i32"}])", false},
    {"numbers",
     R"(["x", "out", {"value": 1, "type": "f64"}, {"value": 1, "type": "i16"}, {"value": 1, "type": "i32"}])",
     true},
    {"numbers", R"(["x", "out", "by", {"value": 1, "type": "i16"}, {"value": 1, "type": "i32"}])",
     false},
    {"words", R"(["x", "out", {"value": 1, "type": "i64"}, {"value": true, "type": "pred"}])",
     true},
    {"words", R"(["x", "out", {"value": 1, "type": "i64"}, {"value": 1, "type": "i32"}])", false},
    {"plain", R"(["x", "out", "by"])", true},
    {"plain", R"(["out", "by", "x"])", false},
    {"plain", "", true},
};

std::shared_ptr<const Definition> Define(const Case& c, Platform platform, std::string text) {
  const bool is_scale = std::string(c.entry).starts_with("scale");
  const bool has_by = is_scale || std::string(c.parameters).find("by") != std::string::npos ||
                      *c.parameters == '\0';
  const bool has_n = is_scale && *c.parameters == '\0';
  for (size_t at = 0; (at = text.find('\n', at)) != text.npos; at += 2) text.replace(at, 1, "\\n");
  const auto made = ParseDefinition(StrCat(
      R"({"name": "k", "arguments": [{"name": "x"}], "results": [{"name": "out", "like": "x"}],)",
      R"("scalars": [)", has_by ? R"({"name": "by", "type": "f32"})" : "",
      has_n ? R"(, {"name": "n", "type": "i64"})" : "", R"(], "implementations": {")",
      PlatformName(platform), R"(": {"kind": ")",
      platform == Platform::kHost ? "host_source" : "cuda_source", R"(", "entry": ")", c.entry,
      R"(", "text": ")", text, "\"", *c.parameters == '\0' ? "" : R"(, "parameters": )",
      c.parameters, "}}}"));
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? *made : nullptr;
}

void Check(Platform platform, Status (*compile)(const Implementation&)) {
  const char* kernel = platform == Platform::kHost ? "" : "__global__";
  std::string text = kText;
  for (size_t at = 0; (at = text.find("KERNEL")) != text.npos;) text.replace(at, 6, kernel);
  for (const Case& c : kCases) {
    const auto definition = Define(c, platform, text);
    if (definition == nullptr) continue;
    const Implementation& made = *definition->implementations[static_cast<size_t>(platform)];
    EXPECT_EQ(ParameterCheck(made).empty(),
              std::string(c.entry) == "plain" && *c.parameters == '\0');
    const Status status = compile(made);
    EXPECT_EQ(status.ok(), c.fits) << c.entry << ' ' << c.parameters << ": " << status.message();
    if (c.fits) continue;
    EXPECT_THAT(status.message(), HasSubstr("takes other parameters than are described: u64, "));
  }
}

TEST(ParameterCheck, OfSourcesForTheCpu) {
  const TempFolder folder;
  ScopedEnv cache("XLA_GPU_CACHE_DIR", folder.path("cache"));
  Check(Platform::kHost,
        [](const Implementation& made) { return CompileHostSource("k", made).status(); });
}

TEST(ParameterCheck, OfCudaSources) {
  if (auto nvrtc = cuda::SelectNvrtc(0); !nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  const TempFolder folder;
  ScopedEnv cache("XLA_GPU_CACHE_DIR", folder.path("cache"));
  Check(Platform::kCuda, [](const Implementation& made) {
    return cuda::GetKernelImage(
               {.source = "k.cu", .entry = made.entry, .text = made.text + ParameterCheck(made)},
               "sm_80", 0)
        .status();
  });
}

}  // namespace
}  // namespace xla_gpu::user_kernel
