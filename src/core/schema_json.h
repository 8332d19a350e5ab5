// Schemas and tensor types as JSON, for `xla-gpu ops` and the Python package.
#ifndef XLA_GPU_CORE_SCHEMA_JSON_H_
#define XLA_GPU_CORE_SCHEMA_JSON_H_

#include <string>
#include <vector>

#include "src/core/op_registry.h"

namespace xla_gpu {

// [{"dtype":"bf16","shape":[8,128]}, ...]
std::string TensorSpecsToJson(const std::vector<TensorSpec>& specs);

// [{"name":...,"target":...,"doc":...,"platforms":["Host"],"args":[...],"results":[...],
//   "attrs":[{"name":...,"type":...,"default":...,"doc":...}]}, ...]
std::string OpsToJson(const OpRegistry& registry);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_SCHEMA_JSON_H_
