// A libcuda.so.1 without a GPU, for src/cuda/kernel_fake_driver_test.cc: it writes down what is
// asked of it, so that the order of loading and launching is tested on machines that have no GPU.
// With it `scripts/test_gpu.sh warm` compiles what the tests of a GPU load; their kernels do
// nothing.
//
// FAKE_CUDA_CAPTURING: if set, streams are being captured. FAKE_CUDA_VERSION (12080): what
// cuDriverGetVersion says. FAKE_CUDA_FAIL ("cuLaunchKernel=1"): this function gives this error.
// FAKE_CUDA_REFUSE ("text"): machine code that is this text up to its first zero is refused as no
// image. FAKE_CUDA_PARAMETERS ("8,8,4"): the bytes of each kernel's parameters. FAKE_CUDA_NO_PEERS:
// if set, no device reaches another's memory. It has two devices of compute capability 9.0 and as
// many multiprocessors as an H200.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

std::string& Log() {
  static auto* log = new std::string;
  return *log;
}

thread_local intptr_t stack[16] = {};  // contexts are 1 + the device's number
thread_local int depth = 0;

// Notes the call and gives its result.
int Called(const char* function, const std::string& details = "") {
  static auto* mutex = new std::mutex;  // plans are made in several threads
  const std::lock_guard<std::mutex> lock(*mutex);
  Log() += std::string(function) + (details.empty() ? "" : " ") + details + "\n";
  const char* fail = std::getenv("FAKE_CUDA_FAIL");
  const size_t length = std::strlen(function);
  const bool fails =
      fail != nullptr && std::strncmp(fail, function, length) == 0 && fail[length] == '=';
  return fails ? std::atoi(fail + length + 1) : 0;
}

bool Refused(const void* image) {
  const char* text = std::getenv("FAKE_CUDA_REFUSE");
  return text != nullptr && std::strcmp(static_cast<const char*>(image), text) == 0;
}

std::string Context() { return "context=" + std::to_string(depth == 0 ? 0 : stack[depth - 1]); }

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE const char* fake_cuda_log() { return Log().c_str(); }

FAKE int cuInit(unsigned) { return Called("cuInit"); }
FAKE int cuDriverGetVersion(int* version) {
  const char* text = std::getenv("FAKE_CUDA_VERSION");
  *version = text == nullptr ? 12080 : std::atoi(text);
  return 0;
}
FAKE int cuGetErrorName(int, const char** text) { return *text = "CUDA_ERROR_FAKE", 0; }
FAKE int cuGetErrorString(int, const char** text) { return *text = "made up", 0; }

FAKE int cuDeviceGetCount(int* count) { return *count = 2, Called("cuDeviceGetCount"); }
FAKE int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
FAKE int cuDeviceGetName(char* name, int length, int) {
  return std::strncpy(name, "Fake GPU", static_cast<size_t>(length)), 0;
}
FAKE int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 97 ? 232448 : 132;
  return 0;
}
FAKE int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{1} << 34, 0; }

// Its device memory is the host's.
FAKE int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  *address = reinterpret_cast<uintptr_t>(std::calloc(bytes, 1));
  return *address == 0 ? 2 : 0;  // CUDA_ERROR_OUT_OF_MEMORY
}
FAKE int cuMemFree_v2(unsigned long long address) {
  return std::free(reinterpret_cast<void*>(address)), 0;
}
FAKE int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t bytes) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}
FAKE int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t bytes) {
  return std::memcpy(to, reinterpret_cast<void*>(from), bytes), 0;
}
FAKE int cuMemsetD8_v2(unsigned long long address, unsigned char value, size_t bytes) {
  return std::memset(reinterpret_cast<void*>(address), value, bytes), 0;
}
FAKE int cuMemsetD8Async(unsigned long long, unsigned char value, size_t bytes, void*) {
  return Called("cuMemsetD8Async",
                "value=" + std::to_string(value) + " bytes=" + std::to_string(bytes));
}

