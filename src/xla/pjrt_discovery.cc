#include "src/xla/pjrt_discovery.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <filesystem>

#include "src/core/elf.h"
#include "src/core/file.h"
#include "src/core/strings.h"

namespace xla_gpu::xla {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxListing = 64 << 20;  // torch's RECORD has 2 MB
constexpr char kEntryPoint[] = "GetPjrtApi";
// What libxla_gpu_pjrt.so imports, and no other plugin: it forwards to a plugin and is none itself.
constexpr char kForwarder[] = "xla_gpu_pjrt_compat_api";

std::vector<fs::path> List(const fs::path& folder) {
  const std::vector<std::string> entries = ListFolder(folder.string());
  return {entries.begin(), entries.end()};
}

std::string DynamicNames(const fs::path& path) {
  const StatusOr<RegularFile> file = RegularFile::Open(path.string());
  return file.ok() ? ElfDynamicNames(*file) : "";
}

bool Names(const std::string& names, const char* symbol) {
  return names.find(std::string("\0", 1) + symbol + std::string("\0", 1)) != std::string::npos;
}

bool IsStockPlugin(const fs::path& path) {
  const std::string names = DynamicNames(path);
  return Names(names, kEntryPoint) && !Names(names, kForwarder);
}

// Modules that the entry points of group `jax_plugins` in this folder name, as folders below it.
std::vector<fs::path> EntryPointFolders(const fs::path& site) {
  std::vector<fs::path> folders;
  for (const fs::path& entry : List(site)) {
    if (entry.extension() != ".dist-info") continue;
    const StatusOr<std::string> text = ReadFile((entry / "entry_points.txt").string(), kMaxListing);
    if (!text.ok()) continue;
    bool in_group = false;
    for (const std::string_view line : Lines(*text)) {
      if (line.starts_with("[")) in_group = line.starts_with("[jax_plugins]");
      const size_t equals = line.find('=');
      const size_t begin = line.find_first_not_of(" \t", equals + 1);
      if (!in_group || equals == line.npos || begin == line.npos) continue;
      std::string module(line.substr(begin, line.find_first_of(": \t", begin) - begin));
      std::ranges::replace(module, '.', '/');
      folders.push_back(site / module);
    }
  }
  return folders;
}

// The distribution in `site` whose RECORD lists the file.
void FillPackage(const fs::path& site, FoundPlugin& plugin) {
  std::error_code error;
  const std::string relative = fs::relative(plugin.path, site, error).string() + ",";
  for (const fs::path& entry : List(site)) {
    if (entry.extension() != ".dist-info") continue;
    const StatusOr<std::string> record = ReadFile((entry / "RECORD").string(), kMaxListing);
    if (!record.ok()) continue;
    for (const std::string_view line : Lines(*record)) {
      if (!line.starts_with(relative)) continue;
      const std::string stem = entry.stem().string();  // jax_cuda13_pjrt-0.11.2
      const size_t dash = stem.rfind('-');
      plugin.package = stem.substr(0, dash);
      std::ranges::replace(plugin.package, '_', '-');
      if (dash != std::string::npos) plugin.version = stem.substr(dash + 1);
      return;
    }
  }
}

class Collector {
 public:
  void Add(const fs::path& path, bool loaded, const fs::path& site = {}) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (error) return;
    const auto known = std::ranges::find(plugins, real.string(), &FoundPlugin::path);
    if (known != plugins.end()) {
      known->loaded |= loaded;  // the one that XLA_GPU_PJRT_PLUGIN names may be in the process
      return;
    }
    FoundPlugin plugin;
    plugin.path = real.string();
    plugin.loaded = loaded;
    // PACKAGE_PARENT/jax_plugins/xla_cuda13/xla_cuda_plugin.so
    FillPackage(site.empty() ? real.parent_path().parent_path().parent_path() : fs::path(site),
                plugin);
    if (plugin.package == "xla-cuda13-pjrt" && plugin.version == "0.0.1") {
      plugin.unusable =
          "xla-cuda13-pjrt 0.0.1 has no CUDA platform inside (XLA says \"Could not find registered "
          "platform with name: cuda\"); install jax-cuda13-pjrt instead";
    }
    plugins.push_back(std::move(plugin));
  }

  void AddSite(const fs::path& site) {
    std::vector<fs::path> folders;
    for (const char* space : {"jax_plugins", "xla_plugins"}) {
      for (const fs::path& folder : List(site / space)) folders.push_back(folder);
    }
    for (const fs::path& folder : EntryPointFolders(site)) folders.push_back(folder);
    for (const fs::path& folder : folders) {
      for (const fs::path& file : List(folder)) {
        if (file.extension() == ".so" && IsStockPlugin(file)) Add(file, /*loaded=*/false, site);
      }
    }
  }

  std::vector<FoundPlugin> plugins;
};

// "xla_cuda13/xla_cuda_plugin.so": what tells plugins apart. A folder further up may be named
// anything.
std::string PluginName(const std::string& path) {
  const fs::path file(path);
  return (file.parent_path().filename() / file.filename()).string();
}

// An object of this process that exports GetPjrtApi itself (not through a dependency).
int AddIfPlugin(dl_phdr_info* info, size_t, void* collector) {
  const std::string_view name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (name.find(".so") == std::string_view::npos) return 0;
  // Looking every object's file up would read hundreds of them; plugins all say what they are.
  if (name.find("pjrt") == std::string_view::npos &&
      name.find("plugin") == std::string_view::npos) {
    return 0;
  }
  if (IsStockPlugin(name)) static_cast<Collector*>(collector)->Add(name, /*loaded=*/true);
  return 0;
}

}  // namespace

