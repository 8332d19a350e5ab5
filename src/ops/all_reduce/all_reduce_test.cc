#include "src/ops/all_reduce/all_reduce.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/ops/all_reduce/exchange.cuh"

namespace xla_gpu::all_reduce {
namespace {

Status Sum(std::string_view devices, std::vector<float>& values) {
  Attributes attributes;
  EXPECT_TRUE(attributes.Add("devices", devices).ok());
  const int64_t shape[] = {static_cast<int64_t>(values.size())};
  std::vector<float> out(values.size());
  const TensorView x{values.data(), DType::kF32, shape}, result{out.data(), DType::kF32, shape};
  const Status status = RunOp(**OpRegistry::Global().Get("all_reduce"), Platform::kHost,
                              {{&x, 1}, {&result, 1}, &attributes}, {});
  if (status.ok()) values = out;
  return status;
}

TEST(AllReduceTest, OfOneDeviceIsThePart) {
  for (std::vector<float> values : {std::vector<float>{}, std::vector<float>{1, -2, 3}}) {
    const std::vector<float> want = values;
    EXPECT_TRUE(Sum("5", values).ok());
    EXPECT_EQ(values, want);
  }
}

TEST(AllReduceTest, SaysWhatIsWrong) {
  std::vector<float> values = {1}, large(kMostBytes / 4 + 1);
  struct {
    const char* devices;
    std::vector<float>& values;
    const char* says;
  } const cases[] = {
      {"", values,
       "'devices' is \"\"; it must be 1 to 8 CUDA ordinals joined by commas, none twice"},
      {"0,1,0", values, "attribute 'devices' is \"0,1,0\"; it must be"},
      {"-1", values, "it must be"},
      {"0,", values, "it must be"},
      {",0", values, "it must be"},
      {"0 1", values, "it must be"},
      {"0,65536", values, "it must be"},
      {"0,1,2,3,4,5,6,7,8", values, "it must be"},
      {"0,1", values, "attribute 'devices' has 2, and the call runs on the Host"},
      {"0", large, "x is f32[524289], 2097156 bytes; at most 2097152"},
  };
  for (const auto& c : cases) {
    const Status status = Sum(c.devices, c.values);
    EXPECT_NE(status.message().find(c.says), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace xla_gpu::all_reduce