FAKE int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  return Called("cuMemcpyDtoDAsync", "bytes=" + std::to_string(bytes));
}
FAKE int cuStreamIsCapturing(void*, int* status) {
  *status = std::getenv("FAKE_CUDA_CAPTURING") == nullptr ? 0 : 1;
  return Called("cuStreamIsCapturing");
}
FAKE int cuStreamSynchronize(void* stream) {
  return Called("cuStreamSynchronize", std::to_string(reinterpret_cast<intptr_t>(stream)));
}

FAKE int cuStreamCreate(void** stream, unsigned) { return *stream = Log().data(), 0; }
FAKE int cuStreamDestroy_v2(void*) { return 0; }
FAKE int cuCtxSynchronize() { return 0; }
FAKE int cuStreamBeginCapture_v2(void*, int) { return 0; }
FAKE int cuStreamEndCapture(void*, void** graph) { return *graph = Log().data(), 0; }
FAKE int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  return *executable = graph, 0;
}
FAKE int cuGraphLaunch(void*, void*) { return 0; }
FAKE int cuGraphDestroy(void*) { return 0; }
FAKE int cuGraphExecDestroy(void*) { return 0; }

// Events are numbered; one follows another by as many milliseconds as their numbers differ.
FAKE int cuEventCreate(void** event, unsigned) {
  static intptr_t made = 0;
  *event = reinterpret_cast<void*>(++made);
  return Called("cuEventCreate", Context());
}
FAKE int cuEventRecord(void* event, void* stream) {
  return Called("cuEventRecord", std::to_string(reinterpret_cast<intptr_t>(event)) + " stream=" +
                                     std::to_string(reinterpret_cast<intptr_t>(stream)));
}
FAKE int cuEventSynchronize(void* event) {
  return Called("cuEventSynchronize",
                std::to_string(reinterpret_cast<intptr_t>(event)) + " " + Context());
}
FAKE int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
  *milliseconds = static_cast<float>(static_cast<char*>(end) - static_cast<char*>(begin));
  return Called("cuEventElapsedTime");
}
FAKE int cuEventDestroy_v2(void* event) {
  return Called("cuEventDestroy", std::to_string(reinterpret_cast<intptr_t>(event)));
}

FAKE int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(intptr_t{device} + 1);
  return Called("cuDevicePrimaryCtxRetain", std::to_string(device));
}
FAKE int cuCtxGetCurrent(void** context) {
  *context = depth == 0 ? nullptr : reinterpret_cast<void*>(stack[depth - 1]);
  return 0;
}
FAKE int cuCtxGetDevice(int* device) {
  if (depth == 0) return 201;  // CUDA_ERROR_INVALID_CONTEXT
  *device = static_cast<int>(stack[depth - 1]) - 1;
  return 0;
}
FAKE int cuCtxPushCurrent_v2(void* context) {
  stack[depth++] = reinterpret_cast<intptr_t>(context);
  return 0;
}
FAKE int cuDeviceCanAccessPeer(int* can, int, int) {
  return *can = std::getenv("FAKE_CUDA_NO_PEERS") == nullptr ? 1 : 0, 0;
}
FAKE int cuCtxEnablePeerAccess(void*, unsigned) {
  return Called("cuCtxEnablePeerAccess", Context());
}
FAKE int cuCtxPopCurrent_v2(void** context) {
  if (depth == 0) return 201;
  *context = reinterpret_cast<void*>(stack[--depth]);
  return 0;
}

