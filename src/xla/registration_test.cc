// Registration against fake plugins of every layout that is or was in the field, and against the
// real xla-cpu-pjrt.
#include "src/xla/registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "pjrt_c_api.h"
#include "src/core/op_registry.h"
#include "src/xla/compat/compat_plugin.h"
#include "src/xla/handlers.h"
#include "src/xla/pjrt_extensions.h"
#include "src/xla/testing/pjrt_test_plugin.h"
#include "xla/ffi/api/c_api.h"

struct PJRT_Error {
  std::string message;
};

namespace xla_gpu::xla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A typed handler that says it was built against FFI 0.`minor`.
template <int minor, int salt = 0>
XLA_FFI_Error* HandlerOfFfi(XLA_FFI_CallFrame* frame) {
  auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start);
  extension->metadata->api_version.major_version = 0;
  extension->metadata->api_version.minor_version = minor;
  extension->metadata->traits = salt == 0 ? 1 : 0;
  return nullptr;
}
template <int minor, int salt = 0>
const void* Handler() {
  return reinterpret_cast<const void*>(&HandlerOfFfi<minor, salt>);
}

XLA_FFI_Error* Mute(XLA_FFI_CallFrame*) { return nullptr; }
const void* MuteHandler() { return reinterpret_cast<const void*>(&Mute); }

struct Seen {
  std::string road, name, platform;
  int api_version = -1;
  const void* instantiate = nullptr;
  const void* execute = nullptr;
  uint32_t traits = 0;
};

// A plugin of one generation. PJRT functions have no user data, so the current one is global; each
// test makes its own, which is never freed because plugins are kept by their address.
struct FakePlugin {
  PJRT_Api api{};
  FfiExtension ffi{};
  GpuCustomCallExtension gpu{};
  size_t ffi_size = kFfiRegisterHandlerSizeV1;
  int ffi_minor = 2;
  bool shows_api = true;
  std::string next_error;
  std::vector<Seen> seen;
};
FakePlugin* fake = nullptr;

PJRT_Error* WrongSize(const char* name, size_t expected, size_t got) {
  return new PJRT_Error{std::string("Unexpected ") + name + " size: expected " +
                        std::to_string(expected) + ", got " + std::to_string(got) + "."};
}

// What XLA does at registration: asks the handler, showing its own API.
void AskAsXlaDoes(const void* handler) {
  static XLA_FFI_Api api;
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version.minor_version = fake->ffi_minor;
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata,
                              nullptr};
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.extension_start = &extension.extension_base;
  frame.api = fake->shows_api ? &api : nullptr;
  reinterpret_cast<XLA_FFI_Handler*>(const_cast<void*>(handler))(&frame);
}

PJRT_Error* Record(Seen seen, bool typed) {
  if (typed) AskAsXlaDoes(seen.execute);
  if (!fake->next_error.empty()) return new PJRT_Error{fake->next_error};
  if (seen.name != "xla_gpu_ffi_version_probe") fake->seen.push_back(std::move(seen));
  return nullptr;
}

PJRT_Error* FakeFfiRegister(void* args) {
  size_t size = 0;
  std::memcpy(&size, args, sizeof(size));
  if (size < fake->ffi_size) {
    return WrongSize("PJRT_FFI_Register_Handler_Args", fake->ffi_size, size);
  }
  if (fake->ffi_size == kFfiRegisterHandlerSizeV1) {
    const auto* a = static_cast<FfiRegisterHandlerArgsV1*>(args);
    return Record({"ffi1",
                   {a->target_name, a->target_name_size},
                   {a->platform_name, a->platform_name_size},
                   -1,
                   nullptr,
                   a->handler,
                   a->traits},
                  true);
  }
  const auto* a = static_cast<FfiRegisterHandlerArgsV2*>(args);
  return Record({"ffi2",
                 {a->target_name, a->target_name_size},
                 {a->platform_name, a->platform_name_size},
                 a->api_version,
                 nullptr,
                 a->handler,
                 a->traits},
                a->api_version == 1);
}

PJRT_Error* FakeGpuRegister(GpuRegisterCustomCallArgs* a) {
  if (a->struct_size < kGpuRegisterCustomCallSizeV2) {
    return WrongSize("PJRT_Gpu_Register_Custom_Call_Args", kGpuRegisterCustomCallSizeV2,
                     a->struct_size);
  }
  return Record({"gpu",
                 {a->function_name, a->function_name_size},
                 "",
                 a->api_version,
                 a->handler_instantiate,
                 a->handler_execute,
                 a->traits},
                a->api_version == 1);
}

