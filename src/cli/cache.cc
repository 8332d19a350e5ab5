// xla-gpu cache: the compiled kernels on disk.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "src/cli/cli.h"
#include "src/cli/json.h"
#include "src/cli/program.h"
#include "src/core/strings.h"
#include "src/cuda/cache_admin.h"
#include "src/cuda/device.h"
#include "src/cuda/kernel_image.h"

namespace xla_gpu::cli {
namespace {

std::string LocalTime(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  localtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts);
  return text;
}

int List(const Invocation& invocation) {
  bool json = false;
  if (const auto code = invocation.Parse({{"--json", "", &json, "print JSON"}})) return *code;
  StatusOr<cuda::CacheListing> listing = cuda::ListCache();
  if (!listing.ok()) return invocation.Fail(listing.status());
  int64_t total = 0;
  auto kernels = nlohmann::ordered_json::array();
  for (const cuda::CachedKernel& kernel : listing->kernels) {
    total += kernel.bytes;
    if (json) {
      kernels.push_back({{"file", kernel.file},
                         {"kernel", kernel.description},
                         {"valid", kernel.valid},
                         {"bytes", kernel.bytes},
                         {"modified", kernel.modified}});
    } else {
      std::printf("%s %9" PRId64 "  %s\n", LocalTime(kernel.modified).c_str(), kernel.bytes,
                  kernel.valid ? kernel.description.c_str() : "(damaged; it will be made again)");
    }
  }
  if (json) {
    const nlohmann::ordered_json all = {{"folder", listing->folder}, {"kernels", kernels}};
    std::printf("%s\n", JsonText(all, 2).c_str());
  } else {
    std::printf("%zu kernels, %.1f MB in %s\n", listing->kernels.size(),
                static_cast<double>(total) / 1e6, listing->folder.c_str());
  }
  return 0;
}

int Clear(const Invocation& invocation) {
  if (const auto code = invocation.Parse({})) return *code;
  StatusOr<int> removed = cuda::ClearCache();
  if (!removed.ok()) return invocation.Fail(removed.status());
  std::printf("%d kernels removed\n", *removed);
  return 0;
}

// The GPUs that are here, one of each architecture.
StatusOr<std::vector<cuda::DeviceInfo>> LocalDevices() {
  XLA_GPU_ASSIGN_OR_RETURN(int count, cuda::DeviceCount());
  std::vector<cuda::DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(i));
    if (std::ranges::find(devices, device->Arch(), &cuda::DeviceInfo::Arch) == devices.end()) {
      devices.push_back(*device);
    }
  }
  return devices;
}

// `told`: the reasons of failures that were printed; the same for another kernel is not again.
void PrintProgress(std::set<std::string>& told, size_t done, size_t total,
                   const cuda::RegisteredSpec& registered, const std::string& arch,
                   const StatusOr<cuda::CompiledKernel>& kernel) {
  std::string defines;
  for (const std::string& define : registered.spec.defines) defines += " " + define;
  std::printf("[%zu/%zu] %s %s%s: %s\n", done, total, arch.c_str(), registered.op.c_str(),
              defines.c_str(),
              !kernel.ok()        ? "FAILED"
              : kernel->from_disk ? "present"
                                  : "compiled");
  std::fflush(stdout);
  if (kernel.ok()) return;
  const std::string& message = kernel.status().message();
  const std::string name = cuda::Describe(registered.spec, arch);
  const size_t at = message.find(name);
  const std::string reason = at == message.npos ? message : message.substr(at + name.size());
  if (told.insert(reason).second) std::fprintf(stderr, "%s\n", message.c_str());
}

int Warm(const Invocation& invocation) {
  std::vector<std::string> archs, ops;
  int64_t jobs = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 16);
  if (const auto code = invocation.Parse({
          {"--arch", "sm_NN", &archs, "GPU architecture; default: those of the GPUs here",
           cuda::KnownArchs()},
          {"--op", "NAME", &ops, "only this op's kernels"},
          {"--jobs", "N", &jobs, "kernels compiled at a time", {}, 1, 256},
      })) {
    return *code;
  }
  for (std::string& name : ops) {
    const auto op = FindOp(name);
    if (!op.ok()) return invocation.WrongUsage(op.status().message());
    name = (*op)->name;
  }
  std::vector<cuda::DeviceInfo> devices;
  for (const std::string& arch : std::set<std::string>(archs.begin(), archs.end())) {
    devices.push_back(*std::ranges::find(cuda::KnownDevices(), arch, &cuda::DeviceInfo::Arch));
  }
  if (devices.empty()) {
    StatusOr<std::vector<cuda::DeviceInfo>> local = LocalDevices();
    if (!local.ok()) {
      return invocation.WrongUsage(StrCat("no GPU was found, so --arch is needed: one or more of ",
                                          StrJoin(cuda::KnownArchs(), ", "), " (",
                                          local.status().message(), ")"));
    }
    devices = *std::move(local);
  }
  std::set<std::string> told;
  const auto progress = [&told](const auto&... of) { PrintProgress(told, of...); };
  StatusOr<cuda::WarmResult> result =
      cuda::WarmCache(devices, ops, static_cast<int>(jobs), progress);
  if (!result.ok()) return invocation.Fail(result.status());
  std::printf("%d compiled, %d present, %d failed\n", result->compiled, result->present,
              result->failed);
  return result->failed == 0 ? 0 : 1;
}

XLA_GPU_CLI_COMMAND("cache list", "show the compiled kernels that are kept on disk",
                    "cache list --json", List);
XLA_GPU_CLI_COMMAND("cache clear", "remove the compiled kernels from the disk", "cache clear",
                    Clear);
XLA_GPU_CLI_COMMAND("cache warm", "compile kernels ahead of their first use",
                    "cache warm --arch sm_90a --op simple_add", Warm);

}  // namespace
}  // namespace xla_gpu::cli
