// The C++ API: tensors, op calls and XLA clients over the C ABI (xla_gpu.h). Header only; link
// libxla_gpu.so. Errors are exceptions of type xla_gpu::Error.
#ifndef XLA_GPU_XLA_GPU_HPP_
#define XLA_GPU_XLA_GPU_HPP_

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {
inline namespace v1 {

class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }  // as xla_gpu_status_code

 private:
  int code_;
};

// Throws the status, and frees it, unless it is NULL.
inline void Check(xla_gpu_status* status) {
  if (status == nullptr) return;
  const Error error(xla_gpu_status_code(status), xla_gpu_status_message(status));
  xla_gpu_status_free(status);
  throw error;
}

// The dtype of a C++ type. For bf16, f16 and fp8 give the dtype and the bits (uint16_t, uint8_t).
template <typename T>
constexpr xla_gpu_dtype DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return XLA_GPU_DTYPE_F32;
  if constexpr (std::is_same_v<T, double>) return XLA_GPU_DTYPE_F64;
  if constexpr (std::is_same_v<T, int8_t>) return XLA_GPU_DTYPE_I8;
  if constexpr (std::is_same_v<T, int16_t>) return XLA_GPU_DTYPE_I16;
  if constexpr (std::is_same_v<T, int32_t>) return XLA_GPU_DTYPE_I32;
  if constexpr (std::is_same_v<T, int64_t>) return XLA_GPU_DTYPE_I64;
  if constexpr (std::is_same_v<T, uint8_t>) return XLA_GPU_DTYPE_U8;
  if constexpr (std::is_same_v<T, uint16_t>) return XLA_GPU_DTYPE_U16;
  if constexpr (std::is_same_v<T, uint32_t>) return XLA_GPU_DTYPE_U32;
  if constexpr (std::is_same_v<T, uint64_t>) return XLA_GPU_DTYPE_U64;
}

// Bytes of one element.
inline size_t ElementSize(xla_gpu_dtype dtype) {
  switch (dtype) {
    case XLA_GPU_DTYPE_I16:
    case XLA_GPU_DTYPE_U16:
    case XLA_GPU_DTYPE_F16:
    case XLA_GPU_DTYPE_BF16:
      return 2;
    case XLA_GPU_DTYPE_I32:
    case XLA_GPU_DTYPE_U32:
    case XLA_GPU_DTYPE_F32:
      return 4;
    case XLA_GPU_DTYPE_I64:
    case XLA_GPU_DTYPE_U64:
    case XLA_GPU_DTYPE_F64:
      return 8;
    default:
      return 1;
  }
}

// A dense row-major tensor in host memory that owns its data.
class Tensor {
 public:
  // `values` must hold as many elements as the shape says.
  template <typename T>
  Tensor(std::vector<int64_t> shape, const std::vector<T>& values,
         xla_gpu_dtype dtype = DTypeOf<T>())
      : Tensor(std::move(shape), dtype, values.data(), values.size() * sizeof(T)) {}
  Tensor(std::vector<int64_t> shape, xla_gpu_dtype dtype, const void* data, size_t bytes)
      : dtype_(dtype), shape_(std::move(shape)), data_(bytes) {
    size_t wanted = ElementSize(dtype);
    for (const int64_t dim : shape_) wanted *= static_cast<size_t>(dim);
    if (wanted != bytes) {
      throw Error(3, "a tensor's values have " + std::to_string(bytes) +
                         " bytes but its shape and dtype ask for " + std::to_string(wanted));
    }
    if (bytes > 0) std::memcpy(data_.data(), data, bytes);
  }

  xla_gpu_dtype dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  size_t bytes() const { return data_.size(); }
  template <typename T>
  const T* data() const {
    return reinterpret_cast<const T*>(data_.data());
  }
  // Valid while the tensor lives.
  xla_gpu_tensor view() const {
    return {sizeof(xla_gpu_tensor), const_cast<unsigned char*>(data_.data()), dtype_,
            static_cast<int32_t>(shape_.size()), shape_.data()};
  }

 private:
  xla_gpu_dtype dtype_;
  std::vector<int64_t> shape_;
  std::vector<unsigned char> data_;
};

using AttrValue = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
struct Attr {
  std::string name;
  AttrValue value;
};

