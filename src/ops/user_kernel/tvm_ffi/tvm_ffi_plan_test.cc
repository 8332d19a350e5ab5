// TVM-FFI functions as ops, against a libtvm_ffi of the test's own; tests/tvm_ffi has the real one.
// On CUDA with a driver (tests/cuda/fake_libcuda.cc) whose device memory is the host's.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/strings.h"
#include "src/ops/user_kernel/tvm_ffi/fake_tvm_ffi.h"

// One test asks for more memory than there is, which sanitizers shall say as malloc does.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}
// NOLINTEND(bugprone-reserved-identifier)

namespace xla_gpu::user_kernel {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using tvm_ffi::Any;
using tvm_ffi::FakeBody;
using tvm_ffi::TensorOf;
using tvm_ffi::TVMFFIEnvGetStream;
using tvm_ffi::TVMFFIObjectDecRef;
using tvm_ffi::TVMFFIObjectIncRef;

constexpr int64_t kSize = 100;  // f32 elements of most tensors
constexpr int64_t kBytes = kSize * static_cast<int64_t>(sizeof(float));

class TvmFfiPlanTest : public ::testing::TestWithParam<Platform> {
 protected:
  static void SetUpTestSuite() {
    if (const char* driver = std::getenv("XLA_GPU_FAKE_DRIVER")) dlopen(driver, RTLD_NOW);
  }
  void SetUp() override {
    if (GetParam() == Platform::kCuda && std::getenv("XLA_GPU_FAKE_DRIVER") == nullptr) {
      GTEST_SKIP() << "XLA_GPU_FAKE_DRIVER is not set (ctest sets it)";
    }
    objects_before_ = tvm_ffi::num_objects;
  }

  dlpack::Device device() const {
    return GetParam() == Platform::kHost ? dlpack::Device{dlpack::kCpu, 0}
                                         : dlpack::Device{dlpack::kCuda, 0};
  }
  Any Allocate(DType dtype = DType::kF32, std::vector<int64_t> shape = {kSize}) const {
    return tvm_ffi::Allocate(device(), dtype, std::move(shape));
  }

  // Defines an op of the function: an argument x and `num_results` results like it. `parameters`:
  // JSON; `members`: more of the implementation's.
  const Op& Define(FakeBody body, int num_results = 1, const std::string& parameters = R"(["x"])",
                   const std::string& members = "") {
    auto* const function = Publish(std::make_unique<tvm_ffi::FakeFunction>(std::move(body)));
    std::string results;
    for (int i = 0; i < num_results; ++i) {
      results += StrCat(i == 0 ? "" : ",", R"({"name":"r)", i, R"(","like":"x"})");
    }
    const auto op = OpRegistry::Global().Define(StrCat(
        R"({"name":"test","arguments":[{"name":"x"},{"name":"y","optional":true}],"results":[)",
        results, R"(],"workspace":true,"implementations":{")", PlatformName(GetParam()),
        R"(":{"kind":"tvm_ffi","address":)", reinterpret_cast<uintptr_t>(function),
        R"(,"parameters":)", parameters, members, "}}}"));
    EXPECT_TRUE(op.ok()) << op.status().ToString();
    return **op;
  }

  struct Outcome {
    Status status;
    std::vector<std::vector<float>> results;
  };
  Outcome Run(const Op& op, size_t num_results = 1, int64_t workspace_bytes = 0, float x = 1) {
    Outcome outcome{{}, std::vector(num_results, std::vector<float>(kSize, -1))};
    std::vector<float> input(kSize, x);
    alignas(256) static thread_local char workspace[1 << 16];
    const int64_t shape[] = {kSize}, workspace_shape[] = {workspace_bytes};
    const TensorView args[] = {{input.data(), DType::kF32, shape}};
    std::vector<TensorView> results;
    for (auto& result : outcome.results) results.push_back({result.data(), DType::kF32, shape});
    Attributes attributes;
    if (workspace_bytes != 0) {
      results.push_back({workspace, DType::kU8, workspace_shape});
      EXPECT_TRUE(attributes.Add("workspace_bytes", workspace_bytes).ok());
    }
    outcome.status = RunOp(op, GetParam(), {args, results, &attributes}, {.stream = kStream});
    EXPECT_EQ(tvm_ffi::environment.allocate, nullptr) << "the allocator was not put back";
    EXPECT_EQ(TVMFFIEnvGetStream(dlpack::kCuda, 0), nullptr) << "the stream was not put back";
    return outcome;
  }

