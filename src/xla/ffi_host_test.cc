// Typed FFI handlers as kernels of the user's: what they are given, and what becomes of their ends.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/strings.h"
#include "src/xla/ffi_state.h"
#include "xla/ffi/api/ffi.h"

namespace xla_gpu::xla {
namespace {

namespace ffi = ::xla::ffi;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using F32 = ffi::Buffer<ffi::F32>;
using F32Result = ffi::Result<F32>;

class FfiHostTest : public ::testing::Test {
 protected:
  // `more`: of the implementation; `definition`: the rest of it.
  Status Run(XLA_FFI_Handler* handler, std::string_view definition = "", std::string_view more = "",
             Platform platform = Platform::kHost, int64_t workspace = 0) {
    const std::string text =
        StrCat(R"({"name":"k","arguments":[{"name":"x"}],"results":[{"name":"out","like":"x"}],)",
               definition, R"("implementations":{")", PlatformName(platform),
               R"(":{"kind":"ffi","address":)", reinterpret_cast<uintptr_t>(handler), more, "}}}");
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Define(text));
    const int64_t dims[] = {2, 2}, bytes[] = {workspace};
    const TensorView args[] = {{x_.data(), DType::kF32, dims}};
    std::vector<TensorView> results = {{out_.data(), DType::kF32, dims}};
    if (workspace > 0) results.push_back({scratch_, DType::kU8, bytes});
    Attributes attributes;
    for (const AttrSpec& attr : op->attrs) {
      if (attr.default_value) {
        XLA_GPU_RETURN_IF_ERROR(attributes.Add(attr.name, *attr.default_value));
      }
    }
    const Call call{args, results, &attributes};
    XLA_GPU_ASSIGN_OR_RETURN(const auto plan,
                             op->make_plan[static_cast<size_t>(platform)](call, 0));
    XLA_GPU_RETURN_IF_ERROR(plan->Run(call, {.stream = this, .thread_pool = pool_.get()}));
    return plan->Run(call, {.stream = this, .thread_pool = pool_.get()});
  }

  std::array<float, 4> x_ = {1, 2, 3, 4}, out_ = {};
  char scratch_[64] = {};
  std::unique_ptr<ThreadPool> pool_ = MakeThreadPool(3);
};

constexpr std::string_view kScalars =
    R"("scalars":[{"name":"f64","type":"f64","default":0.1},{"name":"f32","type":"f32",)"
    R"("default":0.5},{"name":"p","type":"pred","default":true},{"name":"i8","type":"i8",)"
    R"("default":-8},{"name":"i16","type":"i16","default":-16},{"name":"i32","type":"i32",)"
    R"("default":-32},{"name":"i64","type":"i64","default":-64},{"name":"u8","type":"u8",)"
    R"("default":200},{"name":"u16","type":"u16","default":60000},{"name":"u32","type":"u32",)"
    R"("default":4000000000},{"name":"u64","type":"u64","default":64}],)";

