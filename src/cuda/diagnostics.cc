#include "src/cuda/diagnostics.h"

#include "src/cuda/compiler.h"
#include "src/cuda/disk_cache.h"
#include "src/cuda/driver_api.h"
#include "src/cuda/nvrtc.h"

namespace xla_gpu::cuda {
namespace {

void DiagnoseDevices(Diagnostics& d) {
  StatusOr<const DriverApi*> driver = GetDriver();
  d.driver = driver.status();
  d.devices_status = driver.status();
  if (!driver.ok()) return;
  d.driver_version = (*driver)->version;
  StatusOr<int> count = DeviceCount();
  d.devices_status = count.status();
  for (int i = 0; count.ok() && i < *count; ++i) {
    StatusOr<const DeviceInfo*> device = GetDeviceInfo(i);
    if (device.ok()) {
      d.devices.push_back(**device);
    } else {
      d.devices_status = device.status();
    }
  }
}

void DiagnoseCompiler(Diagnostics& d) {
  StatusOr<NvrtcLibrary> chosen = SelectNvrtc(d.driver_version);
  d.nvrtc = chosen.status();
  for (const NvrtcLibrary& library : FindNvrtcs()) {
    d.nvrtcs.push_back({library.path, library.Version(), library.origin, library.problem,
                        chosen.ok() && chosen->path == library.path});
  }
  StatusOr<std::string> program = FindCompilerProgram();
  d.compiler = program.status();
  if (program.ok()) d.compiler_program = *program;
}

void DiagnoseCache(Diagnostics& d) {
  d.cache.folder = DiskCache::DefaultFolder();
  StatusOr<DiskCache> cache = DiskCache::OpenExisting(d.cache.folder);
  if (cache.status().code() != StatusCode::kNotFound) d.cache.status = cache.status();
  if (!cache.ok()) return;
  for (const CachedKernel& file : cache->List()) {
    d.cache.num_kernels += file.valid ? 1 : 0;
    d.cache.bytes += file.bytes;
  }
}

}  // namespace

Diagnostics Diagnose() {
  Diagnostics d;
  DiagnoseDevices(d);
  DiagnoseCompiler(d);
  DiagnoseCache(d);
  return d;
}

}  // namespace xla_gpu::cuda
