// What tests on a GPU need beyond the library: memory, streams and graphs through the driver API.
// For tests only: failures throw.
#ifndef XLA_GPU_CUDA_GPU_TESTING_H_
#define XLA_GPU_CUDA_GPU_TESTING_H_

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/cuda/device.h"
#include "src/cuda/driver_api.h"

namespace xla_gpu::cuda {

// Calls a libcuda function that the library itself does not use; throws on an error.
template <typename... Params, typename... Args>
void CallDriver(const char* name, CUresult (*)(Params...), Args... args) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  auto function = reinterpret_cast<CUresult (*)(Params...)>(dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string(name) + " is not in libcuda");
  Status status = DriverStatus(**GetDriver(), function(args...), name);
  if (!status.ok()) throw std::runtime_error(status.message());
}

using DevicePointer = unsigned long long;  // CUdeviceptr

inline void SynchronizeDevice() {
  CallDriver("cuCtxSynchronize", static_cast<CUresult (*)()>(nullptr));
}

enum class Guards { kOn, kOff };

// Owns device memory that holds `size` elements, with guard bytes on both sides to catch writes
// outside of it. Without guard bytes an access outside is one outside of the allocation, and what
// is read before it is written was never written: compute-sanitizer reports both. The elements
// begin `shift` bytes past an address that is a multiple of 256.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t size, Guards guards = Guards::kOn, size_t shift = 0)
      : size_(size),
        guard_bytes_(guards == Guards::kOn ? kGuardBytes : 0),
        front_bytes_(guard_bytes_ + shift) {
    using Alloc = CUresult(DevicePointer*, size_t);
    using Fill = CUresult(DevicePointer, unsigned char, size_t);
    CallDriver("cuMemAlloc_v2", static_cast<Alloc*>(nullptr), &base_, total());
    if (guard_bytes_ == 0) return;
    CallDriver("cuMemsetD8_v2", static_cast<Fill*>(nullptr), base_, kGuard, total());
    SynchronizeDevice();
  }
  explicit DeviceBuffer(const std::vector<T>& values, Guards guards = Guards::kOn, size_t shift = 0)
      : DeviceBuffer(values.size(), guards, shift) {
    CopyFrom(values);
  }
  ~DeviceBuffer() {
    using Free = CUresult(DevicePointer);
    CallDriver("cuMemFree_v2", static_cast<Free*>(nullptr), base_);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() const { return reinterpret_cast<T*>(base_ + front_bytes_); }
  size_t size() const { return size_; }

  void CopyFrom(const std::vector<T>& values) {
    using Copy = CUresult(DevicePointer, const void*, size_t);
    if (values.empty()) return;
    CallDriver("cuMemcpyHtoD_v2", static_cast<Copy*>(nullptr), base_ + front_bytes_,
               static_cast<const void*>(values.data()), values.size() * sizeof(T));
    SynchronizeDevice();  // the copy may return early, and streams of tests do not wait for it
  }
  // Waits for the default stream only: synchronise other streams first.
  std::vector<T> ToHost() const {
    std::vector<T> values(size_);
    if (size_ > 0) CopyOut(values.data(), front_bytes_, size_ * sizeof(T));
    return values;
  }
  bool GuardsIntact() const {
    if (guard_bytes_ == 0) return true;
    std::vector<unsigned char> bytes(total());
    CopyOut(bytes.data(), 0, bytes.size());
    const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
    const auto back = bytes.end() - static_cast<ptrdiff_t>(guard_bytes_);
    return std::all_of(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(front_bytes_),
                       is_guard) &&
           std::all_of(back, bytes.end(), is_guard);
  }

 private:
  static constexpr size_t kGuardBytes = 4096;
  static constexpr unsigned char kGuard = 0xa5;

  // An allocation must not be empty.
  size_t total() const {
    return std::max<size_t>(front_bytes_ + size_ * sizeof(T) + guard_bytes_, 1);
  }
  void CopyOut(void* to, size_t offset, size_t bytes) const {
    using Copy = CUresult(void*, DevicePointer, size_t);
    CallDriver("cuMemcpyDtoH_v2", static_cast<Copy*>(nullptr), to, base_ + offset, bytes);
  }

  size_t size_;
  size_t guard_bytes_;
  size_t front_bytes_;
  DevicePointer base_ = 0;
};

class Stream {
 public:
  Stream() {
    using Create = CUresult(CUstream*, unsigned);
    constexpr unsigned kNonBlocking = 1;
    CallDriver("cuStreamCreate", static_cast<Create*>(nullptr), &stream_, kNonBlocking);
  }
  ~Stream() {
    using Destroy = CUresult(CUstream);
    CallDriver("cuStreamDestroy_v2", static_cast<Destroy*>(nullptr), stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream get() const { return stream_; }
  void Synchronize() const {
    using Wait = CUresult(CUstream);
    CallDriver("cuStreamSynchronize", static_cast<Wait*>(nullptr), stream_);
  }

 private:
  CUstream stream_ = nullptr;
};

// What `enqueue` puts on the stream, captured in the strict (global) mode in which an allocation, a
// module load or a synchronisation is an error.
class Graph {
 public:
  template <typename Enqueue>
  Graph(const Stream& stream, Enqueue enqueue) {
    using Begin = CUresult(CUstream, int);
    using End = CUresult(CUstream, void**);
    using Instantiate = CUresult(void**, void*, unsigned long long);
    constexpr int kGlobal = 0;
    CallDriver("cuStreamBeginCapture_v2", static_cast<Begin*>(nullptr), stream.get(), kGlobal);
    enqueue();
    CallDriver("cuStreamEndCapture", static_cast<End*>(nullptr), stream.get(), &graph_);
    CallDriver("cuGraphInstantiateWithFlags", static_cast<Instantiate*>(nullptr), &executable_,
               graph_, 0ull);
  }
  ~Graph() {
    using Destroy = CUresult(void*);
    CallDriver("cuGraphExecDestroy", static_cast<Destroy*>(nullptr), executable_);
    CallDriver("cuGraphDestroy", static_cast<Destroy*>(nullptr), graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void Launch(const Stream& stream) const {
    using Launch = CUresult(void*, CUstream);
    CallDriver("cuGraphLaunch", static_cast<Launch*>(nullptr), executable_, stream.get());
  }

 private:
  void* graph_ = nullptr;
  void* executable_ = nullptr;
};

// Skips, with the reason, where there is no GPU; else device 0's primary context is current.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    StatusOr<int> count = DeviceCount();
    if (!count.ok()) GTEST_SKIP() << "needs a GPU: " << count.status().message();
    if (*count == 0) GTEST_SKIP() << "needs a GPU: the driver is here but shows none";
    context_.emplace(**GetDriver(), 0);
    ASSERT_TRUE(context_->status().ok()) << context_->status().ToString();
  }

 private:
  std::optional<ScopedPrimaryContext> context_;
};

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_GPU_TESTING_H_
