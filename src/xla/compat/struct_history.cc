#include "src/xla/compat/struct_history.h"

#include "pjrt_c_api.h"

namespace xla_gpu::xla {
namespace {

// The offset after a member, where this build's header knows it; releases after that are numbers.
#define XLA_GPU_SIZE_WITH(structure, member) \
  (offsetof(structure, member) + sizeof(structure::member))

constexpr StructSize kClientCreateSizes[] = {
    {57, Added::kInput, XLA_GPU_SIZE_WITH(PJRT_Client_Create_Args, client), ""},
    // A plugin that does not know it waits by kv_get_callback.
    {61, Added::kHint, XLA_GPU_SIZE_WITH(PJRT_Client_Create_Args, kv_try_get_user_arg),
     "kv_try_get_callback, kv_try_get_user_arg"},
};

constexpr size_t kExecuteOptionsSize78 = XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, incarnation_ids);
constexpr StructSize kExecuteOptionsSizes[] = {
    {57, Added::kInput, XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, num_non_donatable_input_indices),
     ""},
    {64, Added::kInput, XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, context), "context"},
    {76, Added::kHint, XLA_GPU_SIZE_WITH(PJRT_ExecuteOptions, call_location), "call_location"},
    {78, Added::kInput, kExecuteOptionsSize78, "num_tasks, task_ids, incarnation_ids"},
    {97, Added::kInput, kExecuteOptionsSize78 + 8, "multi_slice_config"},
};

constexpr StructSize kCreateViewSizes[] = {
    {57, Added::kInput, XLA_GPU_SIZE_WITH(PJRT_Client_CreateViewOfDeviceBuffer_Args, buffer), ""},
    {66, Added::kInput, XLA_GPU_SIZE_WITH(PJRT_Client_CreateViewOfDeviceBuffer_Args, memory),
     "memory"},
};

constexpr StructSize kDeserializeSizes[] = {
    {57, Added::kInput,
     XLA_GPU_SIZE_WITH(PJRT_Executable_DeserializeAndLoad_Args, loaded_executable), ""},
    {71, Added::kInput,
     XLA_GPU_SIZE_WITH(PJRT_Executable_DeserializeAndLoad_Args,
                       overridden_serialized_compile_options_size),
     "overridden_serialized_compile_options"},
};

constexpr size_t kMemoryStatsSize72 =
    XLA_GPU_SIZE_WITH(PJRT_Executable_GetCompiledMemoryStats_Args, peak_memory_in_bytes);
constexpr StructSize kMemoryStatsSizes[] = {
    {57, Added::kOutput,
     XLA_GPU_SIZE_WITH(PJRT_Executable_GetCompiledMemoryStats_Args, host_temp_size_in_bytes), ""},
    {72, Added::kOutput, kMemoryStatsSize72, "peak_memory_in_bytes"},
    {90, Added::kOutput, kMemoryStatsSize72 + 8, "total_size_in_bytes"},
    {104, Added::kOutput, kMemoryStatsSize72 + 32,
     "total_allocation_bytes, indefinite_allocations, peak_unpadded_heap_bytes"},
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
  for (const StructSize& entry : sizes) {
    if (entry.since <= minor) size = entry.size;
  }
  return size;
}

}  // namespace xla_gpu::xla