struct Generation {
  size_t ffi_size = kFfiRegisterHandlerSizeV1;  // 0: an FFI extension without register_handler
  bool gpu = false;
  int ffi_minor = 2;
  bool shows_api = true;
};

const PjrtPlugin* MakeFake(const Generation& generation) {
  fake = new FakePlugin;
  fake->ffi_size = generation.ffi_size;
  fake->ffi_minor = generation.ffi_minor;
  fake->shows_api = generation.shows_api;
  fake->ffi.base = {generation.ffi_size == 0 ? 40 : sizeof(FfiExtension), PJRT_Extension_Type_FFI,
                    nullptr};
  fake->ffi.register_handler = FakeFfiRegister;
  fake->gpu.base = {sizeof(GpuCustomCallExtension), PJRT_Extension_Type_Gpu_Custom_Call,
                    &fake->ffi.base};
  fake->gpu.register_custom_call = FakeGpuRegister;
  PJRT_Api& api = fake->api;
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.pjrt_api_version.minor_version = 81;
  api.extension_start = generation.gpu ? &fake->gpu.base : &fake->ffi.base;
  api.PJRT_Error_Message = [](PJRT_Error_Message_Args* args) {
    args->message = args->error->message.data();
    args->message_size = args->error->message.size();
  };
  api.PJRT_Error_GetCode = [](PJRT_Error_GetCode_Args* args) -> PJRT_Error* {
    args->code = PJRT_Error_Code_INVALID_ARGUMENT;
    return nullptr;
  };
  api.PJRT_Error_Destroy = [](PJRT_Error_Destroy_Args* args) { delete args->error; };
  auto plugin = PjrtPlugin::FromApi(&api);
  EXPECT_TRUE(plugin.ok()) << plugin.status().ToString();
  return *plugin;
}

Registration Typed(const char* name, const void* handler, const char* platform = "Host") {
  return {name, {.execute = handler}, platform, 4};
}

TEST(RegistrationTest, LayoutOneTakesTypedHandlersOnly) {
  const PjrtPlugin* plugin = MakeFake({.ffi_size = kFfiRegisterHandlerSizeV1});
  ASSERT_TRUE(Register(*plugin, Typed("f", Handler<1>())).ok());
  ASSERT_EQ(fake->seen.size(), 1u);
  EXPECT_EQ(fake->seen[0].road, "ffi1");
  EXPECT_EQ(fake->seen[0].name, "f");
  EXPECT_EQ(fake->seen[0].platform, "Host");
  EXPECT_EQ(fake->seen[0].execute, Handler<1>());
  EXPECT_EQ(fake->seen[0].traits, 1u);
  const Status untyped = Register(*plugin, {"g", {.execute = MuteHandler()}, "Host", 3});
  EXPECT_EQ(untyped.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(untyped.message(), HasSubstr("takes typed FFI handlers only (FFI 0.2), not API "
                                           "version 3"));
}

TEST(RegistrationTest, LayoutTwoTakesBoth) {
  const PjrtPlugin* plugin = MakeFake({.ffi_size = kFfiRegisterHandlerSizeV2});
  ASSERT_TRUE(Register(*plugin, Typed("f", Handler<1>(), "cpu")).ok());
  ASSERT_TRUE(Register(*plugin, {"f", {.execute = MuteHandler()}, "Host", 2}).ok());
  ASSERT_EQ(fake->seen.size(), 2u);
  EXPECT_EQ(fake->seen[0].road, "ffi2");
  EXPECT_EQ(fake->seen[0].api_version, 1);
  EXPECT_EQ(fake->seen[0].platform, "Host");  // XLA's own name
  EXPECT_EQ(fake->seen[1].api_version, 0);
  EXPECT_EQ(fake->seen[1].execute, MuteHandler());
}

TEST(RegistrationTest, AnUnknownLayoutIsRefusedByName) {
  const PjrtPlugin* plugin = MakeFake({.ffi_size = 100});
  const Status status = Register(*plugin, Typed("f", Handler<1>()));
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("known are 52 and 60 bytes"), HasSubstr("expected 100, got 8")));
}

