// Where memory is short, every door gives a Status (or what can be done without that memory), and
// the process lives on: each call is made with each of its allocations failing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "src/capi/internal.h"
#include "src/capi/test_util.h"
#include "src/core/op_registry.h"
#include "src/xla/fake_ffi_runtime.h"
#include "src/xla/typed_ffi.h"

namespace {

enum class Mode { kOneFails, kAllFailFromThere };
constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;
std::atomic<int64_t> allocations_left{kNever};
Mode mode = Mode::kOneFails;

void* Allocate(size_t size, size_t alignment) {
  const int64_t left = allocations_left.fetch_sub(1);
  if (left == 0 || (left < 0 && mode == Mode::kAllFailFromThere)) throw std::bad_alloc();
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), size) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new[](size_t size) { return Allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
// As the standard library's: a sanitizer's would take its memory elsewhere.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace xla_gpu {
namespace {

using OutOfMemoryTest = ForkingTest;

// Makes `call` (which returns an xla_gpu_status*) in a fresh process with its first, second, ...
// allocation failing, until it needs no more. `right`: whether what it did without is right.
template <typename Call, typename Right>
void FailEachAllocation(Call call, Right right) {
  for (const Mode tried : {Mode::kOneFails, Mode::kAllFailFromThere}) {
    enum { kDone, kRefused, kWrong };
    int end = kRefused;
    int n = 0;
    for (; end == kRefused; ++n) {
      end = InChild([&] {
        mode = tried;
        allocations_left = n;
        xla_gpu_status* status = call();
        const bool refused = allocations_left < 0;
        allocations_left = kNever;
        const int code = xla_gpu_status_code(status);
        const std::string message = Take(status);
        if (code == 0 ? !right() : message.find("out of memory") == std::string::npos) {
          std::fprintf(stderr, "code %d: %s\n", code, message.c_str());
          return kWrong;
        }
        // With memory again, everything works again.
        if (code != 0 && (Take(call()) != "" || !right())) return kWrong;
        if (!refused && code != 0) return kWrong;
        return refused ? kRefused : kDone;
      });
    }
    ASSERT_EQ(end, kDone) << "allocation " << n << (tried == Mode::kOneFails ? "" : " and later");
    EXPECT_GT(n, 1);
  }
}

bool Done() { return true; }

TEST_F(OutOfMemoryTest, Decode) {
  AttentionCall attention;
  FailEachAllocation([&] { return xla_gpu_run(attention.WithScale(1.0)); },
                     [&] { return attention.IsRight(); });
}

TEST_F(OutOfMemoryTest, Prefill) {
  AttentionCall attention(16);
  FailEachAllocation([&] { return xla_gpu_run(attention.WithScale(1.0)); },
                     [&] { return attention.IsRight(); });
}

TEST_F(OutOfMemoryTest, CallsWithoutData) {
  AttentionCall attention;
  const xla_gpu_call* call = attention.WithScale(1.0);
  char* text = nullptr;
  void* handler = nullptr;
  FailEachAllocation([&] { return xla_gpu_infer(call, &text); }, Done);
  FailEachAllocation([&] { return xla_gpu_opaque(call, &text); }, Done);
  FailEachAllocation([&] { return xla_gpu_stablehlo(call, &text); }, Done);
  ASSERT_EQ(Take(xla_gpu_opaque(call, &text)), "");
  FailEachAllocation([&] { return xla_gpu_alias("paged_attention", "Host", 2, text, &handler); },
                     Done);
  xla_gpu_string_free(text);
}

// The runtime's side of a typed call, which itself needs no memory.
XLA_FFI_Error the_error;
xla_gpu_status* RunFrame(xla::FakeCallFrame& frame) {
  XLA_FFI_Api api = *xla::FakeFfiApi();
  static int code;
  code = 0;
  api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
    code = args->errc;
    return &the_error;
  };
  XLA_FFI_CallFrame* call = frame.frame();
  call->api = &api;
  const Op& op = *OpRegistry::Global().Find("simple_add");
  if (xla::TypedHandler(op, Platform::kHost)(call) == nullptr) return nullptr;
  return code == static_cast<int>(StatusCode::kResourceExhausted) ? OutOfMemory() : nullptr;
}

TEST_F(OutOfMemoryTest, TypedCall) {
  constexpr int64_t kSize = 1 << 18;
  std::vector<float> a(kSize, 1.0f), b(kSize, 2.0f), c(kSize);
  xla::FakeCallFrame frame(XLA_FFI_ExecutionStage_EXECUTE);
  frame.AddArg(a.data(), XLA_FFI_DataType_F32, {kSize});
  frame.AddArg(b.data(), XLA_FFI_DataType_F32, {kSize});
  frame.AddResult(c.data(), XLA_FFI_DataType_F32, {kSize});
  frame.context().num_threads = 4;
  FailEachAllocation([&] { return RunFrame(frame); },
                     [&] { return std::ranges::count(c, 3.0f) == kSize; });
}

// A legacy call has no way to tell its error, but results of which the types are known say it.
TEST_F(OutOfMemoryTest, LegacyCall) {
  AttentionCall attention;
  const xla_gpu_call* call = attention.WithScale(1.0);
  char* text = nullptr;
  void* handler = nullptr;
  ASSERT_EQ(Take(xla_gpu_opaque(call, &text)), "");
  ASSERT_EQ(Take(xla_gpu_alias("paged_attention", "Host", 2, text, &handler)), "");
  const void* in[6];
  for (int i = 0; i < 6; ++i) in[i] = call->args[i].data;
  auto* function = reinterpret_cast<void (*)(void*, const void**, void*)>(handler);
  testing::internal::CaptureStderr();  // the error goes there, from each process
  FailEachAllocation(
      [&]() -> xla_gpu_status* {
        function(call->results[0].data, in, nullptr);
        return nullptr;
      },
      [&] { return attention.IsNan() || attention.IsRight(); });
  EXPECT_NE(testing::internal::GetCapturedStderr().find("out of memory"), std::string::npos);
  xla_gpu_string_free(text);
}

TEST_F(OutOfMemoryTest, Schema) {
  FailEachAllocation(
      [] {
        char* text = xla_gpu_ops_json();
        xla_gpu_string_free(text);
        return text == nullptr ? OutOfMemory() : nullptr;
      },
      Done);
}

}  // namespace
}  // namespace xla_gpu
