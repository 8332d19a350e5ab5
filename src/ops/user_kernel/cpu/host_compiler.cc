#include "src/ops/user_kernel/cpu/host_compiler.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "src/core/child_process.h"
#include "src/core/elf.h"
#include "src/core/file.h"
#include "src/core/fork.h"
#include "src/core/includes.h"
#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/core/unique_fd.h"
#include "src/cuda/compiler.h"
#include "src/cuda/disk_cache.h"
#include "src/cuda/single_flight.h"
#include "src/ops/user_kernel/parameter_check.h"

namespace xla_gpu::user_kernel {
namespace {

namespace fs = std::filesystem;

// Holds the entry's address, whatever C++ name it has.
constexpr char kEntry[] = "xla_gpu_entry";
constexpr uint64_t kMaxLibrary = uint64_t{1} << 30;

struct Compiler {
  std::string path;                  // as CXX gives it
  std::vector<std::string> command;  // "ccache g++ -m64" is three words, as make takes it
  std::string version;               // what it says of itself
};

std::vector<std::string> Words(const std::string& path) {
  if (access(path.c_str(), X_OK) == 0) return {path};  // a folder's name may hold blanks
  return Split(path, ' ');
}

StatusOr<Compiler> FindCompiler() {
  const std::string given = Env("CXX");
  Compiler compiler{.path = given.empty() ? "c++" : given};
  compiler.command = Words(compiler.path);
  std::vector<std::string> ask = compiler.command;
  ask.push_back("--version");
  auto child = RunChild(ask, "", std::chrono::seconds(20));
  if (!child.ok() || child->exit_code != 0) {
    return FailedPrecondition("no C++ compiler: ", compiler.path, given.empty() ? "" : " (CXX)",
                              child.ok() ? " " : " cannot be started",
                              child.ok() ? child->HowItEnded() : "",
                              "; install g++ or clang++, or set CXX to its path");
  }
  compiler.version = std::move(child->out);
  return compiler;
}

// The processor that the options ask for where it is that of this machine ("-march=native"), as the
// compiler tells it by its macros: other machines may have the same cache folder.
StatusOr<std::string> ProcessorOf(const Compiler& compiler,
                                  const std::vector<std::string>& options) {
  const auto is_here = [](const std::string& option) {  // and -xHost, -tp=host
    return option.ends_with("native") || option.ends_with("ost");
  };
  if (std::ranges::none_of(options, is_here)) return std::string();
  std::vector<std::string> command = compiler.command;
  command.insert(command.end(), {"-E", "-dM", "-x", "c++"});
  command.insert(command.end(), options.begin(), options.end());
  command.push_back("/dev/null");
  XLA_GPU_ASSIGN_OR_RETURN(ChildResult child, RunChild(command, "", std::chrono::seconds(20)));
  return std::move(child.out);
}

// What makes a shared library of a text. Its names are its own: the process has functions of such
// names (select, index), and another version of the same text has the same variables, which the
// loader would take for both.
std::vector<std::string> Flags(const Compiler& compiler) {
  std::vector<std::string> flags = {"-std=c++17", "-O2", "-shared", "-fPIC", "-Wl,-Bsymbolic"};
  const bool is_gcc = compiler.version.find("Free Software Foundation") != std::string::npos;
  if (is_gcc) flags.push_back("-fno-gnu-unique");
  return flags;
}

// Goes with its content when it leaves its scope.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    path_ = (fs::temp_directory_path(error) / "xla_gpu.XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~ScratchFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string ReplaceAll(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

cuda::Sha256::Digest Digest(const std::vector<std::string>& parts) {
  cuda::Sha256 hash;
  for (const std::string& part : parts) {
    hash.Update(std::to_string(part.size()) + ":");
    hash.Update(part);
  }
  return hash.Finish();
}

StatusOr<std::string> Compile(const std::string& kernel, const Compiler& compiler,
                              const Implementation& implementation,
                              const std::vector<std::string>& options) {
  const ScratchFolder folder;
  if (folder.path().empty()) return Internal("no folder for a compilation can be made");
  const std::string name =
      implementation.file.empty() ? "kernel.cc" : fs::path(implementation.file).filename().string();
  const std::string source = StrCat(folder.path(), "/", name);
  const std::string library = StrCat(folder.path(), "/library.so");
  XLA_GPU_RETURN_IF_ERROR(WriteFile(
      source, StrCat(implementation.text,
                     "\nextern \"C\" __attribute__((visibility(\"default\"))) const auto ", kEntry,
                     " = &", implementation.entry, ";\n", ParameterCheck(implementation))));
  std::vector<std::string> command = compiler.command;
  for (std::string& flag : Flags(compiler)) command.push_back(std::move(flag));
  command.insert(command.end(), {"-x", "c++", source, "-o", library});
  command.insert(command.end(), options.begin(), options.end());
  XLA_GPU_ASSIGN_OR_RETURN(const std::chrono::milliseconds timeout, cuda::CompileTimeout());
  XLA_GPU_ASSIGN_OR_RETURN(const ChildResult child, RunChild(command, "", timeout));
  if (child.timed_out) {
    return Internal("the C++ compiler did not end within ",
                    static_cast<double>(timeout.count()) / 1e3,
                    " s; XLA_GPU_COMPILE_TIMEOUT sets the limit in seconds");
  }
  if (child.exit_code != 0) {
    return InvalidArgument("kernel ", kernel, " does not compile:\n",
                           child.err.empty() ? StrCat(compiler.path, " ", child.HowItEnded())
                                             : ReplaceAll(child.err, folder.path() + "/", ""));
  }
  auto made = ReadFile(library, kMaxLibrary);
  if (made.ok()) return made;
  return InvalidArgument("kernel ", kernel, ": the C++ compiler ", compiler.path,
                         " made no library; its options are ", StrJoin(options, " "));
}

// A compiled text, loaded for good.
struct Library {
  void* handle = nullptr;
  const void* base = nullptr;
  std::string symbols;             // each between two zeros
  std::string entry;               // for which it was compiled,
  const void* function = nullptr;  // and its address
};
using SharedLibrary = std::shared_ptr<const Library>;

StatusOr<SharedLibrary> Load(const std::string& kernel, const std::string& entry,
                             const std::string& bytes) {
  // From memory: a file could be another one by the time that it is loaded. It stays open with the
  // library, since the loader knows libraries by their names: another file of this number would be
  // taken for this one.
  UniqueFd file(memfd_create(StrCat("xla_gpu ", kernel).c_str(), MFD_CLOEXEC));
  if (!file.open() || !WriteAll(file.get(), bytes)) return Internal("no memory for its code");
  void* handle = dlopen(StrCat("/proc/self/fd/", file.get()).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return FailedPrecondition("its code cannot be loaded: ", why == nullptr ? "?" : why,
                              "; options must leave the compiler a shared library to make");
  }
  file.Release();
  const auto* address = static_cast<const void* const*>(dlsym(handle, kEntry));
  Dl_info info{};
  if (address == nullptr || dladdr(address, &info) == 0) {
    return Internal("its code has no ", kEntry);
  }
  return std::make_shared<const Library>(
      Library{handle, info.dli_fbase, ElfDynamicNames(bytes), entry, *address});
}

// The name of a symbol's function or variable in C++, without parameters.
std::string NameOf(const char* symbol) {
  if (std::string_view(symbol).substr(0, 2) != "_Z") return symbol;
  char* const text = abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr);
  std::string name = text == nullptr ? symbol : text;
  std::free(text);
  return name.substr(0, name.find('('));
}

// An entry's address in a library that was compiled for another of the same text; null where its
// name is not that of one function there: an instance of a template, a static function, overloads.
const void* Find(const Library& library, const std::string& entry) {
  if (entry == library.entry) return library.function;
  const void* found = nullptr;
  for (size_t at = 0; at < library.symbols.size();) {
    const char* const symbol = library.symbols.c_str() + at;
    at += std::strlen(symbol) + 1;
    if (*symbol == '\0' || NameOf(symbol) != entry) continue;
    const void* const address = dlsym(library.handle, symbol);
    Dl_info info{};
    if (address == nullptr || dladdr(address, &info) == 0) continue;
    if (info.dli_fbase != library.base) continue;  // one that it uses
    if (found != nullptr) return nullptr;
    found = address;
  }
  return found;
}

constinit PerProcess<cuda::SingleFlight<SharedLibrary>> texts;    // the first library of each
constinit PerProcess<cuda::SingleFlight<SharedLibrary>> entries;  // of those not found there
constinit PerProcess<cuda::SingleFlight<Compiler>> compilers;

}  // namespace

