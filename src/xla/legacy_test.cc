// The legacy door called as the runtimes call it, with host memory standing in for the GPU's.
#include "src/xla/legacy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "src/core/fill.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/xla/alias.h"
#include "src/xla/handlers.h"

// The runtime's status and its setter, as this executable, which plays the runtime, exports them.
struct XlaCustomCallStatus_ {
  std::optional<std::string> message;
};
extern "C" __attribute__((visibility("default"))) void XlaCustomCallStatusSetFailure(
    XlaCustomCallStatus_* status, const char* message, size_t size) {
  status->message = std::string(message, size);
}

namespace xla_gpu::xla {
namespace {

using ::testing::HasSubstr;

// sum = scale * (a + b), difference = a - b: an op with two results and an attribute.
class SumDifferencePlan final : public Plan {
 public:
  explicit SumDifferencePlan(float scale) : scale_(scale) {}
  Status Run(const Call& call, const ExecutionContext& context) const override {
    if (scale_ == 0.0f) return Internal("test_sum_difference: the kernel failed");
    if (scale_ < 0.0f) throw std::runtime_error("the kernel threw");
    for (int64_t i = 0; i < call.results[0].num_elements(); ++i) {
      const float a = call.args[0].data_as<float>()[i];
      const float b = call.args[1].data_as<float>()[i];
      call.results[0].data_as<float>()[i] = scale_ * (a + b);
      call.results[1].data_as<float>()[i] = a - b;
    }
    return OkStatus();
  }

 private:
  float scale_;
};

Op SumDifferenceOp() {
  const PlanFactory make = [](const Call& call, int) -> StatusOr<std::unique_ptr<Plan>> {
    return std::unique_ptr<Plan>(std::make_unique<SumDifferencePlan>(
        static_cast<float>(call.attributes->GetFloat("scale", 1.0))));
  };
  return Op{
      .name = "test_sum_difference",
      .target = "XlaGpuTestSumDifference",
      .doc = "",
      .args = {{"a", {DType::kF32}, ""}, {"b", {DType::kF32}, ""}},
      .results = {{"sum", ""}, {"difference", ""}},
      .attrs = {{"scale", AttrType::kFloat, "", 1.0}},
      .infer = [](const Call& call, Platform) -> StatusOr<std::vector<TensorSpec>> {
        const TensorSpec type{DType::kF32, {call.args[0].shape.begin(), call.args[0].shape.end()}};
        if (!type.Matches(call.args[0]) || !type.Matches(call.args[1])) {
          return InvalidArgument("test_sum_difference: a and b must be equal f32");
        }
        return std::vector{type, type};
      },
      .make_plan = {make, make},
  };
}
XLA_GPU_REGISTER_OP(SumDifferenceOp());

const Op& TestOp() { return **OpRegistry::Global().Get("test_sum_difference"); }
const Op& SimpleAdd() { return **OpRegistry::Global().Get("simple_add"); }

std::string Opaque(std::string_view op, size_t num_results, std::string attrs = "{}", int n = 3) {
  const std::string tensor = StrCat(R"({"dtype":"f32","shape":[)", n, "]}");
  return StrCat(R"({"op":")", op, R"(","args":[)", tensor, ",", tensor, R"(],"results":[)", tensor,
                num_results == 2 ? "," + tensor : "", R"(],"attrs":)", attrs, "}");
}

// The signatures, as XLA casts its targets to them.
using CudaV1 = void (*)(void*, void**, const char*, size_t);
using CudaV2 = void (*)(void*, void**, const char*, size_t, XlaCustomCallStatus_*);
using HostV1 = void (*)(void*, const void**);
using HostV2 = void (*)(void*, const void**, XlaCustomCallStatus_*);
using HostV3 = void (*)(void*, const void**, const char*, size_t, XlaCustomCallStatus_*);

class LegacyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    SetFillFn(Platform::kCuda, [](void* data, uint8_t value, int64_t bytes, void*) {
      std::memset(data, value, static_cast<size_t>(bytes));
      return OkStatus();
    });
  }

