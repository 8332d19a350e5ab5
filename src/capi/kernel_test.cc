// Kernels of a C++ program's own (xla_gpu.hpp) through a real PJRT plugin.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/core/strings.h"
#include "src/core/test_util.h"
#include "src/xla/testing/pjrt_test_plugin.h"
#include "xla_gpu/xla_gpu.hpp"

namespace xla_gpu {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Body>
std::string MessageOf(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

template <typename T>
std::vector<T> Values(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.size()};
}

extern "C" void ScaleOnHost(const float* x, float* out, float a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a * x[i];
}

KernelSpec ScaleSpec() {
  KernelSpec spec;
  spec.name = "a \"scale\" \\ kernel";  // what no plain MLIR symbol is
  spec.outputs = {{"out", "x"}};
  spec.arguments = {"x"};
  spec.scalars = {{"a", "f32", 3.0}, {"n", "i64"}};
  return spec;
}

class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string plugin = xla::CpuPluginForTest();
    if (plugin.empty()) GTEST_SKIP() << "needs xla-cpu-pjrt (XLA_GPU_TEST_SITE_PACKAGES)";
    client_.emplace(plugin);
  }
  std::optional<Client> client_;
  TempFolder folder_;
  ScopedEnv cache_{"XLA_GPU_CACHE_DIR", ""};
  const Tensor x_{{2, 2}, std::vector<float>{1, 2, 3, 4}};
};

TEST_F(KernelTest, AFunctionOfTheProgram) {
  const Kernel scale(ScaleSpec(), {KernelCode::Function("Host", ScaleOnHost)});
  EXPECT_EQ(scale.name(), "a \"scale\" \\ kernel");
  const auto out = client_->Call(scale, {x_}, {{"n", x_.size()}});
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].shape(), x_.shape());
  EXPECT_THAT(Values<float>(out[0]), ElementsAre(3, 6, 9, 12));
  EXPECT_THAT(Values<float>(client_->Call(scale, {x_}, {{"n", int64_t{4}}, {"a", -1.0}})[0]),
              ElementsAre(-1, -2, -3, -4));
  EXPECT_THAT(client_->StableHlo(scale, {x_}, {{"n", int64_t{4}}}),
              AllOf(HasSubstr("custom_call @\"a \\22scale\\22 \\5C kernel\"(%arg0)"),
                    HasSubstr("kernel = "), HasSubstr("(tensor<2x2xf32>) -> tensor<2x2xf32>")));
  EXPECT_EQ(Kernel(ScaleSpec(), {KernelCode::Function("Host", ScaleOnHost)}).key(), scale.key());
}

// In a program that writes 0,5 in its own texts.
TEST_F(KernelTest, NumbersDoNotDependOnTheProgramsLocale) {
  const ScopedGermanLocale german;
  if (!german.made()) GTEST_SKIP() << "needs localedef and its sources (Debian: locales)";
  KernelSpec spec = ScaleSpec();
  spec.scalars = {{"a", "f32", 0.5}, {"n", "i64"}};
  const Kernel scale(spec, {KernelCode::Function("Host", ScaleOnHost)});
  EXPECT_THAT(Values<float>(client_->Call(scale, {x_}, {{"n", x_.size()}})[0]),
              ElementsAre(0.5, 1, 1.5, 2));
}

TEST_F(KernelTest, AFunctionOfALibrary) {
  KernelSpec spec;
  spec.name = "from_library";
  spec.outputs = {{"out", TensorType{XLA_GPU_DTYPE_U8, {3}}}};
  spec.arguments = {"x"};
  spec.scalars = {{"n", "u64"}};
  const Kernel copy(spec, {KernelCode::Function("Host", "libc.so.6", "memcpy")});
  spec.parameters = {"out", "x", "n"};
  const Kernel ordered(spec, {KernelCode::Function("Host", "libc.so.6", "memcpy")});
  const Tensor bytes({3}, std::vector<uint8_t>{7, 8, 9});
  EXPECT_THAT(Values<uint8_t>(client_->Call(ordered, {bytes}, {{"n", int64_t{3}}})[0]),
              ElementsAre(7, 8, 9));
  const Kernel missing(spec, {KernelCode::Function("Host", "libc.so.6", "no_such_symbol")});
  EXPECT_THAT(MessageOf([&] {
                client_->Call(missing, {bytes}, {{"n", int64_t{3}}});
              }),
              HasSubstr("exports no symbol 'no_such_symbol'"));
}

TEST_F(KernelTest, AnFfiHandlerOfALibrary) {
  const char* const library = std::getenv("XLA_GPU_FFI_HANDLER");
  ASSERT_NE(library, nullptr);
  KernelSpec spec = ScaleSpec();
  spec.scalars = {{"alpha", "f32", 3.0}, {"n", "i32", int64_t{1}}};
  const Kernel scale(spec, {KernelCode::FfiHandler("Host", library, "Scale")});
  EXPECT_THAT(Values<float>(client_->Call(scale, {x_})[0]), ElementsAre(4, 7, 10, 13));
  EXPECT_THAT(Values<float>(client_->Call(scale, {x_}, {{"n", int64_t{0}}, {"alpha", 0.5}})[0]),
              ElementsAre(0.5, 1, 1.5, 2));
  const auto failed = [&](const std::vector<Attr>& scalars) {
    return MessageOf([&] { client_->Call(scale, {x_}, scalars); });
  };
  EXPECT_THAT(failed({{"n", int64_t{-1}}}), HasSubstr("n is negative"));
  EXPECT_THAT(failed({{"alpha", 1e39}}), HasSubstr("alpha is 1e+39, which its type f32 does not"));
  const Kernel other(spec, {KernelCode::FfiHandler("Host", "libc.so.6", "getpid")});
  EXPECT_THAT(MessageOf([&] { client_->Call(other, {x_}); }), HasSubstr("no typed FFI handler"));
}

