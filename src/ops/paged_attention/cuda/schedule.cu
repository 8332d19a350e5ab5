// The schedule as a launch of its own. Defines: those of schedule.cuh.
#include "src/ops/paged_attention/cuda/schedule.cuh"

extern "C" __global__ void __launch_bounds__(SCHEDULE_THREADS)
    paged_attention_schedule(const __grid_constant__ xla_gpu::paged_attention::Params p) {
  xla_gpu::paged_attention::Schedule(p);
}
