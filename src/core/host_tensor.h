// HostTensor: a dense row-major tensor in host memory that owns its data.
#ifndef XLA_GPU_CORE_HOST_TENSOR_H_
#define XLA_GPU_CORE_HOST_TENSOR_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/core/tensor_view.h"

namespace xla_gpu {

struct HostTensor {
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
  std::vector<uint8_t> data;

  static HostTensor Zeros(DType dtype, std::vector<int64_t> shape) {
    HostTensor tensor{dtype, std::move(shape), {}};
    tensor.data.resize(static_cast<size_t>(tensor.view().size_bytes()));
    return tensor;
  }

  // Valid while the tensor lives and keeps its shape; elements may be written through it.
  TensorView view() const { return {const_cast<uint8_t*>(data.data()), dtype, shape}; }
  std::string ToString() const { return TypeToString(dtype, shape); }
  template <typename T>
  T* data_as() {
    return reinterpret_cast<T*>(data.data());
  }
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_HOST_TENSOR_H_
