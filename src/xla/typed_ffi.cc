#include "src/xla/typed_ffi.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "src/core/call_frame.h"
#include "src/core/op_registry.h"
#include "src/core/plan_cache.h"

namespace xla_gpu::xla {
namespace {

XLA_FFI_Error* MakeError(const XLA_FFI_Api* api, const Status& status) {
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE;
  args.message = status.message().c_str();
  args.errc = static_cast<XLA_FFI_Error_Code>(status.code());
  return api->XLA_FFI_Error_Create(&args);
}

// An error of the FFI API itself as a Status; takes ownership.
Status TakeError(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (error == nullptr) return OkStatus();
  XLA_FFI_Error_GetMessage_Args get{};
  get.struct_size = XLA_FFI_Error_GetMessage_Args_STRUCT_SIZE;
  get.error = error;
  api->XLA_FFI_Error_GetMessage(&get);
  // Not Internal(): a runtime without a thread pool says so in every call, and joining takes 1 us.
  Status status(StatusCode::kInternal,
                get.message == nullptr ? "unknown XLA FFI error" : get.message);
  XLA_FFI_Error_Destroy_Args destroy{};
  destroy.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE;
  destroy.error = error;
  api->XLA_FFI_Error_Destroy(&destroy);
  return status;
}

// An enum of c_api.h as a number. A newer runtime may pass values that the header of FFI 0.1 does
// not list; to load those as the enum would be undefined.
template <typename Enum>
int Number(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

Status DecodeBuffers(int64_t count, void* const* buffers, const auto* types, int buffer_type,
                     TensorList& out) {
  XLA_GPU_RETURN_IF_ERROR(out.CheckCount(static_cast<size_t>(count)));
  for (int64_t i = 0; i < count; ++i) {
    const auto* buffer = static_cast<const XLA_FFI_Buffer*>(buffers[i]);
    if (Number(types[i]) != buffer_type || buffer == nullptr) {
      return InvalidArgument(out.kind(), " ", i, " is no buffer; tokens are not supported");
    }
    const DType dtype = DTypeFromInt(Number(buffer->dtype));
    if (dtype == DType::kInvalid) {
      return InvalidArgument(out.kind(), " ", i, " has XLA dtype number ", Number(buffer->dtype),
                             ", which xla_gpu does not know");
    }
    XLA_GPU_RETURN_IF_ERROR(out.Add(buffer->data, dtype, buffer->rank, buffer->dims));
  }
  return OkStatus();
}

StatusOr<AttrValue> DecodeScalar(std::string_view name, const XLA_FFI_Scalar& scalar) {
  const auto read = [&scalar]<typename T>(T) {
    T value;
    std::memcpy(&value, scalar.value, sizeof(T));
    return value;
  };
  switch (Number(scalar.dtype)) {
    case XLA_FFI_DataType_PRED:
      return AttrValue(read(uint8_t{}) != 0);
    case XLA_FFI_DataType_S32:
      return AttrValue(static_cast<int64_t>(read(int32_t{})));
    case XLA_FFI_DataType_U32:
      return AttrValue(static_cast<int64_t>(read(uint32_t{})));
    case XLA_FFI_DataType_S64:
      return AttrValue(read(int64_t{}));
    case XLA_FFI_DataType_F32:
      return AttrValue(static_cast<double>(read(float{})));
    case XLA_FFI_DataType_F64:
      return AttrValue(read(double{}));
    default:
      return InvalidArgument("attribute '", name, "' is a scalar of XLA dtype number ",
                             Number(scalar.dtype), "; allowed are i1, i32, ui32, i64, f32 and f64");
  }
}

StatusOr<AttrValue> DecodeArray(std::string_view name, const XLA_FFI_Array& array,
                                CallFrame& call) {
  const int dtype = Number(array.dtype);
  if (dtype == XLA_FFI_DataType_S64) {
    return AttrValue(std::span<const int64_t>(static_cast<const int64_t*>(array.data), array.size));
  }
  if (dtype == XLA_FFI_DataType_S32) {
    const auto wide = call.Widen({static_cast<const int32_t*>(array.data), array.size});
    if (wide) return AttrValue(*wide);
  }
  return InvalidArgument(
      "attribute '", name, "' is an array of ", array.size, " elements of XLA dtype number ", dtype,
      "; allowed are i64, or i32 up to ", CallFrame::kMaxWidened, " elements in all");
}

StatusOr<AttrValue> DecodeAttribute(std::string_view name, int type, const void* attribute,
                                    CallFrame& call) {
  switch (type) {
    case XLA_FFI_AttrType_SCALAR:
      return DecodeScalar(name, *static_cast<const XLA_FFI_Scalar*>(attribute));
    case XLA_FFI_AttrType_ARRAY:
      return DecodeArray(name, *static_cast<const XLA_FFI_Array*>(attribute), call);
    case XLA_FFI_AttrType_STRING: {
      const auto* text = static_cast<const XLA_FFI_ByteSpan*>(attribute);
      return AttrValue(std::string_view(text->ptr, text->len));
    }
    default:
      return InvalidArgument("attribute '", name,
                             "' is a dictionary; allowed are scalars, strings and arrays of "
                             "integers");
  }
}

Status DecodeAttributes(const XLA_FFI_Attrs& attrs, CallFrame& call) {
  if (attrs.size < 0 || attrs.size > Attributes::kMaxAttributes) {
    return InvalidArgument("the call has ", attrs.size, " attributes; at most ",
                           Attributes::kMaxAttributes, " are supported");
  }
  for (int64_t i = 0; i < attrs.size; ++i) {
    const std::string_view name(attrs.names[i]->ptr, attrs.names[i]->len);
    XLA_GPU_ASSIGN_OR_RETURN(const AttrValue value,
                             DecodeAttribute(name, Number(attrs.types[i]), attrs.attrs[i], call));
    XLA_GPU_RETURN_IF_ERROR(call.attributes.Add(name, value));
  }
  return OkStatus();
}

Status Decode(const XLA_FFI_CallFrame& frame, CallFrame& call) {
  XLA_GPU_RETURN_IF_ERROR(DecodeBuffers(frame.args.size, frame.args.args, frame.args.types,
                                        XLA_FFI_ArgType_BUFFER, call.args));
  XLA_GPU_RETURN_IF_ERROR(DecodeBuffers(frame.rets.size, frame.rets.rets, frame.rets.types,
                                        XLA_FFI_RetType_BUFFER, call.results));
  return DecodeAttributes(frame.attrs, call);
}

// The runtime's own compute threads, where it lends them.
class FfiThreadPool final : public ThreadPool {
 public:
  explicit FfiThreadPool(const XLA_FFI_CallFrame& frame) : api_(frame.api), ctx_(frame.ctx) {
    if (api_->struct_size < offsetof(XLA_FFI_Api, XLA_FFI_Future_Create)) return;
    int64_t threads = 0;
    XLA_FFI_ThreadPool_NumThreads_Args args{};
    args.struct_size = XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE;
    args.ctx = ctx_;
    args.num_threads = &threads;
    if (TakeError(api_, api_->XLA_FFI_ThreadPool_NumThreads(&args)).ok()) {
      num_threads_ = static_cast<int>(threads);
    }
  }

  bool available() const { return num_threads_ > 0; }
  int num_threads() const override { return num_threads_; }

 protected:
  void Schedule(std::function<void()> helper) override {
    auto task = std::make_unique<Task>();
    task->helper = std::move(helper);
    task->ready.store(true, std::memory_order_release);
    XLA_FFI_ThreadPool_Schedule_Args args{};
    args.struct_size = XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE;
    args.ctx = ctx_;
    args.data = task.get();
    args.task = [](void* data) {
      std::unique_ptr<Task> owned(static_cast<Task*>(data));
      if (owned->ready.load(std::memory_order_acquire)) owned->helper();
    };
    // A pool that refuses the helper leaves the work to the caller's thread.
    XLA_FFI_Error* error = api_->XLA_FFI_ThreadPool_Schedule(&args);
    if (error == nullptr) {
      (void)task.release();
    } else {
      (void)TakeError(api_, error);
    }
  }

 private:
  // `ready` is always true when the task runs; it orders the hand-over by our own means, where the
  // runtime's are not visible to a race detector.
  struct Task {
    std::function<void()> helper;
    std::atomic<bool> ready{false};
  };

  const XLA_FFI_Api* api_;
  XLA_FFI_ExecutionContext* ctx_;
  int num_threads_ = 0;
};

Status RunOnHost(const Op& op, const XLA_FFI_CallFrame& frame, const Call& call) {
  FfiThreadPool pool(frame);
  return RunOp(op, Platform::kHost, call, {.thread_pool = pool.available() ? &pool : nullptr});
}

Status RunOnCuda(const Op& op, const XLA_FFI_CallFrame& frame, const Call& call) {
  XLA_FFI_Stream_Get_Args args{};
  args.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE;
  args.ctx = frame.ctx;
  XLA_GPU_RETURN_IF_ERROR(TakeError(frame.api, frame.api->XLA_FFI_Stream_Get(&args)));
  return RunOp(op, Platform::kCuda, call, {.stream = args.stream});
}

// While XLA compiles: GPU runtimes since 0.11 show the call's types here, so the kernel is compiled
// now; CPU runtimes show attributes only, and the first execution makes the plan.
Status Instantiate(const Op& op, Platform platform, const Call& call) {
  if (call.args.empty() && call.results.empty()) return OkStatus();
  return PlanCache::Global().GetOrCreate(op, platform, call).status();
}

std::string_view NameOf(const Op* known) {
  return known == nullptr ? std::string_view("kernel") : std::string_view(known->name);
}

// `known`: the handler's op; null in those that serve all ops that are defined at run time.
Status Dispatch(const Op* known, Platform platform, const XLA_FFI_CallFrame& frame) {
  CallFrame decoded;
  if (Status status = Decode(frame, decoded); !status.ok()) {
    return status.After(NameOf(known), ": ");
  }
  const Call call = decoded.call();
  if (known == nullptr) {
    XLA_GPU_ASSIGN_OR_RETURN(known, OpRegistry::Global().OpOfCall(decoded.attributes));
    decoded.attributes.Remove(kDefinitionAttribute);  // of any length, and no part of the problem
  }
  const Op& op = *known;
  switch (Number(frame.stage)) {
    case XLA_FFI_ExecutionStage_INSTANTIATE:
      return Instantiate(op, platform, call);
    case XLA_FFI_ExecutionStage_EXECUTE:
      return platform == Platform::kHost ? RunOnHost(op, frame, call) : RunOnCuda(op, frame, call);
    default:
      return OkStatus();  // Prepare and Initialize: nothing to do
  }
}

// XLA asks a handler for its FFI version and traits by a frame that carries this extension alone.
bool AnswerMetadata(const XLA_FFI_CallFrame& frame, bool capturable) {
  constexpr auto kMetadata = XLA_FFI_Extension_Metadata;
  if (frame.extension_start == nullptr || Number(frame.extension_start->type) != kMetadata)
    return false;
  auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame.extension_start);
  extension->metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  extension->metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  // Plans that only enqueue work may be replayed in command buffers (CUDA graphs).
  extension->metadata->traits = capturable ? XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE : 0;
  return true;
}

XLA_FFI_Error* HandleTypedCall(const Op* op, Platform platform, bool capturable,
                               XLA_FFI_CallFrame* frame) {
  if (AnswerMetadata(*frame, capturable && platform == Platform::kCuda)) return nullptr;
  Status status;
  try {
    status = Dispatch(op, platform, *frame);
  } catch (const std::exception&) {  // nothing may unwind into the runtime
    status = StatusFromException(NameOf(op));
  }
  return status.ok() ? nullptr : MakeError(frame->api, status);
}

// An FFI handler has no user data, so each op slot and platform has a function of its own; calls of
// ops that are defined at run time name their op by an attribute.
template <size_t slot, Platform platform>
XLA_FFI_Error* Handler(XLA_FFI_CallFrame* frame) {
  return HandleTypedCall(OpRegistry::Global().ops()[slot].get(), platform, true, frame);
}

// Those of ops that are defined at run time.
template <Platform platform, bool capturable>
XLA_FFI_Error* DefinedHandler(XLA_FFI_CallFrame* frame) {
  return HandleTypedCall(nullptr, platform, capturable, frame);
}

template <Platform platform, size_t... slots>
constexpr auto MakeHandlers(std::index_sequence<slots...>) {
  return std::array<XLA_FFI_Handler*, sizeof...(slots)>{&Handler<slots, platform>...};
}

}  // namespace

XLA_FFI_Handler* TypedHandler(const Op& op, Platform platform) {
  using Slots = std::make_index_sequence<OpRegistry::kMaxOps>;
  static constexpr auto kHost = MakeHandlers<Platform::kHost>(Slots{});
  static constexpr auto kCuda = MakeHandlers<Platform::kCuda>(Slots{});
  const size_t slot = OpRegistry::Global().SlotOf(op);
  if (slot < OpRegistry::kMaxOps) return platform == Platform::kHost ? kHost[slot] : kCuda[slot];
  if (platform == Platform::kHost) return DefinedHandler<Platform::kHost, false>;
  return op.capturable ? DefinedHandler<Platform::kCuda, true>
                       : DefinedHandler<Platform::kCuda, false>;
}

}  // namespace xla_gpu::xla
