#include "src/cli/probe_cell.h"

#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/xla/alias.h"
#include "src/xla/handlers.h"
#include "src/xla/opaque.h"
#include "src/xla/registration.h"

namespace xla_gpu::cli {
namespace {

constexpr int kTyped = 4;
constexpr int64_t kElements = 8;

StatusOr<std::string> Opaque() {
  const int64_t shape[] = {kElements};
  const TensorView tensor{nullptr, DType::kF32, shape};
  const TensorView args[] = {tensor, tensor};
  const TensorView results[] = {tensor};
  const Attributes none;
  return xla::EncodeOpaque(xla::MakeOpaqueCall("simple_add", Call{args, results, &none}));
}

StatusOr<xla::HandlerStages> Handler(Platform platform, int api_version,
                                     const std::string& opaque) {
  XLA_GPU_ASSIGN_OR_RETURN(const Op* op, OpRegistry::Global().Get("XlaGpuSimpleAdd"));
  // Unspecified (0) is called as the original version. On the Host versions 1 and 2 carry no opaque
  // text, so theirs sits in an alias.
  const int version = api_version == 0 ? 1 : api_version;
  const bool alias = platform == Platform::kHost && version < 3;
  StatusOr<void*> handler = alias ? xla::AliasHandler(*op, platform, version, opaque)
                                  : xla::HandlerAddress(*op, platform, version);
  if (!handler.ok()) return handler.status();
  if (version == kTyped) return xla::StagesOf(*handler);
  return xla::HandlerStages{.execute = *handler};
}

Status RegisterCell(const xla::PjrtPlugin& plugin, const ProbeCell& cell,
                    const std::string& opaque) {
  const bool typed = cell.api_version == kTyped;
  XLA_GPU_ASSIGN_OR_RETURN(const Platform platform, xla::ParseXlaPlatform(cell.platform));
  XLA_GPU_ASSIGN_OR_RETURN(xla::HandlerStages stages, Handler(platform, cell.api_version, opaque));
  XLA_GPU_ASSIGN_OR_RETURN(const xla::RuntimeFacts facts, xla::LearnRuntime(plugin));
  const xla::Registration registration{cell.target(), stages, cell.platform, cell.api_version};
  // Gpu_Custom_Call has no platform name: it stands for "CUDA". The other names need extension FFI.
  auto route = xla::RegistrationRoute::kFfi;
  if (facts.gpu_custom_call && cell.platform == "CUDA") {
    route = xla::RegistrationRoute::kGpuCustomCall;
  }
  uint32_t traits = 0;
  if (typed) {
    XLA_GPU_ASSIGN_OR_RETURN(const xla::HandlerMetadata metadata,
                             xla::AskHandler(stages.execute, platform, cell.api_version));
    traits = metadata.traits;
  }
  return xla::RegisterUnchecked(plugin, route, registration, typed, traits);
}

std::string Module(const ProbeCell& cell, const std::string& opaque) {
  std::string config = "{}";
  if (cell.api_version != kTyped) {
    config = "\"";
    for (const char c : opaque) config += c == '"' ? "\\22" : std::string(1, c);
    config += '"';
  }
  const std::string type = StrCat("tensor<", kElements, "xf32>");
  return StrCat("module {\n  func.func public @main(%a: ", type, ", %b: ", type, ") -> ", type,
                " {\n    %c = stablehlo.custom_call @", cell.target(),
                "(%a, %b) {api_version = ", cell.api_version, " : i32, backend_config = ", config,
                "} : (", type, ", ", type, ") -> ", type, "\n    return %c : ", type, "\n  }\n}\n");
}

}  // namespace

std::string ProbeCell::target() const { return StrCat("XlaGpuProbe_", platform, "_", api_version); }

std::vector<ProbeCell> AllProbeCells() {
  std::vector<ProbeCell> cells;
  for (const char* platform : {"CUDA", "cuda", "GPU", "gpu", "Host", "cpu"}) {
    for (int api_version = 0; api_version <= kTyped; ++api_version) {
      cells.push_back({platform, api_version});
    }
  }
  return cells;
}

ProbeOutcome TryProbeCell(const xla::PjrtClient& client, const ProbeCell& cell) {
  const StatusOr<std::string> opaque = Opaque();
  if (!opaque.ok()) return {false, "not registered", opaque.status().message()};
  const Status registered = RegisterCell(client.plugin(), cell, *opaque);
  const auto executable = client.Compile(Module(cell, *opaque));
  if (!registered.ok()) {
    return {
        false, "not registered",
        StrCat(registered.message(),
               executable.ok() ? "" : "; called all the same: " + executable.status().message())};
  }
  if (!executable.ok()) return {false, "compile", executable.status().message()};

  HostTensor a = HostTensor::Zeros(DType::kF32, {kElements});
  HostTensor b = a;
  for (int i = 0; i < kElements; ++i) {
    a.data_as<float>()[i] = 0.5f * static_cast<float>(i);
    b.data_as<float>()[i] = 100.0f - static_cast<float>(i);
  }
  const auto run = [&]() -> StatusOr<HostTensor> {
    XLA_GPU_ASSIGN_OR_RETURN(const xla::DeviceBuffer device_a, client.ToDevice(a.view()));
    XLA_GPU_ASSIGN_OR_RETURN(const xla::DeviceBuffer device_b, client.ToDevice(b.view()));
    XLA_GPU_ASSIGN_OR_RETURN(const auto results, executable->Execute({&device_a, &device_b}));
    return results[0].ToHost();
  };
  StatusOr<HostTensor> sum = run();
  if (!sum.ok()) return {false, "run", sum.status().message()};
  for (int i = 0; i < kElements; ++i) {
    const float wanted = a.data_as<float>()[i] + b.data_as<float>()[i];
    if (sum->data_as<float>()[i] == wanted) continue;
    return {false, "wrong result",
            StrCat("element ", i, " is ", sum->data_as<float>()[i], " and should be ", wanted)};
  }
  return {true, "ok", ""};
}

}  // namespace xla_gpu::cli
