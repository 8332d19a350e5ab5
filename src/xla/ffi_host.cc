// A host of XLA's FFI: runs the typed handlers of others outside XLA, as XLA would.
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/core/call_frame.h"
#include "src/core/ffi_handler.h"
#include "src/core/strings.h"
#include "src/core/thread_pool.h"
#include "src/xla/ffi_state.h"
#include "src/xla/registration.h"
#include "xla/ffi/api/c_api.h"

namespace xla_gpu::xla {
namespace {

// The types behind c_api.h's opaque ones, which are cast to and from them.

struct Context {
  Platform platform;
  int device;
  const FfiState* state;
  FfiState* making = nullptr;  // while it is instantiated
  int minor = 0;               // of the stage's FFI version
  bool rehearsal = false;      // in which no stage may come to run
  void* stream = nullptr;
  ThreadPool* pool = nullptr;
  int64_t run_id = 0;
  std::mutex mutex = {};
  std::vector<void*> memory = {};  // of the Host, guarded by mutex; freed with the call
  std::string refusal = {};        // of memory, guarded by mutex: handlers drop its text

  ~Context() {
    for (void* const block : memory) std::free(block);
  }
};

// The end of an asynchronous result.
struct Future {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  Status status;

  void End(Status how) {
    const std::lock_guard<std::mutex> lock(mutex);  // held over the notice: the waiter deletes this
    if (std::exchange(done, true)) return;
    status = std::move(how);
    ended.notify_all();
  }
  Status Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    ended.wait(lock, [this] { return done; });
    return std::move(status);
  }
};

XLA_FFI_Error* MakeError(Status status) {
  return reinterpret_cast<XLA_FFI_Error*>(new Status(std::move(status)));
}

XLA_FFI_Error* ToError(Status status) {
  return status.ok() ? nullptr : MakeError(std::move(status));
}

Status TakeError(XLA_FFI_Error* error) {
  if (error == nullptr) return OkStatus();
  const std::unique_ptr<Status> owned(reinterpret_cast<Status*>(error));
  return std::move(*owned);
}

Context& ContextOf(const auto* args) { return *reinterpret_cast<Context*>(args->ctx); }

std::string_view TextOf(const XLA_FFI_ByteSpan& span) { return {span.ptr, span.len}; }

StatusCode CodeOf(XLA_FFI_Error_Code code) {
  const auto number = static_cast<int>(code);
  return number > 0 && number <= XLA_FFI_Error_Code_UNAUTHENTICATED
             ? static_cast<StatusCode>(number)
             : StatusCode::kUnknown;
}

XLA_FFI_Error* RegisterType(XLA_FFI_TypeId_Register_Args* args) {
  static auto& mutex = *new std::mutex;
  static auto& ids = *new std::map<std::string, int64_t, std::less<>>;
  const std::lock_guard<std::mutex> lock(mutex);
  int64_t& known = ids[std::string(TextOf(args->name))];
  int64_t& id = args->type_id->type_id;
  if (known == 0) known = id != 0 ? id : static_cast<int64_t>(ids.size());
  if (id == 0) id = known;
  if (id == known) return nullptr;
  return MakeError(
      InvalidArgument("type ", TextOf(args->name), " has the id ", known, ", not ", id));
}

XLA_FFI_Error* SetState(XLA_FFI_State_Set_Args* args) {
  const Context& context = ContextOf(args);
  return ToError(context.making != nullptr
                     ? context.making->Set(args, context.minor)
                     : FailedPrecondition("state is set while the handler is instantiated"));
}

XLA_FFI_Error* GetState(XLA_FFI_State_Get_Args* args) {
  const Context& context = ContextOf(args);
  return ToError(context.state->Get(args, context.minor));
}

XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  const Context& context = ContextOf(args);
  if (context.platform == Platform::kHost) {
    return MakeError(Unimplemented("the Host has no stream"));
  }
  if (context.rehearsal) return MakeError(Unimplemented("a rehearsal has no stream"));
  args->stream = context.stream;
  return nullptr;
}

XLA_FFI_Error* Allocate(XLA_FFI_DeviceMemory_Allocate_Args* args) {
  Context& context = ContextOf(args);
  if (context.platform != Platform::kHost) {
    const std::lock_guard<std::mutex> lock(context.mutex);
    context.refusal = StrCat("scratch memory on ", PlatformName(context.platform),
                             " is not lent; declare the kernel's `workspace`, which the handler "
                             "gets as its last result");
    return MakeError(Unimplemented(context.refusal));
  }
  void* block = nullptr;
  const size_t alignment = std::max<size_t>(args->alignment, 64);
  if (posix_memalign(&block, alignment, std::max<size_t>(args->size, 1)) != 0) {
    return MakeError(ResourceExhausted("no ", args->size, " bytes of scratch memory aligned to ",
                                       args->alignment));
  }
  const std::lock_guard<std::mutex> lock(context.mutex);
  context.memory.push_back(args->data = block);
  return nullptr;
}

