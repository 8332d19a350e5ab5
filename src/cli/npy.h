// Reading and writing .npy files (NumPy format 1.0 to 3.0): little-endian, in C order.
//
// NumPy has no name for the narrow floats. ml_dtypes arrays are saved as '<V2' (bfloat16), '<V1'
// (float8_e4m3fn) and '<f1' (float8_e5m2); what a void type means is told by the type that the
// reader expects. Written files use '<V2' and '<V1', which np.load takes: load(f).view(bfloat16).
#ifndef XLA_GPU_CLI_NPY_H_
#define XLA_GPU_CLI_NPY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "src/core/host_tensor.h"
#include "src/core/status.h"

namespace xla_gpu::cli {

// The tensor in the bytes of a .npy file.
// `expected`: the dtype wanted, for void types ('<V2' is bf16 without it, '<V1' an error), else
// kInvalid. Any other dtype is returned as it is in the file.
StatusOr<HostTensor> ParseNpy(std::string_view bytes, DType expected);
std::string FormatNpy(const HostTensor& tensor);

// As above, with a file; errors name it. One with more than `max_data` bytes of data (and the
// largest header) is not read.
constexpr uint64_t kMaxNpyData = uint64_t{1} << 36;
StatusOr<HostTensor> ReadNpy(const std::string& path, DType expected,
                             uint64_t max_data = kMaxNpyData);
Status WriteNpy(const std::string& path, const HostTensor& tensor);

}  // namespace xla_gpu::cli

#endif  // XLA_GPU_CLI_NPY_H_
