// Part of xla_gpu.hpp, which see: kernels of your own.
#ifndef XLA_GPU_KERNEL_HPP_
#define XLA_GPU_KERNEL_HPP_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iomanip>
#include <locale>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "xla_gpu/tensor.hpp"
#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {
inline namespace v1 {

// Blocks of a grid, or threads of a block.
struct Dim3 {
  int64_t x = 1, y = 1, z = 1;
};

// How many blocks of b cover a.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct TensorType {
  int32_t dtype;  // XLA_GPU_DTYPE_*
  std::vector<int64_t> shape;
};

// A value, or a function of a call's arguments, which may look at their types but not at their
// data: the compiled call serves all arguments of these types.
template <typename T>
class OfArguments {
 public:
  OfArguments(T value) : function_([value](const std::vector<Tensor>&) { return value; }) {}
  template <typename F,
            typename = std::enable_if_t<std::is_invocable_r_v<T, F, const std::vector<Tensor>&>>>
  OfArguments(F function) : function_(std::move(function)) {}
  T operator()(const std::vector<Tensor>& args) const { return function_(args); }

 private:
  std::function<T(const std::vector<Tensor>&)> function_;
};

namespace internal {

template <typename... Texts>
std::string Concat(const Texts&... texts) {
  std::string all;
  ((all += texts), ...);
  return all;
}

// {"name":"x","like":"y"} of names and JSON values.
class JsonObject {
 public:
  JsonObject& Add(const char* name, const std::string& json) {
    members_ += Concat(members_.empty() ? "\"" : ",\"", name, "\":", json);
    return *this;
  }
  const std::string& members() const { return members_; }
  std::string text() const { return Concat("{", members_, "}"); }

 private:
  std::string members_;
};

inline std::string Json(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    char escaped[8] = {c};
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
    }
    json.append(escaped, c == '\0' ? 6 : std::strlen(escaped));
  }
  return Concat(json, "\"");
}

template <typename List, typename Write>
std::string Json(const List& list, Write write) {
  std::string json = "[";
  for (const auto& item : list) json += Concat(json.size() > 1 ? "," : "", write(item));
  return Concat(json, "]");
}

inline std::string Json(const std::vector<std::string>& list) {
  return Json(list, [](const std::string& text) { return Json(text); });
}

inline std::string Json(const AttrValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return std::to_string(*number);
  const double* real = std::get_if<double>(&value);
  if (real == nullptr || !std::isfinite(*real)) {
    throw Error(3, "a scalar's default must be a bool, an int or a finite float");
  }
  std::ostringstream text;
  text.imbue(std::locale::classic());  // the program's may write 0,5
  text << std::scientific << std::setprecision(17) << *real;
  return text.str();
}

