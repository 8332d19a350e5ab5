// xla-gpu run: compiles a StableHLO file with any PJRT plugin and runs it on .npy inputs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "src/cli/cli.h"
#include "src/cli/npy.h"
#include "src/cli/options.h"
#include "src/cli/program.h"
#include "src/core/float_types.h"
#include "src/core/strings.h"
#include "src/xla/mlir_text.h"
#include "src/xla/op_registration.h"
#include "src/xla/pjrt_client.h"

namespace xla_gpu::cli {
namespace {

constexpr char kUsage[] =
    "run FILE.mlir [--plugin PATH|cpu|cuda] [--input A.npy]... [--output-dir FOLDER]\n"
    "               [--handler NAME=LIBRARY.so:SYMBOL[:API_VERSION]]...";

double Element(const HostTensor& tensor, int64_t i) {
  const void* data = tensor.data.data();
  switch (tensor.dtype) {
    case DType::kPred:
    case DType::kU8:
      return static_cast<const uint8_t*>(data)[i];
    case DType::kI8:
      return static_cast<const int8_t*>(data)[i];
    case DType::kI16:
      return static_cast<const int16_t*>(data)[i];
    case DType::kU16:
      return static_cast<const uint16_t*>(data)[i];
    case DType::kI32:
      return static_cast<const int32_t*>(data)[i];
    case DType::kU32:
      return static_cast<const uint32_t*>(data)[i];
    case DType::kI64:
      return static_cast<double>(static_cast<const int64_t*>(data)[i]);
    case DType::kU64:
      return static_cast<double>(static_cast<const uint64_t*>(data)[i]);
    default:
      return LoadAsDouble(data, tensor.dtype, i);
  }
}

// "output 0: f32[4] = 1 2 3 4", or the range and mean of a larger one.
void PrintTensor(size_t index, const HostTensor& tensor) {
  constexpr int64_t kShown = 8;
  const int64_t count = tensor.view().num_elements();
  std::printf("output %zu: %s =", index, tensor.ToString().c_str());
  for (int64_t i = 0; i < std::min(count, kShown); ++i) std::printf(" %.9g", Element(tensor, i));
  if (count <= kShown) {
    std::printf("\n");
    return;
  }
  double low = INFINITY, high = -INFINITY, sum = 0;
  int64_t nans = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = Element(tensor, i);
    nans += std::isnan(value) ? 1 : 0;
    if (std::isnan(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
    sum += value;
  }
  std::printf(" ... (min %.6g, max %.6g, mean %.6g, %lld NaN)\n", low, high,
              sum / static_cast<double>(std::max<int64_t>(count - nans, 1)),
              static_cast<long long>(nans));
}

// Of a tensor of this type; a module may name sizes that no memory has.
uint64_t DataBytes(const TensorSpec& spec) {
  auto bytes = static_cast<uint64_t>(DTypeSize(spec.dtype));
  for (const int64_t dim : spec.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) return kMaxNpyData;
  }
  return std::min(bytes, kMaxNpyData);
}

StatusOr<std::vector<HostTensor>> ReadInputs(const std::string& mlir,
                                             const std::vector<std::string>& paths) {
  std::vector<TensorSpec> wanted;
  const bool known = !xla::IsMlirBytecode(mlir);
  if (known) {
    XLA_GPU_ASSIGN_OR_RETURN(wanted, xla::MainArguments(mlir));
    if (wanted.size() != paths.size()) {
      std::vector<std::string> types;
      for (const TensorSpec& spec : wanted) types.push_back(spec.ToString());
      return InvalidArgument(StrCat("@main takes ", wanted.size(), " arguments (",
                                    StrJoin(types, ", "), ") but ", paths.size(),
                                    " --input came; give one .npy file for each, in order"));
    }
  }
  std::vector<HostTensor> inputs;
  for (size_t i = 0; i < paths.size(); ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(HostTensor tensor,
                             known ? ReadNpy(paths[i], wanted[i].dtype, DataBytes(wanted[i]))
                                   : ReadNpy(paths[i], DType::kInvalid));
    if (known && !wanted[i].Matches(tensor.view())) {
      return InvalidArgument(StrCat("--input ", paths[i], " is ", tensor.ToString(),
                                    " but argument ", i, " of @main is ", wanted[i].ToString()));
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

Status RunProgram(const std::string& file, const std::string& plugin_name,
                  const std::vector<std::string>& input_paths,
                  const std::vector<std::string>& handlers, const std::string& output_dir) {
  XLA_GPU_ASSIGN_OR_RETURN(const std::string mlir, ReadTextFile(file));
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtPlugin* plugin, OpenPlugin(plugin_name));
  XLA_GPU_ASSIGN_OR_RETURN(const std::vector<HostTensor> inputs, ReadInputs(mlir, input_paths));
  for (const std::string& handler : handlers) {
    XLA_GPU_RETURN_IF_ERROR(RegisterUserHandler(*plugin, handler));
  }
  XLA_GPU_RETURN_IF_ERROR(xla::RegisterOpsOf(*plugin, mlir));
  XLA_GPU_ASSIGN_OR_RETURN(auto client, xla::PjrtClient::Create(plugin));
  XLA_GPU_ASSIGN_OR_RETURN(const xla::PjrtExecutable executable, client->Compile(mlir));
  std::vector<TensorView> views;
  for (const HostTensor& input : inputs) views.push_back(input.view());
  XLA_GPU_RETURN_IF_ERROR(executable.CheckArguments(views));

  std::vector<xla::DeviceBuffer> buffers;
  for (const HostTensor& input : inputs) {
    XLA_GPU_ASSIGN_OR_RETURN(xla::DeviceBuffer buffer, client->ToDevice(input.view()));
    buffers.push_back(std::move(buffer));
  }
  std::vector<const xla::DeviceBuffer*> arguments;
  for (const xla::DeviceBuffer& buffer : buffers) arguments.push_back(&buffer);
  XLA_GPU_ASSIGN_OR_RETURN(const auto results, executable.Execute(arguments));

  if (!output_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(output_dir, error);
    if (error) return Unavailable(StrCat("--output-dir ", output_dir, ": ", error.message()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(const HostTensor host, results[i].ToHost());
    PrintTensor(i, host);
    if (output_dir.empty()) continue;
    XLA_GPU_RETURN_IF_ERROR(WriteNpy(StrCat(output_dir, "/output_", i, ".npy"), host));
  }
  return OkStatus();
}

int Run(const Args& args) {
  std::string plugin, output_dir;
  std::vector<std::string> inputs, handlers;
  const auto files = ParseOptions(args, {{.name = "--plugin", .value = &plugin},
                                         {.name = "--input", .values = &inputs},
                                         {.name = "--handler", .values = &handlers},
                                         {.name = "--output-dir", .value = &output_dir}});
  if (!files.ok()) return FailUsage("run", files.status().message());
  if (files->size() != 1) {
    return FailUsage("run", StrCat("one FILE.mlir is wanted, ", files->size(), " came"));
  }
  QuietXla();
  const Status status = RunProgram((*files)[0], plugin, inputs, handlers, output_dir);
  return status.ok() ? 0 : Fail("run", status);
}

XLA_GPU_CLI_COMMAND("run", kUsage, "run a StableHLO file through XLA, .npy in and out", Run);

}  // namespace
}  // namespace xla_gpu::cli
