// How kernels are loaded and launched, against a driver that only writes down its calls
// (tests/cuda/fake_libcuda.cc): which functions, in which order and context, on new and old
// drivers. kernel_gpu_test.cc tests what they do.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/profile.h"
#include "src/core/strings.h"
#include "src/cuda/compile_protocol.h"
#include "src/cuda/device.h"
#include "src/cuda/driver_api.h"
#include "src/cuda/kernel.h"
#include "src/cuda/tensor_map.h"
#include "src/cuda/test_util.h"
#include "src/cuda/unaligned_plan.h"

namespace xla_gpu::cuda {
namespace {

const KernelSpec kSpec = {"src/ops/simple_add/cuda/simple_add.cu", "simple_add", {"ELEMENT_F32"}};

bool Has(const std::string& text, const std::string& part) {
  const bool has = text.find(part) != text.npos;
  if (!has) std::fprintf(stderr, "no '%s' in:\n%s\n", part.c_str(), text.c_str());
  return has;
}

bool Equal(const std::string& came, const std::string& expected) {
  const bool equal = came == expected;
  if (!equal) std::fprintf(stderr, "came:\n%s\nexpected:\n%s\n", came.c_str(), expected.c_str());
  return equal;
}

// The driver is opened once a process, so each test runs in one of its own. An NVRTC and a compiler
// that are fakes too give "cubin" for every kernel.
class FakeDriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(std::getenv("XLA_GPU_FAKE_DRIVER"), nullptr) << "run this test through ctest";
    folder_.Write("nvrtc/libnvrtc.so.12", "");
    folder_.Write("nvrtc/libnvrtc-builtins.so.12.8", "");
    const std::string answer = folder_.Write(
        "answer", Encode(CompileResponse{CompileResponse::Outcome::kOk, "", TinyCubin("cubin")}));
    nvrtc_.emplace("XLA_GPU_NVRTC", folder_.path("nvrtc"));
    cache_.emplace("XLA_GPU_CACHE_DIR", "");
    compiler_.emplace("XLA_GPU_COMPILER",
                      folder_.WriteScript("compiler", "cat >/dev/null; cat " + answer));
  }

  template <typename Body>
  static void InProcess(const char* version, const char* fail, Body body) {
    EXPECT_EQ(RunForked([&] {
                setenv("FAKE_CUDA_VERSION", version, 1);
                setenv("FAKE_CUDA_FAIL", fail, 1);
                // By its path; from now on "libcuda.so.1" is its name.
                void* fake = dlopen(std::getenv("XLA_GPU_FAKE_DRIVER"), RTLD_NOW);
                if (fake == nullptr) return false;
                log_ = reinterpret_cast<const char* (*)()>(dlsym(fake, "fake_cuda_log"));
                return body();
              }),
              0);
  }
  // What the fake driver shows of an image.
  static std::string Image(const char* name = "cubin") { return TinyCubin(name).c_str(); }
  // What the driver was asked since the last call of this.
  static std::string Log() {
    static size_t seen = 0;
    const std::string all = log_();
    const std::string fresh = all.substr(seen);
    seen = all.size();
    return fresh;
  }
  static Status Launch(const Kernel& kernel, uint32_t shared = 0) {
    LaunchConfig config;
    config.grid[0] = 7;
    config.block[0] = 256;
    config.dynamic_shared_bytes = shared;
    void* params[] = {nullptr};
    return kernel.Launch(config, params, reinterpret_cast<void*>(99));
  }

  static inline const char* (*log_)() = nullptr;
  TempFolder folder_;
  std::optional<ScopedEnv> nvrtc_, cache_, compiler_;
};

