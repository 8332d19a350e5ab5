#include "src/cuda/tensor_map.h"

#include <cstring>

#include "src/core/strings.h"
#include "src/cuda/driver_api.h"

namespace xla_gpu::cuda {

bool IsAccepted(const TensorMapSpec& spec) {
  constexpr uint64_t kMostDim = uint64_t{1} << 32, kMostStride = uint64_t{1} << 40;
  constexpr uint32_t kMostBox = 256, kMostInnerBox = 64;  // the swizzle's 128 bytes
  for (size_t i = 0; i < spec.dims.size(); ++i) {
    if (spec.dims[i] == 0 || spec.dims[i] > kMostDim) return false;
    if (spec.box[i] == 0 || spec.box[i] > (i == 0 ? kMostInnerBox : kMostBox)) return false;
  }
  for (const uint64_t stride : spec.strides) {
    if (stride % 16 != 0 || stride >= kMostStride) return false;
  }
  return true;
}

namespace {

Status Encode(const TensorMapSpec& spec, const void* base, void* map) {
  XLA_GPU_ASSIGN_OR_RETURN(const DriverApi* driver, GetDriver());
  if (driver->cuTensorMapEncodeTiled == nullptr) {
    return FailedPrecondition("cuda: this driver knows no tensor maps; install one of CUDA 12");
  }
  // Values of cuda.h.
  constexpr int kUint16 = 1, kNoInterleave = 0, kSwizzle128 = 3, kPromote128 = 2, kFillZeros = 0;
  constexpr uint32_t kSteps[5] = {1, 1, 1, 1, 1};
  return DriverStatus(
      *driver,
      driver->cuTensorMapEncodeTiled(map, kUint16, static_cast<uint32_t>(spec.dims.size()),
                                     const_cast<void*>(base), spec.dims.data(), spec.strides.data(),
                                     spec.box.data(), kSteps, kNoInterleave, kSwizzle128,
                                     kPromote128, kFillZeros),
      StrCat("describing a tensor of dimensions ", StrJoin(spec.dims, "x"), ", strides ",
             StrJoin(spec.strides, ","), " and boxes of ", StrJoin(spec.box, "x"),
             " to the copy engine"));
}

}  // namespace

Status TensorMaps::Write(const void* base, void* map) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto kept = encoded_.find(base);
  if (kept == encoded_.end()) {
    Encoded encoded;
    XLA_GPU_RETURN_IF_ERROR(Encode(spec_, base, &encoded));
    if (encoded_.size() == kKept) encoded_.clear();  // the addresses in use come back
    kept = encoded_.emplace(base, encoded).first;
  }
  std::memcpy(map, &kept->second, sizeof(Encoded));
  return OkStatus();
}

}  // namespace xla_gpu::cuda
