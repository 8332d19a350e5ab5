#include "src/cuda/own_location.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace xla_gpu::cuda {
namespace {

namespace fs = std::filesystem;

void AddUnique(std::vector<std::string>& list, std::string item) {
  if (!item.empty() && std::ranges::find(list, item) == list.end()) list.push_back(std::move(item));
}

// "/v/lib/python3.11/site-packages" from a path below it; empty for any other path.
std::string SitePackagesAbove(std::string_view path) {
  for (std::string_view name : {"/site-packages/", "/dist-packages/"}) {
    if (size_t at = path.rfind(name); at != path.npos) {
      return std::string(path.substr(0, at + name.size() - 1));
    }
  }
  return "";
}

}  // namespace

std::string OwnFolder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&OwnFolder), &info) == 0 || info.dli_fname == nullptr) {
    return "";
  }
  std::error_code error;
  fs::path file = fs::canonical(info.dli_fname, error);
  // A program's dli_fname is its argv[0], which is no path when the shell searched PATH for it.
  if (error) file = fs::read_symlink("/proc/self/exe", error);
  return error ? "" : file.parent_path().string();
}

std::vector<std::string> Glob(const std::string& folder, const std::string& below) {
  std::string pattern;
  for (const char c : folder) {
    if (std::string_view("\\[]*?").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  pattern += below;
  std::vector<std::string> paths;
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return paths;
}

std::vector<std::string> SitePackages() {
  std::vector<std::string> folders;
  const std::string own = OwnFolder();
  AddUnique(folders, SitePackagesAbove(own + "/"));
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        if (info->dlpi_name != nullptr) {
          AddUnique(*static_cast<std::vector<std::string>*>(data),
                    SitePackagesAbove(info->dlpi_name));
        }
        return 0;
      },
      &folders);
  std::vector<std::string> prefixes;
  if (own.ends_with("/bin")) prefixes.push_back(own.substr(0, own.size() - 4));
  if (const char* env = std::getenv("VIRTUAL_ENV"); env != nullptr) prefixes.push_back(env);
  for (const std::string& prefix : prefixes) {
    for (std::string& path : Glob(prefix, "/lib/python3*/site-packages")) {
      AddUnique(folders, std::move(path));
    }
  }
  return folders;
}

}  // namespace xla_gpu::cuda