TEST_F(FakeDriverTest, ANewDriverLoadsEverythingBeforeTheFirstLaunch) {
  InProcess("12080", "", [] {
    auto kernel = GetKernel(kSpec, 1, 100'000);
    if (!kernel.ok()) return Equal(kernel.status().ToString(), "OK");
    return Equal(Log(), "cuInit\ncuDeviceGetCount\ncuDevicePrimaryCtxRetain 1\ncuLibraryLoadData " +
                            Image() +
                            "\n"
                            "cuLibraryGetKernel simple_add\ncuKernelGetFunction context=2\n"
                            "cuKernelSetAttribute 14=1 device=1\n"
                            "cuKernelSetAttribute 8=100000 device=1\n") &&
           Launch(**kernel, 50'000).ok() &&
           Equal(Log(), StrCat("cuLaunchKernel function=", 0x201,
                               " grid=7 block=256 shared=50000 stream=99\n")) &&
           CurrentDevice(Platform::kCuda) == 0;  // the context is popped again
  });
}

TEST_F(FakeDriverTest, AnOldDriverLoadsAModuleIntoThePrimaryContext) {
  InProcess("11080", "", [] {
    // NVRTC 12's code is not for a driver of CUDA 11: this is said before anything is loaded.
    return Has(GetKernel(kSpec, 0, 0).status().message(), "CUDA 11.x only");
  });
  InProcess("12080", "cuNothing=1", [] {
    // A driver of CUDA 12 whose libcuda lacks the library functions.
    const_cast<DriverApi*>(*GetDriver())->cuLibraryLoadData = nullptr;
    auto kernel = GetKernel(kSpec, 1, 100'000);
    return kernel.ok() && Launch(**kernel).ok() &&
           Equal(Log(), StrCat("cuInit\ncuDeviceGetCount\ncuDevicePrimaryCtxRetain 1\n"
                               "cuModuleLoadData ",
                               Image(),
                               " context=2\ncuModuleGetFunction simple_add\n"
                               "cuFuncSetAttribute 14=1 context=2\n"
                               "cuFuncSetAttribute 8=100000 context=2\ncuLaunchKernel function=",
                               0x101, " grid=7 block=256 shared=0 stream=99\n"));
  });
}

TEST_F(FakeDriverTest, AKernelIsLoadedOnceADeviceAndItsSharedMemoryOnlyGrows) {
  InProcess("12080", "", [] {
    auto first = GetKernel(kSpec, 0, 60'000);
    Log();
    auto again = GetKernel(kSpec, 0, 50'000);
    if (!Equal(Log(), "") || *again != *first) return false;
    auto more = GetKernel(kSpec, 0, 70'000);
    if (!Equal(Log(), "cuKernelSetAttribute 8=70000 device=0\n") || *more != *first) return false;
    auto other_device = GetKernel(kSpec, 1, 0);
    return other_device.ok() && *other_device != *first && Has(Log(), "cuLibraryLoadData");
  });
}

TEST_F(FakeDriverTest, ASumOfDevicesIsLoadedOnAllBeforeOneWaits) {
  const auto sum_on = [](int device, std::string_view devices) {
    static float in[1000], out[1000];
    const int64_t shape[] = {1000};
    const TensorView x{in, DType::kF32, shape}, sum{out, DType::kF32, shape};
    Attributes attributes;
    (void)attributes.Add("devices", devices);
    const ScopedPrimaryContext scope(**GetDriver(), device);
    return RunOp(**OpRegistry::Global().Get("all_reduce"), Platform::kCuda,
                 {{&x, 1}, {&sum, 1}, &attributes}, {.stream = reinterpret_cast<void*>(99)});
  };
  const std::string launch =
      StrCat("cuLaunchKernel function=", 0x201, " grid=1 block=256 shared=0 stream=99\n");
  InProcess("12080", "", [&] {
    if (!sum_on(1, "0,1").ok()) return false;
    const std::string log = Log();
    return Has(log, "cuCtxEnablePeerAccess context=1\n") &&
           Has(log, "cuCtxEnablePeerAccess context=2\n") &&
           Has(log, "cuKernelGetFunction context=1\n") &&
           Has(log, "cuKernelGetFunction context=2\n") && Has(log, launch) &&
           sum_on(0, "0,1").ok() && Equal(Log(), launch);
  });
  // Enabled already.
  InProcess("12080", "cuCtxEnablePeerAccess=704", [&] { return sum_on(0, "1,0").ok(); });
  InProcess("12080", "cuCtxEnablePeerAccess=2",
            [&] { return sum_on(0, "1,0").code() == StatusCode::kResourceExhausted; });
  // XLA may compile a call while a device is current that is none of its own.
  InProcess("12080", "", [&] {
    return Has(sum_on(0, "1").message(),
               "all_reduce: the call runs on device 0, which is not in") &&
           Has(Log(), "cuKernelGetFunction context=2\n") && sum_on(1, "1").ok() &&
           Equal(Log(), launch);
  });
  ScopedEnv apart("FAKE_CUDA_NO_PEERS", "1");
  InProcess("12080", "", [&] {
    return Has(sum_on(0, "0,1").message(), "device 0 cannot reach the memory of device 1");
  });
}

TEST_F(FakeDriverTest, KernelsOfOneSourceAreEachItsOwn) {
  for (const std::string& cache : {std::string(), folder_.path("cache")}) {
    ScopedEnv folder("XLA_GPU_CACHE_DIR", cache);
    InProcess("12080", "", [] {
      KernelSpec other = kSpec;
      other.entry = "other_entry";
      auto first = GetKernel(kSpec, 0, 0);
      if (!first.ok() || !Has(Log(), "cuLibraryGetKernel simple_add\n")) return false;
      auto second = GetKernel(other, 0, 0);
      return second.ok() && *second != *first && Has(Log(), "cuLibraryGetKernel other_entry\n");
    });
  }
}

TEST_F(FakeDriverTest, AnImageFromDiskThatIsRefusedIsMadeAgain) {
  ScopedEnv cache("XLA_GPU_CACHE_DIR", folder_.path("cache"));
  InProcess("12080", "", [] { return GetKernel(kSpec, 0, 0).ok() && Has(Log(), Image()); });
  // From now on the compiler makes another.
  folder_.Write("answer",
                Encode(CompileResponse{CompileResponse::Outcome::kOk, "", TinyCubin("new")}));
  InProcess("12080", "", [] { return GetKernel(kSpec, 0, 0).ok() && Has(Log(), Image()); });
  {
    ScopedEnv refuse("FAKE_CUDA_REFUSE", Image());
    InProcess("12080", "", [] { return GetKernel(kSpec, 0, 0).ok() && Has(Log(), Image("new")); });
  }
  ScopedEnv no_compiler("XLA_GPU_COMPILER", "/no/such/program");
  InProcess("12080", "", [] { return GetKernel(kSpec, 0, 0).ok() && Has(Log(), Image("new")); });
  // What is not the image's fault costs no entry.
  InProcess("12080", "cuLibraryLoadData=2", [] {
    return GetKernel(kSpec, 0, 0).status().code() == StatusCode::kResourceExhausted;
  });
  InProcess("12080", "", [] { return GetKernel(kSpec, 0, 0).ok() && Has(Log(), Image("new")); });
}

TEST_F(FakeDriverTest, LaunchesWithAttributes) {
  InProcess("12080", "", [] {
    auto kernel = GetKernel(kSpec, 0, 0);
    Log();
    const auto launch = [&](auto set, const std::string& attributes) {
      LaunchConfig config;
      config.grid = {4, 2, 1};
      config.block = {64, 1, 1};
      config.dynamic_shared_bytes = 16;
      set(config);
      void* params[] = {nullptr};
      return (*kernel)->Launch(config, params, reinterpret_cast<void*>(99)).ok() &&
             Equal(Log(), StrCat("cuLaunchKernelEx function=", 0x201,
                                 " grid=4 block=64 shared=16 stream=99", attributes, "\n"));
    };
    return launch(
               [](LaunchConfig& c) {
                 c.cluster = {2, 1, 1};
               },
               " 4=2x1x1") &&
           launch([](LaunchConfig& c) { c.cooperative = true; }, " 2=1") &&
           launch([](LaunchConfig& c) { c.programmatic = true; }, " 6=1") &&
           launch(
               [](LaunchConfig& c) {
                 c.cooperative = c.programmatic = true;
                 c.cluster = {4, 2, 1};
               },
               " 2=1 6=1 4=4x2x1");
  });
  InProcess("12080", "cuLaunchKernelEx=1", [] {
    LaunchConfig config;
    config.cluster = {2, 1, 1};
    auto kernel = GetKernel(kSpec, 0, 0);
    void* params[] = {nullptr};
    return Has((*kernel)->Launch(config, params, nullptr).message(), "launching kernel simple_add");
  });
  InProcess("12080", "", [] {  // an older libcuda
    const_cast<DriverApi*>(*GetDriver())->cuLaunchKernelEx = nullptr;
    LaunchConfig config;
    config.cooperative = true;
    auto kernel = GetKernel(kSpec, 0, 0);
    void* params[] = {nullptr};
    return Has((*kernel)->Launch(config, params, nullptr).message(), "801");
  });
}

TEST_F(FakeDriverTest, ParameterSizesAreTheImages) {
  ScopedEnv sizes("FAKE_CUDA_PARAMETERS", "8,8,4,2");
  InProcess("12080", "", [] {
    auto kernel = GetKernel(kSpec, 0, 0);
    return (*kernel)->ParameterSizes() == std::vector<size_t>{8, 8, 4, 2};
  });
  InProcess("12020", "", [] {  // before CUDA 12.4
    const_cast<DriverApi*>(*GetDriver())->cuKernelGetParamInfo = nullptr;
    return !(*GetKernel(kSpec, 0, 0))->ParameterSizes().has_value();
  });
}

TEST_F(FakeDriverTest, AFileThatIsIncludedAndChangesMakesAnotherKernel) {
  const TempFolder folder;
  InProcess("12080", "", [&] {
    const KernelSpec spec{.source = "f.cu",
                          .entry = "f",
                          .text = "#include <a.h>\n__global__ void f(int* x) { *x = A; }",
                          .options = {"-I" + folder.path()}};
    folder.Write("a.h", "#define A 1\n");
    const auto first = GetKernel(spec, 0, 0), same = GetKernel(spec, 0, 0);
    folder.Write("a.h", "#define A 2\n");
    const auto second = GetKernel(spec, 0, 0);
    return Has(first.status().ToString(), "OK") && Has(second.status().ToString(), "OK") &&
           *first == *same && *first != *second;
  });
}

TEST_F(FakeDriverTest, ADescriptionThatDoesNotFitTheImageIsRefused) {
  constexpr char kDefinition[] = R"({"name": "k", "arguments": [{"name": "x"}],
      "results": [{"name": "out", "like": "x"}], "scalars": [{"name": "n", "type": "i32"}],
      "implementations": {"CUDA": {"kind": "cuda_image", "image": "QUJD", "entry": "f",
                                   "cluster": [2, 1, 1]}}})";
  const auto run = [&](int64_t grid) {
    const auto op = OpRegistry::Global().Define(kDefinition);
    const std::vector<int64_t> shape = {4}, dims = {grid, 1, 1}, block = {32, 1, 1};
    Attributes attributes;
    const AttrValue ints[] = {AttrValue(std::span(dims)), AttrValue(std::span(block))};
    if (!op.ok() || !attributes.Add("grid", ints[0]).ok() ||
        !attributes.Add("block", ints[1]).ok() ||
        !attributes.Add("n", AttrValue(int64_t{4})).ok()) {
      return op.status();
    }
    const std::vector<TensorView> args = {{reinterpret_cast<void*>(64), DType::kF32, shape}};
    const std::vector<TensorView> results = {{reinterpret_cast<void*>(128), DType::kF32, shape}};
    return RunOp(**op, Platform::kCuda, {args, results, &attributes}, {});
  };
  const auto message = [&](const char* sizes, int64_t grid, const std::string& expected) {
    ScopedEnv parameters("FAKE_CUDA_PARAMETERS", sizes);
    InProcess("12080", "", [&] { return Has(run(grid).ToString(), expected); });
  };
  message("8,8,4", 2, "OK");
  message("8,8", 2, "k: the kernel has 2 parameters but 3 are described");
  message("8,8,4,4", 2, "k: the kernel has 4 parameters but 3 are described");
  message("8,8,8", 2, "k: parameter 2 of the kernel has 8 bytes but 4 are described (i32;");
  message("8,8,4", 3, "k: grid is 3x1x1, no multiple of the cluster 2x1x1");
}

TEST_F(FakeDriverTest, SyncWaitsForEachLaunchUnlessItIsCaptured) {
  ScopedEnv sync("XLA_GPU_SYNC", "1");
  const auto run = [](const std::string& expected) {
    auto kernel = GetKernel(kSpec, 0, 0);
    Log();
    const Status status = Launch(**kernel);
    const std::string log = Log();
    return Has(status.ToString(), "OK") && Equal(log.substr(log.find('\n') + 1), expected);
  };
  InProcess("12080", "", [&] { return run("cuStreamIsCapturing\ncuStreamSynchronize 99\n"); });
  {
    ScopedEnv capturing("FAKE_CUDA_CAPTURING", "1");
    InProcess("12080", "", [&] { return run("cuStreamIsCapturing\n"); });
  }
  InProcess("12080", "cuStreamIsCapturing=906", [&] { return run("cuStreamIsCapturing\n"); });
  InProcess("12080", "cuStreamSynchronize=700", [] {
    auto kernel = GetKernel(kSpec, 0, 0);
    return Has(Launch(**kernel).message(),
               "running kernel simple_add with grid 7x1x1, block 256x1x1 and 0 bytes of dynamic "
               "shared memory on device 0 failed: CUDA_ERROR_FAKE 700");
  });
  // A function that launches by itself is waited for when it returns.
  InProcess("12080", "cuStreamSynchronize=700", [] {
    const auto op = OpRegistry::Global().Define(
        StrCat(R"({"name": "own", "arguments": [{"name": "x"}], "results": [{"name": "x",)"
               R"("alias_of": "x"}], "implementations": {"CUDA": {"kind": "function", "address": )",
               reinterpret_cast<uintptr_t>(+[](void*, void*) {}), "}}}"));
    const std::vector<int64_t> shape = {4};
    const std::vector<TensorView> x = {{reinterpret_cast<void*>(64), DType::kF32, shape}};
    const Attributes none;
    return op.ok() && Has(RunOp(**op, Platform::kCuda, {x, x, &none}, {}).message(),
                          "own: cuda: running what the function launched failed: CUDA_ERROR_FAKE");
  });
  ScopedEnv off("XLA_GPU_SYNC", "0");
  InProcess("12080", "", [&] { return run(""); });
}

TEST_F(FakeDriverTest, AProfileTimesCallsByEventsUnlessTheyAreCaptured) {
  const auto run = [](const std::string& times, const std::string& events) {
    const auto op = OpRegistry::Global().Define(
        StrCat(R"({"name": "own", "arguments": [{"name": "x"}], "results": [{"name": "x",)"
               R"("alias_of": "x"}], "implementations": {"CUDA": {"kind": "function", "address": )",
               reinterpret_cast<uintptr_t>(+[](void*, void*) {}), "}}}"));
    const std::vector<int64_t> shape = {4};
    const std::vector<TensorView> x = {{reinterpret_cast<void*>(64), DType::kF32, shape}};
    const Attributes none;
    if (!op.ok() || !StartProfile().ok()) return false;
    {
      ScopedPrimaryContext context(**GetDriver(), 1);
      Log();
      const ExecutionContext on = {.stream = reinterpret_cast<void*>(99)};
      if (!RunOp(**op, Platform::kCuda, {x, x, &none}, on).ok()) return false;
    }
    const StatusOr<std::string> told = StopProfile();
    return Has(told.ok() ? *told : told.status().message(), times) && Equal(Log(), events);
  };
  const std::string recorded =
      "cuStreamIsCapturing\ncuEventCreate context=2\ncuEventRecord 1 stream=99\n"
      "cuStreamIsCapturing\ncuEventCreate context=2\ncuEventRecord 2 stream=99\n"
      "cuEventSynchronize 2 context=2\n";
  InProcess("12080", "", [&] {
    return run(R"("platform":"CUDA","calls":1,"timed":1,"total_us":1000.0,"min_us":1000.0,)",
               recorded + "cuEventElapsedTime\ncuEventDestroy 2\ncuEventDestroy 1\n");
  });
  InProcess("12080", "cuEventSynchronize=700", [&] {
    return run("waiting for what a profile times failed: CUDA_ERROR_FAKE 700",
               recorded + "cuEventDestroy 2\ncuEventDestroy 1\n");
  });
  InProcess("12080", "cuEventRecord=2", [&] {
    return run(R"("calls":1,"timed":0,"total_us":0.0,)",
               "cuStreamIsCapturing\ncuEventCreate context=2\ncuEventRecord 1 stream=99\n"
               "cuEventDestroy 1\n");
  });
  ScopedEnv capturing("FAKE_CUDA_CAPTURING", "1");
  InProcess("12080", "",
            [&] { return run(R"("calls":1,"timed":0,"total_us":0.0,)", "cuStreamIsCapturing\n"); });
}

TEST_F(FakeDriverTest, TheLogTellsOfCompilesLoadsAndFirstLaunches) {
  ScopedEnv cache("XLA_GPU_CACHE_DIR", folder_.path("cache"));
  const std::string file = folder_.path("stderr");
  const auto lines = [&](const char* level) {
    ScopedEnv log("XLA_GPU_LOG", level);
    InProcess("12080", "", [&] {
      if (std::freopen(file.c_str(), "w", stderr) == nullptr) return false;
      for (int device = 0; device < 2; ++device) {
        auto kernel = GetKernel(kSpec, device, 0);
        if (!kernel.ok() || !Launch(**kernel).ok() || !Launch(**kernel).ok()) return false;
      }
      return true;
    });
    return ReadWhole(file);
  };
  using ::testing::ContainsRegex;
  const std::string source =
      "src/ops/simple_add/cuda/simple_add.cu:simple_add \\[ELEMENT_F32\\] for sm_90a";
  const std::string image = "kernel " + source + ": ";
  const std::string rest =
      "in [0-9.]+ ms\nxla_gpu: kernel simple_add: loaded on device 0 in [0-9.]+ ms\n"
      "xla_gpu: first launch of kernel simple_add with grid 7x1x1, block 256x1x1 and 0 bytes of "
      "dynamic shared memory on device 0: " +
      source + "\nxla_gpu: " + image +
      "from memory in [0-9.]+ ms\nxla_gpu: kernel simple_add: loaded on device 1 .*\n" +
      "xla_gpu: first launch of kernel simple_add .* on device 1: " + source + "\n$";
  EXPECT_THAT(lines("info"), ContainsRegex("^xla_gpu: " + image + "compiled " + rest));
  EXPECT_THAT(lines("info"), ContainsRegex("^xla_gpu: " + image + "from disk " + rest));
  EXPECT_EQ(lines("warning"), "");
  EXPECT_EQ(lines("off"), "");
  EXPECT_EQ(lines("loud"),
            "xla_gpu: warning: XLA_GPU_LOG is 'loud'; it must be off, warning or info\n");
}

TEST_F(FakeDriverTest, TheCurrentDeviceIsThatOfTheContext) {
  InProcess("12080", "", [] {
    ScopedPrimaryContext context(**GetDriver(), 1);
    return CurrentDevice(Platform::kCuda) == 1;
  });
}

// Its calls would fail, or wait for locks of threads that a child lacks.
TEST_F(FakeDriverTest, AForkedChildLeavesTheDriverAlone) {
  InProcess("12080", "", [] {
    if (!GetKernel(kSpec, 0, 0).ok()) return false;
    const std::string calls = log_();
    return RunForked([&] {
             const auto kernel = GetKernel(kSpec, 0, 0);
             return kernel.status().code() == StatusCode::kFailedPrecondition &&
                    Has(kernel.status().message(), "start the child with the 'spawn' method") &&
                    CurrentDevice(Platform::kCuda) == 0 && Equal(log_(), calls);
           }) == 0 &&
           GetKernel(kSpec, 0, 0).ok();
  });
  // One forked before is a process like any other.
  InProcess("12080", "", [] { return RunForked([] { return GetKernel(kSpec, 0, 0).ok(); }) == 0; });
}

TEST_F(FakeDriverTest, TensorMapsAreMadeOnceAnAddressWithoutTheDevice) {
  const TensorMapSpec spec = {{64, 8, 2, 1, 9}, {256, 128, 2048, 2048}, {64, 8, 2, 1, 1}};
  const auto address = [](size_t i) { return reinterpret_cast<void*>(4096 * (i + 1)); };
  InProcess("12080", "", [&] {
    TensorMaps maps(spec);
    alignas(64) char map[128] = {}, again[128] = {};
    GetDriver().status().ok();
    Log();
    return maps.Write(address(0), map).ok() && map[127] == 7 &&
           Equal(Log(), "cuTensorMapEncodeTiled type=1 rank=5 base=4096 swizzle=3\n") &&
           maps.Write(address(0), again).ok() && std::memcmp(map, again, sizeof(map)) == 0 &&
           Equal(Log(), "") && (*GetDeviceInfo(0))->tensor_maps;
  });
  InProcess("12080", "", [&] {  // more addresses than are kept
    TensorMaps maps(spec);
    for (size_t i = 0; i <= TensorMaps::kKept; ++i) {
      alignas(64) char map[128] = {};
      if (!maps.Write(address(i), map).ok() || map[127] != 7) return false;
    }
    Log();
    alignas(64) char map[128] = {};
    return maps.Write(address(TensorMaps::kKept), map).ok() && Equal(Log(), "") &&
           maps.Write(address(0), map).ok() && Has(Log(), "base=4096 ");
  });
  InProcess("12080", "cuTensorMapEncodeTiled=1", [&] {
    alignas(64) char map[128] = {};
    TensorMaps maps(spec);
    return Has(maps.Write(nullptr, map).message(), "dimensions 64x8x2x1x9") &&
           !maps.Write(nullptr, map).ok();
  });
  InProcess("12080", "", [&] {  // an older libcuda
    const_cast<DriverApi*>(*GetDriver())->cuTensorMapEncodeTiled = nullptr;
    alignas(64) char map[128] = {};
    return !(*GetDeviceInfo(0))->tensor_maps &&
           Has(TensorMaps(spec).Write(nullptr, map).message(), "install one of CUDA 12");
  });
}

// Each of two plans adds to a text which it is; calls bring one tensor.
TEST_F(FakeDriverTest, UnalignedTensorsHaveAPlanOfTheirOwn) {
  const auto run = [](const Plan& plan, uintptr_t address, DType dtype = DType::kBF16) {
    const std::vector<int64_t> shape = {4};
    const TensorView x = {reinterpret_cast<void*>(address), dtype, shape};
    const Attributes none;
    return plan.Run({{&x, 1}, {}, &none}, {.stream = reinterpret_cast<void*>(99)}).ToString();
  };
  using Other = std::shared_ptr<const UnalignedPlan>;
  static std::string ran;
  static std::atomic<int> made = 0, failures = 0;
  const auto make = [](const Other& unaligned) -> StatusOr<std::unique_ptr<Plan>> {
    if (++made == 2 && failures-- > 0) return --made, Internal("no kernel");
    return MakePlan([unaligned](const Call& call, const ExecutionContext& context) -> Status {
      const Place found = FirstUnaligned({{nullptr, "absent"}, {call.args[0].data, "x"}});
      if (found && unaligned != nullptr) return unaligned->Run(found, call, context);
      ran += unaligned == nullptr ? 'u' : 'a';
      return OkStatus();
    });
  };
  InProcess("12080", "", [&] {
    failures = 1;
    const auto plan = *MakePlanOfAnyAlignment("op", make);
    const bool usual = run(*plan, 64) == "OK" && run(*plan, 48) == "OK" && made == 1;
    const bool wrong =
        Has(run(*plan, 67), "op: argument 0, bf16[4], lies at address 0x43, no multiple of") &&
        Has(run(*plan, 66, DType::kF32), "its element size") && made == 1;
    setenv("FAKE_CUDA_CAPTURING", "1", 1);
    const bool refused =
        Has(run(*plan, 66),
            "op: x lies at address 0x42, no multiple of 16, and the kernels for "
            "such tensors cannot be loaded while a graph is captured: call it once");
    unsetenv("FAKE_CUDA_CAPTURING");
    const bool failed = Has(run(*plan, 66), "no kernel");  // which is not kept
    const bool other = run(*plan, 66) == "OK" && run(*plan, 67, DType::kI8) == "OK" && made == 2;
    setenv("FAKE_CUDA_CAPTURING", "1", 1);
    return usual && wrong && refused && failed && other && run(*plan, 66) == "OK" &&
           run(*plan, 0) == "OK" && Equal(ran, "aauuua");
  });
  InProcess("12080", "", [&] {  // several threads at once: the plan that stays is one of theirs
    static std::atomic<int> calls = 0;
    const auto count = [](const Other& unaligned) {
      return MakePlan([unaligned](const Call& call, const ExecutionContext& context) -> Status {
        if (unaligned != nullptr) return unaligned->Run({call.args[0].data, "x"}, call, context);
        ++calls;
        return OkStatus();
      });
    };
    const auto plan = *MakePlanOfAnyAlignment("op", count);
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([&] { run(*plan, 66); });
    for (std::thread& thread : threads) thread.join();
    return calls == 8;
  });
}

TEST_F(FakeDriverTest, ErrorsSayWhatWasTriedAndLeaveNothingLoaded) {
  InProcess("12080", "cuInit=100", [] {
    return Has(DeviceCount().status().message(), "cuInit failed: CUDA_ERROR_FAKE 100") &&
           Has(DeviceCount().status().message(), "CUDA_VISIBLE_DEVICES") &&
           CurrentDevice(Platform::kCuda) == 0;
  });
  InProcess("12080", "cuLibraryLoadData=209", [] {
    return Has(GetKernel(kSpec, 0, 0).status().message(), "for another GPU: xla-gpu doctor");
  });
  InProcess("12080", "cuLibraryGetKernel=500", [] {
    return Has(GetKernel(kSpec, 0, 0).status().message(),
               "loading kernel simple_add on device 0") &&
           Has(Log(), "cuLibraryUnload") && CurrentDevice(Platform::kCuda) == 0;
  });
  InProcess("12080", "cuLaunchKernel=1", [] {
    auto kernel = GetKernel(kSpec, 0, 0);
    return Has(Launch(**kernel).message(),
               "launching kernel simple_add with grid 7x1x1, block 256x1x1 and 0 bytes");
  });
  InProcess("12080", "cuDevicePrimaryCtxRetain=2", [] {
    return GetKernel(kSpec, 0, 0).status().code() == StatusCode::kResourceExhausted;
  });
  InProcess("12080", "", [] {
    return Has(GetKernel(kSpec, 2, 0).status().message(), "device 2 does not exist") &&
           Has(GetKernel(kSpec, 0, 300'000).status().message(), "has 232448");
  });
}

}  // namespace
}  // namespace xla_gpu::cuda