  // Calls `op` as `version` with the opaque text, or where such calls carry none through an alias
  // of it. The results are in x_ and y_, the runtime's status in status_.
  void Run(const Op& op, Platform platform, int version, const std::string& opaque) {
    auto address = platform == Platform::kHost && version < 3
                       ? AliasHandler(op, platform, version, opaque)
                       : HandlerAddress(op, platform, version);
    ASSERT_TRUE(address.ok()) << address.status().ToString();
    const char* text = opaque.data();
    const size_t size = opaque.size();
    void* buffers[] = {a_, b_, x_, y_};
    const void* in[] = {a_, b_};
    void* tuple[] = {x_, y_};
    void* out = &op == &TestOp() ? static_cast<void*>(tuple) : static_cast<void*>(x_);
    void* target = *address;
    if (platform == Platform::kCuda) {
      if (version == 1) reinterpret_cast<CudaV1>(target)(nullptr, buffers, text, size);
      if (version != 1) reinterpret_cast<CudaV2>(target)(nullptr, buffers, text, size, &status_);
    } else {
      if (version == 1) reinterpret_cast<HostV1>(target)(out, in);
      if (version == 2) reinterpret_cast<HostV2>(target)(out, in, &status_);
      if (version == 3) reinterpret_cast<HostV3>(target)(out, in, text, size, &status_);
    }
  }

  bool ResultsAreNan() const {
    return std::isnan(x_[0]) && std::isnan(x_[2]) && std::isnan(y_[0]) && std::isnan(y_[2]);
  }

  float a_[3] = {1, 2, 3};
  float b_[3] = {10, 20, 30};
  float x_[3] = {};
  float y_[3] = {};
  XlaCustomCallStatus_ status_;
};

struct Road {
  Platform platform;
  int version;
};

class LegacyRoads : public LegacyTest, public ::testing::WithParamInterface<Road> {};

TEST_P(LegacyRoads, TwoResultsAndAnAttribute) {
  const auto [platform, version] = GetParam();
  Run(TestOp(), platform, version, Opaque("test_sum_difference", 2, R"({"scale":2.0})"));
  EXPECT_THAT(x_, testing::ElementsAre(22, 44, 66));
  EXPECT_THAT(y_, testing::ElementsAre(-9, -18, -27));
  EXPECT_FALSE(status_.message.has_value()) << *status_.message;
}

TEST_P(LegacyRoads, AFailingKernelReachesTheStatusOrGivesNan) {
  const auto [platform, version] = GetParam();
  testing::internal::CaptureStderr();
  Run(TestOp(), platform, version, Opaque("test_sum_difference", 2, R"({"scale":0.0})"));
  const std::string log = testing::internal::GetCapturedStderr();
  if (version == 1) {
    EXPECT_TRUE(ResultsAreNan());
  } else {
    ASSERT_TRUE(status_.message.has_value());
    EXPECT_EQ(*status_.message, "INTERNAL: test_sum_difference: the kernel failed");
    EXPECT_EQ(log, "");
  }
}

