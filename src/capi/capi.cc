// The C ABI: turns C structs into core types and Status into xla_gpu_status, nothing else.
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/capi/internal.h"
#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/profile.h"
#include "src/core/schema_json.h"
#include "src/core/strings.h"
#include "src/cuda/cache_admin.h"
#include "src/xla/alias.h"
#include "src/xla/compat/compat_plugin.h"
#include "src/xla/handlers.h"
#include "src/xla/opaque.h"
#include "src/xla/registration.h"
#include "src/xla/stablehlo_module.h"
#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {

Status BadStruct(const char* name, size_t came, size_t needed) {
  return InvalidArgument(name, ".struct_size is ", came, " but must be at least ", needed,
                         " (sizeof(", name, "))");
}

namespace {

// No struct of a later header is larger; what claims to be is not initialised.
constexpr size_t kMaxStructSize = 4096;

StatusOr<Platform> ParsePlatform(const char* name) {
  return xla::ParseXlaPlatform(name == nullptr ? "" : name);
}

// Element i of a caller's array of structs. Their size is the caller's, which may have been built
// against a later header whose structs are larger than ours.
template <typename T>
const T& ElementAt(const T* array, size_t i) {
  return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + i * array->struct_size);
}

// The struct sizes of an array: large enough, and one for all, because they give the stride. Each
// is looked at before what it leads to.
template <typename T>
Status CheckStructSizes(const char* name, const T* array, size_t count) {
  if (count == 0) return OkStatus();
  const size_t size = array->struct_size;
  if (size < sizeof(T)) return BadStruct(name, size, sizeof(T));
  if (size > kMaxStructSize || size % alignof(T) != 0) {
    return InvalidArgument(name, ".struct_size is ", size, " but must be sizeof(", name,
                           "), a multiple of ", alignof(T), " and at most ", kMaxStructSize);
  }
  for (size_t i = 1; i < count; ++i) {
    const size_t other = ElementAt(array, i).struct_size;
    if (other != size) {
      return InvalidArgument(name, ".struct_size is ", size, " in the first element of an ",
                             "array but ", other, " in element ", i, "; they must be equal");
    }
  }
  return OkStatus();
}

}  // namespace

Status ReadTensors(const xla_gpu_tensor* tensors, size_t count, TensorList& out) {
  XLA_GPU_RETURN_IF_ERROR(out.CheckCount(count));
  if (count > 0 && tensors == nullptr) {
    return InvalidArgument(count, " ", out.kind(), "s came but their array is NULL");
  }
  XLA_GPU_RETURN_IF_ERROR(CheckStructSizes("xla_gpu_tensor", tensors, count));
  for (size_t i = 0; i < count; ++i) {
    const xla_gpu_tensor& t = ElementAt(tensors, i);
    XLA_GPU_RETURN_IF_ERROR(out.Add(t.data, DTypeFromInt(t.dtype), t.rank, t.dims));
  }
  return OkStatus();
}

namespace {

Status ReadAttribute(const xla_gpu_attr& attr, Attributes& out) {
  if (attr.name == nullptr) return InvalidArgument("an attribute's name is NULL");
  switch (attr.type) {
    case XLA_GPU_ATTR_BOOL:
      return out.Add(attr.name, AttrValue(attr.i != 0));
    case XLA_GPU_ATTR_INT:
      return out.Add(attr.name, AttrValue(attr.i));
    case XLA_GPU_ATTR_FLOAT:
      return out.Add(attr.name, AttrValue(attr.f));
    case XLA_GPU_ATTR_STRING:
      if (attr.s == nullptr && attr.s_size > 0) break;
      return out.Add(attr.name, AttrValue(std::string_view(attr.s, attr.s_size)));
    case XLA_GPU_ATTR_INT_ARRAY:
      if (attr.ints == nullptr && attr.ints_size > 0) break;
      return out.Add(attr.name, AttrValue(std::span<const int64_t>(attr.ints, attr.ints_size)));
    default:
      return InvalidArgument("attribute '", attr.name, "' has type number ", attr.type,
                             "; allowed are 0 to 4 (XLA_GPU_ATTR_*)");
  }
  return InvalidArgument("attribute '", attr.name, "' has a size but a NULL pointer");
}

}  // namespace

