// The library's own ops as TVM-FFI functions, for whoever has them from
// tvm_ffi.load_module(xla_gpu.library_path()): TVM, SGLang, FlashInfer's users, Python.
//
// A function takes, by position and in the schema's order (xla-gpu ops):
//   the op's arguments; None for an optional one that is absent. Aliases are updated in place
//   a tensor for each output, which is written; None for one that this call does not have
//   the attributes; None, or nothing at the end, for the default
// Tensors are on the CPU or on one GPU, dense and row-major. On a GPU the call is enqueued on the
// environment's stream (TVMFFIEnvGetStream), and scratch comes from the environment's allocator.
#include "src/core/tvm_ffi.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/core/call_frame.h"
#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"
#include "src/core/strings.h"
#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {
namespace {

using tvm_ffi::Any;

// Whoever calls has libtvm_ffi. Found at the first call, so that nothing of it is needed to load
// this library.
const tvm_ffi::Library* GetLibrary() {
  static constinit std::atomic<const tvm_ffi::Library*> found{nullptr};
  if (const tvm_ffi::Library* library = found.load(std::memory_order_acquire)) return library;
  const StatusOr<tvm_ffi::Library> library = tvm_ffi::FindLibrary(nullptr);
  if (!library.ok()) return nullptr;
  auto made = std::make_unique<const tvm_ffi::Library>(*library);
  const tvm_ffi::Library* expected = nullptr;
  return found.compare_exchange_strong(expected, made.get()) ? made.release() : expected;
}

const char* KindOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
      return "ValueError";
    case StatusCode::kUnimplemented:
      return "NotImplementedError";
    case StatusCode::kResourceExhausted:
      return "MemoryError";
    default:
      return "RuntimeError";
  }
}

std::string TypeText(const Any& value) {
  switch (value.type_index) {
    case tvm_ffi::kNone:
      return "None";
    case tvm_ffi::kInt:
      return StrCat("the int ", value.i);
    case tvm_ffi::kBool:
      return value.i != 0 ? "True" : "False";
    case tvm_ffi::kFloat:
      return StrCat("the float ", value.f);
    case tvm_ffi::kTensorPtr:
    case tvm_ffi::kTensor:
      return "a tensor";
    default:
      return StrCat("a value of type index ", value.type_index);
  }
}

// Null if it is no tensor.
const dlpack::Tensor* TensorOf(const Any& value) {
  if (value.type_index == tvm_ffi::kTensorPtr) return static_cast<dlpack::Tensor*>(value.pointer);
  if (value.type_index == tvm_ffi::kTensor) return &tvm_ffi::CellOf<dlpack::Tensor>(value.object);
  return nullptr;
}

std::optional<std::string_view> StringOf(const Any& value) {
  switch (value.type_index) {
    case tvm_ffi::kRawString:
      return value.text;
    case tvm_ffi::kSmallString:
      return std::string_view(value.small_text, value.small_size);
    case tvm_ffi::kString: {
      const auto& bytes = tvm_ffi::CellOf<tvm_ffi::Bytes>(value.object);
      return std::string_view(bytes.data, bytes.size);
    }
    default:
      return std::nullopt;
  }
}

// One call, decoded onto the stack.
class OpCall {
 public:
  OpCall(const Op& op, const tvm_ffi::Library& library, std::span<const Any> args)
      : op_(op), library_(library), args_(args) {}
  ~OpCall() {
    if (workspace_ != nullptr) library_.ObjectDecRef(workspace_);
  }
  OpCall(const OpCall&) = delete;
  OpCall& operator=(const OpCall&) = delete;

  Status Run() {
    XLA_GPU_RETURN_IF_ERROR(CheckCount());
    XLA_GPU_RETURN_IF_ERROR(ReadArguments());
    XLA_GPU_RETURN_IF_ERROR(ReadAttributes());
    XLA_GPU_RETURN_IF_ERROR(ReadResults());
    void* stream = nullptr;
    if (platform() == Platform::kCuda) {
      if (const int current = CurrentDevice(Platform::kCuda); current != device_.id) {
        return InvalidArgument(op_.name, ": the tensors are on GPU ", device_.id,
                               " but the current device is ", current,
                               "; make theirs the current one (torch.cuda.device)");
      }
      stream = library_.EnvGetStream(device_.type, device_.id);
      XLA_GPU_RETURN_IF_ERROR(AddWorkspace());
    }
    return RunOp(op_, platform(), frame_.call(), {.stream = stream});
  }

