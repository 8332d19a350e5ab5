#include "src/ops/user_kernel/tvm_ffi/call_memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "src/core/call_frame.h"
#include "src/core/strings.h"
#include "src/cuda/device.h"

namespace xla_gpu::user_kernel {
namespace {

constexpr size_t kAlignment = 256;  // of allocations, as frameworks align theirs

// The call whose function runs in this thread. The environment's allocator has no other way to it.
constinit thread_local CallMemory* current = nullptr;

// Bytes of a dense tensor, or -1 where there can be none of this type.
int64_t BytesOf(const dlpack::Tensor& tensor) {
  int64_t bytes = (int64_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8;
  bool is_empty = false;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] < 0) return -1;
    is_empty |= tensor.shape[i] == 0;
  }
  if (is_empty) return 0;
  for (int32_t i = 0; i < tensor.rank; ++i) {
    if (__builtin_mul_overflow(bytes, tensor.shape[i], &bytes)) return -1;
  }
  return bytes;
}

bool IsOfType(const dlpack::Tensor& tensor, const TensorView& view) {
  return tensor.dtype == dlpack::TypeOf(view.dtype) &&
         std::ranges::equal(Shape(tensor.shape, static_cast<size_t>(tensor.rank)), view.shape);
}

std::unique_ptr<char, void (*)(void*)> AllocateOnHost(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  return {static_cast<char*>(std::aligned_alloc(kAlignment, rounded)), std::free};
}

bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a), b_begin = reinterpret_cast<uintptr_t>(b);
  return a_begin < b_begin + static_cast<uintptr_t>(b_bytes) &&
         b_begin < a_begin + static_cast<uintptr_t>(a_bytes);
}

Status Copy(Platform platform, void* to, const void* from, int64_t bytes, void* stream) {
  if (platform == Platform::kCuda) return cuda::CopyOnDevice(to, from, bytes, stream);
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return OkStatus();
}

}  // namespace

AllocationOrder::Slots AllocationOrder::Load() const {
  return std::bit_cast<Slots>(word_.load(std::memory_order_relaxed));
}

void AllocationOrder::Store(const Slots& slots) {
  word_.store(std::bit_cast<uint64_t>(slots), std::memory_order_relaxed);
}

// A tensor that the callee may take references to, with its shape and strides.
struct CallMemory::Block {
  dlpack::ManagedTensor managed;
  std::shared_ptr<std::atomic<int64_t>> in_use;
  std::unique_ptr<char, void (*)(void*)> memory{nullptr, std::free};
  std::array<int64_t, kMaxRank> shape, strides;

  static void Delete(dlpack::ManagedTensor* self) {
    const std::unique_ptr<Block> block(static_cast<Block*>(self->context));
    block->in_use->fetch_sub(1);
  }
};

CallMemory::CallMemory(Platform platform, const Call& call, std::span<const size_t> returned,
                       std::span<char> workspace, dlpack::Device device,
                       const AllocationOrder& order)
    : platform_(platform),
      call_(call),
      returned_(returned),
      workspace_(workspace),
      device_(device),
      order_(order.Load()),
      outer_(std::exchange(current, this)) {}

CallMemory::~CallMemory() { current = outer_; }

CallMemory::Block* CallMemory::NewBlock(const dlpack::Tensor& tensor) {
  if (in_use_ == nullptr) in_use_ = std::make_shared<std::atomic<int64_t>>(0);
  auto block = std::make_unique<Block>();
  block->managed = {.major_version = dlpack::kMajorVersion,
                    .minor_version = 0,
                    .context = block.get(),
                    .deleter = Block::Delete,
                    .flags = 0,
                    .tensor = tensor};
  std::copy_n(tensor.shape, tensor.rank, block->shape.begin());
  dlpack::Tensor& made = block->managed.tensor;
  made.shape = block->shape.data();
  made.strides = block->strides.data();
  made.byte_offset = 0;
  dlpack::FillStrides(made.shape, made.rank, made.strides);
  block->in_use = in_use_;
  in_use_->fetch_add(1);
  return block.release();
}

dlpack::ManagedTensor* CallMemory::Lend(const dlpack::Tensor& tensor) {
  return &NewBlock(tensor)->managed;
}

bool CallMemory::IsFree(size_t result) const {
  const void* const data = call_.results[result].data;
  return (taken_ >> result & 1) == 0 &&
         std::ranges::find(call_.args, data, &TensorView::data) == call_.args.end();
}

int CallMemory::ChooseResult(const dlpack::Tensor& wanted, int64_t bytes) const {
  if (num_allocations_ < order_.size() && order_[num_allocations_] != AllocationOrder::kUnknown) {
    const uint8_t known = order_[num_allocations_];
    if (known == AllocationOrder::kScratch) return -1;
    // Of its size is enough: the function may return it in another shape.
    const size_t result = known - size_t{1};
    if (IsFree(result) && call_.results[result].size_bytes() == bytes) {
      return static_cast<int>(result);
    }
  }
  for (const size_t result : returned_) {
    if (IsFree(result) && IsOfType(wanted, call_.results[result])) return static_cast<int>(result);
  }
  return -1;
}

bool CallMemory::IsOfTheCall(const void* data, int64_t bytes) const {
  const auto has_it = [data, bytes](const TensorView& tensor) {
    const auto at = reinterpret_cast<uintptr_t>(data),
               begin = reinterpret_cast<uintptr_t>(tensor.data);
    return at >= begin && static_cast<int64_t>(at - begin) <= tensor.size_bytes() - bytes;
  };
  return std::ranges::any_of(call_.results, has_it) || std::ranges::any_of(call_.args, has_it);
}