  static inline void* const kStream = reinterpret_cast<void*>(0x5ea);
  int64_t objects_before_ = 0;
};

void Fill(const Any& tensor, float value) {
  std::fill_n(static_cast<float*>(dlpack::DataOf(TensorOf(tensor))), kSize, value);
}
float First(const Any& tensor) {
  return *static_cast<const float*>(dlpack::DataOf(TensorOf(tensor)));
}

TEST_P(TvmFfiPlanTest, ViewsScalarsAndStream) {
  std::vector<Any> came;
  const Op& op = Define(
      [&](std::span<const Any> args, Any* result) {
        EXPECT_EQ(result->type_index, tvm_ffi::kNone);
        came.assign(args.begin(), args.end());
        EXPECT_EQ(TVMFFIEnvGetStream(dlpack::kCuda, 0),
                  GetParam() == Platform::kCuda ? kStream : nullptr);
        const dlpack::Tensor& x = TensorOf(args[0]);
        EXPECT_EQ(x.device, device());
        EXPECT_EQ(x.rank, 1);
        EXPECT_EQ(x.shape[0], kSize);
        EXPECT_EQ(x.strides[0], 1);
        EXPECT_EQ(x.dtype, (dlpack::DataType{2, 32, 1}));
        Fill(args[1], 2 * First(args[0]));
        return true;
      },
      1,
      R"(["x","r0","y","stream",{"value":-3,"type":"i8"},{"value":250,"type":"u8"},)"
      R"({"value":0.1,"type":"f32"},{"value":0.1,"type":"f64"},{"value":true,"type":"pred"},)"
      R"({"elements_of":"x","type":"i32"}])");
  const Outcome outcome = Run(op, 1, 0, 21);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
  EXPECT_EQ(outcome.results[0][99], 42);
  ASSERT_EQ(came.size(), 10u);
  EXPECT_EQ(came[0].type_index, tvm_ffi::kTensorPtr);
  EXPECT_EQ(came[2].type_index, tvm_ffi::kNone) << "an absent argument";
  if (GetParam() == Platform::kCuda) {
    EXPECT_EQ(came[3].type_index, tvm_ffi::kOpaquePtr);
    EXPECT_EQ(came[3].pointer, kStream);
  } else {
    EXPECT_EQ(came[3].type_index, tvm_ffi::kNone);
  }
  EXPECT_EQ(came[4].i, -3);
  EXPECT_EQ(came[5].i, 250);
  EXPECT_EQ(came[6].f, double{0.1F});
  EXPECT_EQ(came[7].f, 0.1);
  EXPECT_EQ(came[8].type_index, tvm_ffi::kBool);
  EXPECT_EQ(came[8].i, 1);
  EXPECT_EQ(came[9].i, kSize);
}

TEST_P(TvmFfiPlanTest, OwnedTensorsLiveAsLongAsTheyAreKept) {
  Any kept{};
  const Op& op = Define(
      [&](std::span<const Any> args, Any*) {
        EXPECT_EQ(args[0].type_index, tvm_ffi::kTensor);
        Fill(args[1], 7);
        if (First(args[0]) == 0) {
          kept = args[0];
          TVMFFIObjectIncRef(kept.object);
        }
        return true;
      },
      1, R"(["x","r0"])", R"(,"owned":true)");
  const int64_t before = tvm_ffi::num_objects;
  EXPECT_EQ(Run(op).results[0][5], 7);
  EXPECT_EQ(tvm_ffi::num_objects, before);
  EXPECT_THAT(Run(op, 1, 0, 0).status.message(),
              StartsWith("test: the function keeps 1 of the call's tensors"));
  EXPECT_EQ(TensorOf(kept).shape[0], kSize) << "what is kept has no data, but a type";
  TVMFFIObjectDecRef(kept.object);
  EXPECT_EQ(tvm_ffi::num_objects, before);
  EXPECT_TRUE(Run(op).status.ok());
}

