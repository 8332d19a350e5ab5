// What can be registered as a handler and what cannot: every wrong function gives an error that
// names it, and none harms this process.
#include "src/xla/handler_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "src/core/op_registry.h"
#include "src/xla/alias.h"
#include "src/xla/handlers.h"
#include "src/xla/opaque.h"
#include "src/xla/registration.h"
#include "xla/ffi/api/c_api.h"

#pragma GCC visibility push(default)  // so that messages can name them
extern "C" {

XLA_FFI_Error* ATypedHandler(XLA_FFI_CallFrame* frame) {
  auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start);
  extension->metadata->api_version.major_version = 0;
  extension->metadata->api_version.minor_version = 1;
  extension->metadata->traits = 1;
  return nullptr;
}

// As headers do, it wants the call frame of its own version, which is larger than ours.
XLA_FFI_Error* AHandlerOfLargerFrames(XLA_FFI_CallFrame* frame) {
  constexpr size_t kWanted = XLA_FFI_CallFrame_STRUCT_SIZE + 16;
  if (frame->struct_size == kWanted) return ATypedHandler(frame);
  XLA_FFI_Error_Create_Args args{};
  static const std::string message =
      "Unexpected XLA_FFI_CallFrame size: expected " + std::to_string(kWanted) + ", got less";
  args.message = message.c_str();
  return frame->api->XLA_FFI_Error_Create(&args);
}

XLA_FFI_Error* AHandlerThatRefuses(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error_Create_Args args{};
  args.message = "not today";
  return frame->api->XLA_FFI_Error_Create(&args);
}

void AnUntypedHandler(void* out, const void** in) {
  *static_cast<float*>(out) = 2 * *static_cast<const float*>(in[0]);
}

void AnUntypedHandlerOnCuda(void*, void** buffers, const char*, size_t) { buffers[0] = nullptr; }

XLA_FFI_Error* AFunctionThatExits(XLA_FFI_CallFrame*) { std::exit(0); }
XLA_FFI_Error* AFunctionThatAborts(XLA_FFI_CallFrame*) { std::abort(); }
XLA_FFI_Error* AFunctionThatThrows(XLA_FFI_CallFrame*) { throw std::runtime_error("thrown"); }
XLA_FFI_Error* AFunctionThatWaits(XLA_FFI_CallFrame*) {
  pause();
  return nullptr;
}
XLA_FFI_Error* AFunctionThatForks(XLA_FFI_CallFrame*) {
  return reinterpret_cast<XLA_FFI_Error*>(static_cast<intptr_t>(fork()));
}

}  // extern "C"
#pragma GCC visibility pop

namespace xla_gpu::xla {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Function>
const void* Address(Function* function) {
  return reinterpret_cast<const void*>(function);
}

bool HasNoChildren() { return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

TEST(AskHandlerTest, TypedHandlersTellTheirVersionAndTraits) {
  for (const void* handler : {Address(&ATypedHandler), Address(&AHandlerOfLargerFrames)}) {
    const auto metadata = AskHandler(handler, Platform::kHost, 4);
    ASSERT_TRUE(metadata.ok()) << metadata.status().ToString();
    EXPECT_EQ(metadata->ffi, (Version{0, 1}));
    EXPECT_EQ(metadata->traits, 1u);
  }
}

TEST(AskHandlerTest, WhatIsNoTypedHandlerIsTold) {
  const struct {
    const void* function;
    const char* message;
  } cases[] = {
      {Address(&AnUntypedHandler), "AnUntypedHandler"},
      {Address(&AnUntypedHandlerOnCuda), "AnUntypedHandlerOnCuda"},
      {Address(&getpid), "getpid"},
      {Address(&getpid), "no XLA_FFI_Error"},
      {Address(&std::rand), "is no typed FFI handler (api_version 4)"},
      {Address(&std::malloc), "is no typed FFI handler"},
      {Address(&std::free), "is no typed FFI handler"},
      {Address(&pthread_exit), "is no typed FFI handler"},
      {Address(&AFunctionThatExits), "ended with exit code 0"},
      {Address(&AFunctionThatAborts), "AFunctionThatAborts"},
      {Address(&AFunctionThatThrows), "AFunctionThatThrows"},
      {Address(&AFunctionThatForks), "AFunctionThatForks"},
      {Address(&AHandlerThatRefuses), "refuses XLA's metadata call: not today"},
  };
  for (const auto& c : cases) {
    const Status status = AskHandler(c.function, Platform::kHost, 4).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), AllOf(HasSubstr(c.message), HasSubstr("api_version 1, 2 or 3")));
  }
  EXPECT_TRUE(HasNoChildren());
}

