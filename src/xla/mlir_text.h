// The little that must be known of a StableHLO module's text before XLA sees it: which custom calls
// it makes, and what @main takes. Not a parser of MLIR; XLA reports what is wrong with a module.
#ifndef XLA_GPU_XLA_MLIR_TEXT_H_
#define XLA_GPU_XLA_MLIR_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "src/core/status.h"
#include "src/core/tensor_view.h"

namespace xla_gpu::xla {

struct MlirCustomCall {
  std::string target;
  int api_version = 1;  // StableHLO's default
};

// Each custom call in the text, in the pretty and in the generic form. MLIR bytecode gives none.
std::vector<MlirCustomCall> FindMlirCustomCalls(std::string_view mlir);

// True for MLIR bytecode, of which nothing here can be read.
bool IsMlirBytecode(std::string_view mlir);

// "4x8xbf16" or "f32", as between the angle brackets of tensor<>.
StatusOr<TensorSpec> ParseMlirTensorType(std::string_view text);

// The types of the arguments of func.func @main.
StatusOr<std::vector<TensorSpec>> MainArguments(std::string_view mlir);

// The type as MLIR writes it: tensor<4x8xbf16>.
std::string MlirTensorType(const TensorSpec& spec);

}  // namespace xla_gpu::xla

#endif  // XLA_GPU_XLA_MLIR_TEXT_H_
