// The C++ API: tensors, op calls, kernels of your own and XLA clients over the C ABI (xla_gpu.h).
// Header only, C++17; link libxla_gpu.so. Every error is an exception of type xla_gpu::Error.
#ifndef XLA_GPU_XLA_GPU_HPP_
#define XLA_GPU_XLA_GPU_HPP_

#include <memory>
#include <string>
#include <vector>

#include "xla_gpu/kernel.hpp"
#include "xla_gpu/tensor.hpp"
#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {
inline namespace v1 {

// A PJRT plugin's client: stock XLA, with this library's ops as custom calls. It runs on one
// device; tensors come from and go to host memory. Not for use in a child of fork().
class Client {
 public:
  // `plugin` as xla_gpu_client_create takes it: the path of a .so, "cpu" or "cuda"; "" is the GPU
  // if there is one, else the CPU. An Error where no such plugin is found or it does not start.
  explicit Client(const std::string& plugin = "") {
    xla_gpu_client* client = nullptr;
    Check(xla_gpu_client_create(plugin.c_str(), &client));
    client_.reset(client);
  }

  // "Host" or "CUDA".
  std::string platform() const { return xla_gpu_client_platform(client_.get()); }

  // Registers a handler of your own (xla_gpu_register_pjrt) as custom-call target `target`; an
  // Error where it is no handler of this API version or another one has the name.
  void Register(const std::string& target, const void* handler, int api_version = 4) {
    Check(xla_gpu_register_pjrt(xla_gpu_client_pjrt_api(client_.get()), nullptr, target.c_str(),
                                handler, xla_gpu_client_platform(client_.get()), api_version));
  }

  // The StableHLO module that makes one call of the op; the arguments' data is not read. An Error
  // where the op does not take these shapes, dtypes and attributes.
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

  // Compiles the module (once; kept by its text) and runs its @main. An Error where the arguments
  // are not of its types, and with XLA's message where it does not compile or run.
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
      tensors.emplace_back(
          std::vector<int64_t>(view.dims, view.dims + view.rank), view.dtype, view.data,
          internal::BytesOf(view.dtype, view.dims, static_cast<size_t>(view.rank)));
    }
    return tensors;
  }

  // One call of an op of this library, as a custom call in XLA: its results, in the schema's order.
  // Shapes, dtypes and attributes are those of `xla-gpu ops`; else an Error.
  std::vector<Tensor> Call(const std::string& op, const std::vector<Tensor>& args,
                           const std::vector<Attr>& attrs = {}) {
    return Run(StableHlo(op, args, attrs), args);
  }

  // The same of a kernel of your own: `scalars` by name, results in the order outputs, in_place. An
  // Error where it does not run on this platform, with the compiler's message where it does not
  // compile.
  std::string StableHlo(const Kernel& kernel, const std::vector<Tensor>& args,
                        const std::vector<Attr>& scalars = {}) const {
    return StableHlo(kernel.key(), args, kernel.Attributes(args, scalars));
  }
  std::vector<Tensor> Call(const Kernel& kernel, const std::vector<Tensor>& args,
                           const std::vector<Attr>& scalars = {}) {
    return Run(StableHlo(kernel, args, scalars), args);
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