// The rule of call_memory.h: whatever the function allocates before, between and after its results,
// and in whatever order it returns them.
TEST_P(TvmFfiPlanTest, AnyOrderOfAllocationsIsRight) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto num_results = 1 + random() % 5;
    const auto num_allocations = num_results + random() % 5;
    std::vector<size_t> order(num_allocations);  // order[i]: the allocation that result i is
    std::iota(order.begin(), order.end(), size_t{0});
    const auto shuffle = [&] { std::shuffle(order.begin(), order.end(), random); };
    shuffle();
    const bool frees_scratch = random() % 2 == 0;
    const Op& op = Define(
        [&](std::span<const Any> args, Any* result) {
          std::vector<Any> made;
          for (size_t i = 0; i < num_allocations; ++i) {
            made.push_back(Allocate());
            Fill(made.back(), First(args[0]) + static_cast<float>(i));
            const bool is_scratch =
                std::find(order.begin(), order.begin() + static_cast<long>(num_results), i) ==
                order.begin() + static_cast<long>(num_results);
            if (frees_scratch && is_scratch) {
              TVMFFIObjectDecRef(made.back().object);
              made.back() = {};
            }
          }
          std::vector<Any> returned;
          for (size_t i = 0; i < num_results; ++i) {
            returned.push_back(std::exchange(made[order[i]], Any{}));
          }
          for (const Any& scratch : made) {
            if (scratch.type_index != tvm_ffi::kNone) TVMFFIObjectDecRef(scratch.object);
          }
          *result = num_results == 1 ? returned[0] : tvm_ffi::ArrayOf(std::move(returned));
          return true;
        },
        static_cast<int>(num_results));
    const int64_t before = tvm_ffi::num_objects;
    for (int call = 0; call < 5; ++call) {
      if (call == 3) shuffle();  // it changes its mind
      const Outcome outcome = Run(op, num_results, 1 << 13, static_cast<float>(100 * call));
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
      for (size_t i = 0; i < num_results; ++i) {
        ASSERT_THAT(outcome.results[i],
                    testing::Each(static_cast<float>(100 * call) + static_cast<float>(order[i])))
            << "round " << round << ", call " << call << ", result " << i;
      }
    }
    EXPECT_EQ(tvm_ffi::num_objects, before);
  }
}

TEST_P(TvmFfiPlanTest, NothingIsCopiedOnceTheOrderIsKnown) {
  std::vector<const void*> returned;
  const Op& op = Define(
      [&](std::span<const Any>, Any* result) {
        const Any scratch = Allocate(), b = Allocate(), a = Allocate();
        Fill(a, 1);
        Fill(b, 2);
        returned = {TensorOf(a).data, TensorOf(b).data};
        TVMFFIObjectDecRef(scratch.object);
        *result = tvm_ffi::ArrayOf({a, b});
        return true;
      },
      2);
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = Run(op, 2, 1 << 12);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    EXPECT_EQ(outcome.results[0][0], 1);
    EXPECT_EQ(outcome.results[1][0], 2);
    const bool in_place =
        returned[0] == outcome.results[0].data() && returned[1] == outcome.results[1].data();
    EXPECT_EQ(in_place, i > 0);
  }
}

TEST_P(TvmFfiPlanTest, AnArgumentsBufferIsNotHandedOut) {
  const Op& op = Define([&](std::span<const Any> args, Any* result) {
    *result = Allocate();
    Fill(*result, 0);
    Fill(*result, First(args[0]) + 1);
    return true;
  });
  std::vector<float> shared(kSize, 5);
  alignas(256) char workspace[1 << 12];
  const int64_t shape[] = {kSize}, workspace_shape[] = {sizeof(workspace)};
  const TensorView args[] = {{shared.data(), DType::kF32, shape}};
  const TensorView results[] = {{shared.data(), DType::kF32, shape},
                                {workspace, DType::kU8, workspace_shape}};
  Attributes attributes;
  ASSERT_TRUE(attributes.Add("workspace_bytes", int64_t{sizeof(workspace)}).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(RunOp(op, GetParam(), {args, results, &attributes}, {}).ok());
    EXPECT_EQ(shared[50], static_cast<float>(6 + i));
  }
}