XLA_FFI_Error* Free(XLA_FFI_DeviceMemory_Free_Args* args) {
  Context& context = ContextOf(args);
  const std::lock_guard<std::mutex> lock(context.mutex);
  if (std::erase(context.memory, args->data) == 0) {
    return MakeError(InvalidArgument(args->data, " is no scratch memory of this call"));
  }
  std::free(args->data);
  return nullptr;
}

XLA_FFI_Error* CountThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  const Context& context = ContextOf(args);
  if (context.pool == nullptr) return MakeError(Unimplemented("there is no thread pool here"));
  *args->num_threads = context.pool->num_threads();
  return nullptr;
}

XLA_FFI_Error* ScheduleTask(XLA_FFI_ThreadPool_Schedule_Args* args) {
  const Context& context = ContextOf(args);
  if (context.pool == nullptr) return MakeError(Unimplemented("there is no thread pool here"));
  context.pool->Submit([task = args->task, data = args->data] { task(data); });
  return nullptr;
}

// Members of newer tables: a handler that calls one is told so.
XLA_FFI_Error* RefuseNewer(void*) {
  return MakeError(
      Unimplemented("the handler calls a function of XLA's FFI newer than 0.", XLA_FFI_API_MINOR));
}

struct Table {
  XLA_FFI_Api api{};
  std::array<XLA_FFI_Error* (*)(void*), 32> newer;

  Table() {
    newer.fill(RefuseNewer);
    api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR,
                       XLA_FFI_API_MINOR};
    api.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) {
      return MakeError(Status(CodeOf(args->errc), args->message == nullptr ? "" : args->message));
    };
    api.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
      const auto& error = *reinterpret_cast<const Status*>(args->error);
      args->message = error.message().c_str();
      if (args->struct_size > sizeof(*args)) {  // since FFI 0.5 the code follows
        *reinterpret_cast<XLA_FFI_Error_Code*>(args + 1) =
            static_cast<XLA_FFI_Error_Code>(error.code());
      }
    };
    api.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) {
      (void)TakeError(args->error);
    };
    api.XLA_FFI_Handler_Register = [](XLA_FFI_Handler_Register_Args*) {
      return MakeError(Unimplemented("handlers are registered with XLA, not from a handler"));
    };
    api.XLA_FFI_Stream_Get = GetStream;
    api.XLA_FFI_TypeId_Register = RegisterType;
    api.XLA_FFI_ExecutionContext_Get = [](XLA_FFI_ExecutionContext_Get_Args*) {
      return MakeError(NotFound("calls outside XLA have no user data in their context"));
    };
    api.XLA_FFI_State_Set = SetState;
    api.XLA_FFI_State_Get = GetState;
    api.XLA_FFI_DeviceMemory_Allocate = Allocate;
    api.XLA_FFI_DeviceMemory_Free = Free;
    api.XLA_FFI_ThreadPool_Schedule = ScheduleTask;
    api.XLA_FFI_ThreadPool_NumThreads = CountThreads;
    api.XLA_FFI_Future_Create = [](XLA_FFI_Future_Create_Args* args) -> XLA_FFI_Error* {
      args->future = reinterpret_cast<XLA_FFI_Future*>(new Future);
      return nullptr;
    };
    api.XLA_FFI_Future_SetAvailable = [](XLA_FFI_Future_SetAvailable_Args* args) -> XLA_FFI_Error* {
      reinterpret_cast<Future*>(args->future)->End(OkStatus());
      return nullptr;
    };
    api.XLA_FFI_Future_SetError = [](XLA_FFI_Future_SetError_Args* args) -> XLA_FFI_Error* {
      reinterpret_cast<Future*>(args->future)->End(TakeError(args->error));
      return nullptr;
    };
    api.XLA_FFI_RunId_Get = [](XLA_FFI_RunId_Get_Args* args) -> XLA_FFI_Error* {
      args->run_id = ContextOf(args).run_id;
      return nullptr;
    };
    api.XLA_FFI_DeviceOrdinal_Get = [](XLA_FFI_DeviceOrdinal_Get_Args* args) -> XLA_FFI_Error* {
      args->device_ordinal = ContextOf(args).device;
      return nullptr;
    };
  }
};
static_assert(offsetof(Table, newer) == XLA_FFI_Api_STRUCT_SIZE, "newer members follow");

const XLA_FFI_Api* HostApi() {
  static const Table table;
  return &table.api;
}

