#include "src/cuda/nvrtc.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "src/core/file.h"
#include "src/core/fork.h"
#include "src/core/python_folders.h"
#include "src/core/strings.h"

namespace xla_gpu::cuda {
namespace {

namespace fs = std::filesystem;
using Version = std::pair<int, int>;

constexpr uint64_t kMaxLoaderConfig = 1 << 20;
constexpr const char* kSystem = "system library path";
constexpr Version kOldest = {12, 0};  // the first that knows sm_90a and C++20

struct Place {
  std::string folder;
  std::string origin;
};

// The folders that the system's loader is told of.
std::vector<std::string> LoaderFolders() {
  std::vector<std::string> folders = Split(Env("LD_LIBRARY_PATH"), ':');
  for (const std::string& path : Glob("/etc/ld.so.conf.d", "/*.conf")) {
    const StatusOr<std::string> text = ReadFile(path, kMaxLoaderConfig);
    if (!text.ok()) continue;
    for (const std::string_view line : Lines(*text)) {
      if (!line.starts_with('/')) continue;
      folders.emplace_back(line.substr(0, line.find_last_not_of(" \t") + 1));
    }
  }
  for (const char* folder : {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
                             "/usr/lib64", "/usr/lib", "/usr/local/lib"}) {
    folders.push_back(folder);
  }
  return folders;
}

std::vector<Place> Places() {
  std::vector<Place> places;
  for (const std::string& site : SitePackages()) {
    for (const char* pattern : {"/nvidia/cu[0-9]*/lib", "/nvidia/cuda_nvrtc/lib"}) {
      for (std::string& folder : Glob(site, pattern)) {
        places.push_back({std::move(folder), "pip package"});
      }
    }
  }
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string home = Env(variable); !home.empty()) {
      for (const char* lib : {"/lib64", "/lib", "/targets/x86_64-linux/lib"}) {
        places.push_back({home + lib, variable});
      }
    }
  }
  for (const char* pattern :
       {"/usr/local/cuda*/lib64", "/usr/local/cuda*/lib", "/opt/cuda/lib64"}) {
    for (std::string& folder : Glob("", pattern))
      places.push_back({std::move(folder), "CUDA toolkit"});
  }
  for (std::string& folder : LoaderFolders()) {
    places.push_back({std::move(folder), kSystem});
  }
  return places;
}

// {13, 5} of "libnvrtc-builtins.so.13.5" or "libnvrtc.so.12.4.127" after `prefix`; the minor is -1
// where the name has none.
std::optional<Version> VersionOfName(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  Version version = {0, -1};
  auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, version.first);
  if (error != std::errc()) return std::nullopt;
  if (rest != end && *rest == '.') std::from_chars(rest + 1, end, version.second);
  return version;
}

// Fills in version, builtins and problem of a library whose path is known.
NvrtcLibrary Inspect(const fs::path& path, std::string origin) {
  NvrtcLibrary library;
  library.path = path.string();
  library.origin = std::move(origin);
  const auto named = VersionOfName(path.filename().string(), "libnvrtc.so.");
  std::optional<Version> best;
  std::error_code error;
  for (const std::string& entry : ListFolder(path.parent_path().string())) {
    auto version = VersionOfName(fs::path(entry).filename().string(), "libnvrtc-builtins.so.");
    if (!version || version->second < 0 || !fs::is_regular_file(entry, error)) continue;
    if (named && named->first != version->first) continue;
    // 12.x names its file by the exact version; 11.x and pip packages by the ABI only.
    const bool exact = named && named->second == version->second;
    if (best && !exact && *version <= *best) continue;
    best = version;
    library.builtins = entry;
    if (exact) break;
  }
  const Version version = best.value_or(named.value_or(Version{0, -1}));
  library.major = version.first;
  library.minor = std::max(version.second, 0);
  if (!best) {
    library.problem = StrCat("libnvrtc-builtins.so is not beside it in ",
                             path.parent_path().string(), "; reinstall the package it came with");
  } else if (version < kOldest) {
    library.problem = "it is older than 12.0, the oldest that this library uses";
  }
  return library;
}

// Folders of the system's hold thousands of files; there the names that the loader goes by will do.
std::vector<std::string> LibrariesIn(const Place& place) {
  if (place.origin != kSystem) return Glob(place.folder, "/libnvrtc.so.*");
  std::vector<std::string> names;
  for (int major = kOldest.first - 1; major < kOldest.first + 8; ++major) {
    names.push_back(StrCat(place.folder, "/libnvrtc.so.", major));
  }
  return names;
}

void AddFolder(const Place& place, std::vector<NvrtcLibrary>& found) {
  for (const std::string& name : LibrariesIn(place)) {
    std::error_code error;
    const fs::path path = fs::canonical(name, error);  // one library has several names
    if (error || !fs::is_regular_file(path, error)) continue;
    if (std::ranges::find(found, path.string(), &NvrtcLibrary::path) != found.end()) continue;
    found.push_back(Inspect(path, place.origin));
  }
}

// XLA_GPU_NVRTC's entries: a file is taken as it is, a folder is searched.
std::vector<NvrtcLibrary> FromEnvironment(const std::vector<std::string>& paths) {
  std::vector<NvrtcLibrary> found;
  for (const std::string& given : paths) {
    std::error_code error;
    const fs::path path = fs::canonical(given, error);
    if (!error && fs::is_directory(path, error)) {
      AddFolder({path.string(), "XLA_GPU_NVRTC"}, found);
    } else if (!error &&
               std::ranges::find(found, path.string(), &NvrtcLibrary::path) == found.end()) {
      found.push_back(Inspect(path, "XLA_GPU_NVRTC"));
      if (!fs::is_regular_file(path, error)) found.back().problem = "it is no regular file";
    } else if (error) {
      found.push_back({.path = given, .origin = "XLA_GPU_NVRTC", .problem = error.message()});
    }
  }
  return found;
}

