// Part of xla_gpu.hpp, which see: errors, dtypes, tensors and attributes.
#ifndef XLA_GPU_TENSOR_HPP_
#define XLA_GPU_TENSOR_HPP_

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {
inline namespace v1 {

// what() names the argument, what came and what is allowed.
class Error : public std::runtime_error {
 public:
  Error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }  // as xla_gpu_status_code: 3 is INVALID_ARGUMENT

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

namespace internal {

template <typename T, typename... Types>
inline constexpr bool kIsOneOf = (std::is_same_v<T, Types> || ...);

struct DTypeInfo {
  const char* name;
  size_t bytes;  // of one element
};

inline DTypeInfo InfoOf(int32_t dtype) {
  switch (dtype) {
    case XLA_GPU_DTYPE_PRED:
      return {"pred", 1};
    case XLA_GPU_DTYPE_I8:
      return {"i8", 1};
    case XLA_GPU_DTYPE_I16:
      return {"i16", 2};
    case XLA_GPU_DTYPE_I32:
      return {"i32", 4};
    case XLA_GPU_DTYPE_I64:
      return {"i64", 8};
    case XLA_GPU_DTYPE_U8:
      return {"u8", 1};
    case XLA_GPU_DTYPE_U16:
      return {"u16", 2};
    case XLA_GPU_DTYPE_U32:
      return {"u32", 4};
    case XLA_GPU_DTYPE_U64:
      return {"u64", 8};
    case XLA_GPU_DTYPE_F16:
      return {"f16", 2};
    case XLA_GPU_DTYPE_F32:
      return {"f32", 4};
    case XLA_GPU_DTYPE_F64:
      return {"f64", 8};
    case XLA_GPU_DTYPE_BF16:
      return {"bf16", 2};
    case XLA_GPU_DTYPE_F8E5M2:
      return {"f8e5m2", 1};
    case XLA_GPU_DTYPE_F8E4M3FN:
      return {"f8e4m3fn", 1};
  }
  throw Error(
      3, "dtype is " + std::to_string(dtype) + "; it must be one of xla_gpu.h's XLA_GPU_DTYPE_*");
}

}  // namespace internal

// The dtype of float, double and the integers of <cstdint>; other types do not compile. A tensor of
// f16, bf16 or fp8 is made of its elements' bits (uint16_t, uint8_t) and a dtype.
template <typename T>
constexpr xla_gpu_dtype DTypeOf() {
  static_assert(internal::kIsOneOf<T, float, double, int8_t, int16_t, int32_t, int64_t, uint8_t,
                                   uint16_t, uint32_t, uint64_t>,
                "this C++ type stands for no dtype: give the tensor a dtype (XLA_GPU_DTYPE_*)");
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

// Bytes of one element of an xla_gpu_dtype. An unknown one is an Error.
inline size_t ElementSize(int32_t dtype) { return internal::InfoOf(dtype).bytes; }

// As messages write it: "bf16". An unknown one is an Error.
inline const char* DTypeName(int32_t dtype) { return internal::InfoOf(dtype).name; }

namespace internal {

// Throws unless T may stand for the dtype's elements: DTypeOf's type, bool for pred, the bits of
// what C++ has no type for, or any other type of that size (a half of your own).
template <typename T>
int32_t HeldBy(int32_t dtype) {
  static_assert(std::is_trivially_copyable_v<T>, "elements are copied as bytes");
  const DTypeInfo info = InfoOf(dtype);
  bool fits = sizeof(T) == info.bytes;
  if constexpr (std::is_same_v<T, bool>) {
    fits = fits && dtype == XLA_GPU_DTYPE_PRED;
  } else if constexpr (std::is_arithmetic_v<T>) {
    const bool is_bits = dtype == XLA_GPU_DTYPE_PRED || dtype == XLA_GPU_DTYPE_F16 ||
                         dtype == XLA_GPU_DTYPE_BF16 || dtype == XLA_GPU_DTYPE_F8E5M2 ||
                         dtype == XLA_GPU_DTYPE_F8E4M3FN;
    fits = fits && (is_bits ? std::is_unsigned_v<T> : dtype == DTypeOf<T>());
  }
  if (!fits) {
    throw Error(3, std::string("elements of dtype ") + info.name + " (" +
                       std::to_string(info.bytes) + " bytes) are not of this C++ type, which has " +
                       std::to_string(sizeof(T)) +
                       " bytes; take DTypeOf's type or, for f16, bf16, " +
                       "fp8 and pred, unsigned bits of their size");
  }
  return dtype;
}

inline size_t BytesOf(int32_t dtype, const int64_t* dims, size_t rank) {
  size_t bytes = ElementSize(dtype);
  for (size_t i = 0; i < rank; ++i) {
    const auto dim = static_cast<size_t>(dims[i]);
    if (dims[i] < 0 || (dim != 0 && bytes > SIZE_MAX / dim)) {
      throw Error(3, "dimension " + std::to_string(i) + " of a tensor's shape is " +
                         std::to_string(dims[i]) +
                         "; dimensions must not be negative, and the size must fit memory");
    }
    bytes *= dim;
  }
  return bytes;
}

}  // namespace internal

// A dense row-major tensor in host memory that owns its data.
class Tensor {
 public:
  // `values` must hold as many elements as the shape says (a scalar's is {}), of a C++ type that
  // the dtype has: see DTypeOf.
  template <typename T>
  Tensor(std::vector<int64_t> shape, const std::vector<T>& values, int32_t dtype = DTypeOf<T>())
      : Tensor(std::move(shape), internal::HeldBy<T>(dtype), values.data(),
               values.size() * sizeof(T)) {}
  // Copies `bytes` bytes, which must be those of the shape and dtype.
  Tensor(std::vector<int64_t> shape, int32_t dtype, const void* data, size_t bytes)
      : shape_(std::move(shape)) {
    const size_t wanted = internal::BytesOf(dtype, shape_.data(), shape_.size());
    dtype_ = static_cast<xla_gpu_dtype>(dtype);
    if (wanted != bytes) {
      throw Error(3, "a tensor's values have " + std::to_string(bytes) +
                         " bytes but its shape and dtype ask for " + std::to_string(wanted));
    }
    data_.resize(bytes);
    if (bytes > 0) std::memcpy(data_.data(), data, bytes);
  }

  xla_gpu_dtype dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  size_t bytes() const { return data_.size(); }
  int64_t size() const { return static_cast<int64_t>(bytes() / ElementSize(dtype_)); }  // elements
  // The elements; an Error where T does not stand for the dtype. Valid while the tensor lives.
  template <typename T>
  const T* data() const {
    internal::HeldBy<T>(dtype_);
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

// An attribute of an op, of the type that `xla-gpu ops` lists: {"scale", 0.125}, {"causal", true}.
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
  std::visit(
      [&out](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          out.type = XLA_GPU_ATTR_BOOL;
          out.i = value ? 1 : 0;
        } else if constexpr (std::is_same_v<Value, int64_t>) {
          out.type = XLA_GPU_ATTR_INT;
          out.i = value;
        } else if constexpr (std::is_same_v<Value, double>) {
          out.type = XLA_GPU_ATTR_FLOAT;
          out.f = value;
        } else if constexpr (std::is_same_v<Value, std::string>) {
          out.type = XLA_GPU_ATTR_STRING;
          out.s = value.data();
          out.s_size = value.size();
        } else {
          static_assert(std::is_same_v<Value, std::vector<int64_t>>);
          out.type = XLA_GPU_ATTR_INT_ARRAY;
          out.ints = value.data();
          out.ints_size = value.size();
        }
      },
      attr.value);
  return out;
}

inline std::string TakeString(char* text) {
  const std::string copy(text);
  xla_gpu_string_free(text);
  return copy;
}

}  // namespace internal

}  // namespace v1
}  // namespace xla_gpu

#endif  // XLA_GPU_TENSOR_HPP_