class FfiPlan final : public Plan {
 public:
  explicit FfiPlan(FfiHandler handler) : handler_(std::move(handler)) {
    std::ranges::sort(handler_.scalars, {}, &FfiHandler::Scalar::name);  // as XLA's are
    const size_t count = handler_.scalars.size();
    names_.reserve(count);
    values_.reserve(count);
    types_.assign(count, XLA_FFI_AttrType_SCALAR);
    for (FfiHandler::Scalar& scalar : handler_.scalars) {
      names_.push_back({scalar.name.data(), scalar.name.size()});
      values_.push_back({static_cast<XLA_FFI_DataType>(scalar.type), &scalar.bits});
      name_pointers_.push_back(&names_.back());
      value_pointers_.push_back(&values_.back());
    }
  }

  // To be called once, before it runs. XLA shows an instantiate stage the attributes alone.
  Status Instantiate() {
    XLA_GPU_RETURN_IF_ERROR(state_.SetType(handler_.type_id, handler_.type_info));
    for (size_t stage = 0; stage < minors_.size(); ++stage) {
      if (handler_.stages[stage] != nullptr) XLA_GPU_RETURN_IF_ERROR(CheckStage(stage));
    }
    XLA_GPU_RETURN_IF_ERROR(Rehearse());
    Context context{handler_.platform, handler_.device, &state_, &state_};
    return RunStage(XLA_FFI_ExecutionStage_INSTANTIATE, {}, context);
  }

  Status Run(const Call& call, const ExecutionContext& execution) const override {
    static std::atomic<int64_t> runs = 0;
    Context context{handler_.platform, handler_.device, &state_};
    context.stream = execution.stream;
    context.pool = execution.thread_pool;
    context.run_id = runs.fetch_add(1, std::memory_order_relaxed) + 1;
    XLA_GPU_RETURN_IF_ERROR(RunStage(XLA_FFI_ExecutionStage_PREPARE, call, context));
    XLA_GPU_RETURN_IF_ERROR(RunStage(XLA_FFI_ExecutionStage_INITIALIZE, call, context));
    return RunStage(XLA_FFI_ExecutionStage_EXECUTE, call, context);
  }

 private:
  Status CheckStage(size_t stage);
  Status Rehearse() const;

  Status RunStage(XLA_FFI_ExecutionStage stage, const Call& call, Context& context) const {
    const void* const function = handler_.stages[stage];
    if (function == nullptr) return OkStatus();
    static_assert(XLA_FFI_ArgType_BUFFER == 1 && XLA_FFI_RetType_BUFFER == 1);
    std::array<XLA_FFI_Buffer, 2 * kMaxTensors> buffers;
    std::array<void*, 2 * kMaxTensors> pointers;
    std::array<XLA_FFI_ArgType, kMaxTensors> arg_types;
    std::array<XLA_FFI_RetType, kMaxTensors> result_types;
    arg_types.fill(XLA_FFI_ArgType_BUFFER);
    result_types.fill(XLA_FFI_RetType_BUFFER);
    size_t next = 0;
    context.minor = minors_[stage];
    for (const auto& list : {call.args, call.results}) {
      for (const TensorView& view : list) {
        buffers[next] = {
            XLA_FFI_Buffer_STRUCT_SIZE,
            nullptr,
            context.rehearsal ? XLA_FFI_DataType_TOKEN : static_cast<XLA_FFI_DataType>(view.dtype),
            view.data,
            view.rank(),
            const_cast<int64_t*>(view.shape.data())};
        pointers[next] = &buffers[next];
        ++next;
      }
    }
    XLA_FFI_CallFrame frame{};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = HostApi();
    frame.ctx = reinterpret_cast<XLA_FFI_ExecutionContext*>(&context);
    frame.stage = stage;
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(call.args.size()),
                  arg_types.data(), pointers.data()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(call.results.size()),
                  result_types.data(), pointers.data() + call.args.size()};
    frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE,
                   nullptr,
                   static_cast<int64_t>(types_.size()),
                   const_cast<XLA_FFI_AttrType*>(types_.data()),
                   const_cast<XLA_FFI_ByteSpan**>(name_pointers_.data()),
                   const_cast<void**>(value_pointers_.data())};
    Status status;
    try {
      status = TakeError(reinterpret_cast<XLA_FFI_Handler*>(const_cast<void*>(function))(&frame));
    } catch (const std::exception& error) {
      status = Internal("the handler threw: ", error.what());
    } catch (...) {
      status = Internal("the handler threw what is no std::exception");
    }
    if (frame.future != nullptr) {
      const std::unique_ptr<Future> future(reinterpret_cast<Future*>(frame.future));
      Status ended = future->Wait();
      if (status.ok()) status = std::move(ended);
    }
    const std::lock_guard<std::mutex> lock(context.mutex);
    if (status.ok() || status.message().find(context.refusal) != std::string::npos) return status;
    return Status(status.code(), StrCat(status.message(), " (", context.refusal, ")"));
  }

  FfiHandler handler_;
  std::array<int, 4> minors_ = {};  // of the stages' FFI versions
  FfiState state_;
  std::vector<XLA_FFI_ByteSpan> names_;
  std::vector<XLA_FFI_Scalar> values_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<void*> value_pointers_;
};

