// tvm_ffi: a TVM-FFI function as an op.
//
// Parameters become tensors (views on the stack, or owned ones), None where an optional argument is
// absent, ints, bools and floats by their type, and the stream's pointer. Results that are neither
// parameters nor aliases are what the function returns: a tensor, or an array of as many.
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "src/core/call_frame.h"
#include "src/core/float_types.h"
#include "src/core/strings.h"
#include "src/core/tvm_ffi.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/library.h"
#include "src/ops/user_kernel/parameters.h"
#include "src/ops/user_kernel/tvm_ffi/call_memory.h"

namespace xla_gpu::user_kernel {
namespace {

using tvm_ffi::Any;

// What NumberBits made.
Any NumberOf(DType type, uint64_t bits) {
  Any any{.type_index = tvm_ffi::kInt, .i = 0};
  if (type == DType::kPred) {
    any.type_index = tvm_ffi::kBool;
    any.i = bits != 0 ? 1 : 0;
  } else if (IsFloat(type)) {
    any.type_index = tvm_ffi::kFloat;
    any.f = LoadAsDouble(&bits, type, 0);
  } else {
    const auto unused = 64 - 8 * static_cast<unsigned>(DTypeSize(type));
    const auto at_the_top = static_cast<int64_t>(bits << unused);
    any.i = InfoOf(type).dlpack == kDlpackInt ? at_the_top >> unused : static_cast<int64_t>(bits);
  }
  return any;
}

// Gives back references when it goes.
class References {
 public:
  explicit References(const tvm_ffi::Library& library) : library_(library) {}
  ~References() { Release(); }
  References(const References&) = delete;
  References& operator=(const References&) = delete;

  void Add(void* object) { objects_.push_back(object); }
  void Release() {
    for (void* object : objects_) library_.ObjectDecRef(object);
    objects_.clear();
  }