TEST_P(TvmFfiPlanTest, WorkspaceThatIsTooSmallOnCuda) {
  if (GetParam() == Platform::kHost) GTEST_SKIP() << "malloc has no such bound";
  const Op& op = Define([&](std::span<const Any>, Any* result) {
    const Any scratch = Allocate();
    const Any out = Allocate();
    if (scratch.type_index != tvm_ffi::kNone) TVMFFIObjectDecRef(scratch.object);
    *result = out;
    return out.type_index != tvm_ffi::kNone;
  });
  const int64_t before = tvm_ffi::num_objects;
  EXPECT_THAT(Run(op).status.message(),
              StartsWith(StrCat("test: MemoryError: the call needs ", kBytes,
                                " bytes of device memory besides its results; its workspace has 0 "
                                "bytes and must have at least ")));
  EXPECT_THAT(Run(op, 1, kBytes - 1).status.message(), HasSubstr("has 399 bytes"));
  EXPECT_EQ(Run(op, 1, kBytes - 1).status.code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(Run(op, 1, kBytes).status.ok());
  EXPECT_EQ(tvm_ffi::num_objects, before);
}

TEST_P(TvmFfiPlanTest, MemoryThatIsNotTheCallsIsCopiedOnTheHostAlone) {
  std::vector<float> own(kSize, 9);
  const Op& op = Define([&](std::span<const Any>, Any* result) {
    *result = Allocate();
    TensorOf(*result).data = own.data();
    return true;
  });
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = Run(op);
    if (GetParam() == Platform::kHost) {
      EXPECT_EQ(outcome.results[0][99], 9);
    } else {
      EXPECT_THAT(outcome.status.message(), HasSubstr("memory of its own for result 0; it must"));
    }
  }
  const Op& identity = Define([&](std::span<const Any> args, Any* result) {
    *result = Allocate();
    TensorOf(*result).data = TensorOf(args[0]).data;
    return true;
  });
  EXPECT_EQ(Run(identity, 1, 0, 4).results[0][99], 4);
}

TEST_P(TvmFfiPlanTest, ANamedWorkspaceIsTheFunctions) {
  const Op& op = Define(
      [&](std::span<const Any> args, Any*) {
        Fill(args[1], static_cast<float>(TensorOf(args[2]).shape[0]));
        return TensorOf(args[2]).dtype == dlpack::DataType{1, 8, 1};
      },
      1, R"(["x","r0","workspace"])");
  EXPECT_EQ(Run(op, 1, 512).results[0][0], 512);
}

