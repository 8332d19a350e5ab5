// xla_gpu.hpp and the client of the C ABI on the real xla-cpu-pjrt, and the C++ example.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "src/capi/test_util.h"
#include "src/cli/child_process.h"
#include "src/core/dtype.h"
#include "src/core/strings.h"
#include "src/xla/testing/pjrt_test_plugin.h"
#include "xla_gpu/xla_gpu.hpp"

namespace xla_gpu {
namespace {

using ::testing::HasSubstr;

std::string MessageOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(XlaClientTest, RunsOpsAndModules) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  Client client(plugin->path());
  EXPECT_EQ(client.platform(), "Host");
  const Tensor a({3}, std::vector<float>{1, 2, 3});
  const auto sum = client.Call("simple_add", {a, a});
  ASSERT_EQ(sum.size(), 1u);
  EXPECT_EQ(sum[0].shape(), std::vector<int64_t>{3});
  EXPECT_EQ(sum[0].data<float>()[2], 6);
  // A module of one's own, twice: compiled once.
  const std::string mlir =
      "func.func @main(%a: tensor<3xf32>) -> tensor<3xf32> {\n  %b = stablehlo.negate %a : "
      "tensor<3xf32>\n  return %b : tensor<3xf32>\n}\n";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(client.Run(mlir, {a})[0].data<float>()[0], -1);
  // All kinds of attributes through a real call: two tokens into slots 1 and 4.
  const Tensor key({2, 1, 2}, std::vector<float>{1, 2, 3, 4});
  const Tensor cache({2, 4, 2, 2}, std::vector<float>(32, 9));
  const auto updated =
      client.Call("update_kv_cache", {key, key, cache, Tensor({2}, std::vector<int32_t>{1, 4})});
  EXPECT_EQ(updated[0].data<float>()[4], 1);
  EXPECT_EQ(updated[0].data<float>()[17], 4);
  EXPECT_EQ(updated[0].data<float>()[0], 9);
}

TEST(XlaClientTest, ErrorsComeAsExceptions) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  Client client(plugin->path());
  const Tensor a({3}, std::vector<float>{1, 2, 3});
  const Tensor b({2}, std::vector<float>{1, 2});
  EXPECT_THAT(MessageOf([] { Client("/no/such.so"); }), HasSubstr("is no file"));
  EXPECT_THAT(MessageOf([] { Tensor({2}, std::vector<float>{1}); }), HasSubstr("ask for 8"));
  EXPECT_THAT(MessageOf([&] { client.Call("nothing", {a}); }), HasSubstr("nothing"));
  EXPECT_THAT(MessageOf([&] { client.Call("simple_add", {a, b}); }), HasSubstr("f32[2]"));
  EXPECT_THAT(MessageOf([&] {
                client.Call("simple_add", {a, a}, {{"x", true}});
              }),
              HasSubstr("unknown attribute 'x'"));
  EXPECT_THAT(MessageOf([&] { client.Run("not MLIR", {}); }), HasSubstr("compilation: "));
  EXPECT_THAT(MessageOf([&] { client.Run(std::string("ML\xefR\x0d\0", 6), {}); }),
              HasSubstr("mlir is MLIR bytecode; give the module's text"));
  EXPECT_THAT(MessageOf([&] {
                client.Run(client.StableHlo("simple_add", {a, a}), {a, b});
              }),
              HasSubstr("argument 1 is f32[2] but @main of the module takes f32[3]"));
  EXPECT_THAT(MessageOf([&] { client.Register("f", nullptr); }), HasSubstr("'f' is NULL"));
  EXPECT_THAT(MessageOf([&] { client.Register("f", &a); }), HasSubstr("is no function"));
}

