// Writing the StableHLO module that calls an op as a custom call.
#ifndef XLA_GPU_XLA_STABLEHLO_MODULE_H_
#define XLA_GPU_XLA_STABLEHLO_MODULE_H_

#include <string>

#include "src/core/op.h"

namespace xla_gpu::xla {

// A module whose @main takes the call's arguments and returns the op's results (those that `op`
// infers for `platform`, a workspace left out), by custom-call API version 4. Data pointers are not
// read. An argument that a result shares its buffer with (ResultSpec::alias_of) is marked so.
// `chain`: as many calls one after the other, the first result of each being the first argument of
// the next (their types must be equal), to time calls without the host between them.
StatusOr<std::string> StableHloModule(const Op& op, Platform platform, const Call& call,
                                      int chain = 1);

// The attribute as StableHLO's backend_config dictionary writes it: "7 : i64".
std::string MlirAttribute(const AttrValue& value);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_STABLEHLO_MODULE_H_