TEST_P(TvmFfiPlanTest, WrongFunctionsAreErrors) {
  const auto none = [] { return Any{.type_index = tvm_ffi::kNone, .i = 0}; };
  const struct {
    const char* what;
    std::function<bool(Any*)> body;
    StatusCode code;
    const char* message;
  } cases[] = {
      {"raises", [](Any*) { return tvm_ffi::Raise("TypeError", "no"); },
       StatusCode::kInvalidArgument, "test: TypeError: no"},
      {"raises another", [](Any*) { return tvm_ffi::Raise("OSError", "no"); },
       StatusCode::kInternal, "test: OSError: no"},
      {"is not there", [](Any*) { return tvm_ffi::Raise("NotImplementedError", ""); },
       StatusCode::kUnimplemented, "test: NotImplementedError: "},
      {"fails in silence", [](Any*) { return false; }, StatusCode::kInternal,
       "test: the function failed without an error"},
      {"fails with a result",
       [&](Any* result) { return *result = Allocate(), tvm_ffi::Raise("ValueError", "late"); },
       StatusCode::kInvalidArgument, "test: ValueError: late"},
      {"throws", [](Any*) -> bool { throw std::runtime_error("thrown"); }, StatusCode::kInternal,
       "thrown"},
      {"returns none", [&](Any* result) { return *result = none(), true; },
       StatusCode::kInvalidArgument,
       "test: the function returned None for result 0; it must return a tensor"},
      {"returns an int",
       [](Any* result) { return *result = {.type_index = tvm_ffi::kInt, .i = 7}, true; },
       StatusCode::kInvalidArgument, "a value of type index 1 for result 0"},
      {"returns two",
       [&](Any* result) {
         return *result = tvm_ffi::ArrayOf({Allocate(), none()}), true;
       },
       StatusCode::kInvalidArgument, "returned 2 values; it must return 1 tensors"},
      {"returns an empty array", [&](Any* result) { return *result = tvm_ffi::ArrayOf({}), true; },
       StatusCode::kInvalidArgument, "returned 0 values; it must return 1 tensors"},
      {"another dtype", [&](Any* result) { return *result = Allocate(DType::kI32), true; },
       StatusCode::kInvalidArgument, "returned i32[100] for result 0; it must return f32[100]"},
      {"another shape",
       [&](Any* result) {
         return *result = Allocate(DType::kF32, {10, 10}), true;
       },
       StatusCode::kInvalidArgument, "returned f32[10,10] for result 0"},
      {"another device",
       [&](Any* result) {
         *result = Allocate();
         TensorOf(*result).device.id = 3;
         return true;
       },
       StatusCode::kInvalidArgument, "returned result 0 on device "},
      {"strides",
       [&](Any* result) {
         *result = Allocate();
         static int64_t strides[] = {2};
         TensorOf(*result).strides = strides;
         return true;
       },
       StatusCode::kInvalidArgument, "dense row-major"},
      {"allocates elsewhere",
       [&](Any*) {
         return tvm_ffi::Allocate({dlpack::kCuda, 7}, DType::kF32, {1}).type_index == 70;
       },
       StatusCode::kInvalidArgument, "ValueError: the function allocates on device 2:7"},
      {"allocates less than nothing",
       [&](Any*) {
         return Allocate(DType::kF32, {0, -1}).type_index == 70;
       },
       StatusCode::kInvalidArgument, "negative dimension"},
      {"allocates more than int64 counts",
       [&](Any*) {
         return Allocate(DType::kF32, {1L << 40, 1L << 40}).type_index == 70;
       },
       StatusCode::kInvalidArgument, "more bytes than there are"},
      {"allocates more than there is",
       [&](Any*) { return Allocate(DType::kF32, {1L << 55}).type_index == 70; },
       StatusCode::kResourceExhausted, "MemoryError: "},
      {"allocates too many dimensions",
       [&](Any*) { return Allocate(DType::kF32, std::vector<int64_t>(33, 1)).type_index == 70; },
       StatusCode::kInvalidArgument, "of rank 33; at most 32"},
      {"allocates in another thread",
       [&](Any*) {
         bool failed = false;
         std::thread([&] { failed = Allocate().type_index == tvm_ffi::kNone; }).join();
         return !failed || tvm_ffi::Raise("RuntimeError", "no allocator there");
       },
       StatusCode::kInternal, "no allocator there"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const Op& op = Define([&c](std::span<const Any>, Any* result) { return c.body(result); });
    const int64_t before = tvm_ffi::num_objects;
    for (int i = 0; i < 2; ++i) {
      const Status status = Run(op, 1, 1 << 12).status;
      EXPECT_EQ(status.code(), c.code);
      EXPECT_THAT(status.message(), HasSubstr(c.message));
    }
    EXPECT_EQ(tvm_ffi::num_objects, before) << "an object is left";
  }
}

// A function may call an op of ours, which is a function too.
TEST_P(TvmFfiPlanTest, CallsWithinCalls) {
  const Op* inner = &Define([&](std::span<const Any>, Any* result) {
    *result = Allocate();
    Fill(*result, 3);
    return true;
  });
  const Op& outer = Define([&](std::span<const Any>, Any* result) {
    float before = 0;
    {
      std::vector<float> x(kSize), y(kSize);
      const int64_t shape[] = {kSize};
      const TensorView args[] = {{x.data(), DType::kF32, shape}};
      const TensorView results[] = {{y.data(), DType::kF32, shape}};
      const Attributes attributes;
      EXPECT_TRUE(RunOp(*inner, GetParam(), {args, results, &attributes}, {}).ok());
      before = y[0];
    }
    *result = Allocate();
    Fill(*result, before + 1);
    return true;
  });
  EXPECT_EQ(Run(outer).results[0][0], 4);
}

TEST_P(TvmFfiPlanTest, AnAddressThatIsNoFunction) {
  const Any array = tvm_ffi::ArrayOf({});
  const auto op = OpRegistry::Global().Define(
      StrCat(R"({"name":"test","arguments":[{"name":"x"}],"results":[{"name":"r","like":"x"}],)"
             R"("implementations":{")",
             PlatformName(GetParam()), R"(":{"kind":"tvm_ffi","address":)",
             reinterpret_cast<uintptr_t>(array.object), "}}}"));
  ASSERT_TRUE(op.ok()) << op.status().ToString();
  EXPECT_EQ(Run(**op).status.message(),
            "test: the object at address has the type index 71; it must be a function (68)");
}

INSTANTIATE_TEST_SUITE_P(, TvmFfiPlanTest, testing::Values(Platform::kHost, Platform::kCuda),
                         [](const auto& info) { return std::string(PlatformName(info.param)); });

}  // namespace
}  // namespace xla_gpu::user_kernel
