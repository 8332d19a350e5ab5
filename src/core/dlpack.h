// The part of DLPack 1.3 that calls of frameworks and of their functions need: its C structs, by
// their documented layout, so that nothing of DLPack or of a framework is needed to build.
#ifndef XLA_GPU_CORE_DLPACK_H_
#define XLA_GPU_CORE_DLPACK_H_

#include <cstddef>
#include <cstdint>

#include "src/core/dtype.h"

namespace xla_gpu::dlpack {

inline constexpr uint32_t kMajorVersion = 1;

enum DeviceType : int32_t { kCpu = 1, kCuda = 2 };

struct Device {
  int32_t type;  // DeviceType
  int32_t id;
  friend bool operator==(const Device&, const Device&) = default;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  friend bool operator==(const DataType&, const DataType&) = default;
};

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, shape) == 24);

// A tensor and what becomes of it when its last user is done.
struct ManagedTensor {
  uint32_t major_version;
  uint32_t minor_version;
  void* context;
  void (*deleter)(ManagedTensor* self);
  uint64_t flags;
  Tensor tensor;
};
static_assert(sizeof(ManagedTensor) == 80 && offsetof(ManagedTensor, tensor) == 32);

// The same before DLPack 1.0, which frameworks of any age take.
struct UnversionedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(UnversionedTensor* self);
};
static_assert(sizeof(UnversionedTensor) == 64);

// Makes a tensor of the prototype's device, dtype and shape. Returns something else than 0 after
// it told `set_error` a kind ("ValueError") and a text.
using SetErrorFn = void (*)(void* error_context, const char* kind, const char* text);
using AllocateFn = int (*)(Tensor* prototype, ManagedTensor** out, void* error_context,
                           SetErrorFn set_error);

// Functions of a framework. Those that take objects need Python's GIL, and set a Python error where
// they return something else than 0.
struct ExchangeApi {
  uint32_t major_version;
  uint32_t minor_version;
  ExchangeApi* previous;
  AllocateFn allocate;
  int (*managed_from_object)(void*, void**);
  int (*managed_to_object)(void*, void**);
  int (*tensor_from_object)(void* object, Tensor* out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

constexpr DataType TypeOf(DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  return {info.dlpack, static_cast<uint8_t>(8 * info.size), 1};
}

// kInvalid where this library has no such dtype.
constexpr DType DTypeOf(DataType type) {
  return FindDType([type](const DTypeInfo& info) { return TypeOf(info.dtype) == type; })
      .value_or(DType::kInvalid);
}

// Where the first element lies.
inline void* DataOf(const Tensor& tensor) {
  return tensor.data == nullptr ? nullptr : static_cast<char*>(tensor.data) + tensor.byte_offset;
}

// Dense and row-major. Its shape may be anything (TypeProblem): products are of unsigned numbers.
inline bool IsRowMajor(const Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  uint64_t expected = 1;
  bool row_major = true;
  for (int32_t i = tensor.rank - 1; i >= 0; --i) {
    const auto dim = static_cast<uint64_t>(tensor.shape[i]);
    if (dim == 0) return true;  // no element, no place
    if (dim != 1 && static_cast<uint64_t>(tensor.strides[i]) != expected) row_major = false;
    expected *= dim;
  }
  return row_major;
}

// Writes the strides of a dense row-major tensor.
inline void FillStrides(const int64_t* shape, int32_t rank, int64_t* strides) {
  uint64_t stride = 1;  // of an empty tensor it may overflow
  for (int32_t i = rank - 1; i >= 0; --i) {
    strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(shape[i]);
  }
}

}  // namespace xla_gpu::dlpack

#endif  // XLA_GPU_CORE_DLPACK_H_
