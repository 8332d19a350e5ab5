#include "src/xla/pjrt_client.h"

#include <gtest/gtest.h>

#include "src/core/op_registry.h"
#include "src/xla/handlers.h"
#include "src/xla/registration.h"
#include "src/xla/testing/pjrt_test_plugin.h"

namespace xla_gpu::xla {
namespace {

constexpr char kSimpleAdd[] = R"(
module {
  func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %c = stablehlo.custom_call @XlaGpuSimpleAdd(%a, %b) {api_version = 4 : i32, backend_config = {}}
        : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %c : tensor<4xf32>
  }
})";

TEST(PjrtClientTest, RunsACustomCallOfOurs) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  auto handler = HandlerAddress(**OpRegistry::Global().Get("simple_add"), Platform::kHost, 4);
  ASSERT_TRUE(handler.ok());
  Status status = Register(*plugin, {"XlaGpuSimpleAdd", StagesOf(*handler), "Host", 4});
  ASSERT_TRUE(status.ok()) << status.ToString();
  auto client = PjrtClient::Create(plugin);
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  auto executable = (*client)->Compile(kSimpleAdd);
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  HostTensor a = HostTensor::Zeros(DType::kF32, {4});
  HostTensor b = HostTensor::Zeros(DType::kF32, {4});
  for (int i = 0; i < 4; ++i) {
    a.data_as<float>()[i] = static_cast<float>(i);
    b.data_as<float>()[i] = 10.0f;
  }
  auto device_a = (*client)->ToDevice(a.view());
  auto device_b = (*client)->ToDevice(b.view());
  ASSERT_TRUE(device_a.ok() && device_b.ok());
  auto results = executable->Execute({&*device_a, &*device_b});
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  ASSERT_EQ(results->size(), 1u);
  auto host = (*results)[0].ToHost();
  ASSERT_TRUE(host.ok()) << host.status().ToString();
  EXPECT_EQ(host->ToString(), "f32[4]");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(host->data_as<float>()[i], 10.0f + static_cast<float>(i));
  std::string format;
  auto program = executable->OptimizedProgram(&format);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(format, "hlo_with_config");
  EXPECT_NE(program->find("XlaGpuSimpleAdd"), std::string::npos);
}

}  // namespace
}  // namespace xla_gpu::xla
