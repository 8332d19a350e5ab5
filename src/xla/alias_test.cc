#include "src/xla/alias.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "src/core/op_registry.h"
#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

using ::testing::HasSubstr;

// out = a * factor, f32: an op whose required attribute an alias must bring.
class ScalePlan final : public Plan {
 public:
  explicit ScalePlan(double factor) : factor_(factor) {}
  Status Run(const Call& call, const ExecutionContext&) const override {
    for (int64_t i = 0; i < call.args[0].num_elements(); ++i) {
      call.results[0].data_as<float>()[i] =
          static_cast<float>(factor_) * call.args[0].data_as<float>()[i];
    }
    return OkStatus();
  }

 private:
  double factor_;
};

Op ScaleOp() {
  return Op{
      .name = "test_scale",
      .target = "XlaGpuTestScale",
      .doc = "",
      .args = {{"a", {DType::kF32}, ""}},
      .results = {{"out", ""}},
      .attrs = {{"factor", AttrType::kFloat, ""}},
      .infer = [](const Call& call, Platform) -> StatusOr<std::vector<TensorSpec>> {
        return std::vector<TensorSpec>{
            {DType::kF32, {call.args[0].shape.begin(), call.args[0].shape.end()}}};
      },
      .make_plan = {[](const Call& call, int) -> StatusOr<std::unique_ptr<Plan>> {
                      return std::unique_ptr<Plan>(
                          std::make_unique<ScalePlan>(call.attributes->GetFloat("factor", 0.0)));
                    },
                    nullptr},
  };
}
XLA_GPU_REGISTER_OP(ScaleOp());

const Op& Scale() { return **OpRegistry::Global().Get("test_scale"); }

std::string Opaque(double factor, int n = 3) {
  const std::string tensors = StrCat(R"([{"dtype":"f32","shape":[)", n, "]}]");
  return StrCat(R"({"op":"test_scale","args":)", tensors, R"(,"results":)", tensors,
                R"(,"attrs":{"factor":)", factor, "}}");
}

using HostV1 = void (*)(void*, const void**);

TEST(Alias, EachConfigurationHasItsOwnHandler) {
  float a[3] = {1, 2, 3};
  float out[3] = {};
  const void* in[] = {a};
  auto twice = AliasHandler(Scale(), Platform::kHost, 1, Opaque(2));
  auto thrice = AliasHandler(Scale(), Platform::kHost, 1, Opaque(3));
  ASSERT_TRUE(twice.ok() && thrice.ok());
  EXPECT_NE(*twice, *thrice);
  reinterpret_cast<HostV1> (*twice)(out, in);
  EXPECT_THAT(out, testing::ElementsAre(2, 4, 6));
  reinterpret_cast<HostV1> (*thrice)(out, in);
  EXPECT_THAT(out, testing::ElementsAre(3, 6, 9));
}

TEST(Alias, AnEqualCallHasTheSameHandler) {
  auto first = AliasHandler(Scale(), Platform::kHost, 1, Opaque(2));
  auto again = AliasHandler(Scale(), Platform::kHost, 1, StrCat(" ", Opaque(2), " "));
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(*first, *again);
  EXPECT_NE(*first, *AliasHandler(Scale(), Platform::kHost, 2, Opaque(2)));
}

TEST(Alias, WrongCallsAreRefused) {
  const auto message = [](Platform platform, int version, const std::string& opaque) {
    auto alias = AliasHandler(Scale(), platform, version, opaque);
    return alias.ok() ? "no error" : alias.status().message();
  };
  for (const int version : {0, 3, 4}) {
    EXPECT_THAT(message(Platform::kHost, version, Opaque(2)),
                HasSubstr(StrCat("api_version is ", version, "; allowed are 1")));
  }
  EXPECT_THAT(message(Platform::kHost, 1, ""), HasSubstr("test_scale: opaque: the text is empty"));
  EXPECT_THAT(message(Platform::kCuda, 1, Opaque(2)), HasSubstr("platform is CUDA"));
  EXPECT_THAT(message(Platform::kHost, 1, R"({"op":"simple_add","args":[],"results":[]})"),
              HasSubstr("opaque names the op 'simple_add'; it must be test_scale"));
  EXPECT_THAT(message(Platform::kHost, 2, R"({"op":"test_scale","args":[],"results":[]})"),
              HasSubstr("attribute 'factor' (float) is missing"));
  EXPECT_THAT(
      message(
          Platform::kHost, 1,
          R"({"op":"test_scale","args":[{"dtype":"i32","shape":[]}],"results":[],"attrs":{"factor":1}})"),
      HasSubstr("its dtype must be f32"));
}

// Last in its process's order of declaration: it takes every alias of this signature.
TEST(AliasPool, ExhaustionIsAnError) {
  std::set<void*> seen;
  size_t n = 0;
  for (; n <= kMaxAliases; ++n) {
    auto alias = AliasHandler(Scale(), Platform::kHost, 2, Opaque(2, static_cast<int>(n) + 100));
    if (!alias.ok()) {
      EXPECT_EQ(alias.status().code(), StatusCode::kResourceExhausted);
      EXPECT_THAT(alias.status().message(), HasSubstr("all 1024 aliases"));
      break;
    }
    EXPECT_TRUE(seen.insert(*alias).second);
  }
  EXPECT_GE(n, kMaxAliases - 1) << "an earlier test of this process may hold one";
  EXPECT_LE(n, kMaxAliases);
  EXPECT_TRUE(AliasHandler(Scale(), Platform::kHost, 2, Opaque(2, 100)).ok()) << "known ones stay";
  EXPECT_TRUE(AliasHandler(Scale(), Platform::kHost, 1, Opaque(2, 100)).ok()) << "other pools too";
}

TEST(AliasPool, ThreadsThatBindTheSameCallAgree) {
  std::vector<std::thread> threads;
  std::vector<std::vector<void*>> seen(8);
  for (auto& mine : seen) {
    threads.emplace_back([&mine] {
      for (int n = 0; n < 100; ++n) {
        mine.push_back(*AliasHandler(Scale(), Platform::kHost, 1, Opaque(7, n)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, seen[0]);
}

}  // namespace
}  // namespace xla_gpu::xla
