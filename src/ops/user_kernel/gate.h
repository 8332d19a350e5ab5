// What the maker of functions has in its memory, to stop them: an interpreter that ends must not be
// entered any more. It closes the gate, then waits until none of them runs.
#ifndef XLA_GPU_OPS_USER_KERNEL_GATE_H_
#define XLA_GPU_OPS_USER_KERNEL_GATE_H_

#include <atomic>
#include <cstdint>

namespace xla_gpu::user_kernel {

struct Gate {
  int64_t running;  // calls; counted here
  int64_t closed;   // written by the maker: 0, then 1
};

// A call's way through its function's gate; null for none.
class Passage {
 public:
  explicit Passage(Gate* gate) : gate_(gate) {
    if (gate != nullptr) std::atomic_ref(gate->running).fetch_add(1);
  }
  ~Passage() {
    if (gate_ != nullptr) std::atomic_ref(gate_->running).fetch_sub(1);
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

  bool is_open() const { return gate_ == nullptr || std::atomic_ref(gate_->closed).load() == 0; }

 private:
  Gate* const gate_;
};

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_GATE_H_
