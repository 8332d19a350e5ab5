// Functions of XLA's legacy custom calls as ops, by every signature.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/child_process.h"
#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/strings.h"
#include "src/core/test_util.h"
#include "src/ops/user_kernel/definition.h"

// As XLA defines it, and its function for failures: what is linked into a user's library.
struct XlaCustomCallStatus_ {
  std::optional<std::string> message;
};

namespace xla_gpu::user_kernel {
namespace {

using ::testing::HasSubstr;

struct OldStatus {  // with the strings that GCC had before C++11: a pointer
  char* message = nullptr;
  bool has_message = false;
};

// What came, and what to do about the status.
struct Calls {
  std::string opaque;
  void* stream = nullptr;
  void (*set_status)(void* status) = nullptr;
} calls;

void Compute(const float* x, const float* y, float* sum, float* difference) {
  *sum = *x + *y;
  if (difference != nullptr) *difference = *x - *y;
}

void Host1(void* out, const void** in) {
  Compute(static_cast<const float*>(in[0]), static_cast<const float*>(in[1]),
          static_cast<float*>(out), nullptr);
}
void HostTuple(void* out, const void** in) {
  auto** results = static_cast<float**>(out);
  Compute(static_cast<const float*>(in[0]), static_cast<const float*>(in[1]), results[0],
          results[1]);
}
void Host2(void* out, const void** in, void* status) {
  Host1(out, in);
  if (calls.set_status != nullptr) calls.set_status(status);
}
void Host3(void* out, const void** in, const char* opaque, size_t size, void* status) {
  calls.opaque.assign(opaque, size);
  Host2(out, in, status);
}
void Cuda1(void* stream, void** buffers, const char* opaque, size_t size) {
  calls.stream = stream;
  calls.opaque.assign(opaque, size);
  Compute(static_cast<float*>(buffers[0]), static_cast<float*>(buffers[1]),
          static_cast<float*>(buffers[2]), nullptr);
}
void Cuda2(void* stream, void** buffers, const char* opaque, size_t size, void* status) {
  Cuda1(stream, buffers, opaque, size);
  if (calls.set_status != nullptr) calls.set_status(status);
}

class LegacyPlanTest : public ::testing::Test {
 protected:
  void SetUp() override { calls = {}; }

  template <typename Function>
  static Status Run(Platform platform, int version, Function* function, size_t num_results = 1) {
    std::string text = StrCat(
        R"({"name":"old","arguments":[{"name":"x"},{"name":"y"}],"workspace":true,"results":[)",
        R"({"name":"sum","like":"x"})", num_results == 2 ? R"(,{"name":"diff","like":"x"})" : "",
        R"(],"implementations":{")", PlatformName(platform), R"(":{"kind":"legacy","opaque":)",
        R"("scale=\"2\"","api_version":)", version, R"(,"address":)",
        reinterpret_cast<uintptr_t>(function), "}}}");
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Define(text));
    float x = 5, y = 3;
    sum_ = difference_ = -1;
    char workspace[16];
    const int64_t workspace_shape[] = {sizeof(workspace)};
    const TensorView args[] = {{&x, DType::kF32, {}}, {&y, DType::kF32, {}}};
    // With work space, which the function must not be handed as a result.
    std::vector<TensorView> results = {{&sum_, DType::kF32, {}}};
    if (num_results == 2) results.push_back({&difference_, DType::kF32, {}});
    results.push_back({workspace, DType::kU8, workspace_shape});
    Attributes attributes;
    XLA_GPU_RETURN_IF_ERROR(attributes.Add("workspace_bytes", int64_t{sizeof(workspace)}));
    const Call call{args, results, &attributes};
    const auto plan = op->make_plan[static_cast<int>(platform)](call, 0);
    if (!plan.ok()) return plan.status();
    return (*plan)->Run(call, {.stream = &calls});
  }

  static inline float sum_ = 0, difference_ = 0;
};

TEST_F(LegacyPlanTest, EverySignature) {
  EXPECT_TRUE(Run(Platform::kHost, 1, Host1).ok());
  EXPECT_EQ(sum_, 8);
  EXPECT_TRUE(Run(Platform::kHost, 1, HostTuple, 2).ok());
  EXPECT_EQ(sum_, 8);
  EXPECT_EQ(difference_, 2);
  EXPECT_TRUE(Run(Platform::kHost, 2, Host2).ok());
  EXPECT_EQ(sum_, 8);
  EXPECT_TRUE(Run(Platform::kHost, 3, Host3).ok());
  EXPECT_EQ(sum_, 8);
  EXPECT_EQ(calls.opaque, "scale=\"2\"");
  EXPECT_EQ(calls.stream, nullptr);
  for (const int version : {1, 2, 3}) {
    calls = {};
    EXPECT_TRUE(
        (version == 1 ? Run(Platform::kCuda, 1, Cuda1) : Run(Platform::kCuda, version, Cuda2))
            .ok());
    EXPECT_EQ(sum_, 8);
    EXPECT_EQ(calls.opaque, "scale=\"2\"");
    EXPECT_EQ(calls.stream, &calls);
  }
}

