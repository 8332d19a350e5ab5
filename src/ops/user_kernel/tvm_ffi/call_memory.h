// The memory of one call of a TVM-FFI function: tensors that the callee is given to own, and those
// that it allocates through its environment.
//
// A function that returns its results allocates them. Where an allocation becomes which result is
// known only when the function returns, yet nothing should be copied. The rule:
//
// 1. An allocation of the type of a result that the function will return is given that result's own
//    buffer, the first that is free; all others come from the call's work space (CUDA) or from
//    malloc (Host).
// 2. When the function returns, what does not lie in its result's buffer is copied there, in an
//    order (through spare memory, where results have changed places) in which nothing is
//    overwritten before it is read. On CUDA that is enqueued on the call's stream, as all that the
//    function itself did: also a captured graph does it at every replay. There a result must lie in
//    the call's memory, as any other may be gone when the copy runs.
// 3. Which allocations became which results is remembered with the plan, and later calls hand out
//    buffers so. It saves copies and decides nothing else: a function that goes another way the
//    next time is right by 2.
//
// So scratch before the result, and results in another order than allocated, need as much work
// space as the scratch, and once the results that changed places; if there is too little, the call
// fails and says how much is missing.
#ifndef XLA_GPU_OPS_USER_KERNEL_TVM_FFI_CALL_MEMORY_H_
#define XLA_GPU_OPS_USER_KERNEL_TVM_FFI_CALL_MEMORY_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/core/op.h"
#include "src/core/tvm_ffi.h"

namespace xla_gpu::user_kernel {

// Which result each of the first allocations of a call became. One word, so that calls in many
// threads read and write it whole.
class AllocationOrder {
 public:
  static constexpr size_t kSize = 8;                      // allocations that are remembered
  static constexpr uint8_t kUnknown = 0, kScratch = 255;  // else 1 + the result's number
  using Slots = std::array<uint8_t, kSize>;

  Slots Load() const;
  void Store(const Slots& slots);

 private:
  std::atomic<uint64_t> word_{0};
};

// Lives on the stack of the call's thread while the function runs, as the environment in which it
// allocates (Environment, below).
class CallMemory {
 public:
  // `returned`: the numbers in `call.results` of those that the function returns. `workspace`: that
  // of the call, or empty.
  CallMemory(Platform platform, const Call& call, std::span<const size_t> returned,
             std::span<char> workspace, dlpack::Device device, const AllocationOrder& order);
  ~CallMemory();
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  // A tensor of memory that is the call's, for a callee that may take a reference to it.
  dlpack::ManagedTensor* Lend(const dlpack::Tensor& tensor);

  // What the callee returned for result returned[i] lies at sources[i], and is of its type:
  // brings each into its result's buffer, and tells `order` where they were allocated.
  Status Collect(std::span<const void*> sources, void* stream, AllocationOrder& order);

  // Tensors of this call that are still in use.
  int64_t in_use() const { return in_use_ == nullptr ? 0 : in_use_->load(); }

  // What the environment's allocator does, in the thread of the call.
  static int Allocate(dlpack::Tensor* prototype, dlpack::ManagedTensor** out, void* error_context,
                      dlpack::SetErrorFn set_error);

 private:
  struct Block;

  Block* NewBlock(const dlpack::Tensor& tensor);
  StatusOr<dlpack::ManagedTensor*> TryAllocate(const dlpack::Tensor& prototype);
  // The number of the returned result whose buffer the next allocation gets, or -1.
  int ChooseResult(const dlpack::Tensor& wanted, int64_t bytes) const;
  bool IsFree(size_t result) const;
  bool IsOfTheCall(const void* data, int64_t bytes) const;
  // Memory that lasts as long as the call's kernels.
  StatusOr<char*> TakeScratch(int64_t bytes);

  const Platform platform_;
  const Call& call_;
  const std::span<const size_t> returned_;
  const std::span<char> workspace_;
  const dlpack::Device device_;
  size_t workspace_used_ = 0;
  const AllocationOrder::Slots order_;
  size_t num_allocations_ = 0;
  std::array<const void*, AllocationOrder::kSize> allocations_;
  uint64_t taken_ = 0;                                         // of the call's results, a bit each
  std::vector<std::unique_ptr<char, void (*)(void*)>> spare_;  // of Collect, on the Host
  std::shared_ptr<std::atomic<int64_t>> in_use_;  // outlives the call where the callee keeps some
  CallMemory* const outer_;                       // of a call around this one in the same thread
};

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_TVM_FFI_CALL_MEMORY_H_