// By its cuda.h, "#define CUDA_VERSION 13000"; 0 where there is none.
int ToolkitMajor(const std::string& include_folder) {
  constexpr uint64_t kMaxHeader = 8 << 20;
  constexpr std::string_view kDefine = "#define CUDA_VERSION ";
  const StatusOr<std::string> text = ReadFile(include_folder + "/cuda.h", kMaxHeader);
  if (!text.ok()) return 0;
  const size_t at = text->find(kDefine);
  return at == text->npos ? 0 : std::atoi(text->c_str() + at + kDefine.size()) / 1000;
}

struct Unusable {
  std::mutex mutex;
  std::map<std::string, std::string> problems;
};

constinit PerProcess<Unusable> unusable_nvrtcs;

Status NothingUsable(const std::vector<NvrtcLibrary>& found, int driver_version) {
  std::string seen;
  for (const NvrtcLibrary& library : found) {
    seen += StrCat("; found ", library.path, ", version ", library.Version(), ", but ",
                   library.problem.empty()
                       ? StrCat("the driver runs code of CUDA ", driver_version / 1000, ".x only")
                       : library.problem);
  }
  const char* package =
      driver_version > 0 && driver_version < 13000 ? "nvidia-cuda-nvrtc-cu12" : "nvidia-cuda-nvrtc";
  return FailedPrecondition(
      "cuda: no usable NVRTC (libnvrtc.so, the CUDA compiler library, 12.0 or newer) was found in ",
      Env("XLA_GPU_NVRTC").empty()
          ? "pip packages (nvidia/cu*/lib, nvidia/cuda_nvrtc/lib), CUDA_HOME, CUDA_PATH, "
            "/usr/local/cuda*, LD_LIBRARY_PATH and the system's library folders"
          : "the paths of XLA_GPU_NVRTC",
      seen, "; run `pip install ", package,
      "`, or set XLA_GPU_NVRTC to the path of a libnvrtc.so (xla-gpu doctor shows what is found)");
}

}  // namespace

std::string NvrtcLibrary::Version() const { return StrCat(major, ".", minor); }

std::string NvrtcLibrary::Identity() const {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return StrCat("nvrtc ", Version(), " of ", error ? 0 : size, " bytes");
}

std::vector<std::string> NvrtcLibrary::IncludeFolders() const {
  std::vector<std::string> folders;
  const fs::path lib = fs::path(path).parent_path();
  // A toolkit or nvidia/cu13; nvidia/cuda_nvrtc beside nvidia/cuda_runtime.
  for (const fs::path& folder :
       {lib.parent_path() / "include", lib.parent_path().parent_path() / "cuda_runtime" / "include",
        lib.parent_path().parent_path() / "cuda_cccl" / "include"}) {
    std::error_code error;
    if (fs::is_directory(folder, error)) folders.push_back(folder.string());
  }
  // pip's NVRTC comes without headers; those of a toolkit of its major version do as well.
  const auto has_headers = [](const std::string& folder) {
    std::error_code error;
    return fs::exists(folder + "/cuda_fp16.h", error);
  };
  if (std::ranges::any_of(folders, has_headers)) return folders;
  for (const std::string& home :
       {Env("CUDA_HOME"), Env("CUDA_PATH"), std::string("/usr/local/cuda"),
        StrCat("/usr/local/cuda-", Version())}) {
    const std::string folder = home + "/include";
    if (ToolkitMajor(folder) != major || !has_headers(folder)) continue;
    folders.push_back(folder);
    break;
  }
  return folders;
}

std::vector<NvrtcLibrary> FindNvrtcs() {
  std::vector<NvrtcLibrary> found;
  if (const std::string given = Env("XLA_GPU_NVRTC"); !given.empty()) {
    found = FromEnvironment(Split(given, ':'));
  } else {
    for (const Place& place : Places()) AddFolder(place, found);
  }
  {
    Unusable& unusable = unusable_nvrtcs.Get();
    std::lock_guard<std::mutex> lock(unusable.mutex);
    for (NvrtcLibrary& library : found) {
      auto problem = unusable.problems.find(library.path);
      if (problem != unusable.problems.end()) library.problem = problem->second;
    }
  }
  std::ranges::stable_sort(found, [](const NvrtcLibrary& a, const NvrtcLibrary& b) {
    return Version(a.major, a.minor) > Version(b.major, b.minor);
  });
  return found;
}

StatusOr<NvrtcLibrary> SelectNvrtc(int driver_version) {
  std::vector<NvrtcLibrary> found = FindNvrtcs();
  for (NvrtcLibrary& library : found) {
    // Within one major version older drivers run the code of newer compilers; across majors not.
    const bool driver_runs_it = driver_version == 0 || library.major <= driver_version / 1000;
    if (library.problem.empty() && driver_runs_it) return std::move(library);
  }
  return NothingUsable(found, driver_version);
}

void MarkNvrtcUnusable(const std::string& path, const std::string& problem) {
  Unusable& unusable = unusable_nvrtcs.Get();
  std::lock_guard<std::mutex> lock(unusable.mutex);
  unusable.problems[path] = problem;
}

}  // namespace xla_gpu::cuda