StatusOr<const void*> CompileHostSource(const std::string& kernel,
                                        const Implementation& implementation) {
  XLA_GPU_ASSIGN_OR_RETURN(const Compiler compiler, compilers.Get().Get(Env("CXX"), FindCompiler));
  std::vector<std::string> options = implementation.options;
  if (const fs::path folder = fs::path(implementation.file).parent_path(); !folder.empty()) {
    options.insert(options.end(), {"-iquote", folder.string()});  // for files beside the user's
  }
  std::vector<std::string> parts = {compiler.path,
                                    compiler.version,
                                    StrJoin(Flags(compiler), " "),
                                    implementation.file,
                                    implementation.text,
                                    StrJoin(options, "\n"),
                                    ParameterCheck(implementation)};
  std::vector<std::string> searched = options;
  for (const char* variable : {"CPATH", "CPLUS_INCLUDE_PATH"}) {
    for (std::string& folder : Split(Env(variable), ':')) {
      searched.insert(searched.end(), {"-isystem", std::move(folder)});
    }
  }
  searched.insert(searched.end(), {"-isystem", "/usr/local/include", "-isystem", "/usr/include"});
  for (std::string& included : IncludedTexts(implementation.text, implementation.file, searched)) {
    parts.push_back(std::move(included));
  }
  XLA_GPU_ASSIGN_OR_RETURN(std::string processor, ProcessorOf(compiler, options));
  parts.push_back(std::move(processor));
  const std::string text_key = cuda::Sha256::Hex(Digest(parts));
  const cuda::Sha256::Digest key = Digest({text_key, implementation.entry});
  bool is_first = false;
  const auto make = [&]() -> StatusOr<SharedLibrary> {
    const Stopwatch watch;
    const auto log = [&](const char* origin) {
      if (LogsInfo()) {
        LogInfo(StrCat("kernel ", kernel, " for the CPU: ", origin, " in ", watch.Text()));
      }
    };
    std::optional<cuda::DiskCache> cache;
    if (const std::string folder = cuda::DiskCache::DefaultFolder(); !folder.empty()) {
      if (auto opened = cuda::DiskCache::Open(folder); opened.ok()) cache = *std::move(opened);
    }
    if (cache) {
      if (auto entry = cache->Read(key)) {
        if (auto loaded = Load(kernel, implementation.entry, entry->cubin); loaded.ok()) {
          log("from disk");
          return loaded;
        }
      }
    }
    XLA_GPU_ASSIGN_OR_RETURN(const std::string library,
                             Compile(kernel, compiler, implementation, options));
    XLA_GPU_ASSIGN_OR_RETURN(SharedLibrary loaded, Load(kernel, implementation.entry, library));
    if (cache) {
      const Status kept = cache->Write({key, StrCat(kernel, " for the CPU"), "", library});
      if (!kept.ok()) LogWarningOnce(kept.message());
    }
    log("compiled");
    return loaded;
  };
  const StatusOr<SharedLibrary> first = texts.Get().Get(text_key, [&] {
    is_first = true;
    return make();
  });
  if (is_first && !first.ok()) return first.status();
  if (first.ok()) {
    if (const void* found = Find(**first, implementation.entry)) return found;
  }
  XLA_GPU_ASSIGN_OR_RETURN(const SharedLibrary own,
                           entries.Get().Get(cuda::Sha256::Hex(key), make));
  return own->function;
}

}  // namespace xla_gpu::user_kernel