// To ask takes a child process, so a function is asked once.
StatusOr<HandlerMetadata> MetadataOf(const void* function, Platform platform) {
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::map<std::pair<const void*, Platform>, HandlerMetadata>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find({function, platform});
  if (found != known.end()) return found->second;
  XLA_GPU_ASSIGN_OR_RETURN(const HandlerMetadata told, AskHandler(function, platform, 4));
  known.emplace(std::pair(function, platform), told);
  return told;
}

Status FfiPlan::CheckStage(size_t stage) {
  constexpr const char* kNames[] = {"instantiate", "prepare", "initialize", "execute"};
  constexpr std::string_view kGiveType =
      "its type_id and type_info must be given, the addresses that jax.ffi.register_ffi_type takes";
  const StatusOr<HandlerMetadata> told = MetadataOf(handler_.stages[stage], handler_.platform);
  if (!told.ok()) {
    if (stage == XLA_FFI_ExecutionStage_EXECUTE) return told.status();
    return Status(told.status().code(),
                  StrCat("the ", kNames[stage], " stage: ", told.status().message(),
                         "; if it makes a state of a type, ", kGiveType));
  }
  if (told->ffi.major != XLA_FFI_API_MAJOR) {
    return Unimplemented("the handler is of XLA FFI ", told->ffi.major, ".", told->ffi.minor,
                         "; served is ", XLA_FFI_API_MAJOR, ".x");
  }
  minors_[stage] = told->ffi.minor;
  if (stage == XLA_FFI_ExecutionStage_EXECUTE && handler_.capture &&
      handler_.platform == Platform::kCuda &&
      (told->traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE) == 0) {
    return InvalidArgument(
        "capture is true, but the handler is not declared safe for command buffers (its traits "
        "lack kCmdBufferCompatible)");
  }
  if (told->state_type == 0) return OkStatus();
  if (stage != XLA_FFI_ExecutionStage_INSTANTIATE) {
    return Unimplemented("the ", kNames[stage],
                         " stage makes a state; that of an instantiate stage alone is kept");
  }
  if (state_.has_deleter()) return OkStatus();
  return InvalidArgument("the instantiate stage makes a state of an unknown type; ", kGiveType);
}

// Handlers do not tell that they take a state, and assert that its type has an id, which would end
// this process. So where one may, its stages are once called in a child, with buffers that they do
// not take.
Status FfiPlan::Rehearse() const {
  static auto& mutex = *new std::mutex;
  static auto& passed = *new std::set<std::array<const void*, 4>>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (passed.contains(handler_.stages)) return OkStatus();
  const std::vector<TensorView> args(handler_.num_args), results(handler_.num_results);
  HostApi();  // made here: the child must find no first use under way in another thread
  std::string said;
  const auto may_assert = [](const void* function) {
    return function != nullptr && MayAssertStateType(function);
  };
  if (std::ranges::any_of(handler_.stages, may_assert)) {
    said = FailedAssertion([&] {
      for (const auto stage : {XLA_FFI_ExecutionStage_PREPARE, XLA_FFI_ExecutionStage_INITIALIZE,
                               XLA_FFI_ExecutionStage_EXECUTE}) {
        Context context{handler_.platform, handler_.device, &state_};
        context.rehearsal = true;
        (void)RunStage(stage, {args, results}, context);
      }
    });
  }
  if (IsAboutStateType(said)) {
    return FailedPrecondition(
        "the handler takes a state whose type has no id; what makes the state must be given as "
        "its instantiate stage, and the type's type_id and type_info, the addresses that "
        "jax.ffi.register_ffi_type takes");
  }
  passed.insert(handler_.stages);
  return OkStatus();
}

StatusOr<std::unique_ptr<Plan>> MakeHostedPlan(FfiHandler handler) {
  auto plan = std::make_unique<FfiPlan>(std::move(handler));
  XLA_GPU_RETURN_IF_ERROR(plan->Instantiate());
  return std::unique_ptr<Plan>(std::move(plan));
}

[[maybe_unused]] const bool installed = [] {
  make_ffi_handler_plan = MakeHostedPlan;
  return true;
}();

}  // namespace
}  // namespace xla_gpu::xla
