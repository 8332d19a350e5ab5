#include "src/cuda/kernel_image.h"

#include <elf.h>

#include <cstdio>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include "src/core/elf.h"
#include "src/core/file.h"
#include "src/core/fork.h"
#include "src/core/strings.h"
#include "src/cuda/compiler.h"
#include "src/cuda/disk_cache.h"
#include "src/cuda/embedded_sources.h"
#include "src/cuda/nvrtc.h"
#include "src/cuda/single_flight.h"

namespace xla_gpu::cuda {
namespace {

const char* FindSource(std::string_view path) {
  for (const EmbeddedSource* source = EmbeddedSources(); *source->path != '\0'; ++source) {
    if (path == source->path) return source->text;
  }
  return nullptr;
}

// The X of every line `#include "X"`. Lines that the preprocessor would skip count too: a source
// too many does no harm.
std::vector<std::string> QuotedIncludes(std::string_view text) {
  std::vector<std::string> paths;
  for (std::string_view line : Lines(text)) {
    auto skip_spaces = [&line] {
      line.remove_prefix(std::min(line.size(), line.find_first_not_of(" \t")));
    };
    skip_spaces();
    if (!line.starts_with('#')) continue;
    line.remove_prefix(1);
    skip_spaces();
    if (!line.starts_with("include")) continue;
    line.remove_prefix(7);
    skip_spaces();
    if (!line.starts_with('"')) continue;
    line.remove_prefix(1);
    if (size_t end = line.find('"'); end != line.npos) paths.emplace_back(line.substr(0, end));
  }
  return paths;
}

std::vector<std::string> Options(const KernelSpec& spec, const std::string& arch) {
  std::vector<std::string> options = {"--gpu-architecture=" + arch, "--std=c++20",
                                      "--device-as-default-execution-space"};
  for (const std::string& define : spec.defines) options.push_back("-D" + define);
  return options;
}

// Everything that the machine code depends on.
Sha256::Digest KeyOf(const CompileRequest& request, const NvrtcLibrary& nvrtc) {
  Sha256 hash;
  auto add = [&hash](std::string_view text) {
    hash.Update(std::to_string(text.size()) + ":");  // so that no two lists run together alike
    hash.Update(text);
  };
  add("xla_gpu " XLA_GPU_VERSION);
  add(nvrtc.Identity());
  add(std::to_string(request.options.size()));
  for (const std::string& option : request.options) add(option);
  for (const auto& [path, text] : request.sources) {
    add(path);
    add(text);
  }
  return hash.Finish();
}

struct Warnings {
  std::mutex mutex;
  std::set<std::string> said;
};
constinit PerProcess<Warnings> warnings;

void WarnOnce(const std::string& message) {
  auto& [mutex, said] = warnings.Get();
  std::lock_guard<std::mutex> lock(mutex);
  if (said.insert(message).second) std::fprintf(stderr, "xla_gpu: warning: %s\n", message.c_str());
}

std::optional<DiskCache> OpenDiskCache() {
  const std::string folder = DiskCache::DefaultFolder();
  if (folder.empty()) return std::nullopt;
  StatusOr<DiskCache> cache = DiskCache::Open(folder);
  if (cache.ok()) return *std::move(cache);
  WarnOnce(cache.status().message() + " (kernels are compiled anew by every process)");
  return std::nullopt;
}

// What a full disk or a compiler that was killed leaves need not be machine code.
bool IsCubin(std::string_view bytes) { return IsWholeElf(bytes, EM_CUDA); }

StatusOr<KernelImage> Compile(const CompileRequest& request, const Sha256::Digest& key,
                              const std::string& name) {
  XLA_GPU_ASSIGN_OR_RETURN(CompileResult result, CompileInChild(request, name));
  if (!IsCubin(result.cubin)) {
    return Internal("cuda: what the compiler made of kernel ", name, " (", result.cubin.size(),
                    " bytes) is no whole machine code (", request.nvrtc,
                    "); reinstall NVRTC, or set XLA_GPU_NVRTC to another\n", result.log);
  }
  return KernelImage{.key = key, .cubin = std::move(result.cubin), .log = std::move(result.log)};
}

StatusOr<KernelImage> ReadOrCompile(const CompileRequest& request, const Sha256::Digest& key,
                                    const std::string& name) {
  std::optional<DiskCache> cache = OpenDiskCache();
  if (!cache) return Compile(request, key, name);
  auto read = [&]() -> std::optional<KernelImage> {
    std::optional<CacheEntry> entry = cache->Read(key);
    if (!entry || !IsCubin(entry->cubin)) return std::nullopt;
    return KernelImage{.key = key, .cubin = std::move(entry->cubin), .from_disk = true};
  };
  if (auto image = read()) return *std::move(image);
  XLA_GPU_ASSIGN_OR_RETURN(std::chrono::milliseconds timeout, CompileTimeout());
  DiskCache::KeyLock lock = cache->Lock(key, timeout + std::chrono::seconds(10));
  // Another process may have compiled it while we waited.
  if (auto image = read()) return *std::move(image);
  XLA_GPU_ASSIGN_OR_RETURN(KernelImage image, Compile(request, key, name));
  image.kept = cache->Write({key, name, image.cubin});
  if (!image.kept.ok()) WarnOnce(image.kept.message());
  return image;
}

using Image = std::shared_ptr<const KernelImage>;

constinit PerProcess<SingleFlight<Image>> images_in_memory;

}  // namespace

std::string Describe(const KernelSpec& spec, const std::string& arch) {
  return StrCat(spec.source, ":", spec.entry, spec.defines.empty() ? "" : " [",
                StrJoin(spec.defines, " "), spec.defines.empty() ? "" : "]", " for ", arch);
}

StatusOr<std::vector<std::pair<std::string, std::string>>> CollectSources(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> sources;
  std::set<std::string> seen = {path};
  const char* text = FindSource(path);
  if (text == nullptr) {
    return Internal("cuda: no device source is embedded under ", path);
  }
  sources.emplace_back(path, text);
  for (size_t i = 0; i < sources.size(); ++i) {
    for (const std::string& include : QuotedIncludes(sources[i].second)) {
      if (!seen.insert(include).second) continue;
      // A name that is not embedded is left to the compiler, whose message names the line.
      if (const char* found = FindSource(include)) sources.emplace_back(include, found);
    }
  }
  return sources;
}

StatusOr<Image> GetKernelImage(const KernelSpec& spec, const std::string& arch,
                               int driver_version) {
  CompileRequest request;
  request.options = Options(spec, arch);
  XLA_GPU_ASSIGN_OR_RETURN(request.sources, CollectSources(spec.source));
  for (;;) {
    XLA_GPU_ASSIGN_OR_RETURN(NvrtcLibrary nvrtc, SelectNvrtc(driver_version));
    request.nvrtc = nvrtc.path;
    request.builtins = nvrtc.builtins;
    const Sha256::Digest key = KeyOf(request, nvrtc);
    StatusOr<Image> image = images_in_memory.Get().Get(Sha256::Hex(key), [&]() -> StatusOr<Image> {
      XLA_GPU_ASSIGN_OR_RETURN(KernelImage made, ReadOrCompile(request, key, Describe(spec, arch)));
      return Image(std::make_shared<KernelImage>(std::move(made)));
    });
    if (image.ok() || image.status().code() != StatusCode::kUnavailable) return image;
    // This NVRTC does not open: on to the next one, under a key of its own.
    MarkNvrtcUnusable(nvrtc.path, image.status().message());
  }
}

void ForgetKernelImage(const KernelImage& image) {
  if (std::optional<DiskCache> cache = OpenDiskCache()) cache->Remove(image.key);
  images_in_memory.Get().Forget(Sha256::Hex(image.key));
}

}  // namespace xla_gpu::cuda