StatusOr<const Op*> Decode(const xla_gpu_call* c, bool with_results, DecodedCall& out) {
  if (c == nullptr) return InvalidArgument("call is NULL");
  if (c->struct_size < sizeof(*c)) return BadStruct("xla_gpu_call", c->struct_size, sizeof(*c));
  if (c->op == nullptr) return InvalidArgument("call.op is NULL; it must name an op");
  XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Get(c->op));
  XLA_GPU_ASSIGN_OR_RETURN(out.platform, ParsePlatform(c->platform));
  XLA_GPU_RETURN_IF_ERROR(ReadTensors(c->args, c->num_args, out.args));
  if (with_results) XLA_GPU_RETURN_IF_ERROR(ReadTensors(c->results, c->num_results, out.results));
  if (c->num_attrs > 0 && c->attrs == nullptr) return InvalidArgument("call.attrs is NULL");
  if (c->num_attrs > Attributes::kMaxAttributes) {
    return InvalidArgument(c->num_attrs, " attributes came; at most ", Attributes::kMaxAttributes,
                           " attributes are allowed");
  }
  XLA_GPU_RETURN_IF_ERROR(CheckStructSizes("xla_gpu_attr", c->attrs, c->num_attrs));
  for (size_t i = 0; i < c->num_attrs; ++i) {
    XLA_GPU_RETURN_IF_ERROR(ReadAttribute(ElementAt(c->attrs, i), out.attributes));
  }
  return op;
}

namespace {

Status RegisterInPlugin(const void* pjrt_api, const char* plugin_path, const char* name,
                        const xla::HandlerStages& stages, const char* platform, int api_version) {
  if (name == nullptr || platform == nullptr) return InvalidArgument("name or platform is NULL");
  XLA_GPU_ASSIGN_OR_RETURN(const Platform parsed, xla::ParseXlaPlatform(platform));
  const StatusOr<const xla::PjrtPlugin*> plugin =
      pjrt_api != nullptr      ? xla::PjrtPlugin::FromApi(pjrt_api)
      : plugin_path != nullptr ? xla::PjrtPlugin::Load(plugin_path)
                               : xla::LoadedPlugin(parsed);
  if (!plugin.ok()) return plugin.status();
  return xla::Register(**plugin, {name, stages, platform, api_version});
}

xla_gpu_status& out_of_memory = *new xla_gpu_status{ResourceExhausted("out of memory")};

}  // namespace

xla_gpu_status* OutOfMemory() { return &out_of_memory; }

}  // namespace xla_gpu

using namespace xla_gpu;  // NOLINT: this file only implements the C ABI

extern "C" {

int xla_gpu_status_code(const xla_gpu_status* status) {
  return status == nullptr ? 0 : static_cast<int>(status->status.code());
}

const char* xla_gpu_status_message(const xla_gpu_status* status) {
  return status == nullptr ? "" : status->status.message().c_str();
}

void xla_gpu_status_free(xla_gpu_status* status) {
  if (status != OutOfMemory()) delete status;
}

void xla_gpu_string_free(char* text) { delete[] text; }

const char* xla_gpu_version(void) { return XLA_GPU_VERSION; }

xla_gpu_status* xla_gpu_run(const xla_gpu_call* c) {
  return Guard([&]() -> Status {
    DecodedCall decoded;
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, Decode(c, /*with_results=*/true, decoded));
    return RunOp(*op, decoded.platform, decoded.call(), {.stream = c->stream});
  });
}

