#include "src/core/python_folders.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string_view>

#include "src/core/child_process.h"
#include "src/core/file.h"

namespace xla_gpu {
namespace {

namespace fs = std::filesystem;

void AddFolder(std::vector<std::string>& folders, const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error || !fs::is_directory(real, error)) return;
  if (std::ranges::find(folders, real.string()) == folders.end()) folders.push_back(real.string());
}

// PREFIX/lib/python3.*/site-packages.
void AddPrefix(std::vector<std::string>& folders, const fs::path& prefix) {
  if (prefix.empty()) return;
  for (const char* lib : {"lib", "lib64"}) {
    for (const std::string& folder : Glob(prefix / lib, "/python3*/site-packages")) {
      AddFolder(folders, folder);
    }
  }
}

// A checkout of this project with a .venv of this user's or root's. Anyone may put a .venv into
// /tmp, and plugins are code.
bool HasVenvOfCheckout(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "include/xla_gpu/xla_gpu.h", error) &&
         HasTrustedOwner(folder.string()) && HasTrustedOwner((folder / ".venv").string());
}

// What lies around this library: site-packages/xla_gpu/libxla_gpu.so, VENV/bin/xla-gpu, or a
// checkout's build/release with its .venv two folders up.
void AddOwnFolders(std::vector<std::string>& folders) {
  fs::path folder = OwnFolder();
  if (folder.empty()) return;
  if (folder.parent_path().filename() == "site-packages") AddFolder(folders, folder.parent_path());
  if (folder.filename() == "bin") AddPrefix(folders, folder.parent_path());
  for (int up = 0; up < 3; ++up, folder = folder.parent_path()) {
    if (HasVenvOfCheckout(folder)) AddPrefix(folders, folder / ".venv");
  }
}

// Where the extension modules lie that this process has loaded: the environment of the Python it
// runs in, which may be no active virtual environment and have no `python3` in PATH.
int AddFolderOfModule(dl_phdr_info* info, size_t, void* folders) {
  const std::string_view name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  for (const std::string_view site : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = name.find(site);
    if (at == std::string_view::npos) continue;
    AddFolder(*static_cast<std::vector<std::string>*>(folders), name.substr(0, at + site.size()));
  }
  return 0;
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

std::vector<std::string> SitePackages() {
  std::vector<std::string> folders;
  AddOwnFolders(folders);
  dl_iterate_phdr(AddFolderOfModule, &folders);
  AddPrefix(folders, Env("VIRTUAL_ENV"));
  AddPrefix(folders, Env("CONDA_PREFIX"));
  for (const std::string& folder : Split(Env("PYTHONPATH"), ':')) AddFolder(folders, folder);
  return folders;
}

std::vector<std::string> PythonSysPath() {
  std::vector<std::string> folders;
  const auto python =
      RunChild({"python3", "-c", "import sys; print('\\n'.join(p for p in sys.path if p))"}, "",
               ChildLimits{.timeout = std::chrono::seconds(30), .max_out = 1 << 20});
  if (!python.ok() || python->exit_code != 0) return folders;
  for (const std::string& folder : Split(python->out, '\n')) AddFolder(folders, folder);
  return folders;
}

}  // namespace xla_gpu