namespace internal {

inline std::vector<xla_gpu_tensor> Views(const std::vector<Tensor>& tensors) {
  std::vector<xla_gpu_tensor> views;
  for (const Tensor& tensor : tensors) views.push_back(tensor.view());
  return views;
}

inline xla_gpu_attr ToC(const Attr& attr) {
  xla_gpu_attr out{};
  out.struct_size = sizeof(out);
  out.name = attr.name.c_str();
  out.type =
      static_cast<int32_t>(attr.value.index());  // the alternatives have XLA_GPU_ATTR_*'s order
  if (const auto* b = std::get_if<bool>(&attr.value)) out.i = *b ? 1 : 0;
  if (const auto* i = std::get_if<int64_t>(&attr.value)) out.i = *i;
  if (const auto* f = std::get_if<double>(&attr.value)) out.f = *f;
  if (const auto* s = std::get_if<std::string>(&attr.value)) {
    out.s = s->data();
    out.s_size = s->size();
  }
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attr.value)) {
    out.ints = ints->data();
    out.ints_size = ints->size();
  }
  return out;
}

inline std::string TakeString(char* text) {
  const std::string copy(text);
  xla_gpu_string_free(text);
  return copy;
}

}  // namespace internal

// A PJRT plugin's client: stock XLA, with this library's ops as custom calls.
class Xla {
 public:
  // `plugin` as xla_gpu_client_create takes it: "" is the GPU if there is one, else the CPU.
  explicit Xla(const std::string& plugin = "") {
    xla_gpu_client* client = nullptr;
    Check(xla_gpu_client_create(plugin.c_str(), &client));
    client_.reset(client);
  }

  std::string platform() const { return xla_gpu_client_platform(client_.get()); }

  // Registers a handler of your own (xla_gpu_register_pjrt).
  void Register(const std::string& target, const void* handler, int api_version = 4) {
    Check(xla_gpu_register_pjrt(xla_gpu_client_pjrt_api(client_.get()), nullptr, target.c_str(),
                                handler, xla_gpu_client_platform(client_.get()), api_version));
  }

  // The StableHLO module that makes one call of the op; the arguments' data is not read.
  std::string StableHlo(const std::string& op, const std::vector<Tensor>& args,
                        const std::vector<Attr>& attrs = {}) const {
    const std::vector<xla_gpu_tensor> views = internal::Views(args);
    std::vector<xla_gpu_attr> c_attrs;
    for (const Attr& attr : attrs) c_attrs.push_back(internal::ToC(attr));
    xla_gpu_call call{};
    call.struct_size = sizeof(call);
    call.op = op.c_str();
    call.platform = xla_gpu_client_platform(client_.get());
    call.args = views.data();
    call.num_args = views.size();
    call.attrs = c_attrs.data();
    call.num_attrs = c_attrs.size();
    char* mlir = nullptr;
    Check(xla_gpu_stablehlo(&call, &mlir));
    return internal::TakeString(mlir);
  }

  // Compiles the module (once) and runs it.
  std::vector<Tensor> Run(const std::string& mlir, const std::vector<Tensor>& args) {
    const std::vector<xla_gpu_tensor> views = internal::Views(args);
    xla_gpu_results* results = nullptr;
    Check(xla_gpu_client_run(client_.get(), mlir.c_str(), views.data(), views.size(), &results));
    const std::unique_ptr<xla_gpu_results, void (*)(xla_gpu_results*)> owner(results,
                                                                             xla_gpu_results_free);
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < xla_gpu_results_count(results); ++i) {
      xla_gpu_tensor view{};
      view.struct_size = sizeof(view);
      Check(xla_gpu_results_get(results, i, &view));
      const auto dtype = static_cast<xla_gpu_dtype>(view.dtype);
      size_t bytes = ElementSize(dtype);
      for (int32_t d = 0; d < view.rank; ++d) bytes *= static_cast<size_t>(view.dims[d]);
      tensors.emplace_back(std::vector<int64_t>(view.dims, view.dims + view.rank), dtype, view.data,
                           bytes);
    }
    return tensors;
  }

  // One call of an op of this library, as a custom call in XLA.
  std::vector<Tensor> Call(const std::string& op, const std::vector<Tensor>& args,
                           const std::vector<Attr>& attrs = {}) {
    return Run(StableHlo(op, args, attrs), args);
  }

 private:
  struct Free {
    void operator()(xla_gpu_client* client) const { xla_gpu_client_free(client); }
  };
  std::unique_ptr<xla_gpu_client, Free> client_;
};

}  // namespace v1
}  // namespace xla_gpu

#endif  // XLA_GPU_XLA_GPU_HPP_
