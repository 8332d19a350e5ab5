// The typed door against call frames of every kind: what it decodes, what it refuses, and what it
// asks of runtimes older and newer than its headers.
#include "src/xla/typed_ffi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/strings.h"
#include "src/xla/fake_ffi_runtime.h"

namespace xla_gpu::xla {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What the last run of the op saw.
struct Seen {
  int plans = 0, runs = 0;
  std::string attributes;
  void* stream = nullptr;
  int num_threads = 0;
  std::atomic<int> tasks = 0;
} seen;

class RecordingPlan final : public Plan {
 public:
  Status Run(const Call& call, const ExecutionContext& context) const override {
    ++seen.runs;
    seen.stream = context.stream;
    for (const Attribute& attribute : call.attributes->all()) {
      seen.attributes += StrCat(attribute.name, "=", AttrToString(attribute.value), " ");
    }
    const std::string_view fails = call.attributes->GetString("fails");
    if (fails == "bad_alloc") throw std::bad_alloc();
    if (fails == "exception") throw std::runtime_error("thrown");
    if (fails == "status") return Unavailable("record: busy");
    if (context.thread_pool != nullptr) {
      seen.num_threads = context.thread_pool->num_threads();
      context.thread_pool->ParallelFor(64, [](int64_t) { ++seen.tasks; });
    }
    return OkStatus();
  }
};

StatusOr<std::unique_ptr<Plan>> MakePlan(const Call&, int) {
  ++seen.plans;
  return std::unique_ptr<Plan>(std::make_unique<RecordingPlan>());
}

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform) {
  return std::vector<TensorSpec>{
      {call.args[0].dtype, {call.args[0].shape.begin(), call.args[0].shape.end()}}};
}

Op MakeRecord() {
  return Op{.name = "record",
            .target = "xla_gpu_record",
            .doc = "For tests.",
            .args = {{"x", {DType::kF32}, "any"}},
            .results = {{"out", "as x"}},
            .attrs = {{"b", AttrType::kBool, "", false},
                      {"i", AttrType::kInt, "", int64_t{0}},
                      {"j", AttrType::kInt, "", int64_t{0}},
                      {"k", AttrType::kInt, "", int64_t{0}},
                      {"f", AttrType::kFloat, "", 0.0},
                      {"g", AttrType::kFloat, "", 0.0},
                      {"fails", AttrType::kString, "", std::string_view()},
                      {"m", AttrType::kIntArray, "", std::span<const int64_t>()},
                      {"n", AttrType::kIntArray, "", std::span<const int64_t>()}},
            .infer = Infer,
            .make_plan = {MakePlan, MakePlan}};
}
XLA_GPU_REGISTER_OP(MakeRecord());

struct Outcome {
  int code = 0;
  std::string message;
};

Outcome CallOp(XLA_FFI_CallFrame* frame, Platform platform = Platform::kHost) {
  XLA_FFI_Error* error = TypedHandler(**OpRegistry::Global().Get("record"), platform)(frame);
  const int code = error == nullptr ? 0 : static_cast<int>(error->code);
  return {code, TakeMessage(error)};
}

std::string Bytes(const auto& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])};
}

class TypedFfiTest : public ::testing::Test {
 protected:
  TypedFfiTest() {
    PlanCache::Global().Clear();
    seen.plans = seen.runs = seen.num_threads = 0;
    seen.tasks = 0;
    seen.attributes.clear();
    seen.stream = nullptr;
  }

  void AddTensors(FakeCallFrame& frame) {
    frame.AddArg(in_, XLA_FFI_DataType_F32, {4});
    frame.AddResult(out_, XLA_FFI_DataType_F32, {4});
  }

  float in_[4] = {}, out_[4] = {};
  FakeCallFrame frame_{XLA_FFI_ExecutionStage_EXECUTE};
};

TEST_F(TypedFfiTest, AttributesOfEveryKindArrive) {
  AddTensors(frame_);
  frame_.AddScalar<uint8_t>("b", XLA_FFI_DataType_PRED, 1);
  frame_.AddScalar<int32_t>("i", XLA_FFI_DataType_S32, -7);
  frame_.AddScalar<uint32_t>("j", XLA_FFI_DataType_U32, 4000000000u);
  frame_.AddScalar<int64_t>("k", XLA_FFI_DataType_S64, INT64_MIN);
  frame_.AddScalar<float>("f", XLA_FFI_DataType_F32, 0.5f);
  frame_.AddScalar<double>("g", XLA_FFI_DataType_F64, 0.25);
  frame_.AddString("fails", "no");
  frame_.AddArray("m", XLA_FFI_DataType_S64, 2, Bytes(std::vector<int64_t>{-1, INT64_MAX}));
  frame_.AddArray("n", XLA_FFI_DataType_S32, 2, Bytes(std::vector<int32_t>{-1, INT32_MAX}));
  EXPECT_EQ(CallOp(frame_.frame()).message, "");
  EXPECT_EQ(seen.attributes,
            "b=true i=-7 j=4000000000 k=-9223372036854775808 f=0.5 g=0.25 fails=\"no\" "
            "m=[-1,9223372036854775807] n=[-1,2147483647] ");
}

