// Schemas and tensor types as JSON, for `xla-gpu ops` and the Python package.
#ifndef XLA_GPU_CORE_SCHEMA_JSON_H_
#define XLA_GPU_CORE_SCHEMA_JSON_H_

#include <string>
#include <vector>

#include "src/core/op_registry.h"

namespace xla_gpu {

// Throws nlohmann's type_error for a string that is not UTF-8.
std::string ValueToJson(const AttrValue& value);

// [{"dtype":"bf16","shape":[8,128]}, ...]
std::string TensorSpecsToJson(const std::vector<TensorSpec>& specs);

// As TensorSpecsToJson, and what each result is:
// [{"dtype":"bf16","shape":[8,128],"name":"kv_cache","kind":"alias","alias_of":2}, ...]; alias_of
// is the index of an argument of the call, or null.
std::string ResultsToJson(const std::vector<Result>& results);

// Everything in Op but its functions, under the names of its members.
std::string OpToJson(const Op& op);
// Of all ops of the library:
// [{"name":...,"key":"","target":...,"doc":...,"platforms":["Host"],"args":[...],"results":[...],
//   "attrs":[...],"instead_of_gradient":...,"instead_of_batching":...}, ...]. The "default" of an
// attribute is a value, null where it has none.
std::string OpsToJson(const OpRegistry& registry);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_SCHEMA_JSON_H_
