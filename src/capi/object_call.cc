// xla_gpu_run_objects: the C ABI's door for tensors inside Python objects.
#include <cstddef>

#include "src/capi/dlpack.h"
#include "src/capi/internal.h"
#include "src/core/strings.h"

namespace xla_gpu {
namespace {

enum Outcome { kRan = 0, kOther = 1, kFailed = 2 };

// xla_gpu_dtype of a DLPack type; 0 for one that the library does not know.
int32_t DTypeFromDlpack(const dlpack::DataType& type) {
  enum Code { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6, kE4m3fn = 10, kE5m2 = 12 };
  if (type.lanes != 1) return 0;
  switch (type.code << 8 | type.bits) {
    case kInt << 8 | 32:
      return XLA_GPU_DTYPE_I32;
    case kInt << 8 | 64:
      return XLA_GPU_DTYPE_I64;
    case kUInt << 8 | 8:
      return XLA_GPU_DTYPE_U8;
    case kFloat << 8 | 16:
      return XLA_GPU_DTYPE_F16;
    case kFloat << 8 | 32:
      return XLA_GPU_DTYPE_F32;
    case kBfloat << 8 | 16:
      return XLA_GPU_DTYPE_BF16;
    case kE4m3fn << 8 | 8:
      return XLA_GPU_DTYPE_F8E4M3FN;
    case kE5m2 << 8 | 8:
      return XLA_GPU_DTYPE_F8E5M2;
    default:
      return 0;
  }
}

bool IsRowMajor(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  bool row_major = true;
  for (int32_t i = tensor.rank - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;  // no element, no place
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) row_major = false;
    expected *= tensor.shape[i];
  }
  return row_major;
}

bool Matches(const dlpack::Tensor& tensor, const xla_gpu_tensor& expected,
             const xla_gpu_object_call& c) {
  if (expected.rank > 0 && expected.dims == nullptr) return false;
  if (tensor.device.type != c.device_type || tensor.device.id != c.device_id) return false;
  if (DTypeFromDlpack(tensor.dtype) != expected.dtype) return false;
  // Frameworks keep scales as 0-d tensors, which lie in memory like one element of a vector.
  if (tensor.rank == 0 && expected.rank == 1) return expected.dims[0] == 1;
  if (tensor.rank != expected.rank) return false;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] != expected.dims[i]) return false;
  }
  return IsRowMajor(tensor);
}

// An array of the call's tensors, whose struct_size is this header's (the elements are copied).
Status CheckArray(const char* name, const xla_gpu_tensor* tensors, size_t count) {
  if (count > kMaxTensors) {
    return InvalidArgument(StrCat("at most ", kMaxTensors, " tensors are allowed"));
  }
  for (size_t i = 0; i < count; ++i) {
    if (tensors == nullptr || tensors[i].struct_size != sizeof(xla_gpu_tensor)) {
      return InvalidArgument(StrCat("call.", name, "[", i, "] must be an xla_gpu_tensor with a ",
                                    "struct_size of ", sizeof(xla_gpu_tensor)));
    }
  }
  return OkStatus();
}

Status CheckObjectCall(const xla_gpu_object_call* c, const void* tuple) {
  if (c == nullptr || tuple == nullptr) return InvalidArgument("call or tuple is NULL");
  if (c->struct_size < sizeof(*c)) {
    return InvalidArgument(StrCat("xla_gpu_object_call.struct_size is ", c->struct_size,
                                  " but must be at least ", sizeof(*c)));
  }
  if (c->call == nullptr || c->none == nullptr || c->exchange_api == nullptr ||
      c->tuple_item == nullptr || c->release_gil == nullptr || c->acquire_gil == nullptr) {
    return InvalidArgument("a pointer in xla_gpu_object_call is NULL");
  }
  const auto& api = *static_cast<const dlpack::ExchangeApi*>(c->exchange_api);
  if (api.major_version != dlpack::kMajorVersion) {
    return Unimplemented(
        StrCat("the framework's DLPack has version ", api.major_version, "; 1 is supported"));
  }
  XLA_GPU_RETURN_IF_ERROR(CheckArray("args", c->call->args, c->call->num_args));
  return CheckArray("results", c->call->results, c->call->num_results);
}

// Copies `count` of the call's tensors to `out`, with the addresses of the tuple's from `first` on.
bool ReadObjects(const xla_gpu_object_call& c, void* tuple, size_t first,
                 const xla_gpu_tensor* expected, size_t count, xla_gpu_tensor* out) {
  const auto& api = *static_cast<const dlpack::ExchangeApi*>(c.exchange_api);
  for (size_t i = 0; i < count; ++i) {
    dlpack::Tensor tensor;
    void* object = c.tuple_item(tuple, static_cast<ptrdiff_t>(first + i));
    if (object == nullptr || object == c.none || api.tensor_from_object(object, &tensor) != 0)
      return false;
    if (!Matches(tensor, expected[i], c)) return false;
    out[i] = expected[i];
    out[i].data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  }
  return true;
}

// Whether an argument overlaps a result without being it: what is read would change under way.
bool Overlap(const xla_gpu_call& call) {
  const auto bytes = [](const xla_gpu_tensor& t) {
    const auto type = static_cast<DType>(t.dtype);
    return TensorView{t.data, type, Shape(t.dims, static_cast<size_t>(t.rank))}.size_bytes();
  };
  for (size_t r = 0; r < call.num_results; ++r) {
    const char* result = static_cast<const char*>(call.results[r].data);
    const char* result_end = result + bytes(call.results[r]);
    size_t same = 0;
    for (size_t a = 0; a < call.num_args; ++a) {
      const char* arg = static_cast<const char*>(call.args[a].data);
      if (arg == result && ++same == 1) continue;
      if (arg < result_end && result < arg + bytes(call.args[a])) return true;
    }
  }
  return false;
}

}  // namespace
}  // namespace xla_gpu

extern "C" int xla_gpu_run_objects(const xla_gpu_object_call* c, void* tuple,
                                   xla_gpu_status** status) {
  using namespace xla_gpu;  // NOLINT: this file only implements the C ABI
  if (status == nullptr) return kFailed;
  *status = Wrap(CheckObjectCall(c, tuple));
  if (*status != nullptr) return kFailed;

  xla_gpu_call call = *c->call;
  xla_gpu_tensor tensors[2 * kMaxTensors];
  if (!ReadObjects(*c, tuple, 0, call.args, call.num_args, tensors) ||
      !ReadObjects(*c, tuple, call.num_args, call.results, call.num_results,
                   tensors + call.num_args)) {
    return kOther;
  }
  call.args = tensors;
  call.results = tensors + call.num_args;
  if (Overlap(call)) return kOther;
  const auto& api = *static_cast<const dlpack::ExchangeApi*>(c->exchange_api);
  constexpr int32_t kCuda = 2;
  if (c->device_type == kCuda && api.current_stream(kCuda, c->device_id, &call.stream) != 0) {
    return kOther;
  }
  void* state = c->release_gil();
  *status = xla_gpu_run(&call);
  c->acquire_gil(state);
  return *status == nullptr ? kRan : kFailed;
}