inline std::string Base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = i; k < i + 3; ++k) {
      group = group << 8 | (k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) {
      text += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

}  // namespace internal

// What a kernel runs on one platform. `entry` is the function's name, or of a template an
// expression: "scale<float, 256>".
class KernelCode {
 public:
  // CUDA C++, compiled by NVRTC for the GPU that runs it. `options`: NVRTC's ("-DN=4",
  // "-I/folder"); `file`: the text's name in messages.
  static KernelCode CudaSource(const std::string& text, const std::string& entry,
                               const std::vector<std::string>& options = {},
                               const std::string& file = "") {
    return Source("CUDA", "cuda_source", text, entry, options, file);
  }
  // Machine code: the bytes of a cubin or fatbin, or PTX. `entry` as it is named there.
  static KernelCode CudaImage(const std::string& image, const std::string& entry) {
    using internal::Json;
    return {"CUDA", internal::JsonObject()
                        .Add("kind", "\"cuda_image\"")
                        .Add("image", Json(internal::Base64(image)))
                        .Add("entry", Json(entry))};
  }
  // C++, compiled by the system's compiler ($CXX, else c++) when a call is.
  static KernelCode HostSource(const std::string& text, const std::string& entry,
                               const std::vector<std::string>& options = {},
                               const std::string& file = "") {
    return Source("Host", "host_source", text, entry, options, file);
  }
  // A C function of this program, which takes arguments, outputs and scalars in this order (unless
  // KernelSpec says otherwise). On "CUDA" it launches on its first parameter, the CUstream.
  template <typename Result, typename... Parameters>
  static KernelCode Function(const std::string& platform, Result (*function)(Parameters...)) {
    const auto address = reinterpret_cast<uintptr_t>(function);
    return {
        platform,
        internal::JsonObject().Add("kind", "\"function\"").Add("address", std::to_string(address))};
  }
  // Or one of a shared library.
  static KernelCode Function(const std::string& platform, const std::string& library,
                             const std::string& symbol) {
    return {platform, internal::JsonObject()
                          .Add("kind", "\"function\"")
                          .Add("library", internal::Json(library))
                          .Add("symbol", internal::Json(symbol))};
  }
  // A typed handler of XLA's FFI in a shared library (XLA_FFI_DEFINE_HANDLER_SYMBOL): its buffers
  // are arguments, outputs and the workspace, its attributes the scalars. On "CUDA" it must be
  // declared safe for command buffers.
  static KernelCode FfiHandler(const std::string& platform, const std::string& library,
                               const std::string& symbol) {
    return {platform, internal::JsonObject()
                          .Add("kind", "\"ffi\"")
                          .Add("library", internal::Json(library))
                          .Add("symbol", internal::Json(symbol))};
  }

 private:
  friend class Kernel;
  KernelCode(std::string platform, internal::JsonObject json)
      : platform_(std::move(platform)), json_(std::move(json)) {}
  static KernelCode Source(const std::string& platform, const std::string& kind,
                           const std::string& text, const std::string& entry,
                           const std::vector<std::string>& options, const std::string& file) {
    using internal::Json;
    return {platform, internal::JsonObject()
                          .Add("kind", Json(kind))
                          .Add("text", Json(text))
                          .Add("entry", Json(entry))
                          .Add("options", Json(options))
                          .Add("file", Json(file))};
  }

  std::string platform_;
  internal::JsonObject json_;
};

struct KernelOutput {
  // Of the type of an argument, by its name; or of a type of its own.
  KernelOutput(std::string its_name, std::string argument)
      : name(std::move(its_name)), like(std::move(argument)), type(TensorType{}) {}
  KernelOutput(std::string its_name, const char* argument)
      : KernelOutput(std::move(its_name), std::string(argument)) {}
  KernelOutput(std::string its_name, OfArguments<TensorType> its_type)
      : name(std::move(its_name)), type(std::move(its_type)) {}

  std::string name, like;
  OfArguments<TensorType> type;
};

struct KernelScalar {
  std::string name;
  std::string type = {};  // "f32", "i64", ...; a source text tells it
  std::optional<AttrValue> default_value = {};
};

// What a call of a kernel takes and gives. Pointers that a source text declares and that are no
// outputs are arguments, numbers are scalars; other code needs `arguments` and the scalars' types.
struct KernelSpec {
  std::string name;  // the custom call's target
  std::vector<KernelOutput> outputs = {};
  std::vector<std::string> in_place = {};  // arguments that are updated: results after the outputs
  std::vector<std::string> arguments = {};
  std::vector<KernelScalar> scalars = {};
  std::vector<std::string> parameters = {};  // what the function takes, where no text declares it
  // Of kernels that are launched; no CUDA source or image: not used.
  OfArguments<Dim3> grid = Dim3{};
  OfArguments<Dim3> block = Dim3{};
  OfArguments<int64_t> shared_memory = int64_t{0};           // bytes of dynamic shared memory
  std::optional<OfArguments<int64_t>> workspace_bytes = {};  // for a parameter `workspace`
};

// A kernel of your own, an op like the library's: Client::Call runs it as a custom call in XLA. A
// copy is the same kernel; an equal one is defined once.
class Kernel {
 public:
  // `code`: one for each platform that the kernel shall run on. An Error where the description
  // cannot be, or does not fit a source text. Nothing is compiled yet.
  Kernel(KernelSpec spec, const std::vector<KernelCode>& code) : spec_(std::move(spec)) {
    const std::string json = Definition(code);
    char* op = nullptr;
    Check(xla_gpu_define_kernel(json.data(), json.size(), &op));
    key_ = KeyIn(internal::TakeString(op));
    for (const KernelCode& one : code) {
      launched_ |= one.json_.members().compare(0, 12, "\"kind\":\"cuda") == 0;
    }
  }

  const std::string& name() const { return spec_.name; }
  // The op's name in xla_gpu_call and Client::StableHlo.
  const std::string& key() const { return key_; }

  // All attributes of a call: the scalars that are given, and what follows from the arguments.
  std::vector<Attr> Attributes(const std::vector<Tensor>& args, std::vector<Attr> attrs) const {
    const auto dims = [](const Dim3& d) { return std::vector<int64_t>{d.x, d.y, d.z}; };
    std::vector<int64_t> types;
    for (const KernelOutput& output : spec_.outputs) {
      if (!output.like.empty()) continue;
      const TensorType type = output.type(args);
      types.push_back(type.dtype);
      types.push_back(static_cast<int64_t>(type.shape.size()));
      types.insert(types.end(), type.shape.begin(), type.shape.end());
    }
    if (!types.empty()) attrs.push_back({"result_types", types});
    if (launched_) {
      attrs.push_back({"grid", dims(spec_.grid(args))});
      attrs.push_back({"block", dims(spec_.block(args))});
      attrs.push_back({"shared_memory", spec_.shared_memory(args)});
    }
    if (spec_.workspace_bytes) {
      attrs.push_back({"workspace_bytes", (*spec_.workspace_bytes)(args)});
    }
    return attrs;
  }

 private:
  std::string Definition(const std::vector<KernelCode>& code) const {
    using internal::Json;
    using internal::JsonObject;
    std::vector<std::string> results;
    for (const KernelOutput& output : spec_.outputs) {
      JsonObject result;
      result.Add("name", Json(output.name));
      if (!output.like.empty()) result.Add("like", Json(output.like));
      results.push_back(result.text());
    }
    for (const std::string& name : spec_.in_place) {
      results.push_back(JsonObject().Add("name", Json(name)).Add("alias_of", Json(name)).text());
    }
    const auto as_is = [](const std::string& json) { return json; };
    JsonObject definition;
    definition.Add("name", Json(spec_.name)).Add("results", Json(results, as_is));
    if (!spec_.arguments.empty()) {
      definition.Add("arguments", Json(spec_.arguments, [](const std::string& name) {
                       return JsonObject().Add("name", Json(name)).text();
                     }));
    }
    definition.Add("scalars", Json(spec_.scalars, [](const KernelScalar& scalar) {
                     JsonObject json;
                     json.Add("name", Json(scalar.name));
                     if (!scalar.type.empty()) json.Add("type", Json(scalar.type));
                     if (scalar.default_value) json.Add("default", Json(*scalar.default_value));
                     return json.text();
                   }));
    if (spec_.workspace_bytes) definition.Add("workspace", "true");
    JsonObject implementations;
    for (const KernelCode& one : code) {
      JsonObject json = one.json_;
      if (!spec_.parameters.empty()) json.Add("parameters", Json(spec_.parameters));
      implementations.Add(one.platform_.c_str(), json.text());
    }
    return definition.Add("implementations", implementations.text()).text();
  }
  // The member "key" of the op's JSON, whose texts have their quotes escaped.
  static std::string KeyIn(const std::string& json) {
    const std::string member = "\"key\":\"";
    std::string key;
    for (size_t i = json.find(member) + member.size(); json[i] != '"'; ++i) {
      if (json[i] == '\\') ++i;
      key += json[i];
    }
    return key;
  }

  KernelSpec spec_;
  std::string key_;
  bool launched_ = false;
};

}  // namespace v1
}  // namespace xla_gpu

#endif  // XLA_GPU_KERNEL_HPP_