TEST(XlaClientTest, TensorsAreWhatTheySay) {
  const std::vector<uint16_t> bits{0x3f80};
  EXPECT_EQ(Tensor({}, bits, XLA_GPU_DTYPE_BF16).data<uint16_t>()[0], 0x3f80);
  EXPECT_EQ(Tensor({1}, XLA_GPU_DTYPE_PRED, "\1", 1).data<bool>()[0], true);
  struct Half {
    uint16_t bits;
  };
  EXPECT_EQ(Tensor({1}, bits, XLA_GPU_DTYPE_F16).data<Half>()[0].bits, 0x3f80);
  for (int32_t dtype = -1; dtype < 64; ++dtype) {
    const auto ours = DTypeFromInt(dtype);
    if (ours != DType::kInvalid) {
      EXPECT_EQ(ElementSize(dtype), static_cast<size_t>(DTypeSize(ours))) << dtype;
      EXPECT_EQ(DTypeName(dtype), DTypeName(ours));
    } else {
      const std::string wanted = StrCat("dtype is ", dtype, "; it must be one of");
      EXPECT_THAT(MessageOf([&] { ElementSize(dtype); }), HasSubstr(wanted));
      EXPECT_THAT(MessageOf([&] { DTypeName(dtype); }), HasSubstr(wanted));
      EXPECT_THAT(MessageOf([&] { Tensor({1}, bits, dtype); }), HasSubstr(wanted));
    }
  }
  const Tensor f32({1}, std::vector<float>{1});
  const std::function<void()> wrong_types[] = {
      [&] { f32.data<int32_t>(); },
      [&] { f32.data<double>(); },
      [&] { f32.data<uint32_t>(); },
      [&] { f32.data<Half>(); },
      [&] { f32.data<bool>(); },
      [&] { Tensor({1}, std::vector<int32_t>{1}, XLA_GPU_DTYPE_F32); },
      [&] { Tensor({1}, std::vector<float>{1}, XLA_GPU_DTYPE_F32).data<uint8_t>(); },
  };
  for (const auto& wrong : wrong_types) {
    EXPECT_THAT(MessageOf(wrong), HasSubstr("elements of dtype f32 (4 bytes) are not of this"));
  }
  EXPECT_THAT(MessageOf([&] { Tensor({1}, std::vector<int16_t>{1}, XLA_GPU_DTYPE_BF16); }),
              HasSubstr("elements of dtype bf16 (2 bytes)"));
  EXPECT_THAT(MessageOf([] {
                Tensor({2, -1}, std::vector<float>{1});
              }),
              HasSubstr("dimension 1 of a tensor's shape is -1"));
  EXPECT_THAT(MessageOf([] {
                Tensor({INT64_MAX, 2}, std::vector<float>{1});
              }),
              HasSubstr("dimension 0 of a tensor's shape is 9223372036854775807"));
}

// XLA's CPU plugin reads the bytes of another type as if they were of the module's.
TEST(XlaClientTest, ArgumentsAreComparedWithTheModule) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  Client client(plugin->path());
  const std::string mlir =
      "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }";
  const auto message = [&](const std::vector<Tensor>& args) {
    return MessageOf([&] { client.Run(mlir, args); });
  };
  EXPECT_EQ(message({Tensor({4}, std::vector<float>(4))}), "no error");
  EXPECT_THAT(message({Tensor({4}, std::vector<int32_t>(4))}), HasSubstr("argument 0 is i32[4]"));
  EXPECT_THAT(message({Tensor({2, 2}, std::vector<float>(4))}), HasSubstr("is f32[2,2]"));
  EXPECT_THAT(message({Tensor({2}, std::vector<double>(2))}), HasSubstr("is f64[2]"));
  EXPECT_THAT(message({}), HasSubstr("takes 1 arguments (f32[4]) but 0 came"));
  float data[4] = {};
  int64_t dims[] = {-4, 4};
  xla_gpu_tensor tensor{sizeof(tensor), data, XLA_GPU_DTYPE_F32, 1, dims};
  xla_gpu_client* c_client = nullptr;
  Check(xla_gpu_client_create(plugin->path().c_str(), &c_client));
  const auto c_message = [&] {
    xla_gpu_results* results = nullptr;
    return MessageOf(
        [&] { Check(xla_gpu_client_run(c_client, mlir.c_str(), &tensor, 1, &results)); });
  };
  EXPECT_THAT(c_message(), HasSubstr("dimensions must not be negative"));
  tensor.rank = 2, dims[0] = INT64_MAX;
  EXPECT_THAT(c_message(), HasSubstr("does not fit 63 bits"));
  dims[0] = 1, tensor.dtype = 99;
  EXPECT_THAT(c_message(), HasSubstr("XLA_GPU_DTYPE_*"));
  xla_gpu_client_free(c_client);
}

// Its threads exist in the parent alone: to wait for them would be to wait for ever.
TEST(XlaClientTest, AForkedChildIsRefusedItsParentsClient) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  auto client = std::make_unique<Client>(plugin->path());
  const Tensor a({3}, std::vector<float>{1, 2, 3});
  ASSERT_EQ(client->Call("simple_add", {a, a}).size(), 1u);
  EXPECT_EQ(InChild([&] {
              const std::string message = MessageOf([&] { client->Call("simple_add", {a, a}); });
              client.reset();
              return message.find("start processes by 'spawn'") == std::string::npos ? 1 : 0;
            }),
            0);
  EXPECT_EQ(client->Call("simple_add", {a, a}).size(), 1u);
}

