#include "src/cuda/kernel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <tuple>
#include <utility>

#include "src/core/fork.h"
#include "src/core/includes.h"
#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/cuda/device.h"
#include "src/cuda/driver_api.h"
#include "src/cuda/kernel_image.h"
#include "src/cuda/single_flight.h"

namespace xla_gpu::cuda {
namespace {

class LoadedKernel final : public Kernel {
 public:
  LoadedKernel(const DriverApi& driver, const KernelSpec& spec, const DeviceInfo& device)
      : driver_(driver),
        name_(spec.entry),
        source_(Describe(spec, device.Arch())),
        ordinal_(device.ordinal),
        has_clusters_(device.compute_major >= 9) {}

  Status Load(const KernelImage& image) {
    ScopedPrimaryContext context(driver_, ordinal_);
    XLA_GPU_RETURN_IF_ERROR(context.status());
    XLA_GPU_RETURN_IF_ERROR(driver_.has_libraries() ? LoadLibrary(image) : LoadModule(image));
    // Clusters of more than 8 blocks, for kernels that have them: the launch says if they cannot
    // be.
    if (has_clusters_) (void)Set(kNonPortableClusterSize, 1);
    return OkStatus();
  }

  // Raises the most dynamic shared memory that a launch may ask for.
  Status AllowShared(uint32_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes <= max_shared_) return OkStatus();
    const std::string what = StrCat("allowing kernel ", name_, " ", bytes,
                                    " bytes of dynamic shared memory on device ", ordinal_);
    ScopedPrimaryContext context(driver_, ordinal_);
    XLA_GPU_RETURN_IF_ERROR(context.status());
    const CUresult result = Set(kMaxDynamicSharedSize, static_cast<int>(bytes));
    if (result == kCudaSuccess) max_shared_ = bytes;
    return DriverStatus(driver_, result, what);
  }

  Status Launch(const LaunchConfig& config, std::span<void* const> params,
                void* stream) const override {
    const auto& grid = config.grid;
    const auto& block = config.block;
    const uint32_t shared = config.dynamic_shared_bytes;
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return OkStatus();  // nothing to compute
    const auto values = const_cast<void**>(params.data());
    const CUresult result =
        IsPlain(config) ? driver_.cuLaunchKernel(function_, grid[0], grid[1], grid[2], block[0],
                                                 block[1], block[2], shared,
                                                 static_cast<CUstream>(stream), values, nullptr)
                        : LaunchWithAttributes(config, values, static_cast<CUstream>(stream));
    const auto named = [&](const char* what) {
      return StrCat(what, " kernel ", name_, " with grid ", StrJoin(grid, "x"), ", block ",
                    StrJoin(block, "x"), " and ", shared,
                    " bytes of dynamic shared memory on device ", ordinal_);
    };
    if (result != kCudaSuccess) return DriverStatus(driver_, result, named("launching"));
    if (is_watched_) {
      if (!launched_.exchange(true)) LogInfo(StrCat(named("first launch of"), ": ", source_));
      if (SyncsLaunches()) return AfterLaunch(stream, named("running"));
    }
    return OkStatus();
  }

  std::optional<std::vector<size_t>> ParameterSizes() const override {
    if (kernel_ == nullptr || driver_.cuKernelGetParamInfo == nullptr) return std::nullopt;
    std::vector<size_t> sizes;
    size_t offset = 0, size = 0;
    while (driver_.cuKernelGetParamInfo(kernel_, sizes.size(), &offset, &size) == kCudaSuccess) {
      sizes.push_back(size);
    }
    return sizes;
  }

 private:
  // In the device's context.
  CUresult Set(FunctionAttribute attribute, int value) {
    if (kernel_ == nullptr) return driver_.cuFuncSetAttribute(function_, attribute, value);
    CUdevice device = 0;
    const CUresult result = driver_.cuDeviceGet(&device, ordinal_);
    if (result != kCudaSuccess) return result;
    return driver_.cuKernelSetAttribute(attribute, value, kernel_, device);
  }

  static bool IsPlain(const LaunchConfig& config) {
    return config.cluster == std::array<uint32_t, 3>{1, 1, 1} && !config.cooperative &&
           !config.programmatic;
  }

  CUresult LaunchWithAttributes(const LaunchConfig& config, void** params, CUstream stream) const {
    if (driver_.cuLaunchKernelEx == nullptr) return kCudaErrorNotSupported;
    CUlaunchAttribute attributes[3] = {};
    unsigned count = 0;
    const auto add = [&](LaunchAttribute id) -> auto& {
      attributes[count].id = id;
      return attributes[count++].value;
    };
    if (config.cooperative) add(kCooperative).flag = 1;
    if (config.programmatic) add(kProgrammatic).flag = 1;
    if (config.cluster != std::array<uint32_t, 3>{1, 1, 1}) {
      std::ranges::copy(config.cluster, add(kClusterDimension).dims);
    }
    const auto& [grid, block] = std::tie(config.grid, config.block);
    const CUlaunchConfig launch = {{grid[0], grid[1], grid[2]},
                                   {block[0], block[1], block[2]},
                                   config.dynamic_shared_bytes,
                                   stream,
                                   attributes,
                                   count};
    return driver_.cuLaunchKernelEx(&launch, function_, params, nullptr);
  }