TEST_P(LegacyRoads, NothingIsThrownIntoTheRuntime) {
  const auto [platform, version] = GetParam();
  Run(TestOp(), platform, version, Opaque("test_sum_difference", 2, R"({"scale":-1})"));
  if (version == 1) {
    EXPECT_TRUE(ResultsAreNan());
  } else {
    EXPECT_THAT(status_.message.value_or(""), HasSubstr("the kernel threw"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, LegacyRoads,
                         ::testing::Values(Road{Platform::kCuda, 1}, Road{Platform::kCuda, 2},
                                           Road{Platform::kCuda, 3}, Road{Platform::kHost, 1},
                                           Road{Platform::kHost, 2}, Road{Platform::kHost, 3}),
                         [](const auto& info) {
                           return StrCat(PlatformName(info.param.platform), info.param.version);
                         });

TEST_F(LegacyTest, OneResultIsNoTuple) {
  Run(SimpleAdd(), Platform::kHost, 3, Opaque("simple_add", 1));
  EXPECT_THAT(x_, testing::ElementsAre(11, 22, 33));
}

TEST_F(LegacyTest, BadOpaqueTextsReachTheStatus) {
  const auto message = [this](const std::string& opaque) {
    status_ = {};
    Run(TestOp(), Platform::kHost, 3, opaque);
    return status_.message.value_or("no error");
  };
  EXPECT_THAT(message(""), HasSubstr("test_sum_difference: opaque: the text is empty"));
  EXPECT_THAT(message("{\"scale\":2}"), HasSubstr("test_sum_difference: opaque: the call has"));
  EXPECT_THAT(message(Opaque("unknown_op", 2)), HasSubstr("no op is named 'unknown_op'"));
  EXPECT_THAT(message(Opaque("simple_add", 1)),
              HasSubstr("opaque names the op 'simple_add' but the target is that of "
                        "test_sum_difference"));
  EXPECT_THAT(message(Opaque("test_sum_difference", 2, R"({"scale":true})")),
              HasSubstr("attribute 'scale' is bool true; it must be float"));
  EXPECT_THAT(message(Opaque("test_sum_difference", 2, R"({"window":1})")),
              HasSubstr("unknown attribute 'window'"));
  EXPECT_THAT(message(Opaque("test_sum_difference", 1)), HasSubstr("1 results but"));
  EXPECT_EQ(message(Opaque("test_sum_difference", 2)), "no error");
}

TEST_F(LegacyTest, NullPointersAreErrorsUnlessTheTensorIsEmpty) {
  auto handler = LegacyHandler(SimpleAdd(), Platform::kHost, 3);
  ASSERT_TRUE(handler.ok());
  const auto call = [&](void* out, const void** in, const std::string& opaque) {
    status_ = {};
    reinterpret_cast<HostV3> (*handler)(out, in, opaque.data(), opaque.size(), &status_);
    return status_.message.value_or("no error");
  };
  const void* no_b[] = {a_, nullptr};
  const void* both[] = {a_, b_};
  EXPECT_THAT(call(x_, no_b, Opaque("simple_add", 1)),
              HasSubstr("argument 1 (f32[3]) has a null data pointer"));
  EXPECT_THAT(call(x_, nullptr, Opaque("simple_add", 1)), HasSubstr("argument 0"));
  EXPECT_THAT(call(nullptr, both, Opaque("simple_add", 1)), HasSubstr("result 0"));
  EXPECT_EQ(call(nullptr, no_b, Opaque("simple_add", 1, "{}", 0)), "no error");

  auto cuda = LegacyHandler(TestOp(), Platform::kCuda, 2);
  const std::string opaque = Opaque("test_sum_difference", 2);
  status_ = {};
  reinterpret_cast<CudaV2> (*cuda)(nullptr, nullptr, opaque.data(), opaque.size(), &status_);
  EXPECT_THAT(status_.message.value_or(""),
              HasSubstr("argument 0 (f32[3]) has a null data pointer"));
  status_ = {};
  reinterpret_cast<CudaV2> (*cuda)(nullptr, nullptr, nullptr, 5, &status_);
  EXPECT_THAT(status_.message.value_or(""), HasSubstr("the text is empty"));
}

TEST_F(LegacyTest, TheSameErrorIsPrintedOnce) {
  const std::string opaque = Opaque("test_sum_difference", 2, R"({"once":1})");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) Run(TestOp(), Platform::kCuda, 1, opaque);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("xla_gpu: INVALID_ARGUMENT: test_sum_difference: unknown attribute"));
  EXPECT_THAT(log, HasSubstr("the results are NaN"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
}

// A host may make up texts without end; one that is refused leaves nothing.
TEST_F(LegacyTest, RefusedTextsAreNotKept) {
  constexpr size_t kSize = 500'000;
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 20; ++i) {
    const std::string filler(kSize, 'x');
    const std::string refused[] = {
        Opaque("test_sum_difference", 2, StrCat(R"({"note":")", filler, i, "\"}")),
        Opaque("simple_add", 1, StrCat(R"({"note":")", filler, i, "\"}")),
        Opaque("test_sum_difference", 2, StrCat("{\"", filler, i, "\":1}")),
        StrCat("{\"op\":\"", filler, i)};
    for (const std::string& opaque : refused) {
      status_ = {};
      Run(TestOp(), Platform::kHost, 3, opaque);
      EXPECT_TRUE(status_.message.has_value());
    }
  }
  status_ = {};  // the last message
  EXPECT_LT(mallinfo2().uordblks, before + 10 * kSize);
}

