// From a Problem to the kernels that solve it: family, tiles, workspace, launches. Host code that
// needs no GPU.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_H_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/core/status.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel.h"
#include "src/cuda/tensor_map.h"
#include "src/ops/paged_attention/cuda/params.cuh"
#include "src/ops/paged_attention/problem.h"

namespace xla_gpu::paged_attention {

struct Family;  // family.h

struct Config {
  std::vector<const Family*> families;  // whose launches take a call, the last one the rest
  bool aligned = true;                  // the tensors start at multiples of 16 bytes
  bool exact_tanh = false;              // of a soft cap, whatever it is
  int tile_rows = 0;                    // query rows that attend does at once, of a prefill item
  int tile_keys = 0;                    // keys of a stage of a prefill item (sm80)
  bool prefill_launch = false;          // there is one for prefill items alone
  int prefill_rows = 0;                 // of a tile of each of its blocks
  int prefill_blocks = 1;               // of a cluster, which shares keys and values
  int prefill_workers = 0;              // blocks, or clusters of them, that share the prefill items
  int64_t copy_tokens = 0;     // room for a copy of keys and values, which a second launch reads
  int copied_rows = 0;         // as prefill_rows, of that
  int copied_blocks = 1;       // as prefill_blocks, of that
  int copied_workers = 0;      // as prefill_workers, of that
  bool decode_launch = false;  // there is one for the line of decode work (line.cuh)
  bool line_only = false;      // it takes everything
  bool boxes = false;          // the copy engine loads keys and values for these two
  int decode_workers = 0;      // blocks of the line's launch
  int decode_ranges = 0;       // of the line of decode work, at most
  int decode_cluster = 0;      // blocks that share a head, without a schedule; 1: tokens are whole
  bool many_seqs = false;      // and there is room for more sequences than a warp has lanes
  int tile_blocks = 1;         // Params::tile_blocks
  int own_seqs = 0;         // the first launch finds its first work itself up to so many sequences
  int blocks_per_sm = 1;    // of the attend launch
  int workers = 0;          // its blocks
  int shared_bytes = 0;     // its dynamic shared memory
  int decode_max_rows = 0;  // sequences of at most so many rows are split over their keys
  int schedule_threads = 0;
  bool overlaps = false;  // each launch behind the schedule may begin before the one in front ends
  const char* why_not_line = nullptr;     // decode_launch is false; else null
  const char* why_not_prefill = nullptr;  // prefill_launch is false; else null
  bool tuned = false;                     // a table chose the launches (tuning.h), not the model
};

// The model's choice: what is likely the fastest for a problem of whose lengths nothing is known.
// An error where the device or the problem's size is out of what the kernels can do. `aligned`: all
// tensors start at multiples of 16 bytes, else of their element size.
StatusOr<Config> ChooseConfig(const Problem& problem, const cuda::DeviceInfo& device,
                              bool aligned = true);

// All choices that give right results, each in its own time and with its own rounding; the model's
// is the first, and the only one of a batch_invariant problem, whose bits no table may change.
StatusOr<std::vector<Config>> Alternatives(const Problem& problem, const cuda::DeviceInfo& device);

// What tells a problem's alternatives apart, their launches behind the schedule: "decode",
// "cluster8", "prefill+attend+decode".
std::string NameOf(const Config& config);

// Byte offsets of the parts of the workspace.
struct WorkspaceLayout {
  int64_t header = 0;
  int64_t sequences = 0;
  int64_t owner_end = 0;
  int64_t state = 0;
  int64_t items = 0;
  int64_t redo = 0;
  int64_t merges = 0;
  int64_t partial_max = 0;
  int64_t partial_sum = 0;
  int64_t partial_out = 0;
  int64_t arrivals = 0;
  int64_t copied_keys = 0;
  int64_t copied_values = 0;
  int64_t carry = 0;
  int64_t partial_capacity = 0;  // rows of partial results
  int64_t line_partials = 0;     // the first that belongs to the line of decode work
  int64_t item_capacity = 0;
  int64_t total_bytes = 0;
};

// A pure function of the problem: XLA asks for it where no device is known.
WorkspaceLayout MakeWorkspaceLayout(const Problem& problem);
int64_t WorkspaceBytes(const Problem& problem);

struct KernelLaunch {
  cuda::KernelSpec spec;
  cuda::LaunchConfig config;
  bool pairs = false;  // its tensor map is that of ReadsPairs
};
// The launches of a call, in order: the schedule, then decode and prefill where they are launches
// of their own, and attend, unless decode takes all. Each takes Params; prefill and decode also the
// tensor maps of the keys and of the values, or of their copy, where there is one.
struct Launches {
  KernelLaunch schedule;  // not for clusters
  std::vector<KernelLaunch> attend;
};
Launches MakeLaunches(const Problem& problem, const Config& config);

// All of a problem that a choice depends on: "bf16[64,32,128], bf16 cache of 8 kv heads, ...".
std::string Describe(const Problem& problem);
// One line on the problem, its launches and why there are no others, for XLA_GPU_LOG=info.
std::string Describe(const Problem& problem, const Config& config);

// The boxes in which the copy engine loads keys, or values: dimensions are a panel's 64 words of 16
// bits, tokens of a group of eight, panels of a head, groups of a page, pages; of heads that fill
// no whole panels the head's words, tokens of a group, groups, pages, heads.
// If `pairs`, of a head's keys and the values behind them.
cuda::TensorMapSpec MakeBoxes(const Problem& problem, bool pairs = false);

// The kernels' parameter as far as a plan knows it: all but where a call's tensors lie.
struct PlannedParams {
  Params params;
  WorkspaceLayout workspace;
  int64_t k_offset = 0;  // bytes, of K and V in their tensors
  int64_t v_offset = 0;
};
PlannedParams PlanParams(const Problem& problem, const Config& config);

// Each kind of kernel once, as `device` would run it: for `xla-gpu cache warm` and for a test that
// compiles them all.
std::vector<cuda::KernelSpec> CompileCheckSpecs(const cuda::DeviceInfo& device);

}  // namespace xla_gpu::paged_attention

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_CONFIG_H_