xla_gpu_status* xla_gpu_infer(const xla_gpu_call* c, char** results_json) {
  return Guard([&]() -> Status {
    if (results_json == nullptr) return InvalidArgument("results_json is NULL");
    DecodedCall decoded;
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, Decode(c, /*with_results=*/false, decoded));
    XLA_GPU_ASSIGN_OR_RETURN(const std::vector<Result> results,
                             InferResults(*op, decoded.platform, decoded.call()));
    *results_json = CopyString(ResultsToJson(results));
    return OkStatus();
  });
}

char* xla_gpu_ops_json(void) {
  try {
    return CopyString(OpsToJson(OpRegistry::Global()));
  } catch (const std::exception&) {
    return nullptr;
  }
}

xla_gpu_status* xla_gpu_define_kernel(const char* definition, size_t size, char** op_json) {
  return Guard([&]() -> Status {
    if (definition == nullptr || op_json == nullptr) {
      return InvalidArgument("definition or op_json is NULL");
    }
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Define({definition, size}));
    *op_json = CopyString(OpToJson(*op));
    return OkStatus();
  });
}

xla_gpu_status* xla_gpu_profile_start(void) { return Guard(StartProfile); }

xla_gpu_status* xla_gpu_profile_stop(char** times_json) {
  return Guard([&]() -> Status {
    if (times_json == nullptr) return InvalidArgument("times_json is NULL");
    XLA_GPU_ASSIGN_OR_RETURN(const std::string times, StopProfile());
    *times_json = CopyString(times);
    return OkStatus();
  });
}

xla_gpu_status* xla_gpu_cache_get(const char* key, size_t key_size, char** text) {
  return Guard([&]() -> Status {
    if (key == nullptr || text == nullptr) return InvalidArgument("key or text is NULL");
    XLA_GPU_ASSIGN_OR_RETURN(const std::string kept, cuda::ReadKept({key, key_size}));
    *text = CopyString(kept);
    return OkStatus();
  });
}

xla_gpu_status* xla_gpu_cache_put(const char* key, size_t key_size, const char* description,
                                  const char* text) {
  return Guard([&]() -> Status {
    if (key == nullptr || description == nullptr || text == nullptr) {
      return InvalidArgument("key, description or text is NULL");
    }
    return cuda::Keep({key, key_size}, description, text);
  });
}

xla_gpu_status* xla_gpu_handler(const char* op, const char* platform, int api_version,
                                void** handler) {
  return Guard([&]() -> Status {
    if (op == nullptr || handler == nullptr) return InvalidArgument("op or handler is NULL");
    XLA_GPU_ASSIGN_OR_RETURN(const Op* found, OpRegistry::Global().Get(op));
    XLA_GPU_ASSIGN_OR_RETURN(Platform parsed, ParsePlatform(platform));
    XLA_GPU_ASSIGN_OR_RETURN(*handler, xla::HandlerAddress(*found, parsed, api_version));
    return OkStatus();
  });
}

xla_gpu_status* xla_gpu_opaque(const xla_gpu_call* c, char** text) {
  return Guard([&]() -> Status {
    if (text == nullptr) return InvalidArgument("text is NULL");
    DecodedCall decoded;
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, Decode(c, /*with_results=*/true, decoded));
    xla::OpaqueCall opaque = xla::MakeOpaqueCall(op->id(), decoded.call());
    if (decoded.results.views().empty()) {
      XLA_GPU_ASSIGN_OR_RETURN(opaque.results, InferTypes(*op, decoded.platform, decoded.call()));
    } else {
      XLA_GPU_RETURN_IF_ERROR(CheckCall(*op, decoded.platform, decoded.call()));
    }
    XLA_GPU_ASSIGN_OR_RETURN(std::string encoded, xla::EncodeOpaque(opaque));
    *text = CopyString(encoded);
    return OkStatus();
  });
}

