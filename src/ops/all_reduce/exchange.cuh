// The memory through which devices hand each other their parts, as Host and device code see it.
#ifndef XLA_GPU_OPS_ALL_REDUCE_EXCHANGE_CUH_
#define XLA_GPU_OPS_ALL_REDUCE_EXCHANGE_CUH_

namespace xla_gpu::all_reduce {

inline constexpr int kMostDevices = 8;
inline constexpr int kMostBytes = 2 << 20;  // of a part
// A word that has not come. As bf16, f16 and f32 it is NaN; a NaN of these very bits is sent as
// another.
inline constexpr unsigned kEmpty = 0xffffffffu, kOtherNaN = 0x7fff7fffu;

// At the beginning of each device's memory; places for parts follow, kTurns for each device. All of
// it is kEmpty at first.
struct alignas(256) Exchange {
  unsigned calls;  // that have ended on this device, less one
  unsigned done;   // blocks of the running one that have, less one
};

// Calls use two in turn. A device is at most one call behind another, which waits for its part: by
// the time that a place is written again, its words have been taken and are empty.
inline constexpr int kTurns = 2;

}  // namespace xla_gpu::all_reduce

#endif  // XLA_GPU_OPS_ALL_REDUCE_EXCHANGE_CUH_