 private:
  const tvm_ffi::Library& library_;
  std::vector<void*> objects_;
};

// This thread's stream and allocator in libtvm_ffi, while a function runs.
class Environment {
 public:
  Environment(const tvm_ffi::Library& library, dlpack::Device device, void* stream)
      : library_(library), device_(device) {
    if (device_.type == dlpack::kCuda) {
      library_.EnvSetStream(device_.type, device_.id, stream, &stream_);
    }
    library_.EnvSetAllocator(CallMemory::Allocate, /*for_all_threads=*/0, &allocate_);
  }
  ~Environment() {
    library_.EnvSetAllocator(allocate_, /*for_all_threads=*/0, nullptr);
    if (device_.type == dlpack::kCuda) {
      library_.EnvSetStream(device_.type, device_.id, stream_, nullptr);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const tvm_ffi::Library& library_;
  const dlpack::Device device_;
  void* stream_ = nullptr;  // the caller's
  dlpack::AllocateFn allocate_ = nullptr;
};

class TvmFfiPlan final : public Plan {
 public:
  static StatusOr<std::unique_ptr<Plan>> Make(const Definition& definition, Platform platform,
                                              const Call& call, int device) {
    auto plan = std::make_unique<TvmFfiPlan>();
    const Implementation& implementation =
        *definition.implementations[static_cast<size_t>(platform)];
    plan->platform_ = platform;
    plan->device_ = platform == Platform::kHost ? dlpack::Device{dlpack::kCpu, 0}
                                                : dlpack::Device{dlpack::kCuda, device};
    plan->owned_ = implementation.owned;
    XLA_GPU_RETURN_IF_ERROR(plan->Load(implementation));
    plan->ReadParameters(definition, implementation, call);
    return std::unique_ptr<Plan>(std::move(plan));
  }

  ~TvmFfiPlan() override {
    if (self_ != nullptr) library_.ObjectDecRef(self_);
  }

  Status Run(const Call& call, const ExecutionContext& context) const override {
    std::array<Any, kMaxParameters> args;
    std::array<dlpack::Tensor, kMaxParameters> tensors;
    std::span<char> workspace;
    if (workspace_ < call.results.size()) {
      const TensorView& scratch = call.results[workspace_];
      workspace = {scratch.data_as<char>(), static_cast<size_t>(scratch.size_bytes())};
    }
    CallMemory memory(platform_, call, returned_, workspace, device_, order_);
    References references(library_);
    std::copy(args_.begin(), args_.end(), args.begin());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const TensorParameter& parameter = tensors_[i];
      dlpack::Tensor& tensor = tensors[i] = parameter.type;
      tensor.data = (parameter.is_result ? call.results : call.args)[parameter.index].data;
      Any& arg = args[parameter.position];
      if (!owned_) {
        arg.pointer = &tensor;
        continue;
      }
      void* object = nullptr;
      dlpack::ManagedTensor* const lent = memory.Lend(tensor);
      if (library_.TensorFromDLPackVersioned(lent, 0, 0, &object) != 0) {
        lent->deleter(lent);
        return tvm_ffi::TakeRaised(library_);
      }
      references.Add(object);
      arg.object = static_cast<tvm_ffi::Object*>(object);
    }
    for (const size_t position : streams_) args[position].pointer = context.stream;

    Any result{.type_index = tvm_ffi::kNone, .i = 0};
    int failed = 0;
    {
      const Environment environment(library_, device_, context.stream);
      failed = function_(self_, args.data(), static_cast<int32_t>(args_.size()), &result);
    }
    if (result.type_index >= tvm_ffi::kFirstObject) references.Add(result.object);
    if (failed != 0) return tvm_ffi::TakeRaised(library_);
    XLA_GPU_RETURN_IF_ERROR(TakeResults(call, result, context.stream, memory));
    references.Release();
    if (const int64_t kept = memory.in_use(); kept != 0) {
      return FailedPrecondition("the function keeps ", kept,
                                " of the call's tensors, whose memory is the call's alone; "
                                "it must copy what it wants to keep");
    }
    return OkStatus();
  }

 private:
  struct TensorParameter {
    size_t position;  // among the parameters
    bool is_result;
    size_t index;  // in the call's results or arguments
    dlpack::Tensor type;
  };

  Status Load(const Implementation& implementation) {
    if (!implementation.libtvm_ffi.empty()) {
      XLA_GPU_RETURN_IF_ERROR(tvm_ffi::LoadLibrary(implementation.libtvm_ffi));
    }
    if (implementation.address != 0) {
      XLA_GPU_ASSIGN_OR_RETURN(library_, tvm_ffi::FindLibrary(nullptr));
      auto* const object = reinterpret_cast<tvm_ffi::Object*>(implementation.address);
      if (object->type_index != tvm_ffi::kFunction) {
        return InvalidArgument("the object at address has the type index ", object->type_index,
                               "; it must be a function (", int{tvm_ffi::kFunction}, ")");
      }
      function_ = tvm_ffi::CellOf<tvm_ffi::FunctionCell>(object).call;
      library_.ObjectIncRef(object);
      self_ = object;
      return OkStatus();
    }
    const StatusOr<void*> opened = OpenLibrary(implementation.library);
    if (!opened.ok()) {
      const std::string& why = opened.status().message();
      if (why.find("libtvm_ffi.so") != std::string::npos) {
        return FailedPrecondition(why, "; ", tvm_ffi::kRemedy);
      }
      if (why.find("TVMFFI") != std::string::npos) {
        return FailedPrecondition(why, "; it was built with a newer TVM-FFI than the process has: ",
                                  "pip install --upgrade apache-tvm-ffi");
      }
      return opened.status();
    }
    XLA_GPU_ASSIGN_OR_RETURN(library_, tvm_ffi::FindLibrary(*opened));
    XLA_GPU_ASSIGN_OR_RETURN(
        const void* address,
        FunctionOf(implementation, StrCat(tvm_ffi::kSymbolPrefix, implementation.symbol)));
    function_ = reinterpret_cast<tvm_ffi::Function>(const_cast<void*>(address));
    return OkStatus();
  }

  void ReadParameters(const Definition& definition, const Implementation& implementation,
                      const Call& call) {
    const ParameterPlan parameters(definition, implementation, call);
    std::vector<bool> is_parameter(call.results.size(), false);
    for (const ParameterPlan::Step& step : parameters.steps()) {
      using Kind = ParameterPlan::Step::Kind;
      Any arg{.type_index = tvm_ffi::kNone, .i = 0};
      switch (step.kind) {
        case Kind::kNull:
          break;
        case Kind::kValue:
          arg = NumberOf(step.type, step.value);
          break;
        case Kind::kStream:
          if (platform_ == Platform::kHost) break;
          arg.type_index = tvm_ffi::kOpaquePtr;
          streams_.push_back(args_.size());
          break;
        case Kind::kArgument:
        case Kind::kResult: {
          const bool is_result = step.kind == Kind::kResult;
          if (is_result) is_parameter[step.index] = true;
          arg.type_index = owned_ ? tvm_ffi::kTensor : tvm_ffi::kTensorPtr;
          tensors_.push_back({args_.size(), is_result, step.index,
                              TypeOf((is_result ? call.results : call.args)[step.index])});
          break;
        }
      }
      args_.push_back(arg);
    }
    for (size_t i = 0; i < definition.results.size(); ++i) {
      if (!is_parameter[i] && definition.results[i].kind != ResultKind::kAlias) {
        returned_.push_back(i);
      }
    }
    const size_t num_results = definition.results.size();
    if (num_results < call.results.size() && !is_parameter[num_results]) workspace_ = num_results;
  }

  // A tensor without data, whose shape and strides live as long as the plan.
  dlpack::Tensor TypeOf(const TensorView& view) {
    auto& dims = *dims_.emplace_back(std::make_unique<std::array<int64_t, 2 * kMaxRank>>());
    const auto rank = static_cast<int32_t>(view.rank());
    std::copy(view.shape.begin(), view.shape.end(), dims.begin());
    int64_t* const strides = dims.data() + kMaxRank;
    dlpack::FillStrides(dims.data(), rank, strides);
    return {nullptr, device_, rank, dlpack::TypeOf(view.dtype), dims.data(), strides, 0};
  }

  Status TakeResults(const Call& call, const Any& result, void* stream, CallMemory& memory) const {
    if (returned_.empty()) return OkStatus();
    std::span<const Any> items(&result, 1);
    if (result.type_index == tvm_ffi::kArray || result.type_index == tvm_ffi::kList) {
      const auto& cell = tvm_ffi::CellOf<tvm_ffi::SequenceCell>(result.object);
      items = {cell.items, static_cast<size_t>(cell.size)};
    }
    if (items.size() != returned_.size()) {
      return InvalidArgument("the function returned ", items.size(), " values; it must return ",
                             returned_.size(), " tensors");
    }
    std::array<const void*, kMaxTensors> sources;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].type_index != tvm_ffi::kTensor) {
        return InvalidArgument("the function returned ", Describe(items[i]), " for result ", i,
                               "; it must return a tensor");
      }
      const auto& tensor = tvm_ffi::CellOf<dlpack::Tensor>(items[i].object);
      XLA_GPU_RETURN_IF_ERROR(CheckReturned(tensor, call.results[returned_[i]], i));
      sources[i] = dlpack::DataOf(tensor);
    }
    return memory.Collect({sources.data(), items.size()}, stream, order_);
  }

