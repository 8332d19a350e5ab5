// What ptxas tells of the kernels that it compiled (-v), as NVRTC's log has it.
//
// Not read from the machine code: its tables are not documented, and do not tell spills from other
// local memory.
#ifndef XLA_GPU_CUDA_PTXAS_LOG_H_
#define XLA_GPU_CUDA_PTXAS_LOG_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xla_gpu::cuda {

struct KernelResources {
  std::string kernel;     // as the machine code names it
  int64_t registers = 0;  // of a thread
  int64_t barriers = 0;
  int64_t stack_bytes = 0;  // local memory of a thread
  int64_t spill_store_bytes = 0, spill_load_bytes = 0;
  int64_t shared_bytes = 0;  // static, of a block
};

// One for each kernel that the log tells of. Safe on any text.
std::vector<KernelResources> ParsePtxasLog(std::string_view log);

// The most threads of a block: what __launch_bounds__ says in the PTX, else what the registers of a
// multiprocessor (65536) let be.
int64_t MaxThreads(const KernelResources& resources, std::string_view ptx);

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_PTXAS_LOG_H_
