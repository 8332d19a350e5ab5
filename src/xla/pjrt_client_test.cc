#include "src/xla/pjrt_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "pjrt_c_api.h"
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

TEST(PjrtClientTest, TheTableOfDTypesHasPjrtsNumbers) {
  constexpr std::pair<DType, PJRT_Buffer_Type> kTypes[] = {
      {DType::kPred, PJRT_Buffer_Type_PRED},        {DType::kI8, PJRT_Buffer_Type_S8},
      {DType::kI16, PJRT_Buffer_Type_S16},          {DType::kI32, PJRT_Buffer_Type_S32},
      {DType::kI64, PJRT_Buffer_Type_S64},          {DType::kU8, PJRT_Buffer_Type_U8},
      {DType::kU16, PJRT_Buffer_Type_U16},          {DType::kU32, PJRT_Buffer_Type_U32},
      {DType::kU64, PJRT_Buffer_Type_U64},          {DType::kF16, PJRT_Buffer_Type_F16},
      {DType::kF32, PJRT_Buffer_Type_F32},          {DType::kF64, PJRT_Buffer_Type_F64},
      {DType::kBF16, PJRT_Buffer_Type_BF16},        {DType::kF8E5M2, PJRT_Buffer_Type_F8E5M2},
      {DType::kF8E4M3FN, PJRT_Buffer_Type_F8E4M3FN}};
  for (const auto& [dtype, pjrt] : kTypes) EXPECT_EQ(InfoOf(dtype).pjrt, pjrt) << DTypeName(dtype);
  EXPECT_EQ(std::ranges::count_if(kDTypes, [](const DTypeInfo& info) { return info.pjrt != 0; }),
            std::size(kTypes));
}

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

// Whatever way the module is written, its arguments are known where the plugin tells.
TEST(PjrtClientTest, ChecksArgumentsAgainstTheModule) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  auto client = PjrtClient::Create(plugin);
  ASSERT_TRUE(client.ok()) << client.status().ToString();
  const int64_t four[] = {4}, square[] = {2, 2}, three[] = {3};
  const TensorView f32{nullptr, DType::kF32, four};
  const TensorView i32{nullptr, DType::kI32, four};
  const TensorView scalar{nullptr, DType::kI8, {}};
  constexpr char kPretty[] =
      "func.func @main(%a: tensor<4xf32>, %b: tensor<i8>) -> tensor<4xf32> { return %a : "
      "tensor<4xf32> }";
  constexpr char kAlias[] =
      "!t = tensor<4xf32>\n// @main(%x: tensor<9xf32>)\n"
      "module { func.func public @main (%a: !t {mhlo.sharding = \"{replicated}\"}, %b: tensor<i8>) "
      "-> (!t) { return %a : !t } }";
  constexpr char kGeneric[] =
      "\"builtin.module\"() ({ \"func.func\"() <{function_type = (tensor<4xf32>, tensor<i8>) -> "
      "tensor<4xf32>, sym_name = \"main\"}> ({ ^bb0(%a: tensor<4xf32>, %b: tensor<i8>): "
      "\"func.return\"(%a) : (tensor<4xf32>) -> () }) : () -> () }) : () -> ()";
  for (const char* mlir : {kPretty, kAlias, kGeneric}) {
    const auto executable = (*client)->Compile(mlir);
    ASSERT_TRUE(executable.ok()) << executable.status().ToString();
    EXPECT_TRUE(executable->CheckArguments({f32, scalar}).ok());
    EXPECT_EQ(executable->CheckArguments({i32, scalar}).message(),
              "argument 0 is i32[4] but @main of the module takes f32[4]; give that, or change the "
              "module");
    for (const TensorView& wrong : {TensorView{nullptr, DType::kF32, square},
                                    TensorView{nullptr, DType::kF32, three}, scalar}) {
      EXPECT_FALSE(executable->CheckArguments({wrong, scalar}).ok());
    }
    EXPECT_EQ(executable->CheckArguments({f32}).message(),
              "@main of the module takes 2 arguments (f32[4], i8[]) but 1 came");
  }
  const auto none = (*client)->Compile(
      "func.func @main() -> tensor<f32> { %c = stablehlo.constant dense<1.0> : tensor<f32>\n "
      "return "
      "%c : tensor<f32> }");
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_TRUE(none->CheckArguments({}).ok());
  EXPECT_FALSE(none->CheckArguments({f32}).ok());
}

}  // namespace
}  // namespace xla_gpu::xla
