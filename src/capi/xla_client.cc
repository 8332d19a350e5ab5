// The C ABI of running StableHLO through a PJRT plugin.
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "src/capi/internal.h"
#include "src/core/fork.h"
#include "src/xla/mlir_text.h"
#include "src/xla/op_registration.h"
#include "src/xla/pjrt_client.h"
#include "src/xla/pjrt_discovery.h"

using namespace xla_gpu;  // NOLINT: this file only implements the C ABI

struct xla_gpu_client {
  std::unique_ptr<xla::PjrtClient> client;
  const int64_t generation = ForkGeneration();
  std::mutex mutex;
  // By the module's text; guarded by `mutex`. A shared_ptr, so that a run outlives a clearing.
  std::map<std::string, std::shared_ptr<const xla::PjrtExecutable>> executables;
};

struct xla_gpu_results {
  std::vector<HostTensor> tensors;
};

namespace {

// A program runs few modules; one that makes up new ones without end must not eat the memory.
constexpr size_t kMaxExecutables = 256;

StatusOr<std::shared_ptr<const xla::PjrtExecutable>> GetExecutable(xla_gpu_client& client,
                                                                   const std::string& mlir) {
  std::lock_guard<std::mutex> lock(client.mutex);
  if (auto found = client.executables.find(mlir); found != client.executables.end()) {
    return found->second;
  }
  XLA_GPU_RETURN_IF_ERROR(xla::RegisterOpsOf(client.client->plugin(), mlir));
  XLA_GPU_ASSIGN_OR_RETURN(xla::PjrtExecutable executable, client.client->Compile(mlir));
  if (client.executables.size() >= kMaxExecutables) client.executables.clear();
  auto shared = std::make_shared<const xla::PjrtExecutable>(std::move(executable));
  client.executables.emplace(mlir, shared);
  return shared;
}

Status RunModule(xla_gpu_client& client, const std::string& mlir, const xla_gpu_tensor* args,
                 size_t num_args, xla_gpu_results& results) {
  TensorList list("argument");
  XLA_GPU_RETURN_IF_ERROR(ReadTensors(args, num_args, list));
  const std::span<const TensorView> views = list.views();
  for (size_t i = 0; i < num_args; ++i) {
    if (DTypeSize(views[i].dtype) == 0) {
      return InvalidArgument("argument ", i, " has a dtype number that is none of XLA_GPU_DTYPE_*");
    }
    if (const std::string_view problem = TypeProblem(views[i]); !problem.empty()) {
      return InvalidArgument("argument ", i, " is ", views[i].ToString(), "; ", problem);
    }
    if (views[i].data == nullptr && views[i].num_elements() != 0) {
      return InvalidArgument("argument ", i, " (", views[i].ToString(),
                             ") has a null data pointer");
    }
  }
  XLA_GPU_ASSIGN_OR_RETURN(const auto executable, GetExecutable(client, mlir));
  XLA_GPU_RETURN_IF_ERROR(executable->CheckArguments({views.begin(), views.end()}));
  std::vector<xla::DeviceBuffer> buffers;
  for (size_t i = 0; i < num_args; ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(xla::DeviceBuffer buffer, client.client->ToDevice(views[i]));
    buffers.push_back(std::move(buffer));
  }
  std::vector<const xla::DeviceBuffer*> inputs;
  for (const xla::DeviceBuffer& buffer : buffers) inputs.push_back(&buffer);
  XLA_GPU_ASSIGN_OR_RETURN(const auto outputs, executable->Execute(inputs));
  for (const xla::DeviceBuffer& output : outputs) {
    XLA_GPU_ASSIGN_OR_RETURN(HostTensor tensor, output.ToHost());
    results.tensors.push_back(std::move(tensor));
  }
  return OkStatus();
}

}  // namespace

extern "C" {

xla_gpu_status* xla_gpu_client_create(const char* plugin, xla_gpu_client** client) {
  return Guard([&]() -> Status {
    if (client == nullptr) return InvalidArgument("client is NULL");
    XLA_GPU_ASSIGN_OR_RETURN(const xla::FoundPlugin found,
                             xla::ChoosePjrtPlugin(plugin == nullptr ? "" : plugin));
    XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtPlugin* loaded, xla::PjrtPlugin::Load(found.path));
    auto made = std::make_unique<xla_gpu_client>();
    XLA_GPU_ASSIGN_OR_RETURN(made->client, xla::PjrtClient::Create(loaded));
    *client = made.release();
    return OkStatus();
  });
}

void xla_gpu_client_free(xla_gpu_client* client) {
  // A child cannot end its parent's client: that would wait for threads that it lacks.
  if (client != nullptr && client->generation == ForkGeneration()) delete client;
}

const char* xla_gpu_client_platform(const xla_gpu_client* client) {
  if (client == nullptr) return "";
  return client->client->plugin().is_gpu() ? "CUDA" : "Host";
}

const void* xla_gpu_client_pjrt_api(const xla_gpu_client* client) {
  return client == nullptr ? nullptr : client->client->plugin().api();
}

xla_gpu_status* xla_gpu_client_run(xla_gpu_client* client, const char* mlir,
                                   const xla_gpu_tensor* args, size_t num_args,
                                   xla_gpu_results** results) {
  return Guard([&]() -> Status {
    if (client == nullptr || mlir == nullptr || results == nullptr) {
      return InvalidArgument("client, mlir or results is NULL");
    }
    if (xla::IsMlirBytecode(mlir)) {  // which has zeros, where the text would end
      return InvalidArgument(
          "mlir is MLIR bytecode; give the module's text (in JAX: exported.mlir_module())");
    }
    if (client->generation != ForkGeneration()) {
      return FailedPrecondition(
          "the client was made by the process that this one was forked from, and a fork does not "
          "copy its threads; start processes by 'spawn', or fork before the client is made");
    }
    auto made = std::make_unique<xla_gpu_results>();
    XLA_GPU_RETURN_IF_ERROR(RunModule(*client, mlir, args, num_args, *made));
    *results = made.release();
    return OkStatus();
  });
}

size_t xla_gpu_results_count(const xla_gpu_results* results) {
  return results == nullptr ? 0 : results->tensors.size();
}

xla_gpu_status* xla_gpu_results_get(const xla_gpu_results* results, size_t index,
                                    xla_gpu_tensor* tensor) {
  return Guard([&]() -> Status {
    const size_t count = xla_gpu_results_count(results);
    if (index >= count) return InvalidArgument("result ", index, " of ", count, " is asked");
    if (tensor == nullptr || tensor->struct_size < sizeof(*tensor)) {
      return InvalidArgument("tensor is NULL or its struct_size is not set");
    }
    const TensorView view = results->tensors[index].view();
    tensor->data = view.data;
    tensor->dtype = static_cast<int32_t>(view.dtype);
    tensor->rank = static_cast<int32_t>(view.rank());
    tensor->dims = view.shape.data();
    return OkStatus();
  });
}

void xla_gpu_results_free(xla_gpu_results* results) { delete results; }

}  // extern "C"