TEST_F(LegacyPlanTest, FailuresAreSeenInAnyLayoutOfTheStatus) {
  void (*const failing[])(void*) = {
      [](void* status) {
        static_cast<XlaCustomCallStatus_*>(status)->message = std::string("of more than 15 bytes");
        // Nobody frees it: only the library that made it could.
        static auto* reachable = new std::vector<const char*>;
        reachable->push_back(static_cast<XlaCustomCallStatus_*>(status)->message->data());
      },
      [](void* status) { static_cast<XlaCustomCallStatus_*>(status)->message = ""; },
      [](void* status) {
        static char text[] = "gone";
        *static_cast<OldStatus*>(status) = {text, true};
      },
  };
  for (const auto& set_status : failing) {
    for (const int version : {2, 3}) {
      calls.set_status = set_status;
      const Status host =
          version == 2 ? Run(Platform::kHost, 2, Host2) : Run(Platform::kHost, 3, Host3);
      EXPECT_EQ(host.code(), StatusCode::kInternal);
      EXPECT_THAT(host.message(), HasSubstr("old: the function reported a failure"));
      EXPECT_FALSE(Run(Platform::kCuda, version, Cuda2).ok());
    }
  }
  calls.set_status = [](void* status) {
    static_cast<XlaCustomCallStatus_*>(status)->message = std::nullopt;  // success, said aloud
  };
  EXPECT_TRUE(Run(Platform::kHost, 3, Host3).ok());
}

TEST_F(LegacyPlanTest, NothingThatIsThrownUnwindsIntoTheCaller) {
  void (*const throws)(void*, const void**) = [](void*, const void**) { throw 1; };
  const auto op = OpRegistry::Global().Define(
      StrCat(R"({"name":"thrower","results":[{"name":"r"}],"implementations":{"Host":)",
             R"({"kind":"legacy","api_version":1,"address":)", reinterpret_cast<uintptr_t>(throws),
             "}}}"));
  ASSERT_TRUE(op.ok()) << op.status().ToString();
  const int64_t types[] = {11, 0};
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("result_types", std::span<const int64_t>(types)).ok());
  const TensorView results[] = {{&sum_, DType::kF32, {}}};
  EXPECT_EQ(RunOp(**op, Platform::kHost, {{}, results, &attributes}, {}).message(),
            "thrower: the function threw what is no std::exception");
}

TEST_F(LegacyPlanTest, LibrariesAndSymbolsThatAreNotThere) {
  const auto define = [](std::string_view library, std::string_view symbol) {
    return OpRegistry::Global().Define(StrCat(
        R"({"name":"old","arguments":[],"results":[{"name":"r"}],"implementations":{"Host":)",
        R"({"kind":"legacy","api_version":1,"library":")", library, R"(","symbol":")", symbol,
        "\"}}}"));
  };
  // Of C++, so that `round` is that of the library that every library needs.
  const TempFolder folder;
  const std::string source = folder.Write("a.cc", "void round(float* x) { *x = 1; }"),
                    made = folder.path("a.so");
  const auto child =
      RunChild({"c++", "-shared", "-fPIC", "-o", made, source, "-Wl,--no-as-needed", "-lm"}, "",
               std::chrono::seconds(60));
  ASSERT_TRUE(child.ok() && child->exit_code == 0);
  const int64_t types[] = {11, 0};
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("result_types", std::span<const int64_t>(types)).ok());
  const TensorView results[] = {{nullptr, DType::kF32, {}}};
  const Call call{{}, results, &attributes};
  for (const auto& [library, symbol, message] :
       {std::array<const char*, 3>{"/nowhere/lib.so", "f", "old: the library /nowhere/lib.so"},
        std::array<const char*, 3>{made.c_str(), "round", "exports no symbol 'round'"},
        std::array<const char*, 3>{"libc.so.6", "no_such_f", "exports no symbol 'no_such_f'"}}) {
    const auto op = define(library, symbol);
    ASSERT_TRUE(op.ok()) << op.status().ToString();
    EXPECT_THAT((*op)->make_plan[0](call, 0).status().message(), HasSubstr(message));
  }
  for (const auto& [library, symbol] :
       {std::array<const char*, 2>{made.c_str(), "_Z5roundPf"}, {"libm.so.6", "round"}}) {
    EXPECT_TRUE((*define(library, symbol))->make_plan[0](call, 0).ok()) << symbol;
  }
}

}  // namespace
}  // namespace xla_gpu::user_kernel
