// xla-gpu run: compiles a StableHLO file with any PJRT plugin and runs it on .npy inputs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "src/cli/cli.h"
#include "src/cli/npy.h"
#include "src/cli/program.h"
#include "src/core/float_types.h"
#include "src/core/strings.h"
#include "src/xla/mlir_text.h"

namespace xla_gpu::cli {
namespace {

double Element(const HostTensor& tensor, int64_t i) {
  if (IsFloat(tensor.dtype)) return LoadAsDouble(tensor.data.data(), tensor.dtype, i);
  const int64_t size = DTypeSize(tensor.dtype);
  uint64_t bits = 0;  // this library is for little-endian machines
  std::memcpy(&bits, tensor.data.data() + i * size, static_cast<size_t>(size));
  if (InfoOf(tensor.dtype).dlpack != kDlpackInt) return static_cast<double>(bits);
  const int64_t unused = 64 - 8 * size;
  return static_cast<double>(static_cast<int64_t>(bits << unused) >> unused);
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
  // The generic form ("func.func"() <{sym_name = "main"}>) tells types elsewhere: XLA reads them.
  const bool known =
      !xla::IsMlirBytecode(mlir) && mlir.find("sym_name = \"main\"") == std::string::npos;
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

// The folder for the outputs is made when there is one to write. What can never be one is refused
// before the work.
Status CheckOutputDir(const std::string& folder) {
  std::error_code error;
  if (folder.empty() || !std::filesystem::exists(folder, error) ||
      std::filesystem::is_directory(folder, error)) {
    return OkStatus();
  }
  return InvalidArgument(StrCat("--output-dir ", folder, " is there and is no folder"));
}

Status WriteOutput(const std::string& folder, size_t index, const HostTensor& tensor) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Unavailable(StrCat("--output-dir ", folder, ": ", error.message()));
  return WriteNpy(StrCat(folder, "/output_", index, ".npy"), tensor);
}

struct Options {
  std::string file, plugin, output_dir;
  std::vector<std::string> inputs, handlers;
};

Status RunProgram(const Options& options) {
  XLA_GPU_ASSIGN_OR_RETURN(const std::string mlir, ReadModule(options.file));
  XLA_GPU_RETURN_IF_ERROR(CheckOutputDir(options.output_dir));
  XLA_GPU_ASSIGN_OR_RETURN(const std::vector<HostTensor> inputs, ReadInputs(mlir, options.inputs));
  XLA_GPU_ASSIGN_OR_RETURN(const CompiledModule module,
                           Compile(mlir, options.plugin, options.handlers));
  std::vector<TensorView> views;
  for (const HostTensor& input : inputs) views.push_back(input.view());
  XLA_GPU_RETURN_IF_ERROR(module.executable.CheckArguments(views));

  std::vector<xla::DeviceBuffer> buffers;
  for (const HostTensor& input : inputs) {
    XLA_GPU_ASSIGN_OR_RETURN(xla::DeviceBuffer buffer, module.client->ToDevice(input.view()));
    buffers.push_back(std::move(buffer));
  }
  std::vector<const xla::DeviceBuffer*> arguments;
  for (const xla::DeviceBuffer& buffer : buffers) arguments.push_back(&buffer);
  XLA_GPU_ASSIGN_OR_RETURN(const auto results, module.executable.Execute(arguments));
  for (size_t i = 0; i < results.size(); ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(const HostTensor host, results[i].ToHost());
    PrintTensor(i, host);
    if (options.output_dir.empty()) continue;
    XLA_GPU_RETURN_IF_ERROR(WriteOutput(options.output_dir, i, host));
  }
  return OkStatus();
}

int Run(const Invocation& invocation) {
  Options o;
  if (const auto code = invocation.Parse({
          {"FILE.mlir", "", &o.file, "a StableHLO module, text or bytecode"},
          PluginOption(&o.plugin),
          {"--input", "A.npy", &o.inputs, "one for each argument of @main, in order"},
          {"--output-dir", "FOLDER", &o.output_dir,
           "write results to FOLDER/output_N.npy; made where it is missing"},
          HandlerOption(&o.handlers),
      })) {
    return *code;
  }
  const Status status = RunProgram(o);
  return status.ok() ? 0 : invocation.Fail(NameKnownTargets(status));
}

XLA_GPU_CLI_COMMAND("run", "run a StableHLO module through XLA, .npy in and out",
                    "run add.mlir --plugin cpu --input x.npy --input x.npy", Run);

}  // namespace
}  // namespace xla_gpu::cli
