// Reading the implementations of a definition. Internal to this folder.
#ifndef XLA_GPU_OPS_USER_KERNEL_IMPLEMENTATION_H_
#define XLA_GPU_OPS_USER_KERNEL_IMPLEMENTATION_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/core/json_tree.h"
#include "src/core/op.h"
#include "src/core/status.h"
#include "src/ops/user_kernel/definition.h"
#include "src/ops/user_kernel/signature.h"

namespace xla_gpu::user_kernel {

struct ParsedImplementation {
  Implementation made;               // all but `parameters`,
  json::Node* parameters = nullptr;  // which are read when all names are known; null: not given
  std::vector<std::string> aligned;  // names of addresses, likewise
};

StatusOr<ParsedImplementation> ReadImplementation(Platform platform, json::Node& node);

// The parameters of the platform's implementation: as given, else as its source text declares them,
// else arguments, results that are no aliases, and scalars. A source's outputs and scalars must be
// among them.
StatusOr<std::vector<Parameter>> ReadParameters(const Definition& definition, Platform platform,
                                                const ParsedImplementation& parsed,
                                                const std::vector<DeclaredParameter>& declared);

// An error unless numbers of this type can be passed.
Status CheckNumberType(std::string_view where, DType type);

// A JSON number as one of a type that CheckNumberType takes: a bool for pred, an int that fits, a
// float or an int for a float.
StatusOr<AttrValue> ReadNumber(std::string_view where, const json::Node& node, DType type);

}  // namespace xla_gpu::user_kernel

#endif  // XLA_GPU_OPS_USER_KERNEL_IMPLEMENTATION_H_
