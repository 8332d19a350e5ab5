#include "src/xla/compat/struct_history.h"

#include "pjrt_c_api.h"

namespace xla_gpu::xla {
namespace {

// The offset after a member, where this build's header knows it; releases after that are numbers.
#define XLA_GPU_SIZE_WITH(structure, member) \
  (offsetof(structure, member) + sizeof(structure::member))

constexpr StructSize kClientCreateSizes[] = {
    {57, XLA_GPU_SIZE_WITH(PJRT_Client_Create_Args, client), "", Added::kInput},
    {61, XLA_GPU_SIZE_WITH(PJRT_Client_Create_Args, kv_try_get_user_arg),
     "kv_try_get_callback, kv_try_get_user_arg", Added::kHint},
};

constexpr StructSize kExecuteOptionsSizes[] = {
    {57, XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, num_non_donatable_input_indices), "",
     Added::kInput},
    {64, XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, context), "context", Added::kInput},
    {76, XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, call_location), "call_location", Added::kHint},
    {78, XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, incarnation_ids),
     "num_tasks, task_ids, incarnation_ids", Added::kInput},
    {97, XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, incarnation_ids) + 8, "multi_slice_config",
     Added::kInput},
};

constexpr StructSize kCreateViewSizes[] = {
    {57, XLA_GPU_SIZE_WITH(PJRT_Client_CreateViewOfDeviceBuffer_Args, buffer), "", Added::kInput},
    {66, XLA_GPU_SIZE_WITH(PJRT_Client_CreateViewOfDeviceBuffer_Args, memory), "memory",
     Added::kInput},
};

constexpr StructSize kDeserializeSizes[] = {
    {57, XLA_GPU_SIZE_WITH(PJRT_Executable_DeserializeAndLoad_Args, loaded_executable), "",
     Added::kInput},
    {71,
     XLA_GPU_SIZE_WITH(PJRT_Executable_DeserializeAndLoad_Args,
                       overridden_serialized_compile_options_size),
     "overridden_serialized_compile_options", Added::kInput},
};

constexpr size_t kMemoryStatsSize72 =
    XLA_GPU_SIZE_WITH(PJRT_Executable_GetCompiledMemoryStats_Args, peak_memory_in_bytes);
constexpr StructSize kMemoryStatsSizes[] = {
    {57, XLA_GPU_SIZE_WITH(PJRT_Executable_GetCompiledMemoryStats_Args, host_temp_size_in_bytes),
     "", Added::kOutput},
    {72, kMemoryStatsSize72, "peak_memory_in_bytes", Added::kOutput},
    {90, kMemoryStatsSize72 + 8, "total_size_in_bytes", Added::kOutput},
    {104, kMemoryStatsSize72 + 32,
     "total_allocation_bytes, indefinite_allocations, peak_unpadded_heap_bytes", Added::kOutput},
};

#undef XLA_GPU_SIZE_WITH

}  // namespace

const StructHistory kClientCreateArgs{"PJRT_Client_Create_Args", kClientCreateSizes};
const StructHistory kExecuteOptions{"PJRT_ExecuteOptions", kExecuteOptionsSizes};
const StructHistory kCreateViewOfDeviceBufferArgs{"PJRT_Client_CreateViewOfDeviceBuffer_Args",
                                                  kCreateViewSizes};
const StructHistory kDeserializeAndLoadArgs{"PJRT_Executable_DeserializeAndLoad_Args",
                                            kDeserializeSizes};
const StructHistory kCompiledMemoryStatsArgs{"PJRT_Executable_GetCompiledMemoryStats_Args",
                                             kMemoryStatsSizes};

std::span<const StructHistory* const> StructHistories() {
  static constexpr const StructHistory* kAll[] = {
      &kClientCreateArgs, &kExecuteOptions, &kCreateViewOfDeviceBufferArgs,
      &kDeserializeAndLoadArgs, &kCompiledMemoryStatsArgs};
  return kAll;
}

size_t StructHistory::SizeAt(int minor) const {
  size_t size = sizes.front().size;
  for (const StructSize& row : sizes) {
    if (row.since <= minor) size = row.size;
  }
  return size;
}

}  // namespace xla_gpu::xla
