#include "src/cuda/kernel_image.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "src/core/elf.h"
#include "src/core/fork.h"
#include "src/core/includes.h"
#include "src/core/log.h"
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

std::vector<std::string> Options(const KernelSpec& spec, const std::string& arch) {
  std::vector<std::string> options = {"--gpu-architecture=" + arch};
  if (spec.text.empty()) {
    options.insert(options.end(), {"--std=c++20", "--device-as-default-execution-space"});
  }
  options.insert(options.end(), spec.options.begin(), spec.options.end());
  for (const std::string& define : spec.defines) options.push_back("-D" + define);
  return options;
}

// Everything that the machine code depends on.
Sha256::Digest KeyOf(const CompileRequest& request, const std::vector<std::string>& included,
                     const NvrtcLibrary& nvrtc) {
  Sha256 hash;
  auto add = [&hash](std::string_view text) {
    hash.Update(std::to_string(text.size()) + ":");  // so that no two lists run together alike
    hash.Update(text);
  };
  add("xla_gpu " XLA_GPU_VERSION);
  add(nvrtc.Identity());
  add(request.name_expression);
  add(std::to_string(request.options.size()));
  for (const std::string& option : request.options) add(option);
  for (const auto& [path, text] : request.sources) {
    add(path);
    add(text);
  }
  for (const std::string& text : included) add(text);
  return hash.Finish();
}

std::optional<DiskCache> OpenDiskCache() {
  const std::string folder = DiskCache::DefaultFolder();
  if (folder.empty()) return std::nullopt;
  StatusOr<DiskCache> cache = DiskCache::Open(folder);
  if (cache.ok()) return *std::move(cache);
  LogWarningOnce(cache.status().message() + " (kernels are compiled anew by every process)");
  return std::nullopt;
}

// What a full disk or a compiler that was killed leaves need not be machine code.
bool IsCubin(std::string_view bytes) { return IsWholeElf(bytes, EM_CUDA); }

// The driver is not told the size of an image, and reads on behind one that is cut short.
Status CheckImage(const KernelSpec& spec) {
  const std::string& image = spec.image;
  struct FatbinHeader {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;  // of what follows
  } fatbin = {};
  std::memcpy(&fatbin, image.data(), std::min(image.size(), sizeof(fatbin)));
  const bool is_cut = fatbin.magic == 0xba55ed50 &&
                      (image.size() < std::max<size_t>(sizeof(fatbin), fatbin.header_size) ||
                       image.size() - fatbin.header_size < fatbin.size);
  if (!is_cut && (!image.starts_with(ELFMAG) || IsCubin(image))) return OkStatus();
  return InvalidArgument(
      "cuda: the image of kernel ", spec.entry, " (", image.size(), " bytes) is ",
      is_cut ? "a fatbin that is cut short" : "an ELF file, but no whole machine code of a GPU");
}

StatusOr<CompileResult> Compile(const CompileRequest& request, const std::string& name) {
  XLA_GPU_ASSIGN_OR_RETURN(CompileResult result, CompileInChild(request, name));
  if (IsCubin(result.cubin)) return result;
  return Internal("cuda: what the compiler made of kernel ", name, " (", result.cubin.size(),
                  " bytes) is no whole machine code (", request.nvrtc,
                  "); reinstall NVRTC, or set XLA_GPU_NVRTC to another\n", result.log);
}

StatusOr<KernelImage> CompileImage(const CompileRequest& request, const Sha256::Digest& key,
                                   const std::string& name) {
  XLA_GPU_ASSIGN_OR_RETURN(CompileResult result, Compile(request, name));
  return KernelImage{.key = key,
                     .cubin = std::move(result.cubin),
                     .entry = std::move(result.entry),
                     .log = std::move(result.log)};
}

