// xla-gpu cache: the compiled kernels on disk.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/cli/cli.h"
#include "src/cli/json.h"
#include "src/cuda/cache_admin.h"
#include "src/cuda/device.h"

namespace xla_gpu::cli {
namespace {

constexpr char kUsage[] =
    "cache list [--json] | clear | warm [--arch sm_90a]... [--op NAME]... [--jobs N]";

int Fail(const Status& status) {
  std::fprintf(stderr, "xla-gpu cache: %s\n", status.message().c_str());
  return 1;
}

int WrongUsage(const std::string& what) {
  std::fprintf(stderr, "xla-gpu cache: %s\nusage: xla-gpu %s\n", what.c_str(), kUsage);
  return 2;
}

std::string LocalTime(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  localtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts);
  return text;
}

int List(const Args& args) {
  const bool json = args.size() == 1 && args[0] == "--json";
  if (!args.empty() && !json) return WrongUsage("list takes only --json");
  StatusOr<cuda::CacheListing> listing = cuda::ListCache();
  if (!listing.ok()) return Fail(listing.status());
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

int Clear(const Args& args) {
  if (!args.empty()) return WrongUsage("clear takes no arguments");
  StatusOr<int> removed = cuda::ClearCache();
  if (!removed.ok()) return Fail(removed.status());
  std::printf("%d kernels removed\n", *removed);
  return 0;
}

// The architectures of the GPUs that are here.
StatusOr<std::vector<std::string>> LocalArchs() {
  XLA_GPU_ASSIGN_OR_RETURN(int count, cuda::DeviceCount());
  std::vector<std::string> archs;
  for (int i = 0; i < count; ++i) {
    XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(i));
    if (std::ranges::find(archs, device->Arch()) == archs.end()) archs.push_back(device->Arch());
  }
  return archs;
}

void PrintProgress(size_t done, size_t total, const cuda::RegisteredSpec& registered,
                   const std::string& arch, const StatusOr<cuda::CompiledKernel>& kernel) {
  std::string defines;
  for (const std::string& define : registered.spec.defines) defines += " " + define;
  std::printf("[%zu/%zu] %s %s%s: %s\n", done, total, arch.c_str(), registered.op.c_str(),
              defines.c_str(),
              !kernel.ok()        ? "FAILED"
              : kernel->from_disk ? "present"
                                  : "compiled");
  std::fflush(stdout);
  if (!kernel.ok()) std::fprintf(stderr, "%s\n", kernel.status().message().c_str());
}

int Warm(const Args& args) {
  std::vector<std::string> archs, ops;
  int jobs = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
  for (size_t i = 0; i < args.size(); i += 2) {
    if (i + 1 == args.size()) return WrongUsage(args[i] + " needs a value");
    const std::string& value = args[i + 1];
    if (args[i] == "--arch") {
      archs.push_back(value);
    } else if (args[i] == "--op") {
      ops.push_back(value);
    } else if (args[i] == "--jobs") {
      jobs = std::atoi(value.c_str());
      if (jobs < 1 || jobs > 256) return WrongUsage("--jobs must be 1 to 256");
    } else {
      return WrongUsage("warm does not know " + args[i]);
    }
  }
  if (archs.empty()) {
    StatusOr<std::vector<std::string>> local = LocalArchs();
    if (!local.ok()) {
      return WrongUsage(
          "name the architectures to compile for (--arch sm_90a), since no GPU was "
          "found here: " +
          local.status().message());
    }
    archs = *local;
  }
  StatusOr<cuda::WarmResult> result = cuda::WarmCache(archs, ops, jobs, PrintProgress);
  if (!result.ok()) return Fail(result.status());
  std::printf("%d compiled, %d present, %d failed\n", result->compiled, result->present,
              result->failed);
  return result->failed == 0 ? 0 : 1;
}

int Run(const Args& args) {
  if (args.empty()) return WrongUsage("it needs one of list, clear, warm");
  const Args rest(args.begin() + 1, args.end());
  if (args[0] == "list") return List(rest);
  if (args[0] == "clear") return Clear(rest);
  if (args[0] == "warm") return Warm(rest);
  return WrongUsage("it does not know '" + args[0] + "'");
}

XLA_GPU_CLI_COMMAND("cache", kUsage, "show, empty or fill the disk cache of compiled kernels", Run);

}  // namespace
}  // namespace xla_gpu::cli