TEST_F(LegacyTest, ManyThreadsMeetNewAndKnownSites) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  auto handler = *LegacyHandler(TestOp(), Platform::kHost, 3);
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const int scale = 1 + (i * 7 + t) % 50;
        const std::string opaque =
            Opaque("test_sum_difference", 2, StrCat("{\"scale\":", scale, "}"));
        float sum[3] = {}, difference[3] = {};
        const void* in[] = {a_, b_};
        void* out[] = {sum, difference};
        XlaCustomCallStatus_ status;
        reinterpret_cast<HostV3>(handler)(out, in, opaque.data(), opaque.size(), &status);
        if (status.message || sum[1] != 22.0f * static_cast<float>(scale)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// ---- Where an error may go
// ------------------------------------------------------------------------

TEST(FindSetFailure, IsThatOfTheCallersModuleOnly) {
  EXPECT_EQ(reinterpret_cast<void*>(FindSetFailure(reinterpret_cast<void*>(&TestOp))),
            reinterpret_cast<void*>(&XlaCustomCallStatusSetFailure));
  EXPECT_EQ(FindSetFailure(reinterpret_cast<void*>(&std::getenv)), nullptr) << "another module";
  int on_the_stack = 0;
  EXPECT_EQ(FindSetFailure(&on_the_stack), nullptr) << "code that the JIT made";
  EXPECT_EQ(FindSetFailure(nullptr), nullptr);
}

TEST(ReportFailure, PoisonsWhereTheRuntimeHasNoSetter) {
  XlaCustomCallStatus_ status;
  int64_t one[] = {1};
  double f64 = 1;
  float f32 = 1;
  uint16_t bf16 = 1, f16 = 1;
  uint8_t e4m3 = 1, e5m2 = 1;
  int32_t i32 = 1;
  bool pred = true;
  const TensorView results[] = {
      {&f64, DType::kF64, one},       {&f32, DType::kF32, one},     {&bf16, DType::kBF16, one},
      {&f16, DType::kF16, one},       {&i32, DType::kI32, one},     {&pred, DType::kPred, one},
      {&e4m3, DType::kF8E4M3FN, one}, {&e5m2, DType::kF8E5M2, one}, {nullptr, DType::kF32, one}};
  testing::internal::CaptureStderr();
  ReportFailure(Internal("gone"), Platform::kHost, results,
                {.status = &status, .return_address = reinterpret_cast<void*>(&std::getenv)});
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("INTERNAL: gone"));
  EXPECT_FALSE(status.message.has_value()) << "a status of unknown layout must not be written";
  EXPECT_TRUE(std::isnan(f64));
  EXPECT_TRUE(std::isnan(f32));
  EXPECT_EQ(bf16, 0xffff);
  EXPECT_EQ(f16, 0xffff);
  EXPECT_EQ(e4m3, 0xff);
  EXPECT_EQ(e5m2, 0xff);
  EXPECT_EQ(i32, 0);
  EXPECT_FALSE(pred);
}

TEST(LegacyHandler, VersionsThatDoNotExist) {
  EXPECT_THAT(HandlerAddress(SimpleAdd(), Platform::kHost, 0).status().message(),
              HasSubstr("api_version is 0; allowed are 1, 2, 3"));
  EXPECT_THAT(HandlerAddress(SimpleAdd(), Platform::kHost, 1).status().message(),
              HasSubstr("carries no opaque"));
  EXPECT_THAT(LegacyHandler(SimpleAdd(), Platform::kCuda, 4).status().message(),
              HasSubstr("legacy are 1, 2 and 3"));
}

TEST(LegacyHandler, OpsPlatformsAndSignaturesHaveHandlersOfTheirOwn) {
  std::set<void*> seen;
  for (const Op* op : {&SimpleAdd(), &TestOp()}) {
    seen.insert(*HandlerAddress(*op, Platform::kHost, 3));
    for (int version : {1, 2}) seen.insert(*HandlerAddress(*op, Platform::kCuda, version));
    for (Platform p : {Platform::kHost, Platform::kCuda}) seen.insert(*HandlerAddress(*op, p, 4));
    EXPECT_EQ(*HandlerAddress(*op, Platform::kCuda, 2), *HandlerAddress(*op, Platform::kCuda, 3));
  }
  EXPECT_EQ(seen.size(), 10u);
}

}  // namespace
}  // namespace xla_gpu::xla
