// Runs a call of Host tensors on the GPU, for tests of ops there. For tests only.
#ifndef XLA_GPU_CUDA_GPU_CALL_TESTING_H_
#define XLA_GPU_CUDA_GPU_CALL_TESTING_H_

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "src/core/op.h"
#include "src/core/plan_cache.h"
#include "src/cuda/gpu_testing.h"

namespace xla_gpu::cuda {

using Bytes = std::vector<char>;

inline int CasesPerKind() {
  const char* text = std::getenv("XLA_GPU_TEST_CASES");
  return text == nullptr ? 40 : std::max(1, std::atoi(text));
}

// Of random problems the first one's, so that processes can share a kind's.
inline uint64_t FirstSeed() {
  const char* text = std::getenv("XLA_GPU_TEST_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

// From there on.
inline std::vector<uint64_t> Seeds(int count) {
  std::vector<uint64_t> seeds(static_cast<size_t>(count));
  std::iota(seeds.begin(), seeds.end(), FirstSeed());
  return seeds;
}

inline Guards TestGuards() {
  const char* text = std::getenv("XLA_GPU_TEST_GUARDS");
  const bool off = text != nullptr && std::strcmp(text, "0") == 0;
  return off ? Guards::kOff : Guards::kOn;
}

inline Bytes HostBytes(const TensorView& view) {
  const char* data = view.data_as<char>();
  return {data, data + view.size_bytes()};
}

// Runs a call of Host tensors on the GPU: arguments are copied there, results, but for scratch,
// come back as bytes. `aliases[i]`: the argument whose buffer result i shares, or -1. `plan`: in
// place of the op's own. With `shifts` tensors start at random multiples of their element size, but
// for scratch.
inline StatusOr<std::vector<Bytes>> RunOnGpu(const Op& op, const Call& host,
                                             std::vector<int> aliases, const Plan* plan = nullptr,
                                             std::mt19937_64* shifts = nullptr) {
  const auto shift = [&](DType dtype) {
    return shifts == nullptr ? 0 : (*shifts)() % 40 * static_cast<size_t>(DTypeSize(dtype));
  };
  XLA_GPU_ASSIGN_OR_RETURN(const auto inferred,
                           InferResults(op, Platform::kCuda, {host.args, {}, host.attributes}));
  std::vector<std::unique_ptr<DeviceBuffer<char>>> memory;
  std::vector<TensorView> args, results;
  for (const TensorView& arg : host.args) {
    memory.push_back(
        std::make_unique<DeviceBuffer<char>>(HostBytes(arg), TestGuards(), shift(arg.dtype)));
    args.push_back({memory.back()->data(), arg.dtype, arg.shape});
  }
  std::vector<DeviceBuffer<char>*> outputs;  // null: scratch
  for (size_t i = 0; i < inferred.size(); ++i) {
    const int alias = i < aliases.size() ? aliases[i] : -1;
    const bool scratch = inferred[i].spec->kind == ResultKind::kScratch;
    const TensorSpec& type = inferred[i].type;
    TensorView view{nullptr, type.dtype, type.shape};
    if (alias < 0) {
      const auto size = static_cast<size_t>(view.size_bytes());
      memory.push_back(std::make_unique<DeviceBuffer<char>>(size, TestGuards(),
                                                            scratch ? 0 : shift(view.dtype)));
      if (TestGuards() == Guards::kOn) memory.back()->CopyFrom(Bytes(size, '\xff'));
    }
    DeviceBuffer<char>* const output =
        alias < 0 ? memory.back().get() : memory[static_cast<size_t>(alias)].get();
    outputs.push_back(scratch ? nullptr : output);
    view.data = output->data();
    results.push_back(view);
  }
  Stream stream;
  const Call call = {args, results, host.attributes};
  const ExecutionContext context = {.stream = stream.get()};
  XLA_GPU_RETURN_IF_ERROR(plan != nullptr ? plan->Run(call, context)
                                          : RunOp(op, Platform::kCuda, call, context));
  stream.Synchronize();
  if (std::getenv("XLA_GPU_TEST_WARM") !=
      nullptr) {  // no kernel ran, and this is the Host's memory
    XLA_GPU_ASSIGN_OR_RETURN(const auto own,
                             InferTypes(op, Platform::kHost, {host.args, {}, host.attributes}));
    results.resize(own.size());  // without a workspace
    XLA_GPU_RETURN_IF_ERROR(RunOp(op, Platform::kHost, {args, results, host.attributes}, {}));
  }
  std::vector<Bytes> bytes;
  for (const auto* output : outputs) {
    bytes.push_back(output == nullptr ? Bytes{} : output->ToHost());
  }
  for (const auto& buffer : memory) {
    if (!buffer->GuardsIntact()) return Internal("a write outside of a tensor");
  }
  return bytes;
}

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_GPU_CALL_TESTING_H_