TEST(XlaClientTest, TheCAbiRefusesNullAndBadStructs) {
  EXPECT_THAT(MessageOf([] { Check(xla_gpu_client_run(nullptr, "", nullptr, 0, nullptr)); }),
              HasSubstr("NULL"));
  EXPECT_THAT(MessageOf([] { Check(xla_gpu_client_create("", nullptr)); }), HasSubstr("NULL"));
  EXPECT_EQ(xla_gpu_results_count(nullptr), 0u);
  xla_gpu_tensor tensor{};
  EXPECT_THAT(MessageOf([&] { Check(xla_gpu_results_get(nullptr, 0, &tensor)); }),
              HasSubstr("result 0 of 0"));
  EXPECT_STREQ(xla_gpu_client_platform(nullptr), "");
  EXPECT_EQ(xla_gpu_client_pjrt_api(nullptr), nullptr);
  xla_gpu_client_free(nullptr);
  xla_gpu_results_free(nullptr);
  char* text = nullptr;
  EXPECT_THAT(MessageOf([&] { Check(xla_gpu_stablehlo(nullptr, &text)); }), HasSubstr("NULL"));
  EXPECT_THAT(
      MessageOf([&] { Check(xla_gpu_check_handler("f", nullptr, "Host", 4, 0, 1, &text)); }),
      HasSubstr("NULL"));
  EXPECT_THAT(
      MessageOf([&] { Check(xla_gpu_register_pjrt(nullptr, "/no.so", "f", nullptr, "Host", 4)); }),
      HasSubstr("/no.so"));
}

TEST(XlaClientTest, StagedHandlersAreChecked) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  void* handler = nullptr;
  Check(xla_gpu_handler("simple_add", "Host", 4, &handler));
  const auto message = [&](const xla_gpu_staged_handler* staged) {
    return MessageOf([&] {
      Check(xla_gpu_register_pjrt_staged(plugin->api(), nullptr, "staged", staged, "Host"));
    });
  };
  xla_gpu_staged_handler staged{};
  EXPECT_THAT(message(nullptr), HasSubstr("handler is NULL"));
  EXPECT_THAT(message(&staged), HasSubstr("xla_gpu_staged_handler.struct_size is 0"));
  staged.struct_size = sizeof(staged);
  EXPECT_THAT(message(&staged), HasSubstr("execute stage is required"));
  staged.execute = staged.instantiate = handler;
  EXPECT_EQ(message(&staged), "no error");
  staged.prepare = handler;
  EXPECT_THAT(message(&staged), HasSubstr("registers the execute stage only"));
}

TEST(XlaClientTest, CheckHandlerTellsWhatAHandlerIs) {
  void* handler = nullptr;
  Check(xla_gpu_handler("simple_add", "CUDA", 4, &handler));
  char* info = nullptr;
  Check(xla_gpu_check_handler("f", handler, "CUDA", 4, 0, 1, &info));
  EXPECT_STREQ(info, R"({"command_buffer":true,"ffi":"0.1"})");
  xla_gpu_string_free(info);
  EXPECT_THAT(
      MessageOf([&] { Check(xla_gpu_check_handler("f", handler, "CUDA", 4, 0, 0, nullptr)); }),
      HasSubstr("built against XLA FFI 0.1 but the runtime has FFI 0.0"));
}

TEST(XlaClientTest, TheExamplesRun) {
  const char* folder = std::getenv("XLA_GPU_EXAMPLES");
  const std::string plugin = xla::CpuPluginForTest();
  if (folder == nullptr || plugin.empty()) {
    GTEST_SKIP() << "needs XLA_GPU_EXAMPLES (set by ctest) and xla-cpu-pjrt";
  }
  for (const auto& [name, expected] :
       {std::pair("paged_attention", "on Host: 20.0000 2.0000 22.0334 2.2033"),
        std::pair("own_kernel", "on Host: 12 24 36 48")}) {
    std::string out;
    const auto end =
        cli::RunLines({"env", "XLA_GPU_PJRT_PLUGIN=" + plugin, StrCat(folder, "/example_", name)},
                      60, [&](const std::string& line) {
                        out += line;
                        return false;
                      });
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(end->exit_code, 0) << end->err;
    EXPECT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace xla_gpu