FAKE int cuModuleLoadData(void** module, const void* image) {
  *module = reinterpret_cast<void*>(0x100);
  if (Refused(image)) return 200;
  return Called("cuModuleLoadData", std::string(static_cast<const char*>(image)) + " " + Context());
}
FAKE int cuModuleUnload(void*) { return Called("cuModuleUnload"); }
FAKE int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = reinterpret_cast<void*>(0x101);
  return Called("cuModuleGetFunction", name);
}
FAKE int cuFuncSetAttribute(void*, int attribute, int value) {
  return Called("cuFuncSetAttribute",
                std::to_string(attribute) + "=" + std::to_string(value) + " " + Context());
}
FAKE int cuLibraryLoadData(void** library, const void* code, int*, void**, unsigned, int*, void**,
                           unsigned) {
  *library = reinterpret_cast<void*>(0x200);
  if (Refused(code)) return 200;
  return Called("cuLibraryLoadData", static_cast<const char*>(code));
}
FAKE int cuLibraryUnload(void*) { return Called("cuLibraryUnload"); }
FAKE int cuLibraryGetKernel(void** kernel, void*, const char* name) {
  *kernel = reinterpret_cast<void*>(0x201);
  return Called("cuLibraryGetKernel", name);
}
FAKE int cuKernelGetFunction(void** function, void*) {
  *function = reinterpret_cast<void*>(0x202);
  return Called("cuKernelGetFunction", Context());
}
FAKE int cuKernelSetAttribute(int attribute, int value, void*, int device) {
  return Called("cuKernelSetAttribute", std::to_string(attribute) + "=" + std::to_string(value) +
                                            " device=" + std::to_string(device));
}
FAKE int cuKernelGetParamInfo(void*, size_t index, size_t* offset, size_t* size) {
  const char* sizes = std::getenv("FAKE_CUDA_PARAMETERS");
  if (sizes == nullptr) sizes = "8,8";
  *offset = 0;
  for (; *sizes != '\0'; ++sizes) {
    *size = std::strtoul(sizes, const_cast<char**>(&sizes), 10);
    if (index-- == 0) return 0;
    *offset += *size;
    if (*sizes == '\0') break;
  }
  return 1;  // CUDA_ERROR_INVALID_VALUE
}
FAKE int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* base, const uint64_t*,
                                const uint64_t*, const uint32_t*, const uint32_t*, int, int swizzle,
                                int, int) {
  std::memset(map, 7, 128);
  return Called("cuTensorMapEncodeTiled",
                "type=" + std::to_string(type) + " rank=" + std::to_string(rank) +
                    " base=" + std::to_string(reinterpret_cast<intptr_t>(base)) +
                    " swizzle=" + std::to_string(swizzle));
}
FAKE int cuLaunchKernel(void* function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned,
                        unsigned, unsigned shared, void* stream, void**, void**) {
  auto number = [](void* p) { return std::to_string(reinterpret_cast<intptr_t>(p)); };
  return Called("cuLaunchKernel", "function=" + number(function) + " grid=" + std::to_string(gx) +
                                      " block=" + std::to_string(bx) + " shared=" +
                                      std::to_string(shared) + " stream=" + number(stream));
}
FAKE int cuLaunchKernelEx(const void* config, void* function, void**, void**) {
  // CUlaunchConfig: grid, block, shared bytes, stream, attributes of 72 bytes each, their number.
  struct Attribute {
    int id;
    alignas(8) unsigned value[16];
  };
  struct Config {
    unsigned grid[3], block[3], shared;
    void* stream;
    const Attribute* attributes;
    unsigned num_attributes;
  };
  const auto* launch = static_cast<const Config*>(config);
  std::string attributes;
  for (unsigned i = 0; i < launch->num_attributes; ++i) {
    const Attribute& attribute = launch->attributes[i];
    attributes.append(" ").append(std::to_string(attribute.id));
    attributes.append("=").append(std::to_string(attribute.value[0]));
    if (attribute.id != 4) continue;  // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    for (int d = 1; d < 3; ++d) attributes.append("x").append(std::to_string(attribute.value[d]));
  }
  return Called("cuLaunchKernelEx",
                "function=" + std::to_string(reinterpret_cast<intptr_t>(function)) + " grid=" +
                    std::to_string(launch->grid[0]) + " block=" + std::to_string(launch->block[0]) +
                    " shared=" + std::to_string(launch->shared) + " stream=" +
                    std::to_string(reinterpret_cast<intptr_t>(launch->stream)) + attributes);
}