TEST_F(KernelTest, SourceWithTypesOfItsOwnWorkspaceAndUpdatesInPlace) {
  KernelSpec spec;
  spec.name = "rows";
  spec.outputs = {{"sums", [](const std::vector<Tensor>& args) {
                     return TensorType{XLA_GPU_DTYPE_F64, {args[0].shape()[0]}};
                   }}};
  spec.in_place = {"x"};
  spec.workspace_bytes = [](const std::vector<Tensor>& args) { return 8 * args[0].size(); };
  const Kernel rows(spec, {KernelCode::HostSource(R"(
      template <typename T> void rows(T* x, double* sums, double* workspace, bool negate, int n) {
        for (int i = 0; i < n; ++i) workspace[i] = negate ? -x[i] : x[i];
        for (int i = 0; i < n; ++i) sums[i / COLS] = (i % COLS ? sums[i / COLS] : 0) + workspace[i];
        for (int i = 0; i < n; ++i) x[i] = T(i);
      })",
                                                  "rows<float>", {"-DCOLS=2"})});
  const auto out = client_->Call(rows, {x_}, {{"n", x_.size()}, {"negate", true}});
  ASSERT_EQ(out.size(), 2u);
  EXPECT_THAT(Values<double>(out[0]), ElementsAre(-3, -7));
  EXPECT_THAT(Values<float>(out[1]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Values<float>(x_), ElementsAre(1, 2, 3, 4));
}

// Each is loaded from a file in memory, and such files may come to have the same name.
TEST_F(KernelTest, ManySourcesInOneProcess) {
  std::vector<Kernel> kernels;
  for (int i = 0; i < 5; ++i) {
    KernelSpec spec;
    spec.name = "constant";  // they share a target, too
    spec.outputs = {{"out", "x"}};
    const std::string text =
        StrCat("void constant(const float* x, float* out) { out[0] = ", i, "; }");
    kernels.emplace_back(spec, std::vector{KernelCode::HostSource(text, "constant")});
  }
  const Tensor one({1}, std::vector<float>{1});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Values<float>(client_->Call(kernels[i], {one})[0])[0], static_cast<float>(i));
  }
}

TEST_F(KernelTest, CudaCodeIsNotForTheHost) {
  KernelSpec spec;
  spec.name = "k";
  spec.outputs = {{"out", "x"}};
  spec.arguments = {"x"};
  spec.grid = [](const std::vector<Tensor>& args) { return Dim3{CeilDiv(args[0].size(), 3), 2}; };
  spec.block = Dim3{64};
  spec.shared_memory = int64_t{48};
  const Kernel image(spec, {KernelCode::CudaImage(std::string("\0\xff\x7f"
                                                              "ELF",
                                                              6),
                                                  "k")});
  EXPECT_THAT(client_->StableHlo(image, {x_}),
              AllOf(HasSubstr("grid = array<i64: 2, 2, 1>"),
                    HasSubstr("block = array<i64: 64, 1, 1>"), HasSubstr("shared_memory = 48 ")));
  EXPECT_THAT(MessageOf([&] { client_->Call(image, {x_}); }), HasSubstr("k"));
}

TEST_F(KernelTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(MessageOf([] { Kernel({}, {}); }), HasSubstr("kernel: name is \"\""));
  EXPECT_THAT(MessageOf([] { Kernel(ScaleSpec(), {}); }), HasSubstr("implementations is empty"));
  KernelSpec spec = ScaleSpec();
  spec.scalars[0].default_value = NAN;
  EXPECT_THAT(MessageOf([&] { Kernel(spec, {KernelCode::Function("Host", ScaleOnHost)}); }),
              HasSubstr("a bool, an int or a finite float"));
  const Kernel scale(ScaleSpec(), {KernelCode::Function("Host", ScaleOnHost)});
  EXPECT_THAT(MessageOf([&] { client_->Call(scale, {x_}); }), HasSubstr("attribute 'n' (int) is"));
  EXPECT_THAT(MessageOf([&] {
                client_->Call(scale, {x_, x_}, {{"n", int64_t{4}}});
              }),
              HasSubstr("2 arguments came but 1 are expected: x"));
  KernelSpec broken;
  broken.name = "broken";
  broken.outputs = {{"out", "x"}};
  const Kernel wrong(broken,
                     {KernelCode::HostSource("void broken(float* x, float* out) {\n  oops = 1;\n}",
                                             "broken", {}, "mine.cc")});
  EXPECT_THAT(MessageOf([&] { client_->Call(wrong, {x_}); }),
              AllOf(HasSubstr("kernel broken does not compile"), HasSubstr("mine.cc:2:3: error")));
}

TEST(KernelJson, Base64) {
  EXPECT_EQ(internal::Base64(""), "");
  EXPECT_EQ(internal::Base64("f"), "Zg==");
  EXPECT_EQ(internal::Base64("fo"), "Zm8=");
  EXPECT_EQ(internal::Base64("foo"), "Zm9v");
  EXPECT_EQ(internal::Base64(std::string("\0\xff\xfe\xfd", 4)), "AP/+/Q==");
}

}  // namespace
}  // namespace xla_gpu
