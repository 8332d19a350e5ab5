// xla_gpu_run_objects: the C ABI's door for tensors inside Python objects.
#include <cstddef>
#include <memory>

#include "src/capi/internal.h"
#include "src/core/dlpack.h"
#include "src/core/plan_cache.h"

namespace xla_gpu {
namespace {

enum Outcome { kRan = 0, kOther = 1, kFailed = 2 };

bool Matches(const dlpack::Tensor& tensor, const xla_gpu_tensor& expected,
             const xla_gpu_object_call& c) {
  if (expected.rank > 0 && expected.dims == nullptr) return false;
  if (tensor.device.type != c.device_type || tensor.device.id != c.device_id) return false;
  if (tensor.dtype != dlpack::TypeOf(static_cast<DType>(expected.dtype))) return false;
  // Frameworks keep scales as 0-d tensors, which lie in memory like one element of a vector.
  if (tensor.rank == 0 && expected.rank == 1) return expected.dims[0] == 1;
  if (tensor.rank != expected.rank) return false;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] != expected.dims[i]) return false;
  }
  return dlpack::IsRowMajor(tensor);
}

// An array of the call's tensors, whose struct_size is this header's (the elements are copied).
Status CheckArray(const char* name, const xla_gpu_tensor* tensors, size_t count,
                  const TensorList& out) {
  XLA_GPU_RETURN_IF_ERROR(out.CheckCount(count));
  for (size_t i = 0; i < count; ++i) {
    if (tensors == nullptr || tensors[i].struct_size != sizeof(xla_gpu_tensor)) {
      return InvalidArgument("call.", name, "[", i, "] must be an xla_gpu_tensor with a ",
                             "struct_size of ", sizeof(xla_gpu_tensor));
    }
  }
  return OkStatus();
}

Status CheckObjectCall(const xla_gpu_object_call* c, const void* tuple, const TensorList& args,
                       const TensorList& results) {
  if (c == nullptr || tuple == nullptr) return InvalidArgument("call or tuple is NULL");
  if (c->struct_size < sizeof(*c)) {
    return BadStruct("xla_gpu_object_call", c->struct_size, sizeof(*c));
  }
  if (c->call == nullptr || c->none == nullptr || c->exchange_api == nullptr ||
      c->tuple_item == nullptr || c->release_gil == nullptr || c->acquire_gil == nullptr) {
    return InvalidArgument("a pointer in xla_gpu_object_call is NULL");
  }
  const auto& api = *static_cast<const dlpack::ExchangeApi*>(c->exchange_api);
  if (api.major_version != dlpack::kMajorVersion) {
    return Unimplemented("the framework's DLPack has version ", api.major_version,
                         "; 1 is supported");
  }
  if (c->call->struct_size < sizeof(*c->call)) {
    return BadStruct("xla_gpu_call", c->call->struct_size, sizeof(*c->call));
  }
  XLA_GPU_RETURN_IF_ERROR(CheckArray("args", c->call->args, c->call->num_args, args));
  return CheckArray("results", c->call->results, c->call->num_results, results);
}

// Adds `count` objects of the tuple, from `first` on, to `out`; false if one is not `expected`.
bool ReadObjects(const xla_gpu_object_call& c, void* tuple, size_t first,
                 const xla_gpu_tensor* expected, size_t count, TensorList& out) {
  const auto& api = *static_cast<const dlpack::ExchangeApi*>(c.exchange_api);
  for (size_t i = 0; i < count; ++i) {
    dlpack::Tensor tensor;
    void* object = c.tuple_item(tuple, static_cast<ptrdiff_t>(first + i));
    if (object == nullptr || object == c.none || api.tensor_from_object(object, &tensor) != 0) {
      return false;
    }
    if (!Matches(tensor, expected[i], c)) return false;
    void* data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    if (!out.Add(data, static_cast<DType>(expected[i].dtype), expected[i].rank, expected[i].dims)
             .ok()) {
      return false;
    }
    const TensorView& view = out.views().back();
    if ((data == nullptr || !IsAligned(view)) && view.num_elements() != 0) return false;
  }
  return true;
}

class WithoutGil {
 public:
  explicit WithoutGil(const xla_gpu_object_call& c)
      : acquire_(c.acquire_gil), state_(c.release_gil()) {}
  ~WithoutGil() { acquire_(state_); }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void (*acquire_)(void*);
  void* state_;
};

// What the first run keeps for the later ones.
struct ObjectPlan {
  const Op* op = nullptr;
  Attributes attributes;  // its texts are the caller's
  Platform platform = Platform::kHost;
  std::shared_ptr<const Plan> plan;
};

// Runs a call whose types are c->call's, unless results overlap what they may not; makes the plan
// at the first run.
Status RunCall(xla_gpu_object_call* c, Call call, void* stream, Outcome& outcome) {
  auto* kept = static_cast<ObjectPlan*>(c->plan);
  std::unique_ptr<ObjectPlan> made;
  if (kept == nullptr) {
    auto decoded = std::make_unique<DecodedCall>();
    XLA_GPU_ASSIGN_OR_RETURN(const Op* op, Decode(c->call, /*with_results=*/true, *decoded));
    made = std::make_unique<ObjectPlan>();
    made->op = op;
    made->attributes = decoded->attributes;
    made->platform = decoded->platform;
    call.attributes = &made->attributes;
    XLA_GPU_ASSIGN_OR_RETURN(made->plan,
                             PlanCache::Global().GetOrCreate(*op, decoded->platform, call));
    kept = made.get();
    c->plan = made.release();
  }
  call.attributes = &kept->attributes;
  outcome = CheckOverlap(*kept->op, call).ok() ? kRan : kOther;
  if (outcome == kOther) return OkStatus();
  const WithoutGil without_gil(*c);
  return RunPlan(*kept->op, *kept->plan, kept->platform, call, {.stream = stream});
}

}  // namespace
}  // namespace xla_gpu

using namespace xla_gpu;  // NOLINT: this file only implements the C ABI

extern "C" {

int xla_gpu_run_objects(xla_gpu_object_call* c, void* tuple, xla_gpu_status** status) {
  if (status == nullptr) return kFailed;
  TensorList args("argument"), results("result");
  *status = Guard([&] { return CheckObjectCall(c, tuple, args, results); });
  if (*status != nullptr) return kFailed;

  if (!ReadObjects(*c, tuple, 0, c->call->args, c->call->num_args, args) ||
      !ReadObjects(*c, tuple, c->call->num_args, c->call->results, c->call->num_results, results)) {
    return kOther;
  }
  void* stream = nullptr;
  const auto& api = *static_cast<const dlpack::ExchangeApi*>(c->exchange_api);
  if (c->device_type == dlpack::kCuda &&
      api.current_stream(dlpack::kCuda, c->device_id, &stream) != 0) {
    return kOther;
  }
  Outcome outcome = kRan;
  *status = Guard([&] { return RunCall(c, {args.views(), results.views()}, stream, outcome); });
  return *status == nullptr ? outcome : kFailed;
}

void xla_gpu_object_call_clear(xla_gpu_object_call* c) {
  if (c == nullptr) return;
  delete static_cast<ObjectPlan*>(c->plan);
  c->plan = nullptr;
}

}  // extern "C"