TEST(RegistrationTest, GpuPluginsGetAllStages) {
  // Up to PJRT 0.70 the FFI extension cannot register; 0.76 shows no version; later ones do.
  for (const Generation& generation :
       {Generation{.ffi_size = 0, .gpu = true, .shows_api = false},
        Generation{.ffi_size = kFfiRegisterHandlerSizeV1, .gpu = true},
        Generation{.ffi_size = 100, .gpu = true}}) {
    const PjrtPlugin* plugin = MakeFake(generation);
    const HandlerStages stages{.instantiate = Handler<1>(), .execute = Handler<1>()};
    ASSERT_TRUE(Register(*plugin, {"f", stages, "gpu", 4}).ok());
    ASSERT_TRUE(Register(*plugin, {"f", {.execute = MuteHandler()}, "CUDA", 1}).ok());
    ASSERT_EQ(fake->seen.size(), 2u);
    EXPECT_EQ(fake->seen[0].road, "gpu");
    EXPECT_EQ(fake->seen[0].api_version, 1);
    EXPECT_EQ(fake->seen[0].instantiate, Handler<1>());
    EXPECT_EQ(fake->seen[0].execute, Handler<1>());
    EXPECT_EQ(fake->seen[1].api_version, 0);
  }
}

TEST(RegistrationTest, TheRuntimeTellsItsFfiVersion) {
  const auto facts = LearnRuntime(*MakeFake({.ffi_minor = 5}));
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->ffi, (Version{0, 5}));
  EXPECT_TRUE(facts->ffi_told);
  const auto old = LearnRuntime(*MakeFake({.ffi_minor = 5, .shows_api = false}));
  ASSERT_TRUE(old.ok());
  EXPECT_EQ(old->ffi, (Version{0, 1}));
  EXPECT_FALSE(old->ffi_told);
}

TEST(RegistrationTest, ANewerHandlerIsRefusedWithBothVersions) {
  const PjrtPlugin* plugin = MakeFake({.ffi_minor = 2});
  EXPECT_TRUE(Register(*plugin, Typed("old", Handler<2>())).ok());
  const Status status = Register(*plugin, Typed("new", Handler<3>()));
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("'new' was built against XLA FFI 0.3"),
                    HasSubstr("the runtime has FFI 0.2"), HasSubstr("jaxlib 0.7.2")));
  // Any stage counts, not only execute.
  const HandlerStages stages{.prepare = Handler<3>(), .execute = Handler<1>()};
  EXPECT_FALSE(Register(*plugin, {"new", stages, "Host", 4}).ok());
  EXPECT_EQ(fake->seen.size(), 1u);
}

TEST(RegistrationTest, TwiceIsFineOtherwiseAnError) {
  const PjrtPlugin* plugin = MakeFake({});
  ASSERT_TRUE(Register(*plugin, Typed("f", Handler<1>())).ok());
  ASSERT_TRUE(Register(*plugin, Typed("f", Handler<1>(), "cpu")).ok());
  EXPECT_EQ(fake->seen.size(), 1u);
  const Status status = Register(*plugin, Typed("f", Handler<1, 1>()));
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr("already has another typed handler under this name"));
  // Another plugin has its own registry.
  EXPECT_TRUE(Register(*MakeFake({}), Typed("f", Handler<1, 1>())).ok());
}

TEST(RegistrationTest, ThePluginsErrorComesThroughAndLeavesNoRecord) {
  const PjrtPlugin* plugin = MakeFake({});
  ASSERT_TRUE(LearnRuntime(*plugin).ok());
  fake->next_error = "no room at the inn";
  const Status status = Register(*plugin, Typed("f", Handler<1>()));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("no room at the inn"));
  fake->next_error.clear();
  EXPECT_TRUE(Register(*plugin, Typed("f", Handler<1, 1>())).ok());
}