 private:
  Platform platform() const {
    return device_.type == dlpack::kCuda ? Platform::kCuda : Platform::kHost;
  }

  static bool IsOutput(const ResultSpec& spec) { return spec.kind == ResultKind::kOutput; }

  Status CheckCount() const {
    const size_t num_outputs = static_cast<size_t>(std::ranges::count_if(op_.results, IsOutput));
    const size_t least = op_.args.size() + num_outputs;
    if (args_.size() >= least && args_.size() <= least + op_.attrs.size()) return OkStatus();
    std::vector<std::string_view> names;
    for (const ArgSpec& arg : op_.args) names.push_back(arg.name);
    for (const ResultSpec& result : op_.results) {
      if (IsOutput(result)) names.push_back(result.name);
    }
    for (const AttrSpec& attr : op_.attrs) names.push_back(attr.name);
    return InvalidArgument(op_.name, ": ", args_.size(), " values came; there must be ", least,
                           " to ", least + op_.attrs.size(), ": ", StrJoin(names, ", "));
  }

  Status ReadArguments() {
    for (const ArgSpec& spec : op_.args) {
      const Any& value = args_[next_++];
      if (value.type_index == tvm_ffi::kNone && spec.optional) continue;
      XLA_GPU_RETURN_IF_ERROR(AddTensor(spec.name, value, spec.vector, frame_.args));
      if (spec.optional) optional_ += StrCat(optional_.empty() ? "" : ",", spec.name);
    }
    if (optional_.empty()) return OkStatus();
    return frame_.attributes.Add(kOptionalArgsAttribute, std::string_view(optional_));
  }

  Status ReadAttributes() {
    size_t at = next_ + static_cast<size_t>(std::ranges::count_if(op_.results, IsOutput));
    for (const AttrSpec& spec : op_.attrs) {
      if (at == args_.size()) break;
      const Any& value = args_[at++];
      if (value.type_index == tvm_ffi::kNone) continue;
      const std::optional<AttrValue> read = ReadAttribute(spec, value);
      if (!read) {
        return InvalidArgument(op_.name, ": ", spec.name, " is ", TypeText(value), "; it must be ",
                               AttrTypeName(spec.type), " or None");
      }
      XLA_GPU_RETURN_IF_ERROR(frame_.attributes.Add(spec.name, *read));
    }
    return OkStatus();
  }

  std::optional<AttrValue> ReadAttribute(const AttrSpec& spec, const Any& value) {
    switch (value.type_index) {
      case tvm_ffi::kInt:
        return AttrValue(value.i);
      case tvm_ffi::kBool:
        return AttrValue(value.i != 0);
      case tvm_ffi::kFloat:
        return AttrValue(value.f);
      case tvm_ffi::kDataType:
        if (spec.type != AttrType::kDType) return std::nullopt;
        return AttrValue(DTypeName(dlpack::DTypeOf(value.dtype)));
      case tvm_ffi::kArray:
      case tvm_ffi::kList: {
        const auto& cell = tvm_ffi::CellOf<tvm_ffi::SequenceCell>(value.object);
        auto& ints = *ints_.emplace_back(std::make_unique<std::vector<int64_t>>());
        for (int64_t i = 0; i < cell.size; ++i) {
          if (cell.items[i].type_index != tvm_ffi::kInt) return std::nullopt;
          ints.push_back(cell.items[i].i);
        }
        return AttrValue(std::span<const int64_t>(ints));
      }
      default:
        if (const auto text = StringOf(value)) return AttrValue(*text);
        return std::nullopt;
    }
  }

  Status ReadResults() {
    for (const ResultSpec& spec : op_.results) {
      if (spec.kind == ResultKind::kScratch) continue;
      const bool has_it = HasResult(op_, frame_.attributes, spec);
      if (spec.kind == ResultKind::kAlias) {
        if (!has_it) continue;
        const TensorView& shared =
            frame_.args.views()[static_cast<size_t>(AliasOf(op_, frame_.attributes, spec))];
        XLA_GPU_RETURN_IF_ERROR(
            frame_.results.Add(shared.data, shared.dtype, shared.rank(), shared.shape.data()));
        continue;
      }
      const Any& value = args_[next_++];
      if (has_it) {
        XLA_GPU_RETURN_IF_ERROR(AddTensor(spec.name, value, /*vector=*/false, frame_.results));
      } else if (value.type_index != tvm_ffi::kNone) {
        return InvalidArgument(op_.name, ": ", spec.name, " is ", TypeText(value),
                               "; it must be None, as the call does not have it without ",
                               spec.only_with);
      }
    }
    return OkStatus();
  }

