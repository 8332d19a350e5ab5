#include "src/cli/python_packages.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <tuple>

#include "src/core/file.h"
#include "src/core/strings.h"

namespace xla_gpu::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxText = 16 << 20;
constexpr std::string_view kNames[] = {
    "jax",       "jaxlib",   "torch",         "torch-xla",         "vllm",
    "xla-gpu",   "vllm-tpu", "tpu-inference", "nvidia-cuda-nvrtc", "numpy",
    "ml-dtypes",
};
// jax-cuda12-plugin, jax-cuda13-pjrt, nvidia-cuda-nvrtc-cu12; xla-cpu-pjrt, xla-cuda13-pjrt.
constexpr std::string_view kPrefixes[] = {"jax-cuda", "jax-rocm", "nvidia-cuda-nvrtc-", "xla-"};

bool Matters(std::string_view name) {
  return std::ranges::find(kNames, name) != std::end(kNames) ||
         std::ranges::any_of(kPrefixes, [name](auto prefix) { return name.starts_with(prefix); });
}

// As PEP 503 compares names: lower case, runs of "-", "_" and "." are one "-".
std::string NormalizeName(std::string_view name) {
  std::string normal;
  for (char c : name) {
    const bool separator = c == '-' || c == '_' || c == '.';
    if (!separator) {
      normal += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (normal.empty() || normal.back() != '-') {
      normal += '-';
    }
  }
  return normal;
}

// The name and version in METADATA's header, which ends at the first empty line.
std::optional<PythonPackage> ReadMetadata(const fs::path& file, const std::string& folder) {
  const StatusOr<std::string> text = ReadFile(file.string(), kMaxText);
  if (!text.ok()) return std::nullopt;
  PythonPackage package{.name = {}, .version = {}, .folder = folder};
  for (const std::string_view line : Lines(*text)) {
    if (line.empty()) break;
    if (line.starts_with("Name: ")) package.name = NormalizeName(line.substr(6));
    if (line.starts_with("Version: ")) package.version = line.substr(9);
  }
  if (package.name.empty() || package.version.empty()) return std::nullopt;
  return package;
}

// The number at the front of `text`, which is taken off with the dot after it; -1 if there is none.
int64_t TakeNumber(std::string_view& text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) {
    text = {};
    return -1;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with('.')) {
    text.remove_prefix(1);
  } else {
    text = {};  // "rc1", "+cu130"
  }
  return number;
}

}  // namespace

std::vector<PythonPackage> FindPythonPackages(const std::vector<std::string>& site_packages) {
  std::vector<PythonPackage> all;
  for (const std::string& folder : site_packages) {
    std::vector<PythonPackage> found;
    for (const fs::path path : ListFolder(folder)) {
      const std::string entry = path.filename().string();
      // The folder's name spares reading the metadata of packages that do not matter.
      if (!entry.ends_with(".dist-info") ||
          !Matters(NormalizeName(entry.substr(0, entry.find('-'))))) {
        continue;
      }
      if (auto package = ReadMetadata(path / "METADATA", folder)) found.push_back(*package);
    }
    std::ranges::sort(found, [](const PythonPackage& a, const PythonPackage& b) {
      return std::tie(a.name, a.version) < std::tie(b.name, b.version);
    });
    all.insert(all.end(), found.begin(), found.end());
  }
  return all;
}

int CompareVersions(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    const int64_t x = std::max<int64_t>(0, TakeNumber(a));
    const int64_t y = std::max<int64_t>(0, TakeNumber(b));
    if (x != y) return x < y ? -1 : 1;
  }
  return 0;
}

std::optional<std::string> FfiVersionOfJaxlib(const std::string& site_packages) {
  const StatusOr<std::string> header =
      ReadFile(StrCat(site_packages, "/jaxlib/include/xla/ffi/api/c_api.h"), kMaxText);
  if (!header.ok()) return std::nullopt;
  std::string major;
  std::string minor;
  for (const std::string_view line : Lines(*header)) {
    constexpr std::string_view kMajor = "#define XLA_FFI_API_MAJOR ";
    constexpr std::string_view kMinor = "#define XLA_FFI_API_MINOR ";
    if (line.starts_with(kMajor)) major = line.substr(kMajor.size());
    if (line.starts_with(kMinor)) minor = line.substr(kMinor.size());
  }
  if (major.empty() || minor.empty()) return std::nullopt;
  return StrCat(major, ".", minor);
}

}  // namespace xla_gpu::cli