TEST(RegistrationTest, BadArguments) {
  const PjrtPlugin* plugin = MakeFake({});
  static const int data = 7;
  const struct {
    Registration registration;
    const char* message;
  } cases[] = {
      {Typed("", Handler<1>()), "name is empty"},
      {Typed("f", nullptr), "is NULL"},
      {Typed("f", &data), "does not lie in executable memory"},
      {Typed("f", reinterpret_cast<const void*>(uintptr_t{8})), "is no function"},
      {Typed("f", MuteHandler()), "did not answer XLA's metadata call"},
      {Typed("f", Handler<1>(), "TPU"), "allowed are Host (or cpu) and CUDA (or cuda, GPU, gpu)"},
      {Typed("f", Handler<1>(), "host"), "platform is 'host'"},
      {Typed("f", Handler<1>(), "CUDA"), "runs on Host"},
      {{"f", {.initialize = Handler<1>(), .execute = Handler<1>()}, "Host", 4},
       "registers the execute stage only"},
      {{"f", {.execute = Handler<1>()}, "Host", 0}, "api_version is 0"},
      {{"f", {.execute = Handler<1>()}, "Host", 5}, "api_version is 5"},
      {{"f", {.instantiate = MuteHandler(), .execute = MuteHandler()}, "Host", 3},
       "more than one stage"},
  };
  for (const auto& c : cases) {
    const Status status = Register(*plugin, c.registration);
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
  EXPECT_THAT(Register(*MakeFake({.gpu = true}), Typed("f", Handler<1>())).message(),
              HasSubstr("runs on CUDA"));
  EXPECT_TRUE(fake->seen.empty());
}

TEST(RegistrationTest, WhatIsNoPluginIsRefused) {
  EXPECT_FALSE(PjrtPlugin::FromApi(nullptr).ok());
  static PJRT_Api api{};
  EXPECT_THAT(PjrtPlugin::FromApi(&api).status().message(), HasSubstr("that is no PJRT_Api"));
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.pjrt_api_version.minor_version = 40;
  EXPECT_THAT(PjrtPlugin::FromApi(&api).status().message(), HasSubstr("PJRT version 0.40"));
  static PJRT_Extension_Base loop{sizeof(loop), PJRT_Extension_Type_Profiler, &loop};
  api.pjrt_api_version.minor_version = 81;
  api.extension_start = &loop;
  const auto plugin = PjrtPlugin::FromApi(&api);
  ASSERT_TRUE(plugin.ok());
  EXPECT_THAT(Register(**plugin, Typed("f", Handler<1>())).message(),
              HasSubstr("neither extension Gpu_Custom_Call nor one FFI"));
  EXPECT_THAT(PjrtPlugin::Load("/no/such/plugin.so").status().message(), HasSubstr("is no file"));
  EXPECT_THAT(PjrtPlugin::Load("/bin/sh").status().message(), HasSubstr("/bin/"));
}

TEST(RegistrationTest, HandlersOfThisLibraryServeInstantiateToo) {
  const Op* op = *OpRegistry::Global().Get("simple_add");
  for (const Platform platform : {Platform::kHost, Platform::kCuda}) {
    const void* handler = *HandlerAddress(*op, platform, 4);
    EXPECT_EQ(StagesOf(handler).instantiate, handler);
    const auto metadata = AskHandler(handler, platform, 4);
    ASSERT_TRUE(metadata.ok()) << metadata.status().ToString();
    EXPECT_EQ(metadata->ffi, (Version{0, 1}));
    EXPECT_EQ(metadata->traits, platform == Platform::kCuda ? 1u : 0u);
  }
  EXPECT_EQ(StagesOf(MuteHandler()).instantiate, nullptr);
}

TEST(RegistrationTest, TheRealCpuPlugin) {
  XLA_GPU_REQUIRE_CPU_PLUGIN(plugin);
  const auto facts = LearnRuntime(*plugin);
  ASSERT_TRUE(facts.ok()) << facts.status().ToString();
  EXPECT_EQ(facts->ffi, (Version{0, 2}));
  EXPECT_TRUE(facts->ffi_told);
  EXPECT_EQ(facts->ffi_layout, 1);
  EXPECT_FALSE(facts->takes_untyped());
  EXPECT_THAT(Register(*plugin, Typed("newer", Handler<3>())).message(),
              AllOf(HasSubstr("FFI 0.3"), HasSubstr("FFI 0.2")));
  EXPECT_THAT(Register(*plugin, {"old", {.execute = MuteHandler()}, "Host", 3}).message(),
              HasSubstr("typed FFI handlers only"));
  const auto loaded = LoadedPlugin(Platform::kHost);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(*loaded, plugin);
  EXPECT_THAT(LoadedPlugin(Platform::kCuda).status().message(), HasSubstr("xla_cpu_pjrt.so"));
}

}  // namespace
}  // namespace xla_gpu::xla