TEST_F(TypedFfiTest, EmptyArraysHaveNoData) {
  AddTensors(frame_);
  frame_.AddArray("m", XLA_FFI_DataType_S64, 0, "");
  frame_.AddArray("n", XLA_FFI_DataType_S32, 0, "");
  EXPECT_EQ(CallOp(frame_.frame()).message, "");
  EXPECT_EQ(seen.attributes, "m=[] n=[] ");
}

TEST_F(TypedFfiTest, BadFramesAreRefused) {
  float data[4];
  const auto many = [](int n, auto add) {
    return [n, add](FakeCallFrame& frame) {
      for (int i = 0; i < n; ++i) add(frame, i);
    };
  };
  const struct {
    std::function<void(FakeCallFrame&)> add;  // to a call that is right
    std::function<void(XLA_FFI_CallFrame&)> change;
    const char* message;
  } cases[] = {
      {[](auto& f) { f.AddToken(); }, {}, "argument 1 is no buffer; tokens are not supported"},
      {[&](auto& f) { f.AddArg(data, XLA_FFI_DataType_F32, {4}); },
       [](auto& f) { f.args.args[1] = nullptr; }, "argument 1 is no buffer"},
      {{},
       [](auto& f) { f.rets.types[0] = static_cast<XLA_FFI_RetType>(7); },
       "result 0 is no buffer"},
      {many(64, [&](auto& f, int) { f.AddArg(data, XLA_FFI_DataType_F32, {4}); }),
       {},
       "65 arguments"},
      {many(64, [&](auto& f, int) { f.AddResult(data, XLA_FFI_DataType_F32, {4}); }),
       {},
       "65 results"},
      {{}, [](auto& f) { f.args.size = -1; }, "arguments"},
      {[&](auto& f) { f.AddArg(data, XLA_FFI_DataType_F32, std::vector<int64_t>(33, 1)); },
       {},
       "argument 1"},
      {[&](auto& f) { f.AddArg(data, XLA_FFI_DataType_F32, {4}, /*null_dims=*/true); },
       {},
       "argument 1"},
      {[&](auto& f) { f.AddArg(data, XLA_FFI_DataType_F32, {4}); }, {}, "2 arguments"},
      {[&](auto& f) { f.AddResult(data, XLA_FFI_DataType_F32, {4}); }, {}, "2 results"},
      {{},
       [](auto& f) {
         static_cast<XLA_FFI_Buffer*>(f.args.args[0])->dtype = static_cast<XLA_FFI_DataType>(99);
       },
       "argument 0 has XLA dtype number 99, which xla_gpu does not know"},
      {{},
       [](auto& f) { static_cast<XLA_FFI_Buffer*>(f.args.args[0])->dtype = XLA_FFI_DataType_S32; },
       "i32[4]"},
      {{}, [](auto& f) { static_cast<XLA_FFI_Buffer*>(f.args.args[0])->data = nullptr; }, "null"},
      {[](auto& f) { f.AddDictionary("d"); },
       {},
       "attribute 'd' is a dictionary; allowed are scalars, strings and arrays of integers"},
      {[](auto& f) { f.AddString("fails", ""); },
       [](auto& f) { f.attrs.types[0] = static_cast<XLA_FFI_AttrType>(9); },
       "attribute 'fails' is a dictionary"},
      {[](auto& f) { f.template AddScalar<uint8_t>("i", XLA_FFI_DataType_U8, 1); },
       {},
       "attribute 'i' is a scalar of XLA dtype number 6; allowed are i1, i32, ui32, i64, f32"},
      {[](auto& f) { f.template AddScalar<uint8_t>("i", 99, 1); }, {}, "XLA dtype number 99"},
      {[](auto& f) { f.AddArray("m", XLA_FFI_DataType_F32, 1, "1234"); },
       {},
       "attribute 'm' is an array of 1 elements of XLA dtype number 11; allowed are i64"},
      {[](auto& f) { f.AddArray("m", XLA_FFI_DataType_S32, 257, std::string(257 * 4, '\0')); },
       {},
       "an array of 257 elements of XLA dtype number 4; allowed are i64, or i32 up to 256"},
      {many(33,
            [](auto& f, int i) {
              f.template AddScalar<int64_t>(StrCat("a", i), XLA_FFI_DataType_S64, i);
            }),
       {},
       "the call has 33 attributes; at most 32 are supported"},
      {{}, [](auto& f) { f.attrs.size = -1; }, "the call has -1 attributes"},
      {many(2, [](auto& f, int) { f.template AddScalar<int64_t>("i", XLA_FFI_DataType_S64, 1); }),
       {},
       "'i'"},
      {[](auto& f) { f.AddString("x", ""); }, {}, "unknown attribute 'x'"},
      {[](auto& f) { f.AddString("i", ""); }, {}, "'i'"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    for (const auto stage : {XLA_FFI_ExecutionStage_INSTANTIATE, XLA_FFI_ExecutionStage_EXECUTE}) {
      if (stage == XLA_FFI_ExecutionStage_INSTANTIATE && c.message == std::string("null")) continue;
      FakeCallFrame built(stage);
      AddTensors(built);
      if (c.add) c.add(built);
      XLA_FFI_CallFrame* frame = built.frame();
      if (c.change) c.change(*frame);
      const Outcome outcome = CallOp(frame);
      EXPECT_EQ(outcome.code, XLA_FFI_Error_Code_INVALID_ARGUMENT);
      EXPECT_THAT(outcome.message, StartsWith("record: "));
      EXPECT_THAT(outcome.message, HasSubstr(c.message));
    }
  }
  EXPECT_EQ(seen.runs, 0);
}

TEST_F(TypedFfiTest, StagesOtherThanExecuteRunNothing) {
  const auto run = [](XLA_FFI_ExecutionStage stage, bool types) {
    FakeCallFrame frame(stage);
    if (types) {
      frame.AddArg(nullptr, XLA_FFI_DataType_F32, {4});
      frame.AddResult(nullptr, XLA_FFI_DataType_F32, {4});
    }
    return CallOp(frame.frame()).message;
  };
  EXPECT_EQ(run(XLA_FFI_ExecutionStage_INSTANTIATE, false), "") << "as CPU runtimes do";
  EXPECT_EQ(run(XLA_FFI_ExecutionStage_PREPARE, true), "");
  EXPECT_EQ(run(XLA_FFI_ExecutionStage_INITIALIZE, true), "");
  EXPECT_EQ(seen.plans, 0);
  EXPECT_EQ(run(XLA_FFI_ExecutionStage_INSTANTIATE, true), "");
  EXPECT_EQ(seen.plans, 1) << "made while XLA compiles";
  EXPECT_EQ(seen.runs, 0);
  AddTensors(frame_);
  EXPECT_EQ(CallOp(frame_.frame()).message, "");
  EXPECT_EQ(seen.plans, 1) << "and used when it runs";
  EXPECT_EQ(seen.runs, 1);
}

TEST_F(TypedFfiTest, MetadataIsAnsweredForEachPlatform) {
  for (const Platform platform : {Platform::kHost, Platform::kCuda}) {
    XLA_FFI_Metadata metadata{};
    metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
    XLA_FFI_Metadata_Extension extension{};
    extension.extension_base.struct_size = XLA_FFI_Metadata_Extension_STRUCT_SIZE;
    extension.extension_base.type = XLA_FFI_Extension_Metadata;
    extension.metadata = &metadata;
    XLA_FFI_CallFrame frame{};  // as runtimes send it: nothing else, not even the API
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.extension_start = &extension.extension_base;
    EXPECT_EQ(CallOp(&frame, platform).message, "");
    EXPECT_EQ(metadata.api_version.major_version, 0);
    EXPECT_EQ(metadata.api_version.minor_version, 1);
    EXPECT_EQ(metadata.traits, platform == Platform::kCuda ? 1u : 0u);
  }
  // An extension that a later version may add is none of ours.
  AddTensors(frame_);
  XLA_FFI_Extension_Base unknown{sizeof(unknown), static_cast<XLA_FFI_Extension_Type>(77), nullptr};
  XLA_FFI_CallFrame* frame = frame_.frame();
  frame->extension_start = &unknown;
  EXPECT_EQ(CallOp(frame).message, "");
  EXPECT_EQ(seen.runs, 1);
}

TEST_F(TypedFfiTest, ErrorsOfThePlanReachTheRuntime) {
  const struct {
    const char* fails;
    int code;
    const char* message;
  } cases[] = {
      {"status", XLA_FFI_Error_Code_UNAVAILABLE, "record: busy"},
      {"bad_alloc", XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "memory"},
      {"exception", XLA_FFI_Error_Code_INTERNAL, "thrown"},
  };
  for (const auto& c : cases) {
    FakeCallFrame frame(XLA_FFI_ExecutionStage_EXECUTE);
    AddTensors(frame);
    frame.AddString("fails", c.fails);
    const Outcome outcome = CallOp(frame.frame());
    EXPECT_EQ(outcome.code, c.code) << outcome.message;
    EXPECT_THAT(outcome.message, HasSubstr(c.message));
  }
}

TEST_F(TypedFfiTest, TheStreamIsTheRuntimes) {
  AddTensors(frame_);
  frame_.context().stream = &seen;
  EXPECT_EQ(CallOp(frame_.frame(), Platform::kCuda).message, "");
  EXPECT_EQ(seen.stream, &seen);
  EXPECT_EQ(seen.num_threads, 0);

  XLA_FFI_Api api = *FakeFfiApi();
  XLA_FFI_CallFrame* frame = frame_.frame();
  frame->api = &api;
  api.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args*) {
    return new XLA_FFI_Error{"no stream here", XLA_FFI_Error_Code_NOT_FOUND};
  };
  const Outcome refused = CallOp(frame, Platform::kCuda);
  EXPECT_EQ(refused.code, XLA_FFI_Error_Code_INTERNAL);
  EXPECT_EQ(refused.message, "no stream here");
  api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
    args->message = nullptr;
  };
  EXPECT_EQ(CallOp(frame, Platform::kCuda).message, "unknown XLA FFI error");
  EXPECT_EQ(seen.runs, 1);
}

