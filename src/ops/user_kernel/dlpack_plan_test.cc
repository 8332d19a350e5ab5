// Functions that take DLPack tensors: what they are given, and who frees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "src/core/call_frame.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/dlpack_call.h"
#include "src/ops/user_kernel/gate.h"

namespace xla_gpu::user_kernel {
namespace {

using dlpack::UnversionedTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the function does in a test.
using Body = std::function<int(DlpackCall&, std::vector<UnversionedTensor*>, double, int)>;
Body body;

int Function(DlpackCall* call, UnversionedTensor* x, UnversionedTensor* y, UnversionedTensor* out,
             double alpha, int n) {
  return body(*call, {x, y, out}, alpha, n);
}

Gate gate;

void TakeAll(DlpackCall& call, const std::vector<UnversionedTensor*>& tensors) {
  for (UnversionedTensor* tensor : tensors) {
    if (tensor == nullptr) continue;
    ++call.taken;
    tensor->deleter(tensor);
  }
}

class DlpackPlanTest : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(gate.running, 0);
    gate.closed = 0;
    body = nullptr;
  }

  Status Run(Platform platform, bool with_y = true) {
    const std::string text =
        StrCat(R"({"name":"k","arguments":[{"name":"x"},{"name":"y","optional":true}],)",
               R"("results":[{"name":"out","like":"x"}],"scalars":[{"name":"alpha","type":"f64",)",
               R"("default":0.5},{"name":"n","type":"i32","default":-7}],"implementations":{")",
               PlatformName(platform), R"(":{"kind":"dlpack","address":)",
               reinterpret_cast<uintptr_t>(&Function), R"(,"gate":)",
               reinterpret_cast<uintptr_t>(&gate), "}}}");
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Define(text));
    const int64_t matrix[] = {2, 3}, empty[] = {0};
    std::vector<TensorView> args = {{x_.data(), DType::kBF16, matrix}};
    if (with_y) args.push_back({y_, DType::kPred, empty});
    const TensorView results[] = {{out_.data(), DType::kBF16, matrix}};
    Attributes attributes;
    XLA_GPU_RETURN_IF_ERROR(attributes.Add("alpha", 0.5));
    XLA_GPU_RETURN_IF_ERROR(attributes.Add("n", int64_t{-7}));
    if (with_y) {
      XLA_GPU_RETURN_IF_ERROR(attributes.Add(kOptionalArgsAttribute, std::string_view("y")));
    }
    const Call call{args, results, &attributes};
    XLA_GPU_ASSIGN_OR_RETURN(const auto plan,
                             op->make_plan[static_cast<size_t>(platform)](call, 3));
    return plan->Run(call, {.stream = this});
  }

  std::array<uint16_t, 6> x_ = {1, 2, 3, 4, 5, 6}, out_ = {};
  char y_[1] = {};
};

TEST_F(DlpackPlanTest, TensorsAndNumbers) {
  body = [this](DlpackCall& call, std::vector<UnversionedTensor*> tensors, double alpha, int n) {
    EXPECT_EQ(alpha, 0.5);
    EXPECT_EQ(n, -7);
    EXPECT_EQ(*call.in_use, 3);
    EXPECT_EQ(call.device, (dlpack::Device{dlpack::kCpu, 0}));
    const dlpack::Tensor& x = tensors[0]->tensor;
    EXPECT_EQ(x.data, x_.data());
    EXPECT_EQ(x.device, call.device);
    EXPECT_EQ(x.dtype, dlpack::TypeOf(DType::kBF16));
    EXPECT_THAT(std::vector(x.shape, x.shape + x.rank), ElementsAre(2, 3));
    EXPECT_THAT(std::vector(x.strides, x.strides + x.rank), ElementsAre(3, 1));
    const dlpack::Tensor& y = tensors[1]->tensor;
    EXPECT_EQ(y.dtype.code, kDlpackBool);
    EXPECT_THAT(std::vector(y.shape, y.shape + y.rank), ElementsAre(0));
    std::memcpy(tensors[2]->tensor.data, x.data, sizeof(x_));
    TakeAll(call, tensors);
    EXPECT_EQ(*call.in_use, 0);
    return 0;
  };
  EXPECT_TRUE(Run(Platform::kHost).ok());
  EXPECT_EQ(out_, x_);
}

TEST_F(DlpackPlanTest, OnCudaTheDeviceAndTheStream) {
  body = [this](DlpackCall& call, std::vector<UnversionedTensor*> tensors, double, int) {
    EXPECT_EQ(call.stream, this);
    EXPECT_EQ(call.device, (dlpack::Device{dlpack::kCuda, 3}));
    EXPECT_EQ(tensors[2]->tensor.device, call.device);
    TakeAll(call, tensors);
    return 0;
  };
  EXPECT_TRUE(Run(Platform::kCuda).ok());
}

TEST_F(DlpackPlanTest, AnAbsentArgumentIsNull) {
  body = [](DlpackCall& call, std::vector<UnversionedTensor*> tensors, double, int) {
    EXPECT_EQ(tensors[1], nullptr);
    EXPECT_EQ(*call.in_use, 2);
    TakeAll(call, tensors);
    return 0;
  };
  EXPECT_TRUE(Run(Platform::kHost, /*with_y=*/false).ok());
}

TEST_F(DlpackPlanTest, ErrorsBringTheirCodeAndText) {
  // Those that it did not take, here all but one, are freed by the caller (the sanitizers tell).
  body = [](DlpackCall& call, std::vector<UnversionedTensor*> tensors, double, int) {
    TakeAll(call, {tensors[0]});
    std::strcpy(call.error, "ValueError: no");
    return static_cast<int>(StatusCode::kInvalidArgument);
  };
  Status status = Run(Platform::kHost);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "k: ValueError: no");
  // A text that fills all its room.
  body = [](DlpackCall& call, std::vector<UnversionedTensor*>, double, int) {
    std::memset(call.error, 'e', sizeof(call.error) - 1);
    return static_cast<int>(StatusCode::kInternal);
  };
  EXPECT_EQ(Run(Platform::kHost).message().size(), sizeof(DlpackCall::error) + 2);
}

TEST_F(DlpackPlanTest, AFunctionThatTookNothingDidNotRun) {
  body = [](DlpackCall&, std::vector<UnversionedTensor*>, double, int) { return 0; };
  const Status status = Run(Platform::kHost);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("k: the function ended without taking its tensors"));
}

TEST_F(DlpackPlanTest, ThroughAClosedGateNoneIsCalled) {
  body = [](DlpackCall& call, std::vector<UnversionedTensor*> tensors, double, int) {
    EXPECT_EQ(gate.running, 1);
    TakeAll(call, tensors);
    return 0;
  };
  EXPECT_TRUE(Run(Platform::kHost).ok());
  gate.closed = 1;
  body = nullptr;
  const Status status = Run(Platform::kHost);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "k: the function's interpreter has ended");
}

TEST_F(DlpackPlanTest, ATensorThatIsKeptIsAnErrorAndOutlivesTheCall) {
  UnversionedTensor* kept = nullptr;
  body = [&kept](DlpackCall& call, std::vector<UnversionedTensor*> tensors, double, int) {
    TakeAll(call, {tensors[0], tensors[1]});
    ++call.taken;
    kept = tensors[2];
    return 0;
  };
  const Status status = Run(Platform::kHost);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("k: the function keeps 1 of the call's tensors"));
  EXPECT_EQ(kept->tensor.shape[1], 3);
  kept->deleter(kept);
}

}  // namespace
}  // namespace xla_gpu::user_kernel
