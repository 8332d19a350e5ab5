// The verdicts of `xla-gpu doctor`: what fits, what does not, why, and what to do about it.
#include <cstdlib>

#include "src/cli/doctor_report.h"
#include "src/core/strings.h"
#include "src/xla/compat/struct_history.h"

namespace xla_gpu::cli {
namespace {

// The runtimes that the tests run against (make compat); a newer one may well work.
constexpr char kOldestJaxlib[] = "0.4.38";
constexpr char kNewestTestedJaxlib[] = "0.12.0.1";

constexpr int kOldestDriver = 12000;  // cuLibraryLoadData came with CUDA 12.0

const PythonPackage* FindIn(const Findings& findings, std::string_view folder,
                            std::string_view name) {
  for (const PythonPackage& package : findings.packages) {
    if (package.name == name && package.folder == folder) return &package;
  }
  return nullptr;
}

void JudgeLibrary(const Findings& f, std::vector<Verdict>& out) {
  if (f.library.empty()) return;
  if (f.library_problem.empty()) {
    out.push_back({"XLA_GPU_LIBRARY", Fit::kYes, StrCat("Python loads ", f.library), ""});
  } else {
    out.push_back({"XLA_GPU_LIBRARY", Fit::kNo, f.library_problem,
                   "set it to a libxla_gpu.so; unset, Python loads the one beside its package"});
  }
}

void JudgeDriver(const Findings& f, std::vector<Verdict>& out) {
  const cuda::Diagnostics& c = f.cuda;
  if (!c.driver.ok()) {
    const bool gpu_there = f.gpu_device_files;
    out.push_back({"NVIDIA driver", gpu_there ? Fit::kNo : Fit::kPartly,
                   StrCat(c.driver.message(), gpu_there ? "" : "; the CPU works without it"),
                   gpu_there
                       ? "install the NVIDIA driver's user-space libraries (libcuda.so.1); in "
                         "a container, start it with the GPUs passed through"
                       : ""});
    return;
  }
  const std::string subject = StrCat("NVIDIA driver for CUDA ", CudaVersion(c.driver_version));
  if (c.driver_version < kOldestDriver) {
    out.push_back({subject, Fit::kNo,
                   "kernels are loaded by cuLibraryLoadData, which drivers have since CUDA 12.0",
                   "install driver 525 or newer (580 or newer for the CUDA 13 packages)"});
    return;
  }
  if (!c.devices_status.ok()) {
    out.push_back({subject, Fit::kNo, c.devices_status.message(),
                   "check with nvidia-smi, and CUDA_VISIBLE_DEVICES"});
  } else {
    out.push_back({subject, Fit::kYes, StrCat(c.devices.size(), " GPU(s) visible"), ""});
  }
  for (const cuda::DeviceInfo& gpu : c.devices) {
    const std::string name = StrCat("GPU ", gpu.ordinal, " ", gpu.name);
    const std::string compute =
        StrCat("compute capability ", gpu.compute_major, ".", gpu.compute_minor);
    if (gpu.compute_major < 8) {
      out.push_back({name, Fit::kNo, StrCat(compute, "; the kernels need 8.0 (Ampere) or newer"),
                     "use a newer GPU, or the CPU"});
    } else {
      out.push_back({name, Fit::kYes, compute, ""});
    }
  }
}

// Only where there is a GPU does a missing compiler matter.
void JudgeCompiler(const Findings& f, std::vector<Verdict>& out) {
  const cuda::Diagnostics& c = f.cuda;
  const bool wanted = !c.devices.empty();
  for (const cuda::NvrtcDiagnosis& nvrtc : c.nvrtcs) {
    const std::string subject = StrCat("NVRTC ", nvrtc.version);
    if (!nvrtc.problem.empty()) {
      out.push_back(
          {subject, wanted && !c.nvrtc.ok() ? Fit::kNo : Fit::kPartly, nvrtc.problem, ""});
    } else if (CompareVersions(nvrtc.version, "13.0") == 0) {
      out.push_back({subject, Fit::kPartly,
                     StrCat("from ", nvrtc.origin,
                            "; this version crashes on some kernels (ptxas information C7517); the "
                            "crash is caught and reported as an error"),
                     nvrtc.chosen ? "pip install 'nvidia-cuda-nvrtc>=13.5'" : ""});
    } else {
      out.push_back({subject, Fit::kYes, StrCat("from ", nvrtc.origin), ""});
    }
  }
  if (!wanted) return;
  if (!c.nvrtc.ok()) {
    const bool cuda13 = c.driver_version >= 13000;
    out.push_back(
        {"NVRTC", Fit::kNo, StrCat("no kernel can be compiled: ", c.nvrtc.message()),
         cuda13 ? "pip install nvidia-cuda-nvrtc" : "pip install nvidia-cuda-nvrtc-cu12"});
  }
  if (!c.compiler.ok()) {
    out.push_back({"xla-gpu-compile", Fit::kNo,
                   StrCat("no kernel can be compiled: ", c.compiler.message()),
                   "install the wheel again, or set XLA_GPU_COMPILER to the program"});
  }
  if (!c.cache.status.ok()) {
    out.push_back({"kernel cache", Fit::kPartly,
                   StrCat("kernels are compiled anew by each process: ", c.cache.status.message()),
                   "set XLA_GPU_CACHE_DIR to a folder that you own"});
  }
}

void JudgeJaxlib(const Findings& f, const PythonPackage& jaxlib, std::vector<Verdict>& out,
                 bool& usable) {
  const std::string subject = StrCat("jaxlib ", jaxlib.version);
  if (CompareVersions(jaxlib.version, kOldestJaxlib) < 0) {
    out.push_back({subject, Fit::kNo,
                   StrCat("its XLA refuses handlers of FFI 0.1, and silently: calls fail with \"No "
                          "FFI handler registered\"; ",
                          kOldestJaxlib, " is the oldest that takes them"),
                   StrCat("pip install -U 'jax>=", kOldestJaxlib, "'")});
    return;
  }
  usable = true;
  const auto ffi = FfiVersionOfJaxlib(jaxlib.folder);
  const std::string reason =
      StrCat(ffi ? StrCat("FFI ", *ffi) : "FFI of unknown version", ", ours is 0.1: accepted");
  if (CompareVersions(jaxlib.version, kNewestTestedJaxlib) > 0) {
    out.push_back({subject, Fit::kPartly,
                   StrCat(reason, "; newer than any version tested (", kNewestTestedJaxlib, ")"),
                   "check with: xla-gpu probe"});
  } else {
    out.push_back({subject, Fit::kYes, reason, ""});
  }
  const PythonPackage* plugin = FindIn(f, jaxlib.folder, "jax-cuda13-plugin");
  if (plugin == nullptr) plugin = FindIn(f, jaxlib.folder, "jax-cuda12-plugin");
  if (plugin == nullptr) {
    if (!f.cuda.devices.empty()) {
      const char* extra = f.cuda.driver_version >= 13000 ? "cuda13" : "cuda12";
      out.push_back({StrCat("jax on the GPU (", jaxlib.folder, ")"), Fit::kNo,
                     "there is a GPU but no CUDA plugin of JAX, which so runs on the CPU",
                     StrCat("pip install 'jax[", extra, "]==", jaxlib.version, "'")});
    }
  } else if (CompareVersions(plugin->version, jaxlib.version) != 0) {
    out.push_back({StrCat(plugin->name, " ", plugin->version), Fit::kNo,
                   StrCat("JAX loads only a plugin of jaxlib's own version, ", jaxlib.version),
                   StrCat("pip install '", plugin->name, "==", jaxlib.version, "'")});
  }
}

// The PJRT release inside a torch_xla, as it logs it ("The framework PJRT API version is 0.75").
constexpr char kTestedTorchXla[] = "2.9";
constexpr int kTestedTorchXlaPjrt = 75;

// "0.115" -> 115; -1 for what is no PJRT 0.x.
int PjrtMinor(const std::string& version) {
  return version.starts_with("0.") ? std::atoi(version.c_str() + 2) : -1;
}

// The structs that the compatibility plugin converts between these releases of PJRT.
std::string BridgedStructs(int framework, int plugin) {
  std::vector<std::string> names;
  for (const xla::StructHistory* history : xla::StructHistories()) {
    const size_t from = history->SizeAt(framework);
    const size_t to = history->SizeAt(plugin);
    if (from != to) names.push_back(StrCat(history->name, " (", from, " to ", to, " bytes)"));
  }
  return names.empty() ? "no struct differs" : StrCat("bridged: ", StrJoin(names, ", "));
}

// One framework over one plugin, by libxla_gpu_pjrt.so.
Verdict JudgePair(const Findings& f, const PythonPackage& torch_xla, const PluginFinding& plugin) {
  const std::string name =
      plugin.package.empty() ? plugin.path : StrCat(plugin.package, " ", plugin.version);
  Verdict verdict{StrCat("torch-xla ", torch_xla.version, " over ", name), Fit::kYes, "",
                  "PJRT_DEVICE=XLA_GPU"};
  const int minor = PjrtMinor(plugin.pjrt);
  verdict.reason = StrCat("PJRT 0.", kTestedTorchXlaPjrt, " over ", plugin.pjrt, ", ",
                          BridgedStructs(kTestedTorchXlaPjrt, minor));
  if (minor < xla::kOldestBridgedMinor) {
    verdict.fit = Fit::kNo;
    verdict.reason = StrCat("PJRT ", plugin.pjrt, " is older than 0.", xla::kOldestBridgedMinor,
                            ", which changed the order of the functions");
    verdict.remedy = "use a newer plugin";
  } else if (plugin.is_gpu && f.cuda.devices.empty()) {
    verdict.fit = Fit::kPartly;
    verdict.reason += "; the plugin needs an NVIDIA GPU, none is visible";
    verdict.remedy = "";
  } else if (!plugin.takes_typed) {
    verdict.fit = Fit::kPartly;
    verdict.reason += "; tensors work, the ops of xla_gpu cannot be called";
  } else if (minor > xla::kNewestBridgedMinor) {
    verdict.fit = Fit::kPartly;
    verdict.reason += StrCat("; newer than any tested (0.", xla::kNewestBridgedMinor, ")");
  }
  return verdict;
}

void JudgeTorchXla(const Findings& f, const PythonPackage& torch_xla, std::vector<Verdict>& out) {
  const std::string subject = StrCat("torch-xla ", torch_xla.version);
  if (CompareVersions(torch_xla.version, kTestedTorchXla) < 0) {
    out.push_back({subject, Fit::kPartly, "never tried with this library",
                   StrCat("pip install 'torch==", kTestedTorchXla,
                          ".*' 'torch_xla==", kTestedTorchXla, ".*'")});
    return;
  }
  const PythonPackage* torch = FindIn(f, torch_xla.folder, "torch");
  if (torch != nullptr && CompareVersions(torch->version, torch_xla.version) != 0) {
    out.push_back({subject, Fit::kNo,
                   StrCat("it loads only with torch of its own version, not ", torch->version),
                   StrCat("pip install 'torch==", torch_xla.version, "'")});
    return;
  }
  bool any = false;
  for (const PluginFinding& plugin : f.plugins) {
    if (!plugin.problem.empty() || plugin.pjrt.empty()) continue;
    any = true;
    out.push_back(JudgePair(f, torch_xla, plugin));
  }
  if (!any) {
    out.push_back(
        {subject, Fit::kPartly,
         "its own XLA has no CUDA since 2.9, and no registry for custom calls; it needs a "
         "stock PJRT plugin, and none is there",
         "pip install xla-cpu-pjrt==0.0.1, and for an NVIDIA GPU 'jax-cuda12-pjrt>=0.7.2,<0.12'"});
  }
}

// The pair that python/xla_gpu/vllm_xla knows (its _versions.py), and the jax that it pins.
constexpr char kVllm[] = "0.32.0";
constexpr char kVllmJaxlib[] = "0.11.2";

// vLLM's JAX backend, by the package that is vLLM or by the one that is its backend.
void JudgeVllm(const Findings& f, const PythonPackage& package, std::vector<Verdict>& out) {
  const bool is_vllm = package.name == "vllm-tpu";
  const char* other_name = is_vllm ? "tpu-inference" : "vllm-tpu";
  const PythonPackage* other = FindIn(f, package.folder, other_name);
  if (!is_vllm && other != nullptr) return;  // said at vllm-tpu
  const std::string subject = StrCat(
      "vLLM on XLA (", package.name, " ", package.version,
      other == nullptr ? std::string() : StrCat(", ", other->name, " ", other->version), ")");
  const std::string remedy = StrCat("pip install vllm-tpu==", kVllm, " tpu-inference==", kVllm);
  const PythonPackage* jaxlib = FindIn(f, package.folder, "jaxlib");
  if (other == nullptr) {
    out.push_back(
        {subject, Fit::kNo, StrCat("it works with ", other_name, ", which is missing"), remedy});
  } else if (CompareVersions(package.version, kVllm) != 0 ||
             CompareVersions(other->version, kVllm) != 0) {
    out.push_back(
        {subject, Fit::kNo,
         StrCat("xla_gpu.vllm_xla replaces functions of release ", kVllm, " and refuses others"),
         remedy});
  } else if (jaxlib == nullptr || CompareVersions(jaxlib->version, kVllmJaxlib) != 0) {
    out.push_back({subject, Fit::kPartly,
                   StrCat("this release is made for jax ", kVllmJaxlib, ", there is ",
                          jaxlib == nullptr ? std::string("none") : jaxlib->version),
                   StrCat("pip install jax==", kVllmJaxlib)});
  } else {
    out.push_back({subject, Fit::kYes, "a pair that xla_gpu.vllm_xla knows", "vllm serve MODEL"});
  }
}

void JudgePackages(const Findings& f, std::vector<Verdict>& out, bool& usable) {
  for (const PythonPackage& package : f.packages) {
    if (package.name == "jaxlib") JudgeJaxlib(f, package, out, usable);
    if (package.name == "torch-xla") JudgeTorchXla(f, package, out);
    if (package.name == "vllm-tpu" || package.name == "tpu-inference") JudgeVllm(f, package, out);
    if (package.name == "torch") {
      out.push_back({StrCat("torch ", package.version), Fit::kYes,
                     "tensors reach the ops through the C ABI", ""});
    }
    if (package.name == "xla-gpu" && package.version != f.library_version) {
      out.push_back({StrCat("xla-gpu ", package.version), Fit::kPartly,
                     StrCat("the Python package in ", package.folder,
                            " is of another version than this program, ", f.library_version),
                     "run the program of the environment you use, or reinstall the package"});
    }
  }
}

// CUDA plugins carry their CUDA version in their names: jax_plugins/xla_cuda13, jax-cuda12-pjrt.
int CudaMajorOf(const PluginFinding& plugin) {
  for (const std::string& text : {plugin.package, plugin.path}) {
    if (text.find("cuda13") != std::string::npos) return 13;
    if (text.find("cuda12") != std::string::npos) return 12;
  }
  return 0;
}

// True if it can be used here.
bool JudgePlugin(const Findings& f, const PluginFinding& plugin, std::vector<Verdict>& out) {
  const std::string subject = plugin.package.empty() ? StrCat("PJRT plugin ", plugin.path)
                                                     : StrCat(plugin.package, " ", plugin.version);
  if (!plugin.problem.empty()) {
    out.push_back({subject, Fit::kNo, plugin.problem, ""});
    return false;
  }
  const std::string versions =
      StrCat("PJRT ", plugin.pjrt, ", FFI ", plugin.ffi.empty() ? "unknown" : plugin.ffi);
  if (!plugin.takes_typed && !plugin.takes_legacy) {
    out.push_back({subject, Fit::kNo,
                   StrCat(versions,
                          "; it has neither the extension FFI nor Gpu_Custom_Call, so no "
                          "handler can be registered"),
                   "use a plugin that has one: xla-cpu-pjrt, jax-cuda12-pjrt, jax-cuda13-pjrt"});
    return false;
  }
  const int needs = CudaMajorOf(plugin);
  if (plugin.is_gpu && f.cuda.devices.empty()) {
    out.push_back(
        {subject, Fit::kPartly, StrCat(versions, "; it needs an NVIDIA GPU, none is visible"), ""});
    return false;
  }
  if (plugin.is_gpu && f.cuda.driver_version < needs * 1000) {
    out.push_back({subject, Fit::kNo,
                   StrCat(versions, "; it is built for CUDA ", needs,
                          " but the driver is for CUDA ", CudaVersion(f.cuda.driver_version)),
                   needs == 13 ? "install driver 580 or newer, or jax-cuda12-pjrt"
                               : "install driver 525 or newer"});
    return false;
  }
  out.push_back({subject, Fit::kYes,
                 StrCat(versions, "; takes custom calls of API version ",
                        plugin.takes_legacy ? "1, 2, 3, 4" : "4"),
                 ""});
  return true;
}

}  // namespace

Report Diagnose(Findings findings) {
  Report report;
  JudgeLibrary(findings, report.verdicts);
  JudgeDriver(findings, report.verdicts);
  JudgeCompiler(findings, report.verdicts);
  JudgePackages(findings, report.verdicts, report.usable);
  size_t fit = 0;
  for (const PluginFinding& plugin : findings.plugins) {
    fit += JudgePlugin(findings, plugin, report.verdicts) ? 1 : 0;
  }
  if (findings.plugins_named) {
    report.usable = fit == findings.plugins.size();
  } else if (fit > 0) {
    report.usable = true;
  } else if (!report.usable) {
    report.verdicts.push_back({"XLA runtime", Fit::kNo,
                               "none that takes custom calls was found in the folders searched",
                               "pip install 'jax>=0.4.38' or xla-cpu-pjrt into this environment"});
  }
  report.findings = std::move(findings);
  return report;
}

}  // namespace xla_gpu::cli