XLA_FFI_DEFINE_HANDLER(
    takes_scalars,
    [](F32 x, F32Result out, bool p, int8_t i8, int16_t i16, int32_t i32, int64_t i64, uint8_t u8,
       uint16_t u16, uint32_t u32, uint64_t u64, float f32, double f64) {
      EXPECT_TRUE(p);
      EXPECT_EQ(i8, -8);
      EXPECT_EQ(i16, -16);
      EXPECT_EQ(i32, -32);
      EXPECT_EQ(i64, -64);
      EXPECT_EQ(u8, 200);
      EXPECT_EQ(u16, 60000);
      EXPECT_EQ(u32, 4000000000u);
      EXPECT_EQ(u64, 64u);
      EXPECT_EQ(f64, 0.1);
      EXPECT_THAT(std::vector(x.dimensions().begin(), x.dimensions().end()), ElementsAre(2, 2));
      for (size_t i = 0; i < 4; ++i) out->typed_data()[i] = f32 * x.typed_data()[i];
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind()
        .Arg<F32>()
        .Ret<F32>()
        .Attr<bool>("p")
        .Attr<int8_t>("i8")
        .Attr<int16_t>("i16")
        .Attr<int32_t>("i32")
        .Attr<int64_t>("i64")
        .Attr<uint8_t>("u8")
        .Attr<uint16_t>("u16")
        .Attr<uint32_t>("u32")
        .Attr<uint64_t>("u64")
        .Attr<float>("f32")
        .Attr<double>("f64"));

TEST_F(FfiHostTest, BuffersAndScalars) {
  const Status status = Run(takes_scalars, kScalars);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(out_, ElementsAre(0.5, 1, 1.5, 2));
}

TEST_F(FfiHostTest, WhatTheHandlerDoesNotTakeIsItsError) {
  EXPECT_THAT(Run(takes_scalars).message(), HasSubstr("k: Wrong number of attributes"));
}

XLA_FFI_DEFINE_HANDLER(
    takes_ints, [](ffi::Buffer<ffi::S32>, F32Result) { return ffi::Error::Success(); },
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::S32>>().Ret<F32>());
XLA_FFI_DEFINE_HANDLER(
    fails, [](F32, F32Result) { return ffi::Error(ffi::ErrorCode::kOutOfRange, "too far"); },
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>());
XLA_FFI_DEFINE_HANDLER(
    throws, [](F32, F32Result) -> ffi::Error { throw std::runtime_error("thrown"); },
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>());
XLA_FFI_DEFINE_HANDLER(
    throws_an_int, [](F32, F32Result) -> ffi::Error { throw 1; },
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>());

TEST_F(FfiHostTest, Errors) {
  EXPECT_THAT(Run(takes_ints).message(), HasSubstr("Wrong buffer dtype: expected S32"));
  const Status failed = Run(fails);
  EXPECT_EQ(failed.code(), StatusCode::kOutOfRange);
  EXPECT_EQ(failed.message(), "k: too far");
  EXPECT_THAT(Run(throws).message(), HasSubstr("thrown"));
  EXPECT_EQ(Run(throws_an_int).message(), "k: the handler threw what is no std::exception");
}

XLA_FFI_DEFINE_HANDLER(
    uses_scratch,
    [](F32, F32Result, ffi::ScratchAllocator scratch, int32_t device, ffi::RunId) {
      const auto block = scratch.Allocate(1000, 256);
      EXPECT_EQ(device, 0);
      if (!block) return ffi::Error::Internal("no memory");
      EXPECT_EQ(reinterpret_cast<uintptr_t>(*block) % 256, 0u);
      std::memset(*block, 1, 1000);
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind()
        .Arg<F32>()
        .Ret<F32>()
        .Ctx<ffi::ScratchAllocator>()
        .Ctx<ffi::DeviceOrdinal>()
        .Ctx<ffi::RunId>());

TEST_F(FfiHostTest, ScratchMemory) {
  const Status status = Run(uses_scratch);
  EXPECT_TRUE(status.ok()) << status.message();
}

XLA_FFI_DEFINE_HANDLER(
    uses_workspace,
    [](F32, F32Result, ffi::Result<ffi::Buffer<ffi::U8>> workspace) {
      EXPECT_EQ(workspace->element_count(), 64u);
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Ret<ffi::Buffer<ffi::U8>>());

TEST_F(FfiHostTest, TheWorkspaceIsTheLastResult) {
  const Status status = Run(uses_workspace, R"("workspace":true,)", "", Platform::kHost, 64);
  EXPECT_TRUE(status.ok()) << status.message();
}

XLA_FFI_DEFINE_HANDLER(
    uses_threads,
    [](F32 x, F32Result out, ffi::ThreadPool pool) {
      EXPECT_EQ(pool.num_threads(), 3);
      std::mutex mutex;
      std::condition_variable ended;
      int left = 4;
      for (size_t i = 0; i < 4; ++i) {
        pool.Schedule([&, i] {
          out->typed_data()[i] = x.typed_data()[i] + 1;
          const std::lock_guard<std::mutex> lock(mutex);
          if (--left == 0) ended.notify_all();
        });
      }
      std::unique_lock<std::mutex> lock(mutex);
      ended.wait(lock, [&] { return left == 0; });
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Ctx<ffi::ThreadPool>());
XLA_FFI_DEFINE_HANDLER(
    ends_later,
    [](F32, F32Result, ffi::ThreadPool pool) -> ffi::Future {
      auto promise = std::make_shared<ffi::Promise>();
      ffi::Future future(*promise);
      pool.Schedule([promise] { promise->SetError(ffi::Error::Internal("late")); });
      return future;
    },
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Ctx<ffi::ThreadPool>());

TEST_F(FfiHostTest, Threads) {
  const Status status = Run(uses_threads);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(out_, ElementsAre(2, 3, 4, 5));
  EXPECT_THAT(Run(ends_later).message(), HasSubstr("late"));
}

int states = 0;
struct Kept {
  static ffi::TypeId id;
  Kept() { ++states; }
  ~Kept() { --states; }
  float value = 7;
};
ffi::TypeId Kept::id = {};

XLA_FFI_DEFINE_HANDLER(
    makes_state, []() -> ffi::ErrorOr<std::unique_ptr<Kept>> { return std::make_unique<Kept>(); },
    ffi::Ffi::BindInstantiate());
XLA_FFI_DEFINE_HANDLER(
    reads_state,
    [](F32, F32Result out, Kept* kept) {
      EXPECT_EQ(states, 1);
      *out->typed_data() = kept->value;
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind().Arg<F32>().Ret<F32>().Ctx<ffi::State<Kept>>());

TEST_F(FfiHostTest, StateLivesWithThePlan) {
  Kept::id.type_id = 77;
  const Status status =
      Run(reads_state, "", StrCat(",\"instantiate\":", reinterpret_cast<uintptr_t>(*makes_state)));
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out_[0], 7);
  EXPECT_EQ(states, 0);
  EXPECT_THAT(Run(reads_state).message(), HasSubstr("set no state"));
}

// Handlers of newer headers, by hand: the arguments of their State_Set and _Get, as of FFI 0.2 and
// of 0.3, and what they answer to XLA's metadata call.
struct PlainStateArgs {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_TypeId* type_id;
  void* state;
};
struct StagedStateArgs {
  size_t struct_size;
  void* extension_start;
  XLA_FFI_ExecutionContext* ctx;
  XLA_FFI_ExecutionStage stage;
  XLA_FFI_TypeId* type_id;
  void* state;
};
struct KeptInfo {
  size_t struct_size = sizeof(KeptInfo);
  void* extension_start = nullptr;
  void (*deleter)(void*) = [](void* kept) { delete static_cast<Kept*>(kept); };
} kept_info, short_info{.struct_size = 8},
    data_info{.deleter = reinterpret_cast<void (*)(void*)>(&states)};

bool Tells(XLA_FFI_CallFrame* frame, int minor, int64_t state_type) {
  if (frame->extension_start == nullptr) return false;
  auto* told = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)->metadata;
  told->api_version.major_version = 0;
  told->api_version.minor_version = minor;
  std::memcpy(told + 1, &state_type, sizeof(state_type));
  return true;
}

template <int minor>
XLA_FFI_Error* MakesNewerState(XLA_FFI_CallFrame* frame) {
  if (Tells(frame, minor, Kept::id.type_id)) return nullptr;
  PlainStateArgs plain{sizeof(plain), nullptr, frame->ctx, &Kept::id, new Kept};
  StagedStateArgs staged{sizeof(staged), nullptr, plain.ctx, frame->stage, &Kept::id, plain.state};
  void* const args = minor >= 3 ? static_cast<void*>(&staged) : &plain;
  return frame->api->XLA_FFI_State_Set(static_cast<XLA_FFI_State_Set_Args*>(args));
}

template <int minor, XLA_FFI_ExecutionStage of = XLA_FFI_ExecutionStage_INSTANTIATE>
XLA_FFI_Error* ReadsNewerState(XLA_FFI_CallFrame* frame) {
  if (Tells(frame, minor, 0)) return nullptr;
  PlainStateArgs plain{sizeof(plain), nullptr, frame->ctx, &Kept::id, nullptr};
  StagedStateArgs staged{sizeof(staged), nullptr, frame->ctx, of, &Kept::id, nullptr};
  void* const args = minor >= 3 ? static_cast<void*>(&staged) : &plain;
  XLA_FFI_Error* error = frame->api->XLA_FFI_State_Get(static_cast<XLA_FFI_State_Get_Args*>(args));
  if (error != nullptr) return error;
  auto* out = static_cast<XLA_FFI_Buffer*>(frame->rets.rets[0]);
  const auto* kept = static_cast<Kept*>(minor >= 3 ? staged.state : plain.state);
  *static_cast<float*>(out->data) = kept->value;
  return nullptr;
}

std::string Member(std::string_view name, const void* address) {
  return StrCat(",\"", name, "\":", reinterpret_cast<uintptr_t>(address));
}

TEST_F(FfiHostTest, StateOfNewerHandlers) {
  const std::string makes2 =
      Member("instantiate", reinterpret_cast<const void*>(&MakesNewerState<2>));
  const std::string makes3 =
      Member("instantiate", reinterpret_cast<const void*>(&MakesNewerState<3>));
  const std::string prepares =
      Member("prepare", reinterpret_cast<const void*>(&MakesNewerState<3>));
  const std::string id = Member("type_id", &Kept::id), info = Member("type_info", &kept_info);
  const struct {
    XLA_FFI_Handler* reads;
    std::string more;
    const char* message;  // null: it runs
  } cases[] = {
      {ReadsNewerState<2>, makes2 + id + info, nullptr},
      {ReadsNewerState<3>, makes3 + id + info, nullptr},
      {ReadsNewerState<3>, makes3 + info, nullptr},  // the type has its id by then
      {ReadsNewerState<3>, makes3 + id, "state of an unknown type; its type_id and type_info"},
      {ReadsNewerState<3>, makes3 + Member("type_id", &kScalars) + info, "where no variable lies"},
      {ReadsNewerState<3>, makes3 + id + Member("type_info", &short_info), "no XLA_FFI_TypeInfo"},
      {ReadsNewerState<3>, makes3 + id + Member("type_info", &data_info), "no XLA_FFI_TypeInfo"},
      {ReadsNewerState<3>, prepares + id + info, "the prepare stage makes a state"},
      {ReadsNewerState<3>, id + info, "set no state"},
      {ReadsNewerState<3, XLA_FFI_ExecutionStage_PREPARE>, makes3 + id + info,
       "the state of an instantiate stage alone is kept"},
  };
  Kept::id.type_id = 0;
  for (const auto& c : cases) {
    out_ = {};
    const Status status = Run(c.reads, "", c.more);
    EXPECT_EQ(status.ok(), c.message == nullptr) << c.more << status.message();
    if (c.message == nullptr) {
      EXPECT_EQ(out_[0], 7);
    } else {
      EXPECT_THAT(status.message(), HasSubstr(c.message));
    }
    EXPECT_EQ(states, 0);
  }
}

// As newer headers do, in any build: they end the process.
XLA_FFI_Error* Asserts(XLA_FFI_CallFrame* frame) {
  if (Tells(frame, 3, 0)) return nullptr;
  std::fputs("type_id > 0 && \"type must be registered with XLA FFI\"' failed.\n", stderr);
  std::abort();
}

TEST_F(FfiHostTest, AStateOfATypeWithoutAnIdIsRefused) {
  EXPECT_THAT(Run(Asserts).message(), HasSubstr("takes a state whose type has no id"));
  EXPECT_TRUE(MayAssertStateType(reinterpret_cast<const void*>(&Asserts)));
  EXPECT_FALSE(MayAssertStateType(dlsym(RTLD_DEFAULT, "getpid")));
  EXPECT_TRUE(MayAssertStateType(&x_)) << "it is of no library";
}

// A handler of FFI 0.`minor` that calls a member behind the table's.
template <int major, int minor>
XLA_FFI_Error* Newer(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr) {
    auto* told = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)->metadata;
    told->api_version.major_version = major;
    told->api_version.minor_version = minor;
    return nullptr;
  }
  EXPECT_EQ(frame->api->api_version.minor_version, XLA_FFI_API_MINOR);
  EXPECT_EQ(frame->api->struct_size, static_cast<size_t>(XLA_FFI_Api_STRUCT_SIZE));
  XLA_FFI_Error* (*member)(void*);
  std::memcpy(&member, reinterpret_cast<const char*>(frame->api) + XLA_FFI_Api_STRUCT_SIZE,
              sizeof(member));
  return member(nullptr);
}

TEST_F(FfiHostTest, Versions) {
  EXPECT_THAT(Run(Newer<0, 9>).message(),
              HasSubstr("k: the handler calls a function of XLA's FFI"));
  EXPECT_THAT(Run(Newer<1, 0>).message(), HasSubstr("XLA FFI 1.0"));
}

XLA_FFI_Error* NoHandler(XLA_FFI_CallFrame*) { return nullptr; }

TEST_F(FfiHostTest, WhatIsNoHandler) {
  EXPECT_THAT(Run(NoHandler).message(), HasSubstr("is no typed FFI handler"));
}

TEST_F(FfiHostTest, OnCuda) {
  constexpr std::string_view kNoCapture = R"("capture":false,)";
  EXPECT_THAT(Run(fails, "", "", Platform::kCuda).message(), HasSubstr("capture is true"));
  EXPECT_THAT(Run(uses_scratch, kNoCapture, "", Platform::kCuda).message(),
              HasSubstr("declare the kernel's `workspace`"));
}

}  // namespace
}  // namespace xla_gpu::xla