TEST_F(TypedFfiTest, TheThreadsAreTheRuntimesWhereItLendsThem) {
  AddTensors(frame_);
  frame_.context().num_threads = 1000;
  EXPECT_EQ(CallOp(frame_.frame()).message, "");
  EXPECT_EQ(seen.num_threads, 1000);
  EXPECT_EQ(seen.tasks, 64);
}

TEST_F(TypedFfiTest, OwnThreadsWhereTheRuntimeHasNone) {
  AddTensors(frame_);
  XLA_FFI_Api api = *FakeFfiApi();
  XLA_FFI_CallFrame* frame = frame_.frame();
  frame->api = &api;
  const auto expect_own = [&](const char* why) {
    SCOPED_TRACE(why);
    seen.num_threads = seen.tasks = 0;
    EXPECT_EQ(CallOp(frame).message, "");
    EXPECT_EQ(seen.num_threads, DefaultThreadPool().num_threads());
    EXPECT_EQ(seen.tasks, 64);
  };
  expect_own("NumThreads is an error");
  frame_.context().num_threads = -3;
  expect_own("a negative number");
  frame_.context().num_threads = 1000;
  api.struct_size = offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule);
  api.XLA_FFI_ThreadPool_NumThreads = nullptr;
  api.XLA_FFI_ThreadPool_Schedule = nullptr;
  expect_own("an API older than thread pools");
}

