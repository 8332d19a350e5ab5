// The little that is read of a serialised HloModuleProto: what its entry computation takes.
#ifndef XLA_GPU_XLA_HLO_PROTO_H_
#define XLA_GPU_XLA_HLO_PROTO_H_

#include <optional>
#include <string_view>
#include <vector>

#include "src/core/tensor_view.h"

namespace xla_gpu::xla {

// The types of the entry computation's parameters, with no value for one that is no tensor of
// static shape and known dtype. Nothing at all where the bytes are no such proto. `with_config`:
// they are an HloModuleProtoWithConfig.
std::optional<std::vector<std::optional<TensorSpec>>> HloParameters(std::string_view proto,
                                                                    bool with_config);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_HLO_PROTO_H_
