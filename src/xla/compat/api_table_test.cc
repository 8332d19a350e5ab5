// The table that frameworks see: over a plugin of our own of any release, and over the real
// xla-cpu-pjrt, driven as frameworks of older and newer releases drive it.
#include "src/xla/compat/api_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "pjrt_c_api.h"
#include "src/xla/compat/own_error.h"
#include "src/xla/compat/struct_history.h"
#include "src/xla/pjrt_args.h"
#include "src/xla/pjrt_client.h"
#include "src/xla/testing/pjrt_test_plugin.h"

struct PJRT_Error {
  std::string message;
};

namespace xla_gpu::xla {
namespace {

using ::testing::HasSubstr;

// A plugin of PJRT 0.81 by its header and of 0.`minor` by what it demands.
struct FakePlugin {
  PJRT_Api api{};
  int errors = 0;  // alive
  size_t seen_size = 0;
  std::string next_error;
};
FakePlugin* fake = nullptr;

// Plugins live for ever.
template <typename T>
T* Keep(T* plugin) {
  static auto* kept = new std::vector<T*>;
  kept->push_back(plugin);
  return plugin;
}

PJRT_Error* NewError(const std::string& text) {
  ++fake->errors;
  return new PJRT_Error{text};
}

// As XLA checks and complains.
PJRT_Error* CheckSize(const StructHistory& history, size_t size) {
  fake->seen_size = size;
  const size_t needed = history.SizeAt(fake->api.pjrt_api_version.minor_version);
  if (size >= needed) return fake->next_error.empty() ? nullptr : NewError(fake->next_error);
  return NewError(std::string("Unexpected ") + history.name + " size: expected " +
                  std::to_string(needed) + ", got " + std::to_string(size));
}

const PJRT_Api* MakeFake(int minor, size_t api_size = PJRT_Api_STRUCT_SIZE) {
  fake = Keep(new FakePlugin);
  PJRT_Api& api = fake->api;
  api.struct_size = api_size;
  api.pjrt_api_version.minor_version = minor;
  api.PJRT_Error_Message = [](PJRT_Error_Message_Args* args) {
    args->message = args->error->message.data();
    args->message_size = args->error->message.size();
  };
  api.PJRT_Error_GetCode = [](PJRT_Error_GetCode_Args* args) -> PJRT_Error* {
    args->code = PJRT_Error_Code_ABORTED;
    return nullptr;
  };
  api.PJRT_Error_Destroy = [](PJRT_Error_Destroy_Args* args) {
    --fake->errors;
    delete args->error;
  };
  api.PJRT_Client_PlatformName = [](PJRT_Client_PlatformName_Args* args) -> PJRT_Error* {
    args->platform_name = "cuda";
    args->platform_name_size = 4;
    return fake->next_error.empty() ? nullptr : NewError(fake->next_error);
  };
  api.PJRT_Client_Create = [](PJRT_Client_Create_Args* args) {
    return CheckSize(kClientCreateArgs, args->struct_size);
  };
  api.PJRT_Executable_GetCompiledMemoryStats =
      [](PJRT_Executable_GetCompiledMemoryStats_Args* args) {
        args->temp_size_in_bytes = 1234;
        return CheckSize(kCompiledMemoryStatsArgs, args->struct_size);
      };
  api.PJRT_LoadedExecutable_Execute = [](PJRT_LoadedExecutable_Execute_Args* args) {
    return CheckSize(kExecuteOptions, args->options->struct_size);
  };
  return MakeForwardingApi(&api);
}

// The error's code and text, as a framework asks for them; frees it.
Status Take(const PJRT_Api* api, PJRT_Error* error) {
  if (error == nullptr) return OkStatus();
  PjrtArgs<PJRT_Error_Message_Args> message;
  message->error = error;
  api->PJRT_Error_Message(message.get());
  PjrtArgs<PJRT_Error_GetCode_Args> code;
  code->error = error;
  EXPECT_EQ(api->PJRT_Error_GetCode(code.get()), nullptr);
  Status status(static_cast<StatusCode>(code->code),
                std::string(message->message, message->message_size));
  PjrtArgs<PJRT_Error_Destroy_Args> destroy;
  destroy->error = error;
  api->PJRT_Error_Destroy(destroy.get());
  return status;
}

// Execute as a framework whose PJRT_ExecuteOptions has `size` bytes, all `fill` past the first.
Status ExecuteWith(const PJRT_Api* api, size_t size, char fill = 0, size_t filled_from = 16) {
  std::vector<char> options(size, 0);
  for (size_t i = filled_from; i < size; ++i) options[i] = fill;
  std::memcpy(options.data(), &size, sizeof(size));
  PJRT_LoadedExecutable_Execute_Args args{};
  args.struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE;
  args.options = reinterpret_cast<PJRT_ExecuteOptions*>(options.data());
  Status status = Take(api, api->PJRT_LoadedExecutable_Execute(&args));
  EXPECT_EQ(static_cast<void*>(args.options), static_cast<void*>(options.data()));
  return status;
}

TEST(ApiTableTest, NestedOptionsOfEveryPairOfReleases) {
  for (const StructSize& framework : kExecuteOptions.sizes) {
    for (const int plugin : {57, 64, 75, 76, 78, 81, 97, 115}) {
      const PJRT_Api* api = MakeFake(plugin);
      const Status status = ExecuteWith(api, framework.size);
      EXPECT_TRUE(status.ok()) << status.ToString();
      EXPECT_GE(fake->seen_size, kExecuteOptions.SizeAt(plugin));
    }
  }
}

TEST(ApiTableTest, ARefusalIsOurErrorWithCodeAndText) {
  const PJRT_Api* api = MakeFake(57);
  const Status status = ExecuteWith(api, 112, 1, kExecuteOptions.SizeAt(76));
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("num_tasks, task_ids, incarnation_ids"));
  EXPECT_EQ(fake->seen_size, 0u);  // the plugin was not called
  EXPECT_EQ(fake->errors, 0);
}

TEST(ApiTableTest, ThePluginsErrorsKeepTheirTextAndAreFreedThere) {
  const PJRT_Api* api = MakeFake(81);
  fake->next_error = "no room at the inn";
  const Status status = ExecuteWith(api, 80);
  EXPECT_EQ(static_cast<int>(status.code()), PJRT_Error_Code_ABORTED);
  EXPECT_EQ(status.message(), "no room at the inn");
  EXPECT_EQ(fake->errors, 0);
  // A struct that is no release's is refused in the plugin's words.
  fake->next_error.clear();
  EXPECT_THAT(ExecuteWith(api, 40).message(), HasSubstr("expected 112, got 40"));
}

TEST(ApiTableTest, ResultsComeBackThroughTheCopy) {
  const PJRT_Api* api = MakeFake(115);
  PJRT_Executable_GetCompiledMemoryStats_Args args{};
  args.struct_size = kCompiledMemoryStatsArgs.SizeAt(57);
  ASSERT_TRUE(Take(api, api->PJRT_Executable_GetCompiledMemoryStats(&args)).ok());
  EXPECT_EQ(args.temp_size_in_bytes, 1234);
  EXPECT_EQ(args.struct_size, kCompiledMemoryStatsArgs.SizeAt(57));
  EXPECT_EQ(fake->seen_size, kCompiledMemoryStatsArgs.SizeAt(115));
}

TEST(ApiTableTest, ThePlatformIsRenamed) {
  const PJRT_Api* api = MakeFake(81);
  PjrtArgs<PJRT_Client_PlatformName_Args> args;
  ASSERT_EQ(api->PJRT_Client_PlatformName(args.get()), nullptr);
  EXPECT_EQ(std::string(args->platform_name, args->platform_name_size), "xlagpu");
  fake->next_error = "no client";
  EXPECT_EQ(Take(api, api->PJRT_Client_PlatformName(args.get())).message(), "no client");
}

TEST(ApiTableTest, TheTableIsAsLargeAsThePlugins) {
  // An older plugin ends before the newest functions; a newer one has more than this header.
  constexpr size_t kOld = offsetof(PJRT_Api, PJRT_Client_CreateViewOfDeviceBuffer);
  const PJRT_Api* api = MakeFake(57, kOld);
  EXPECT_EQ(api->struct_size, kOld);
  PjrtArgs<PJRT_Executable_GetCompiledMemoryStats_Args> stats;
  EXPECT_THAT(Take(api, api->PJRT_Executable_GetCompiledMemoryStats(stats.get())).message(),
              HasSubstr("PJRT 0.57, which has no such function"));
  EXPECT_TRUE(ExecuteWith(api, 80).ok());

  struct Newer {
    PJRT_Api api;
    const void* later[8];
  };
  auto* newer = Keep(new Newer{fake->api, {}});
  newer->api.struct_size = sizeof(*newer);
  newer->later[7] = newer;
  const PJRT_Api* table = MakeForwardingApi(&newer->api);
  EXPECT_EQ(table->struct_size, sizeof(*newer));
  EXPECT_EQ(reinterpret_cast<const Newer*>(table)->later[7], newer);
}

TEST(ApiTableTest, AFailingTableSaysWhyEverywhere) {
  const PJRT_Api* api = MakeFailingApi(NotFound("no plugin; install one"));
  EXPECT_EQ(api->struct_size, static_cast<size_t>(PJRT_Api_STRUCT_SIZE));
  EXPECT_EQ(api->pjrt_api_version.minor_version, PJRT_API_MINOR);
  PjrtArgs<PJRT_Plugin_Initialize_Args> initialize;
  for (int i = 0; i < 2; ++i) {
    const Status status = Take(api, api->PJRT_Plugin_Initialize(initialize.get()));
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_EQ(status.message(), "no plugin; install one");
  }
  PjrtArgs<PJRT_LoadedExecutable_GetDeviceAssignment_Args> last;
  EXPECT_FALSE(Take(api, api->PJRT_LoadedExecutable_GetDeviceAssignment(last.get())).ok());
  PjrtArgs<PJRT_Error_Destroy_Args> destroy;
  api->PJRT_Error_Destroy(destroy.get());  // of no error: allowed
}

TEST(ApiTableTest, ErrorsOfManyThreadsStayApart) {
  const PJRT_Api* api = MakeFailingApi(Internal("same for all"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([api] {
      for (int i = 0; i < 500; ++i) {
        PjrtArgs<PJRT_Plugin_Initialize_Args> args;
        EXPECT_EQ(Take(api, api->PJRT_Plugin_Initialize(args.get())).message(), "same for all");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ApiTableTest, AForkedChildIsRefusedNotLeftWaiting) {
  const PJRT_Api* api = MakeFake(81);
  const auto child_is_refused = [api] {
    const pid_t child = fork();
    if (child == 0) {
      const Status status = ExecuteWith(api, 80);
      _exit(status.message().find("forked") != std::string::npos ? 1 : 0);
    }
    int state = 0;
    waitpid(child, &state, 0);
    return WEXITSTATUS(state) == 1;
  };
  EXPECT_FALSE(child_is_refused());  // no client yet: it may open its own
  PjrtArgs<PJRT_Client_Create_Args> create;
  ASSERT_EQ(api->PJRT_Client_Create(create.get()), nullptr);
  EXPECT_TRUE(child_is_refused());
  EXPECT_TRUE(ExecuteWith(api, 80).ok());  // the parent goes on
}

// ---- Over the real plugin ----

constexpr char kAdd[] = R"(module { func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %c = stablehlo.add %a, %a : tensor<4xf32>
  return %c : tensor<4xf32> } })";

// Between the client of these tests, whose structs are the largest, and the table under test.
const PJRT_Api* beneath = nullptr;
size_t options_size = 0;

PJRT_Error* ExecuteAsOlderFramework(PJRT_LoadedExecutable_Execute_Args* args) {
  std::vector<char> options(options_size);
  std::memcpy(options.data(), args->options, options_size);
  std::memcpy(options.data(), &options_size, sizeof(options_size));
  PJRT_LoadedExecutable_Execute_Args older = *args;
  older.struct_size = sizeof(older);
  older.options = reinterpret_cast<PJRT_ExecuteOptions*>(options.data());
  return beneath->PJRT_LoadedExecutable_Execute(&older);
}

Status AddThrough(const PJRT_Api* api) {
  XLA_GPU_ASSIGN_OR_RETURN(const PjrtPlugin* plugin, PjrtPlugin::FromApi(api));
  XLA_GPU_ASSIGN_OR_RETURN(const auto client, PjrtClient::Create(plugin));
  XLA_GPU_ASSIGN_OR_RETURN(const PjrtExecutable executable, client->Compile(kAdd));
  HostTensor a = HostTensor::Zeros(DType::kF32, {4});
  a.data_as<float>()[3] = 21.0f;
  XLA_GPU_ASSIGN_OR_RETURN(const DeviceBuffer on_device, client->ToDevice(a.view()));
  XLA_GPU_ASSIGN_OR_RETURN(const auto results, executable.Execute({&on_device}));
  XLA_GPU_ASSIGN_OR_RETURN(HostTensor host, results[0].ToHost());
  if (host.data_as<float>()[3] != 42.0f) return Internal("wrong result");
  return OkStatus();
}

TEST(ApiTableTest, TheRealPluginUnderOlderFrameworks) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  for (const size_t size : {size_t{72}, size_t{80}, size_t{88}, size_t{112}, size_t{120}}) {
    options_size = size;
    beneath = plugin->api();
    auto* stock = Keep(new PJRT_Api(*beneath));
    stock->PJRT_LoadedExecutable_Execute = &ExecuteAsOlderFramework;
    const Status without = AddThrough(stock);
    EXPECT_EQ(without.ok(), size >= 112) << without.ToString();

    beneath = MakeForwardingApi(plugin->api());
    auto* bridged = Keep(new PJRT_Api(*beneath));
    bridged->PJRT_LoadedExecutable_Execute = &ExecuteAsOlderFramework;
    const Status with = AddThrough(bridged);
    EXPECT_TRUE(with.ok()) << with.ToString();
  }
}

}  // namespace
}  // namespace xla_gpu::xla
