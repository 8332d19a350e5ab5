#include "src/cuda/driver_api.h"

#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>

#include "src/core/fork.h"
#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/cuda/device.h"

namespace xla_gpu::cuda {
namespace {

struct Symbol {
  template <typename Function>
  Symbol(const char* name, Function*& slot, bool required = true)
      : name(name), slot(reinterpret_cast<void**>(&slot)), required(required) {}

  const char* name;  // as libcuda exports it: the versioned name where there is one
  void** slot;
  bool required;
};

Status LoadSymbols(void* library, DriverApi& api) {
  const Symbol symbols[] = {
      {"cuInit", api.cuInit},
      {"cuDriverGetVersion", api.cuDriverGetVersion},
      {"cuGetErrorName", api.cuGetErrorName},
      {"cuGetErrorString", api.cuGetErrorString},
      {"cuDeviceGetCount", api.cuDeviceGetCount},
      {"cuDeviceGet", api.cuDeviceGet},
      {"cuDeviceGetName", api.cuDeviceGetName},
      {"cuDeviceGetAttribute", api.cuDeviceGetAttribute},
      {"cuDeviceTotalMem_v2", api.cuDeviceTotalMem},
      {"cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain},
      {"cuCtxGetCurrent", api.cuCtxGetCurrent},
      {"cuCtxGetDevice", api.cuCtxGetDevice},
      {"cuCtxPushCurrent_v2", api.cuCtxPushCurrent},
      {"cuCtxPopCurrent_v2", api.cuCtxPopCurrent},
      {"cuDeviceCanAccessPeer", api.cuDeviceCanAccessPeer},
      {"cuCtxEnablePeerAccess", api.cuCtxEnablePeerAccess},
      {"cuModuleLoadData", api.cuModuleLoadData},
      {"cuModuleUnload", api.cuModuleUnload},
      {"cuModuleGetFunction", api.cuModuleGetFunction},
      {"cuFuncSetAttribute", api.cuFuncSetAttribute},
      {"cuLaunchKernel", api.cuLaunchKernel},
      {"cuMemAlloc_v2", api.cuMemAlloc},
      {"cuMemFree_v2", api.cuMemFree},
      {"cuMemcpyHtoD_v2", api.cuMemcpyHtoD},
      {"cuMemcpyDtoH_v2", api.cuMemcpyDtoH},
      {"cuMemsetD8Async", api.cuMemsetD8Async},
      {"cuMemcpyDtoDAsync_v2", api.cuMemcpyDtoDAsync},
      {"cuStreamIsCapturing", api.cuStreamIsCapturing},
      {"cuStreamSynchronize", api.cuStreamSynchronize},
      {"cuEventCreate", api.cuEventCreate},
      {"cuEventRecord", api.cuEventRecord},
      {"cuEventSynchronize", api.cuEventSynchronize},
      {"cuEventElapsedTime", api.cuEventElapsedTime},
      {"cuEventDestroy_v2", api.cuEventDestroy},
      {"cuLibraryLoadData", api.cuLibraryLoadData, false},
      {"cuLibraryUnload", api.cuLibraryUnload, false},
      {"cuLibraryGetKernel", api.cuLibraryGetKernel, false},
      {"cuKernelGetFunction", api.cuKernelGetFunction, false},
      {"cuKernelSetAttribute", api.cuKernelSetAttribute, false},
      {"cuLaunchKernelEx", api.cuLaunchKernelEx, false},
      {"cuKernelGetParamInfo", api.cuKernelGetParamInfo, false},
      {"cuTensorMapEncodeTiled", api.cuTensorMapEncodeTiled, false},
  };
  for (const Symbol& symbol : symbols) {
    *symbol.slot = dlsym(library, symbol.name);
    if (*symbol.slot == nullptr && symbol.required) {
      return FailedPrecondition("cuda: libcuda.so.1 has no function ", symbol.name,
                                "; install an NVIDIA driver of version 450 or newer");
    }
  }
  if (!api.cuLibraryUnload || !api.cuLibraryGetKernel || !api.cuKernelGetFunction ||
      !api.cuKernelSetAttribute) {
    api.cuLibraryLoadData = nullptr;
  }
  return OkStatus();
}

#define XLA_GPU_CUDA_AFTER_FORK                                                                \
  "CUDA cannot be used in a forked child of a process that used it: start the child with the " \
  "'spawn' method"

// The ForkGeneration of the process that called cuInit; -1: none has.
constinit std::atomic<int64_t> initialized_in{-1};

StatusOr<const DriverApi*> OpenDriver(DriverApi& api) {
  // Not left to the driver, whose locks may be held by threads that a child lacks.
  if (const int64_t user = initialized_in.load(); user >= 0 && user != ForkGeneration()) {
    return FailedPrecondition("cuda: " XLA_GPU_CUDA_AFTER_FORK);
  }
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Unavailable("cuda: the NVIDIA driver is not here: libcuda.so.1 could not be opened (",
                       why == nullptr ? "no reason given" : why,
                       "); install the driver, or run the container with the GPU passed through "
                       "(docker run --gpus all), or add libcuda's folder to LD_LIBRARY_PATH");
  }
  XLA_GPU_RETURN_IF_ERROR(LoadSymbols(library, api));
  initialized_in.store(ForkGeneration());
  if (CUresult result = api.cuInit(0); result != kCudaSuccess) {
    initialized_in.store(-1);
    return DriverStatus(api, result, "cuInit");
  }
  XLA_GPU_RETURN_IF_ERROR(
      DriverStatus(api, api.cuDriverGetVersion(&api.version), "cuDriverGetVersion"));
  if (api.version < 12000) api.cuLibraryLoadData = nullptr;
  return &api;
}

// What the reader can do about an error; empty where nothing general can be said.
const char* Remedy(CUresult result) {
  switch (result) {
    case 2:  // CUDA_ERROR_OUT_OF_MEMORY
      return "; free device memory, or let XLA take less of it (XLA_PYTHON_CLIENT_MEM_FRACTION)";
    case 3:  // CUDA_ERROR_NOT_INITIALIZED
      return "; " XLA_GPU_CUDA_AFTER_FORK;
    case kCudaErrorNoDevice:
      return "; no GPU is visible: look at nvidia-smi and CUDA_VISIBLE_DEVICES";
    case kCudaErrorInvalidImage:
    case kCudaErrorNoBinaryForGpu:
    case kCudaErrorUnsupportedPtxVersion:
      return "; the kernel was built by a CUDA newer than this driver runs or for another GPU: "
             "xla-gpu doctor shows both versions";
    case 803:  // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    case 804:  // CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
      return "; libcuda does not fit the kernel driver: nvidia-smi shows the driver in use";
    default:
      return "";
  }
}

struct Driver {
  DriverApi api{};
  const StatusOr<const DriverApi*> opened = OpenDriver(api);
};
constinit PerProcess<Driver> driver;

struct Sync {
  const bool asked = IsSwitchedOn("XLA_GPU_SYNC");
};
constinit PerProcess<Sync> sync;

struct PrimaryContexts {
  std::mutex mutex;
  std::map<int, CUcontext> contexts;
};
constinit PerProcess<PrimaryContexts> primary_contexts;

}  // namespace

const StatusOr<const DriverApi*>& GetDriver() { return driver.Get().opened; }

Status DriverStatus(const DriverApi& driver, CUresult result, const std::string& what) {
  if (result == kCudaSuccess) return OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  const std::string message =
      StrCat("cuda: ", what, " failed: ", name == nullptr ? "error" : name, " ", result, " (",
             text == nullptr ? "unknown to this driver" : text, ")", Remedy(result));
  switch (result) {
    case 2:
      return ResourceExhausted(message);
    case kCudaErrorNoDevice:
      return Unavailable(message);
    case kCudaErrorInvalidImage:
    case kCudaErrorNoBinaryForGpu:
    case kCudaErrorUnsupportedPtxVersion:
      return FailedPrecondition(message);
    case kCudaErrorNotFound:
      return NotFound(message);
    default:
      return Internal(message);
  }
}

bool IsCapturing(const DriverApi& driver, CUstream stream) {
  int capturing = 0;
  return driver.cuStreamIsCapturing(stream, &capturing) != kCudaSuccess || capturing != 0;
}

bool SyncsLaunches() { return sync.Get().asked; }

Status AfterLaunch(void* stream, const std::string& what) {
  if (!SyncsLaunches()) return OkStatus();
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  const auto handle = static_cast<CUstream>(stream);
  if (IsCapturing(*driver, handle)) return OkStatus();  // nothing runs
  return DriverStatus(*driver, driver->cuStreamSynchronize(handle), what);
}

StatusOr<CUcontext> PrimaryContext(const DriverApi& driver, int ordinal) {
  auto& [mutex, contexts] = primary_contexts.Get();
  std::lock_guard<std::mutex> lock(mutex);
  if (auto found = contexts.find(ordinal); found != contexts.end()) return found->second;
  CUdevice device = 0;
  XLA_GPU_RETURN_IF_ERROR(DriverStatus(driver, driver.cuDeviceGet(&device, ordinal),
                                       StrCat("cuDeviceGet of device ", ordinal)));
  CUcontext context = nullptr;
  XLA_GPU_RETURN_IF_ERROR(DriverStatus(driver, driver.cuDevicePrimaryCtxRetain(&context, device),
                                       StrCat("cuDevicePrimaryCtxRetain of device ", ordinal)));
  contexts.emplace(ordinal, context);
  return context;
}

ScopedPrimaryContext::ScopedPrimaryContext(const DriverApi& driver, int ordinal) : driver_(driver) {
  StatusOr<CUcontext> context = PrimaryContext(driver, ordinal);
  status_ = context.ok() ? DriverStatus(driver, driver.cuCtxPushCurrent(*context),
                                        StrCat("cuCtxPushCurrent of device ", ordinal))
                         : context.status();
}

ScopedPrimaryContext::~ScopedPrimaryContext() {
  CUcontext popped = nullptr;
  if (status_.ok()) driver_.cuCtxPopCurrent(&popped);
}

}  // namespace xla_gpu::cuda
