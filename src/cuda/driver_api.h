// The part of the CUDA driver API that this library uses, opened at run time: no link-time
// dependency and no toolkit header. Internal to src/cuda.
#ifndef XLA_GPU_CUDA_DRIVER_API_H_
#define XLA_GPU_CUDA_DRIVER_API_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/core/status.h"

namespace xla_gpu::cuda {

using CUdevice = int;
using CUresult = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUevent = struct CUevent_st*;

// Values of cuda.h; the driver's ABI never changes them.
inline constexpr CUresult kCudaSuccess = 0;
inline constexpr CUresult kCudaErrorNoDevice = 100;
inline constexpr CUresult kCudaErrorInvalidImage = 200;
inline constexpr CUresult kCudaErrorNoBinaryForGpu = 209;
inline constexpr CUresult kCudaErrorUnsupportedPtxVersion = 222;
inline constexpr CUresult kCudaErrorNotFound = 500;
inline constexpr CUresult kCudaErrorPeerAccessAlreadyEnabled = 704;
inline constexpr CUresult kCudaErrorNotSupported = 801;

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kL2CacheSize = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerBlockOptin = 97,
};
enum LaunchAttribute : int { kCooperative = 2, kClusterDimension = 4, kProgrammatic = 6 };

struct CUlaunchAttribute {
  LaunchAttribute id;
  alignas(8) union {
    char bytes[64];
    unsigned dims[3];
    int flag;
  } value;
};
static_assert(sizeof(CUlaunchAttribute) == 72);

struct CUlaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(CUlaunchConfig) == 56);

enum FunctionAttribute : int { kMaxDynamicSharedSize = 8, kNonPortableClusterSize = 14 };

struct DriverApi {
  int version = 0;  // 12080 is 12.8: the newest CUDA whose programs this driver runs

  CUresult (*cuInit)(unsigned flags);
  CUresult (*cuDriverGetVersion)(int* version);
  CUresult (*cuGetErrorName)(CUresult error, const char** text);
  CUresult (*cuGetErrorString)(CUresult error, const char** text);

  CUresult (*cuDeviceGetCount)(int* count);
  CUresult (*cuDeviceGet)(CUdevice* device, int ordinal);
  CUresult (*cuDeviceGetName)(char* name, int length, CUdevice device);
  CUresult (*cuDeviceGetAttribute)(int* value, DeviceAttribute attribute, CUdevice device);
  CUresult (*cuDeviceTotalMem)(size_t* bytes, CUdevice device);

  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext* context, CUdevice device);
  CUresult (*cuCtxGetCurrent)(CUcontext* context);
  CUresult (*cuCtxGetDevice)(CUdevice* device);
  CUresult (*cuCtxPushCurrent)(CUcontext context);
  CUresult (*cuCtxPopCurrent)(CUcontext* context);
  CUresult (*cuDeviceCanAccessPeer)(int* can, CUdevice device, CUdevice peer);
  CUresult (*cuCtxEnablePeerAccess)(CUcontext peer, unsigned flags);

  CUresult (*cuModuleLoadData)(CUmodule* module, const void* image);
  CUresult (*cuModuleUnload)(CUmodule module);
  CUresult (*cuModuleGetFunction)(CUfunction* function, CUmodule module, const char* name);
  CUresult (*cuFuncSetAttribute)(CUfunction function, FunctionAttribute attribute, int value);
  CUresult (*cuLaunchKernel)(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream stream, void** params, void** extra);
  CUresult (*cuMemAlloc)(uint64_t* pointer, size_t bytes);
  CUresult (*cuMemFree)(uint64_t pointer);
  CUresult (*cuMemcpyHtoD)(uint64_t to, const void* from, size_t bytes);
  CUresult (*cuMemcpyDtoH)(void* to, uint64_t from, size_t bytes);
  CUresult (*cuMemsetD8Async)(uint64_t pointer, unsigned char value, size_t bytes, CUstream stream);
  CUresult (*cuMemcpyDtoDAsync)(uint64_t to, uint64_t from, size_t bytes, CUstream stream);

  CUresult (*cuStreamIsCapturing)(CUstream stream, int* status);  // 0: it is not
  CUresult (*cuStreamSynchronize)(CUstream stream);

  CUresult (*cuEventCreate)(CUevent* event, unsigned flags);
  CUresult (*cuEventRecord)(CUevent event, CUstream stream);
  CUresult (*cuEventSynchronize)(CUevent event);
  CUresult (*cuEventElapsedTime)(float* milliseconds, CUevent begin, CUevent end);
  CUresult (*cuEventDestroy)(CUevent event);

  // Driver 12.0 and newer; null in older ones.
  CUresult (*cuLibraryLoadData)(CUlibrary* library, const void* code, int* jit_options,
                                void** jit_values, unsigned num_jit, int* options, void** values,
                                unsigned num_options);
  CUresult (*cuLibraryUnload)(CUlibrary library);
  CUresult (*cuLibraryGetKernel)(CUkernel* kernel, CUlibrary library, const char* name);
  CUresult (*cuKernelGetFunction)(CUfunction* function, CUkernel kernel);
  CUresult (*cuLaunchKernelEx)(const CUlaunchConfig* config, CUfunction function, void** params,
                               void** extra);
  CUresult (*cuKernelSetAttribute)(FunctionAttribute attribute, int value, CUkernel kernel,
                                   CUdevice device);

  // Driver 12.4 and newer; null in older ones.
  CUresult (*cuKernelGetParamInfo)(CUkernel kernel, size_t index, size_t* offset, size_t* size);
  // Driver 12.0 and newer; null in older ones.
  CUresult (*cuTensorMapEncodeTiled)(void* map, int data_type, uint32_t rank, void* base,
                                     const uint64_t* dims, const uint64_t* strides,
                                     const uint32_t* box, const uint32_t* element_strides,
                                     int interleave, int swizzle, int promotion, int fill);

  bool has_libraries() const { return cuLibraryLoadData != nullptr; }
};

// Opens libcuda and calls cuInit, once. The error says what is missing and what to do. In a child
// forked from a process that used CUDA it is an error too.
const StatusOr<const DriverApi*>& GetDriver();

// "cuda: <what> failed: CUDA_ERROR_X (text)", with a remedy where one is known; OK for success.
// FAILED_PRECONDITION and NOT_FOUND mean machine code that does not fit, or lacks what is sought.
Status DriverStatus(const DriverApi& driver, CUresult result, const std::string& what);

// Whether XLA_GPU_SYNC is 1: each launch is waited for. Read once a process.
bool SyncsLaunches();

// Whether the stream is being captured into a graph, or another one's capture forbids to ask.
bool IsCapturing(const DriverApi& driver, CUstream stream);

// Where SyncsLaunches() and the stream is not being captured, waits for the stream: an error of
// what runs on it, which says that `what` was launched last.
Status AfterLaunch(void* stream, const std::string& what);

// The device's primary context (which XLA and PyTorch use too), retained once and kept.
StatusOr<CUcontext> PrimaryContext(const DriverApi& driver, int ordinal);

// Makes the primary context of a device current in this thread for its scope.
class ScopedPrimaryContext {
 public:
  ScopedPrimaryContext(const DriverApi& driver, int ordinal);
  ~ScopedPrimaryContext();
  ScopedPrimaryContext(const ScopedPrimaryContext&) = delete;
  ScopedPrimaryContext& operator=(const ScopedPrimaryContext&) = delete;

  const Status& status() const { return status_; }

 private:
  const DriverApi& driver_;
  Status status_;
};

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_DRIVER_API_H_