TEST(AskHandlerTest, OneThatWaitsForEverIsKilled) {
  const Status status = AskHandler(Address(&AFunctionThatWaits), Platform::kHost, 4).status();
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("AFunctionThatWaits"), HasSubstr("did not end in time")));
  EXPECT_TRUE(AskHandler(Address(&AFunctionThatWaits), Platform::kHost, 3).ok());
  EXPECT_TRUE(HasNoChildren());
}

TEST(AskHandlerTest, UntypedHandlersMayBeAnythingButTyped) {
  for (const void* handler : {Address(&AnUntypedHandler), Address(&AnUntypedHandlerOnCuda)}) {
    EXPECT_TRUE(AskHandler(handler, Platform::kHost, 1).ok());
  }
  const Status status = AskHandler(Address(&ATypedHandler), Platform::kHost, 3).status();
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("ATypedHandler"), HasSubstr("register it with api_version 4")));
}

TEST(AskHandlerTest, OwnHandlersServeTheirPlatformAndVersionAlone) {
  const Op* op = *OpRegistry::Global().Get("simple_add");
  const void* typed = *HandlerAddress(*op, Platform::kHost, 4);
  const void* unified = *HandlerAddress(*op, Platform::kHost, 3);
  const void* cuda = *HandlerAddress(*op, Platform::kCuda, 2);
  EXPECT_TRUE(AskHandler(typed, Platform::kHost, 4).ok());
  EXPECT_TRUE(AskHandler(unified, Platform::kHost, 3).ok());
  EXPECT_TRUE(AskHandler(cuda, Platform::kCuda, 3).ok()) << "CUDA's 2 and 3 are one";
  const struct {
    const void* handler;
    Platform platform;
    int api_version;
    const char* message;
  } cases[] = {
      {typed, Platform::kHost, 3, "platform Host and api_version 4, not for Host and 3"},
      {typed, Platform::kCuda, 4, "platform Host and api_version 4, not for CUDA and 4"},
      {unified, Platform::kHost, 4, "api_version 3"},
      {unified, Platform::kHost, 1, "api_version 3"},
      {cuda, Platform::kHost, 3, "platform CUDA and api_version 2"},
      {cuda, Platform::kCuda, 1, "api_version 2"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(AskHandler(c.handler, c.platform, c.api_version).status().message(),
                HasSubstr(c.message));
  }
}

TEST(AskHandlerTest, AliasesAreOwnHandlers) {
  const Op* op = *OpRegistry::Global().Get("simple_add");
  const int64_t shape[] = {4};
  const TensorView tensor{nullptr, DType::kF32, shape};
  const TensorView args[] = {tensor, tensor};
  const TensorView results[] = {tensor};
  const Attributes none;
  const auto opaque = EncodeOpaque(MakeOpaqueCall("simple_add", Call{args, results, &none}));
  ASSERT_TRUE(opaque.ok());
  const auto alias = AliasHandler(*op, Platform::kHost, 1, *opaque);
  ASSERT_TRUE(alias.ok()) << alias.status().ToString();
  EXPECT_TRUE(AskHandler(*alias, Platform::kHost, 1).ok());
  EXPECT_THAT(AskHandler(*alias, Platform::kHost, 4).status().message(),
              HasSubstr("api_version 1"));
}

// Registration happens beside running threads, which allocate.
TEST(AskHandlerTest, WhileOtherThreadsWork) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&stop] {
      while (!stop) std::string(1 << 12, 'x').resize(1 << 14);
    });
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(AskHandler(Address(&AHandlerOfLargerFrames), Platform::kHost, 4).ok());
    EXPECT_FALSE(AskHandler(Address(&getpid), Platform::kHost, 4).ok());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace xla_gpu::xla
