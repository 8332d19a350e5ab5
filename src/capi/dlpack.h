// The part of DLPack 1.3 that calls on Python objects need: its C structs, by their documented
// layout, so that nothing of DLPack or of a framework is needed to build.
#ifndef XLA_GPU_CAPI_DLPACK_H_
#define XLA_GPU_CAPI_DLPACK_H_

#include <cstdint>

namespace xla_gpu::dlpack {

struct Device {
  int32_t type;  // 1 CPU, 2 CUDA
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
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

// Functions of a framework. Those that take objects need Python's GIL, and set a Python error where
// they return something else than 0.
struct ExchangeApi {
  uint32_t major_version;
  uint32_t minor_version;
  ExchangeApi* previous;
  int (*allocate)(Tensor*, void**, void*, void (*)(void*, const char*, const char*));
  int (*managed_from_object)(void*, void**);
  int (*managed_to_object)(void*, void**);
  int (*tensor_from_object)(void* object, Tensor* out);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

inline constexpr uint32_t kMajorVersion = 1;

}  // namespace xla_gpu::dlpack

#endif  // XLA_GPU_CAPI_DLPACK_H_