TEST_F(TypedFfiTest, ANewerApiIsUsedAsFarAsItIsKnown) {
  AddTensors(frame_);
  struct {
    XLA_FFI_Api api;
    void* later[4] = {};
  } newer{*FakeFfiApi()};
  newer.api.struct_size = sizeof(newer);
  newer.api.api_version.minor_version = 99;
  frame_.context().num_threads = 1000;
  XLA_FFI_CallFrame* frame = frame_.frame();
  frame->api = &newer.api;
  frame->struct_size += 64;
  EXPECT_EQ(CallOp(frame).message, "");
  EXPECT_EQ(seen.num_threads, 1000);
}

TEST_F(TypedFfiTest, APoolMayRefuseOrComeLate) {
  AddTensors(frame_);
  frame_.context().num_threads = 4;
  XLA_FFI_Api api = *FakeFfiApi();
  XLA_FFI_CallFrame* frame = frame_.frame();
  frame->api = &api;
  api.XLA_FFI_ThreadPool_Schedule = [](XLA_FFI_ThreadPool_Schedule_Args*) {
    return new XLA_FFI_Error{"shut down", XLA_FFI_Error_Code_UNAVAILABLE};
  };
  EXPECT_EQ(CallOp(frame).message, "");
  EXPECT_EQ(seen.tasks, 64) << "the caller's thread did all";

  static std::vector<std::thread> threads;
  api.XLA_FFI_ThreadPool_Schedule = [](XLA_FFI_ThreadPool_Schedule_Args* args) -> XLA_FFI_Error* {
    threads.emplace_back(args->task, args->data);
    return nullptr;
  };
  seen.tasks = 0;
  EXPECT_EQ(CallOp(frame).message, "");
  EXPECT_EQ(seen.tasks, 64);
  EXPECT_FALSE(threads.empty());
  for (std::thread& thread : threads) thread.join();
}

TEST(TypedHandler, EachOpAndPlatformHasItsOwn) {
  std::set<XLA_FFI_Handler*> handlers;
  for (const auto& op : OpRegistry::Global().ops()) {
    for (const Platform platform : {Platform::kHost, Platform::kCuda}) {
      EXPECT_TRUE(handlers.insert(TypedHandler(*op, platform)).second) << op->name;
      EXPECT_EQ(TypedHandler(*op, platform), TypedHandler(*op, platform));
    }
  }
}

}  // namespace
}  // namespace xla_gpu::xla