StatusOr<char*> CallMemory::TakeScratch(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (platform_ == Platform::kHost) {
    spare_.push_back(AllocateOnHost(size));
    if (spare_.back() == nullptr) return ResourceExhausted("out of memory (", bytes, " bytes)");
    return spare_.back().get();
  }
  const auto address = reinterpret_cast<uintptr_t>(workspace_.data()) + workspace_used_;
  const size_t begin = workspace_used_ + (kAlignment - address % kAlignment) % kAlignment;
  if (begin > workspace_.size() || size > workspace_.size() - begin) {
    return ResourceExhausted("the call needs ", bytes,
                             " bytes of device memory besides its results; its workspace has ",
                             workspace_.size(), " bytes and must have at least ", begin + size);
  }
  workspace_used_ = begin + size;
  return workspace_.data() + begin;
}

StatusOr<dlpack::ManagedTensor*> CallMemory::TryAllocate(const dlpack::Tensor& prototype) {
  if (prototype.device != device_) {
    return InvalidArgument("the function allocates on device ", prototype.device.type, ":",
                           prototype.device.id, "; the call runs on ", device_.type, ":",
                           device_.id, " (DLPack's numbers)");
  }
  if (prototype.rank < 0 || prototype.rank > kMaxRank) {
    return InvalidArgument("the function allocates a tensor of rank ", prototype.rank, "; at most ",
                           kMaxRank, " is allowed");
  }
  const int64_t bytes = BytesOf(prototype);
  if (bytes < 0) {
    return InvalidArgument(
        "the function allocates a tensor with a negative dimension or of more "
        "bytes than there are");
  }
  dlpack::Tensor tensor = prototype;
  std::unique_ptr<char, void (*)(void*)> memory(nullptr, std::free);
  if (const int result = ChooseResult(prototype, bytes); result >= 0) {
    taken_ |= uint64_t{1} << result;
    tensor.data = call_.results[static_cast<size_t>(result)].data;
  } else if (platform_ == Platform::kHost) {
    memory = AllocateOnHost(static_cast<size_t>(bytes));
    if (memory == nullptr) return ResourceExhausted("out of memory (", bytes, " bytes)");
    tensor.data = memory.get();
  } else {
    XLA_GPU_ASSIGN_OR_RETURN(tensor.data, TakeScratch(bytes));
  }
  if (num_allocations_ < allocations_.size()) allocations_[num_allocations_] = tensor.data;
  ++num_allocations_;
  Block* const block = NewBlock(tensor);
  block->memory = std::move(memory);
  return &block->managed;
}

int CallMemory::Allocate(dlpack::Tensor* prototype, dlpack::ManagedTensor** out,
                         void* error_context, dlpack::SetErrorFn set_error) {
  Status status = Internal("there is no call in this thread");
  try {
    if (current != nullptr) {
      StatusOr<dlpack::ManagedTensor*> made = current->TryAllocate(*prototype);
      if (made.ok()) {
        *out = *made;
        return 0;
      }
      status = made.status();
    }
  } catch (const std::exception&) {
    status = StatusFromException("");
  }
  const bool no_memory = status.code() == StatusCode::kResourceExhausted;
  set_error(error_context, no_memory ? "MemoryError" : "ValueError", status.message().c_str());
  return -1;
}

Status CallMemory::Collect(std::span<const void*> sources, void* stream, AllocationOrder& order) {
  struct Move {
    void* to;
    const void* from;
    int64_t bytes;
  };
  std::vector<Move> moves;
  const size_t num_known = std::min(num_allocations_, order_.size());
  AllocationOrder::Slots became{};
  std::fill_n(became.begin(), num_known, AllocationOrder::kScratch);
  for (size_t i = 0; i < sources.size(); ++i) {
    const TensorView& result = call_.results[returned_[i]];
    for (size_t a = num_known; a-- > 0;) {  // the last, if its memory was another's before
      if (allocations_[a] != sources[i]) continue;
      became[a] = static_cast<uint8_t>(returned_[i] + 1);
      break;
    }
    const int64_t bytes = result.size_bytes();
    if (bytes == 0 || sources[i] == result.data) continue;
    if (platform_ == Platform::kCuda && !IsOfTheCall(sources[i], bytes)) {
      return FailedPrecondition("the function returned memory of its own for result ", i,
                                "; it must allocate it through its environment "
                                "(TVMFFIEnvTensorAlloc), so that it is the call's");
    }
    moves.push_back({result.data, sources[i], bytes});
  }
  if (became != order_) order.Store(became);
  while (!moves.empty()) {
    const auto is_ready = [&moves](const Move& move) {
      return std::ranges::none_of(moves, [&move](const Move& other) {
        return &other != &move && Overlap(move.to, move.bytes, other.from, other.bytes);
      });
    };
    const auto ready = std::ranges::find_if(moves, is_ready);
    if (ready != moves.end()) {
      XLA_GPU_RETURN_IF_ERROR(Copy(platform_, ready->to, ready->from, ready->bytes, stream));
      moves.erase(ready);
      continue;
    }
    Move& first = moves.front();  // they have changed places: one steps aside
    XLA_GPU_ASSIGN_OR_RETURN(char* aside, TakeScratch(first.bytes));
    XLA_GPU_RETURN_IF_ERROR(Copy(platform_, aside, first.from, first.bytes, stream));
    first.from = aside;
  }
  return OkStatus();
}

}  // namespace xla_gpu::user_kernel