  const char* NameIn(const KernelImage& image) const {
    return (image.entry.empty() ? name_ : image.entry).c_str();
  }

  // Driver 12.0 and newer: code that belongs to no context, so that a launch takes its context from
  // the stream.
  Status LoadLibrary(const KernelImage& image) {
    CUlibrary library = nullptr;
    XLA_GPU_RETURN_IF_ERROR(
        DriverStatus(driver_,
                     driver_.cuLibraryLoadData(&library, image.cubin.data(), nullptr, nullptr, 0,
                                               nullptr, nullptr, 0),
                     StrCat("loading kernel ", name_)));
    CUresult result = driver_.cuLibraryGetKernel(&kernel_, library, NameIn(image));
    // Lazy loading would otherwise move the code to the device at the first launch, which may be
    // inside a graph capture.
    CUfunction loaded = nullptr;
    if (result == kCudaSuccess) result = driver_.cuKernelGetFunction(&loaded, kernel_);
    if (result != kCudaSuccess) {
      driver_.cuLibraryUnload(library);
      return DriverStatus(driver_, result,
                          StrCat("loading kernel ", name_, " on device ", ordinal_));
    }
    function_ = reinterpret_cast<CUfunction>(kernel_);  // cuLaunchKernel takes either
    return OkStatus();
  }

  Status LoadModule(const KernelImage& image) {
    CUmodule module = nullptr;
    const std::string what = StrCat("loading kernel ", name_, " on device ", ordinal_);
    XLA_GPU_RETURN_IF_ERROR(
        DriverStatus(driver_, driver_.cuModuleLoadData(&module, image.cubin.data()), what));
    const CUresult result = driver_.cuModuleGetFunction(&function_, module, NameIn(image));
    if (result != kCudaSuccess) driver_.cuModuleUnload(module);
    return DriverStatus(driver_, result, what);
  }

  const DriverApi& driver_;
  const std::string name_;    // as it was asked for
  const std::string source_;  // with the defines
  const int ordinal_;
  const bool has_clusters_;
  const bool is_watched_ = LogsInfo() || SyncsLaunches();
  mutable std::atomic<bool> launched_ = false;  // of kernels that are watched
  CUkernel kernel_ = nullptr;
  CUfunction function_ = nullptr;
  std::mutex mutex_;
  uint32_t max_shared_ = 0;  // guarded by mutex_
};

bool IsFaultOfImage(const Status& loaded) {
  return loaded.code() == StatusCode::kFailedPrecondition || loaded.code() == StatusCode::kNotFound;
}

std::string KeyOf(const KernelSpec& spec, int ordinal) {
  std::string key = StrCat(ordinal, '\n', spec.source, '\n', spec.entry);
  for (const auto* list : {&spec.defines, &spec.options}) {
    for (const std::string& item : *list) key.append(1, '\n').append(item);
    key.append(1, '\n');
  }
  key.append(spec.text).append(1, '\n').append(spec.image);
  if (spec.text.empty()) return key;
  for (const std::string& text : IncludedTexts(spec.text, spec.source, spec.options)) {
    key.append(1, '\n').append(text);
  }
  return key;
}

constinit PerProcess<SingleFlight<std::shared_ptr<LoadedKernel>>> loaded_kernels;

}  // namespace

StatusOr<std::shared_ptr<const Kernel>> GetKernel(const KernelSpec& spec, int device_ordinal,
                                                  uint32_t max_dynamic_shared_bytes) {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  XLA_GPU_ASSIGN_OR_RETURN(const DeviceInfo* device, GetDeviceInfo(device_ordinal));
  if (max_dynamic_shared_bytes > device->max_shared_memory_per_block) {
    return ResourceExhausted("cuda: kernel ", spec.entry, " wants ", max_dynamic_shared_bytes,
                             " bytes of shared memory a block, but ", device->name, " (device ",
                             device_ordinal, ") has ", device->max_shared_memory_per_block);
  }
  using Loaded = std::shared_ptr<LoadedKernel>;
  auto load = [&]() -> StatusOr<Loaded> {
    for (bool again = false;; again = true) {
      XLA_GPU_ASSIGN_OR_RETURN(std::shared_ptr<const KernelImage> image,
                               GetKernelImage(spec, device->Arch(), driver->version));
      auto kernel = std::make_shared<LoadedKernel>(*driver, spec, *device);
      const Stopwatch watch;
      const Status loaded = kernel->Load(*image);
      if (loaded.ok()) {
        LogInfo(StrCat("kernel ", spec.entry, ": loaded on device ", device_ordinal, " in ",
                       watch.Text()));
        return kernel;
      }
      if (again || !image->from_disk || !IsFaultOfImage(loaded)) return loaded;
      ForgetKernelImage(*image);
    }
  };
  XLA_GPU_ASSIGN_OR_RETURN(Loaded kernel,
                           loaded_kernels.Get().Get(KeyOf(spec, device_ordinal), load));
  XLA_GPU_RETURN_IF_ERROR(kernel->AllowShared(max_dynamic_shared_bytes));
  return std::shared_ptr<const Kernel>(std::move(kernel));
}

}  // namespace xla_gpu::cuda
