// xla-gpu compile: what NVRTC makes of a CUDA file, by the road that the library's calls take.
#include <cxxabi.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "src/cli/cli.h"
#include "src/core/elf.h"
#include "src/core/file.h"
#include "src/core/strings.h"
#include "src/cuda/device.h"
#include "src/cuda/driver_api.h"
#include "src/cuda/kernel_image.h"
#include "src/cuda/kernel_specs.h"
#include "src/cuda/ptxas_log.h"

namespace xla_gpu::cli {
namespace {

constexpr uint64_t kMaxSource = uint64_t{64} << 20;

std::string Demangled(const std::string& name) {
  int failed = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &failed), std::free);
  return failed == 0 ? text.get() : name;
}

void PrintResources(const cuda::CompileResult& made,
                    const std::vector<cuda::KernelResources>& kernels) {
  for (const cuda::KernelResources& kernel : kernels) {
    std::printf("%s\n", Demangled(kernel.kernel).c_str());
    const auto row = [](const char* name, int64_t value, const char* note) {
      std::printf("  %-18s %7" PRId64 "%s\n", name, value, note);
    };
    row("registers", kernel.registers, "  a thread");
    row("spilled, stores", kernel.spill_store_bytes, "  bytes a thread");
    row("spilled, loads", kernel.spill_load_bytes, "  bytes a thread");
    row("local memory", kernel.stack_bytes, "  bytes a thread");
    row("shared memory", kernel.shared_bytes, "  bytes a block, without dynamic");
    row("constant memory",
        static_cast<int64_t>(ElfSectionSize(made.cubin, ".nv.constant0." + kernel.kernel)),
        "  bytes, with the parameters");
    row("barriers", kernel.barriers, "");
    row("most threads", cuda::MaxThreads(kernel, made.ptx), "  a block");
  }
}

// The compiler's warnings, without what was asked of ptxas.
std::string Warnings(const std::string& log) {
  std::string warnings;
  for (const std::string_view line : Lines(log)) {
    if (line.find("ptxas info") != line.npos || line.find("bytes stack frame") != line.npos)
      continue;
    warnings.append(line).append(1, '\n');
  }
  while (warnings.ends_with("\n\n") || warnings == "\n") warnings.pop_back();
  return warnings;
}

StatusOr<std::string> LocalArch() {
  XLA_GPU_ASSIGN_OR_RETURN(const cuda::DeviceInfo* device, cuda::GetDeviceInfo(0));
  return device->Arch();
}

int Compile(const Invocation& invocation) {
  std::string file, entry, arch, output;
  std::vector<std::string> folders, defines, flags;
  bool ptx = false, cubin = false, resources = false;
  if (const auto code = invocation.Parse({
          {"FILE.cu", "", &file, "CUDA C++"},
          {"--entry", "NAME", &entry,
           "a name or a template's instance; default: all that are no templates"},
          {"--arch", "sm_NN", &arch, "GPU architecture; default: that of the GPU here"},
          {"--resources", "", &resources, "print registers, spills and memory (the default)"},
          {"--ptx", "", &ptx, "print or write the PTX"},
          {"--cubin", "", &cubin, "write the machine code"},
          {"--output", "FILE", &output, "where --ptx or --cubin is written"},
          {"-I", "FOLDER", &folders, "a folder for #include; the toolkit's own are found"},
          {"-D", "NAME[=VALUE]", &defines, "a macro"},
          {"--option", "OPTION", &flags, "another of NVRTC's: --option=--use_fast_math"},
      })) {
    return *code;
  }
  if (ptx + cubin + resources > 1) {
    return invocation.WrongUsage("--ptx, --cubin and --resources exclude each other");
  }
  if (cubin && output.empty()) return invocation.WrongUsage("--cubin needs --output FILE");
  if (!ptx && !cubin && !output.empty()) {
    return invocation.WrongUsage("--output is for --ptx or --cubin");
  }
  if (arch.empty()) {
    StatusOr<std::string> local = LocalArch();
    if (!local.ok()) {
      return invocation.WrongUsage(
          StrCat("no GPU was found, so --arch is needed: ", StrJoin(cuda::KnownArchs(), ", "), " (",
                 local.status().message(), ")"));
    }
    arch = *std::move(local);
  }
  StatusOr<std::string> text = ReadFile(file, kMaxSource);
  if (!text.ok()) return invocation.Fail(text.status());
  cuda::KernelSpec spec{.source = file, .entry = entry, .text = *std::move(text)};
  if (spec.text.empty()) return invocation.Fail(InvalidArgument(file, " is empty"));
  for (const std::string& folder : folders) spec.options.push_back("-I" + folder);
  for (const std::string& define : defines) spec.options.push_back("-D" + define);
  spec.options.insert(spec.options.end(), flags.begin(), flags.end());
  const auto& driver = cuda::GetDriver();
  const auto made = cuda::CompileAnew(spec, arch, driver.ok() ? (*driver)->version : 0);
  if (!made.ok()) return invocation.Fail(made.status());
  std::fputs(Warnings(made->log).c_str(), stderr);
  if (!ptx && !cubin) {
    const auto kernels = cuda::ParsePtxasLog(made->log);
    if (kernels.empty()) {
      return invocation.Fail(NotFound(file, " has no kernel (__global__) that is no template; ",
                                      "--entry names an instance of one: --entry 'scale<float>'"));
    }
    PrintResources(*made, kernels);
  } else if (output.empty()) {
    std::fputs(made->ptx.c_str(), stdout);
  } else if (const Status written = WriteFile(output, ptx ? made->ptx : made->cubin);
             !written.ok()) {
    return invocation.Fail(written);
  }
  return 0;
}

XLA_GPU_CLI_COMMAND("compile", "compile a CUDA file and show what its kernels use",
                    "compile scale.cu --entry \"scale<float>\" --arch sm_90a", Compile);

}  // namespace
}  // namespace xla_gpu::cli