bool IsCompatPlugin(const std::string& path) {
  const std::string names = DynamicNames(path);
  return Names(names, kEntryPoint) && Names(names, kForwarder);
}

bool FoundPlugin::is_cuda() const {
  const std::string name = PluginName(path);
  return name.find("cuda") != std::string::npos || name.find("gpu") != std::string::npos;
}

std::vector<FoundPlugin> FindPjrtPlugins(const std::vector<std::string>& folders) {
  Collector collector;
  if (const std::string path = Env("XLA_GPU_PJRT_PLUGIN"); !path.empty()) {
    collector.Add(path, /*loaded=*/false);
  }
  dl_iterate_phdr(AddIfPlugin, &collector);
  for (const std::string& folder : folders) collector.AddSite(folder);
  return collector.plugins;
}

std::vector<FoundPlugin> FindPjrtPlugins() {
  std::vector<FoundPlugin> plugins = FindPjrtPlugins(SitePackages());
  return plugins.empty() ? FindPjrtPlugins(PythonSysPath()) : plugins;
}

bool MachineHasNvidiaGpu() {
  std::error_code error;
  for (const fs::path& entry : List("/dev")) {
    const std::string name = entry.filename().string();
    if (name.starts_with("nvidia") && name.size() > 6 && std::isdigit(name[6])) return true;
  }
  return fs::exists("/dev/dxg", error);  // WSL
}

StatusOr<FoundPlugin> ChoosePjrtPlugin(const std::string& name) {
  if (const std::string wish = Env("XLA_GPU_PJRT_PLUGIN"); name.empty() && !wish.empty()) {
    StatusOr<FoundPlugin> chosen = ChoosePjrtPlugin(wish);
    if (chosen.ok()) return chosen;
    return chosen.status().After("XLA_GPU_PJRT_PLUGIN is '", wish, "': ");
  }
  const bool is_path = name.find('/') != std::string::npos || name.ends_with(".so");
  if (is_path) return FoundPlugin{.path = name};
  const std::vector<FoundPlugin> found = FindPjrtPlugins();
  if (!name.empty() && name != "cpu" && !name.starts_with("cuda")) {
    return InvalidArgument("plugin '", name,
                           "' is neither a path to a .so nor one of cpu, cuda, cuda12, "
                           "cuda13");
  }
  const bool want_cuda = name.empty() ? MachineHasNvidiaGpu() : name != "cpu";
  const std::string part = name.starts_with("cuda") ? name : "";
  for (const bool cuda : {want_cuda, false}) {
    for (const FoundPlugin& plugin : found) {
      if (plugin.is_cuda() != cuda || !plugin.unusable.empty()) continue;
      if (PluginName(plugin.path).find(part) != std::string::npos) return plugin;
    }
    if (!name.empty()) break;  // only "" falls back to the CPU
  }
  return NotFound("no ", name.empty() ? "usable" : name, " PJRT plugin was found (found: ",
                  found.empty() ? "none" : StrJoin(found, ", ", &FoundPlugin::path),
                  "; looked in: ", StrJoin(SitePackages(), ", "),
                  " and sys.path of python3"
                  "). Install one (pip install xla-cpu-pjrt, or jax-cuda13-pjrt for an "
                  "NVIDIA GPU) into the active virtual environment, or set "
                  "XLA_GPU_PJRT_PLUGIN to the .so");
}

void PreloadNvidiaLibraries(const std::string& plugin_path) {
  const std::string name = PluginName(plugin_path);
  const bool cuda12 = name.find("cuda12") != std::string::npos;
  if (!cuda12 && name.find("cuda13") == std::string::npos) return;
  const fs::path nvidia =
      fs::path(plugin_path).parent_path().parent_path().parent_path() / "nvidia";
  // Each library before those that need it.
  static constexpr const char* kLibraries[] = {
      "libcudart.so",   "libnvrtc.so", "libcublasLt.so",     "libcublas.so",
      "libnccl.so",     "libcupti.so", "libnvJitLink.so",    "libcusparse.so",
      "libcusolver.so", "libcufft.so", "libnvshmem_host.so", "libcudnn.so"};
  std::vector<fs::path> folders;
  for (const fs::path& wheel : List(nvidia)) {
    // The CUDA 13 wheels share the folder cu13; those of CUDA 12 have one each.
    const std::string name = wheel.filename().string();
    const bool both = name == "cudnn" || name == "nccl" || name == "nvshmem";
    if (both || (cuda12 ? name != "cu13" : name == "cu13")) folders.push_back(wheel / "lib");
  }
  for (const std::string library : kLibraries) {
    for (const fs::path& folder : folders) {
      for (const fs::path& file : List(folder)) {
        const std::string name = file.filename().string();
        // libcublas.so.13, not libcublas.so.13.1.2 or libcublas.so
        const std::string_view rest =
            std::string_view(name).substr(std::min(name.size(), library.size()));
        if (!name.starts_with(library) || rest.size() < 2 || rest[0] != '.' ||
            rest.find('.', 1) != std::string_view::npos) {
          continue;
        }
        std::error_code error;
        if (!fs::is_regular_file(file, error)) continue;  // a pipe would be waited for
        // A library that will not load is the plugin's to report, when it needs it.
        dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
      }
    }
  }
}

}  // namespace xla_gpu::xla