  static std::string Describe(const Any& value) {
    if (value.type_index == tvm_ffi::kNone) return "None";
    return StrCat("a value of type index ", value.type_index);
  }

  Status CheckReturned(const dlpack::Tensor& tensor, const TensorView& wanted, size_t i) const {
    const Shape shape(tensor.shape, static_cast<size_t>(tensor.rank));
    const DType dtype = dlpack::DTypeOf(tensor.dtype);
    if (!wanted.SameType({nullptr, dtype, shape})) {
      return InvalidArgument("the function returned ", TypeToString(dtype, shape), " for result ",
                             i, "; it must return ", wanted.ToString());
    }
    if (tensor.device != device_) {
      return InvalidArgument("the function returned result ", i, " on device ", tensor.device.type,
                             ":", tensor.device.id, "; the call runs on ", device_.type, ":",
                             device_.id, " (DLPack's numbers)");
    }
    if (!dlpack::IsRowMajor(tensor)) {
      return InvalidArgument("the function returned result ", i,
                             " with strides; it must return a dense row-major tensor");
    }
    return OkStatus();
  }

  Platform platform_ = Platform::kHost;
  dlpack::Device device_ = {};
  bool owned_ = false;
  tvm_ffi::Library library_ = {};
  tvm_ffi::Function function_ = nullptr;
  void* self_ = nullptr;   // the function's object, a reference to it
  std::vector<Any> args_;  // without tensors and streams
  std::vector<TensorParameter> tensors_;
  std::vector<std::unique_ptr<std::array<int64_t, 2 * kMaxRank>>> dims_;
  std::vector<size_t> streams_;   // positions among the parameters
  std::vector<size_t> returned_;  // results that the function returns
  size_t workspace_ = SIZE_MAX;  // the result that the callee's allocations lie in, if there is one
  mutable AllocationOrder order_;
};

}  // namespace

StatusOr<std::unique_ptr<Plan>> MakeTvmFfiPlan(std::shared_ptr<const Definition> definition,
                                               Platform platform, const Call& call, int device) {
  StatusOr<std::unique_ptr<Plan>> plan = TvmFfiPlan::Make(*definition, platform, call, device);
  if (!plan.ok()) return plan.status().After(definition->name, ": ");
  return plan;
}

}  // namespace xla_gpu::user_kernel