xla_gpu_status* xla_gpu_alias(const char* op, const char* platform, int api_version,
                              const char* opaque, void** handler) {
  return Guard([&]() -> Status {
    if (op == nullptr || opaque == nullptr || handler == nullptr) {
      return InvalidArgument("op, opaque or handler is NULL");
    }
    XLA_GPU_ASSIGN_OR_RETURN(const Op* found, OpRegistry::Global().Get(op));
    XLA_GPU_ASSIGN_OR_RETURN(Platform parsed, ParsePlatform(platform));
    XLA_GPU_ASSIGN_OR_RETURN(*handler, xla::AliasHandler(*found, parsed, api_version, opaque));
    return OkStatus();
  });
}

xla_gpu_status* xla_gpu_check_handler(const char* name, const void* handler, const char* platform,
                                      int api_version, int runtime_ffi_major, int runtime_ffi_minor,
                                      char** info_json) {
  return Guard([&]() -> Status {
    if (name == nullptr || platform == nullptr) return InvalidArgument("name or platform is NULL");
    std::optional<xla::Version> runtime;
    if (runtime_ffi_minor >= 0) runtime = xla::Version{runtime_ffi_major, runtime_ffi_minor};
    XLA_GPU_ASSIGN_OR_RETURN(
        const xla::HandlerMetadata metadata,
        xla::CheckHandler(name, {.execute = handler}, platform, api_version, runtime));
    if (info_json == nullptr) return OkStatus();
    nlohmann::json info = nlohmann::json::object();
    if (api_version == 4) {
      info = {{"ffi", metadata.ffi.ToString()}, {"command_buffer", (metadata.traits & 1) != 0}};
    }
    *info_json = CopyString(info.dump());
    return OkStatus();
  });
}

xla_gpu_status* xla_gpu_register_pjrt(const void* pjrt_api, const char* plugin_path,
                                      const char* name, const void* handler, const char* platform,
                                      int api_version) {
  return Guard([&]() -> Status {
    return RegisterInPlugin(pjrt_api, plugin_path, name, xla::StagesOf(handler, api_version),
                            platform, api_version);
  });
}

xla_gpu_status* xla_gpu_register_pjrt_staged(const void* pjrt_api, const char* plugin_path,
                                             const char* name,
                                             const xla_gpu_staged_handler* handler,
                                             const char* platform) {
  return Guard([&]() -> Status {
    if (handler == nullptr) return InvalidArgument("handler is NULL");
    if (handler->struct_size < sizeof(*handler)) {
      return BadStruct("xla_gpu_staged_handler", handler->struct_size, sizeof(*handler));
    }
    const xla::HandlerStages stages{handler->instantiate, handler->prepare, handler->initialize,
                                    handler->execute};
    return RegisterInPlugin(pjrt_api, plugin_path, name, stages, platform, 4);
  });
}

const void* xla_gpu_pjrt_compat_api(void) { return xla::CompatApi(); }

xla_gpu_status* xla_gpu_pjrt_compat_info(char** info_json) {
  return Guard([&]() -> Status {
    if (info_json == nullptr) return InvalidArgument("info_json is NULL");
    const StatusOr<xla::CompatPlugin>& compat = xla::GetCompatPlugin();
    if (!compat.ok()) return compat.status();
    const xla::PjrtPlugin& wrapped = *(*compat).wrapped;
    *info_json = CopyString(nlohmann::json{
        {"path", ValidUtf8(wrapped.path())},
        {"platform", PlatformName(wrapped.is_gpu() ? Platform::kCuda : Platform::kHost)},
        {"pjrt", wrapped.pjrt_version().ToString()},
        {"problem", (*compat).registration_problem}}
                                .dump());
    return OkStatus();
  });
}

xla_gpu_status* xla_gpu_stablehlo(const xla_gpu_call* c, char** mlir) {
  return Guard([&]() -> Status {
    if (mlir == nullptr) return InvalidArgument("mlir is NULL");
    DecodedCall decoded;
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, Decode(c, /*with_results=*/false, decoded));
    XLA_GPU_ASSIGN_OR_RETURN(const std::string text,
                             xla::StableHloModule(*op, decoded.platform, decoded.call()));
    *mlir = CopyString(text);
    return OkStatus();
  });
}

}  // extern "C"