  Status AddTensor(std::string_view name, const Any& value, bool vector, TensorList& to) {
    const dlpack::Tensor* const tensor = TensorOf(value);
    if (tensor == nullptr) {
      return InvalidArgument(op_.name, ": ", name, " is ", TypeText(value),
                             "; it must be a tensor");
    }
    const dlpack::Device device = tensor->device;
    if (device.type != dlpack::kCpu && device.type != dlpack::kCuda) {
      return InvalidArgument(op_.name, ": ", name, " is on a device of DLPack's type ", device.type,
                             "; allowed are the CPU (1) and CUDA (2)");
    }
    if (device_.type == 0) device_ = device;
    if (device != device_) {
      return InvalidArgument(op_.name, ": ", name, " is on device ", device.type, ":", device.id,
                             " but what comes before it on ", device_.type, ":", device_.id,
                             " (DLPack's numbers)");
    }
    if (!dlpack::IsRowMajor(*tensor)) {
      return InvalidArgument(op_.name, ": ", name, " must be dense and row-major (contiguous)");
    }
    static constexpr int64_t kOne = 1;  // a 0-d tensor lies in memory like a vector of one
    const bool widen = vector && tensor->rank == 0;
    return to.Add(dlpack::DataOf(*tensor), dlpack::DTypeOf(tensor->dtype), widen ? 1 : tensor->rank,
                  widen ? &kOne : tensor->shape);
  }

  Status AddWorkspace() {
    if (op_.results.empty() || op_.results.back().kind != ResultKind::kScratch) return OkStatus();
    XLA_GPU_ASSIGN_OR_RETURN(const std::vector<Result> results,
                             InferResults(op_, platform(), frame_.call()));
    if (results.empty() || results.back().spec->kind != ResultKind::kScratch) return OkStatus();
    std::vector<int64_t> shape = results.back().type.shape;
    dlpack::Tensor prototype = {.data = nullptr,
                                .device = device_,
                                .rank = static_cast<int32_t>(shape.size()),
                                .dtype = dlpack::TypeOf(results.back().type.dtype),
                                .shape = shape.data(),
                                .strides = nullptr,
                                .byte_offset = 0};
    if (library_.EnvTensorAlloc(&prototype, &workspace_) != 0) {
      workspace_ = nullptr;
      const Status raised = tvm_ffi::TakeRaised(library_);
      return raised.After(op_.name, ": scratch memory: ");
    }
    const auto& tensor = tvm_ffi::CellOf<dlpack::Tensor>(workspace_);
    return frame_.results.Add(dlpack::DataOf(tensor), DType::kU8, tensor.rank, tensor.shape);
  }

  const Op& op_;
  const tvm_ffi::Library& library_;
  const std::span<const Any> args_;
  size_t next_ = 0;  // of args_
  dlpack::Device device_ = {};
  CallFrame frame_;
  std::string optional_;  // what the attribute optional_args says
  std::vector<std::unique_ptr<std::vector<int64_t>>> ints_;
  void* workspace_ = nullptr;
};

// `name`: that of a registered op.
int CallOp(const char* name, const Any* args, int32_t num_args) noexcept {
  const tvm_ffi::Library* const library = GetLibrary();
  if (library == nullptr) return -1;
  Status status;
  try {
    const Op& op = *OpRegistry::Global().Find(name);
    status = OpCall(op, *library, {args, static_cast<size_t>(num_args)}).Run();
  } catch (const std::exception&) {
    status = StatusFromException(name);
  }
  if (status.ok()) return 0;
  library->ErrorSetRaisedFromCStr(KindOf(status.code()), status.message().c_str());
  return -1;
}

}  // namespace
}  // namespace xla_gpu

#define XLA_GPU_TVM_FFI_FUNCTION(op)                                                             \
  extern "C" XLA_GPU_EXPORT int __tvm_ffi_##op(/* NOLINT(bugprone-reserved-identifier) */ void*, \
                                               const xla_gpu::tvm_ffi::Any* args,                \
                                               int32_t num_args, xla_gpu::tvm_ffi::Any*) {       \
    return xla_gpu::CallOp(#op, args, num_args);                                                 \
  }
#include "tvm_ffi_functions.inc"  // one for each op: CMake knows their names