StatusOr<KernelImage> ReadOrCompile(const CompileRequest& request, const Sha256::Digest& key,
                                    const std::string& name) {
  std::optional<DiskCache> cache = OpenDiskCache();
  if (!cache) return CompileImage(request, key, name);
  auto read = [&]() -> std::optional<KernelImage> {
    std::optional<CacheEntry> entry = cache->Read(key);
    if (!entry || !IsCubin(entry->cubin)) return std::nullopt;
    return KernelImage{.key = key,
                       .cubin = std::move(entry->cubin),
                       .entry = std::move(entry->entry),
                       .from_disk = true};
  };
  if (auto image = read()) return *std::move(image);
  XLA_GPU_ASSIGN_OR_RETURN(std::chrono::milliseconds timeout, CompileTimeout());
  DiskCache::KeyLock lock = cache->Lock(key, timeout + std::chrono::seconds(10));
  // Another process may have compiled it while we waited.
  if (auto image = read()) return *std::move(image);
  XLA_GPU_ASSIGN_OR_RETURN(KernelImage image, CompileImage(request, key, name));
  image.kept = cache->Write({key, name, image.entry, image.cubin});
  if (!image.kept.ok()) LogWarningOnce(image.kept.message());
  return image;
}

// `compile(request, nvrtc)` with the compiler to use; with the next one where that does not open.
template <typename Made, typename Function>
StatusOr<Made> WithNvrtc(const KernelSpec& spec, const std::string& arch, int driver_version,
                         Function compile) {
  CompileRequest request;
  if (spec.text.empty()) {
    XLA_GPU_ASSIGN_OR_RETURN(request.sources, CollectSources(spec.source));
  } else {
    request.name_expression = spec.entry;
    request.sources = {{spec.source, spec.text}};
  }
  for (;;) {
    XLA_GPU_ASSIGN_OR_RETURN(const NvrtcLibrary nvrtc, SelectNvrtc(driver_version));
    request.options = Options(spec, arch);
    if (!spec.text.empty()) {  // after the user's own
      for (const std::string& folder : nvrtc.IncludeFolders()) {
        request.options.push_back("-I" + folder);
      }
    }
    request.nvrtc = nvrtc.path;
    request.builtins = nvrtc.builtins;
    StatusOr<Made> made = compile(std::as_const(request), nvrtc);
    if (made.ok() || made.status().code() != StatusCode::kUnavailable) return made;
    MarkNvrtcUnusable(nvrtc.path, made.status().message());
  }
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
    for (const std::string& include : Includes(sources[i].second, /*bracketed=*/false)) {
      if (!seen.insert(include).second) continue;
      // A name that is not embedded is left to the compiler, whose message names the line.
      if (const char* found = FindSource(include)) sources.emplace_back(include, found);
    }
  }
  return sources;
}

StatusOr<Image> GetKernelImage(const KernelSpec& spec, const std::string& arch,
                               int driver_version) {
  if (!spec.image.empty()) {
    XLA_GPU_RETURN_IF_ERROR(CheckImage(spec));
    return Image(std::make_shared<KernelImage>(KernelImage{.cubin = spec.image}));
  }
  const Stopwatch watch;
  const char* origin = "from memory";
  StatusOr<Image> image = WithNvrtc<Image>(
      spec, arch, driver_version, [&](const CompileRequest& request, const NvrtcLibrary& nvrtc) {
        std::vector<std::string> included;
        if (!spec.text.empty()) included = IncludedTexts(spec.text, spec.source, request.options);
        const Sha256::Digest key = KeyOf(request, included, nvrtc);
        return images_in_memory.Get().Get(Sha256::Hex(key), [&]() -> StatusOr<Image> {
          XLA_GPU_ASSIGN_OR_RETURN(KernelImage made,
                                   ReadOrCompile(request, key, Describe(spec, arch)));
          origin = made.from_disk ? "from disk" : "compiled";
          return Image(std::make_shared<KernelImage>(std::move(made)));
        });
      });
  if (image.ok() && LogsInfo()) {
    LogInfo(StrCat("kernel ", Describe(spec, arch), ": ", origin, " in ", watch.Text()));
  }
  return image;
}

StatusOr<CompileResult> CompileAnew(const KernelSpec& spec, const std::string& arch,
                                    int driver_version) {
  return WithNvrtc<CompileResult>(spec, arch, driver_version,
                                  [&](CompileRequest request, const NvrtcLibrary&) {
                                    request.ptx = true;
                                    request.options.push_back("--ptxas-options=-v");
                                    return Compile(request, Describe(spec, arch));
                                  });
}

void ForgetKernelImage(const KernelImage& image) {
  if (std::optional<DiskCache> cache = OpenDiskCache()) cache->Remove(image.key);
  images_in_memory.Get().Forget(Sha256::Hex(image.key));
}

}  // namespace xla_gpu::cuda
