#include "src/cuda/kernel_image.h"

#include <cstdlib>
#include <map>
#include <string_view>

#include "src/core/strings.h"
#include "src/cuda/compiler.h"
#include "src/cuda/embedded_sources.h"
#include "src/cuda/nvrtc.h"

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
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
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

StatusOr<KernelImage> Compile(const KernelSpec& spec, const std::string& arch,
                              const NvrtcLibrary& nvrtc) {
  CompileRequest request;
  request.nvrtc = nvrtc.path;
  request.builtins = nvrtc.builtins;
  request.options = Options(spec, arch);
  XLA_GPU_ASSIGN_OR_RETURN(request.sources, CollectSources(spec.source));
  XLA_GPU_ASSIGN_OR_RETURN(CompileResult result, CompileInChild(request, Describe(spec, arch)));
  return KernelImage{std::move(result.cubin), std::move(result.log)};
}

}  // namespace

std::string Describe(const KernelSpec& spec, const std::string& arch) {
  return StrCat(spec.source, ":", spec.entry, spec.defines.empty() ? "" : " [",
                StrJoin(spec.defines, " "), spec.defines.empty() ? "" : "]", " for ", arch);
}

StatusOr<std::vector<std::pair<std::string, std::string>>> CollectSources(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> sources;
  std::map<std::string, bool> seen = {{path, true}};
  const char* text = FindSource(path);
  if (text == nullptr) {
    return Internal(StrCat("cuda: no device source is embedded under ", path));
  }
  sources.emplace_back(path, text);
  for (size_t i = 0; i < sources.size(); ++i) {
    for (const std::string& include : QuotedIncludes(sources[i].second)) {
      if (!seen.emplace(include, true).second) continue;
      // A name that is not embedded is left to the compiler, whose message names the line.
      if (const char* found = FindSource(include)) sources.emplace_back(include, found);
    }
  }
  return sources;
}

StatusOr<std::shared_ptr<const KernelImage>> GetKernelImage(const KernelSpec& spec,
                                                            const std::string& arch,
                                                            int driver_version) {
  XLA_GPU_ASSIGN_OR_RETURN(NvrtcLibrary nvrtc, SelectNvrtc(driver_version));
  XLA_GPU_ASSIGN_OR_RETURN(KernelImage image, Compile(spec, arch, nvrtc));
  return std::shared_ptr<const KernelImage>(std::make_shared<KernelImage>(std::move(image)));
}

}  // namespace xla_gpu::cuda
