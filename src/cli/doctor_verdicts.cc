// The verdicts of `xla-gpu doctor`: what fits, what does not, why, and what to do about it.
#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>

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

// The releases of vLLM and its JAX backend that python/xla_gpu/vllm_xla knows (its _versions.py),
// and the jax that each pins.
struct VllmRelease {
  const char* version;
  const char* jaxlib;
};
constexpr VllmRelease kVllm[] = {{"0.31.0", "0.11.0"}, {"0.32.0", "0.11.2"}};
constexpr const char* kNewestVllm = kVllm[std::size(kVllm) - 1].version;

// CUDA plugins carry their CUDA version in their names: jax_plugins/xla_cuda13, jax-cuda12-pjrt.
int CudaMajorOf(const PluginFinding& plugin) {
  for (const std::string& text : {plugin.package, plugin.path}) {
    if (text.find("cuda13") != std::string::npos) return 13;
    if (text.find("cuda12") != std::string::npos) return 12;
  }
  return 0;
}

// Writes the verdicts on what was found.
struct Judge {
  using enum Fit;
  const Findings& f;
  Report& report;
  const cuda::Diagnostics& c = f.cuda;

  void Say(Fit fit, const std::string& subject, const std::string& reason,
           const std::string& remedy = "") const {
    report.verdicts.push_back({subject, fit, reason, remedy});
  }
  // The text of an error of ours: "what is so; what to do".
  void SayError(Fit fit, const std::string& subject, const std::string& text) const {
    const size_t end = text.rfind("; ");
    Say(fit, subject, text.substr(0, end), end == text.npos ? "" : text.substr(end + 2));
  }

  void Library() const {
    if (f.library.empty()) return;
    if (f.library_problem.empty()) {
      Say(kYes, "XLA_GPU_LIBRARY", StrCat("Python loads ", f.library));
    } else {
      Say(kNo, "XLA_GPU_LIBRARY", f.library_problem,
          "set it to a libxla_gpu.so; unset, Python loads the one beside its package");
    }
  }

  void Driver() const {
    if (!c.driver.ok()) {
      SayError(f.gpu_device_files ? kNo : kPartly, "NVIDIA driver", c.driver.message());
      if (f.gpu_device_files) return;
      report.verdicts.back().remedy = "";
      report.verdicts.back().reason += "; the CPU works without it";
      return;
    }
    const std::string subject = StrCat("NVIDIA driver for CUDA ", CudaVersion(c.driver_version));
    if (c.driver_version < kOldestDriver) {
      return Say(kNo, subject,
                 "kernels are loaded by cuLibraryLoadData, which drivers have since CUDA 12.0",
                 "install driver 525 or newer (580 or newer for the CUDA 13 packages)");
    }
    if (!c.devices_status.ok()) {
      Say(kNo, subject, c.devices_status.message(),
          "check with nvidia-smi, and CUDA_VISIBLE_DEVICES");
    } else {
      Say(kYes, subject, StrCat(c.devices.size(), " GPU(s) visible"));
    }
    for (const cuda::DeviceInfo& gpu : c.devices) {
      const std::string name = StrCat("GPU ", gpu.ordinal, " ", gpu.name);
      const std::string compute =
          StrCat("compute capability ", gpu.compute_major, ".", gpu.compute_minor);
      if (gpu.compute_major < 8) {
        Say(kNo, name, StrCat(compute, "; the kernels need 8.0 (Ampere) or newer"),
            "use a newer GPU, or the CPU");
      } else {
        Say(kYes, name, compute);
      }
    }
  }

  // Only where there is a GPU does a missing compiler matter.
  void Compiler() const {
    const bool wanted = !c.devices.empty();
    for (const cuda::NvrtcDiagnosis& nvrtc : c.nvrtcs) {
      const std::string subject = StrCat("NVRTC ", nvrtc.version);
      if (!nvrtc.problem.empty()) {
        Say(wanted && !c.nvrtc.ok() ? kNo : kPartly, subject, nvrtc.problem);
      } else if (CompareVersions(nvrtc.version, "13.0") == 0) {
        Say(kPartly, subject,
            StrCat("from ", nvrtc.origin,
                   "; this version crashes on some kernels (ptxas information C7517); the "
                   "crash is caught and reported as an error"),
            nvrtc.chosen ? "pip install 'nvidia-cuda-nvrtc>=13.5'" : "");
      } else {
        Say(kYes, subject, StrCat("from ", nvrtc.origin));
      }
    }
    if (!wanted) return;
    if (!c.nvrtc.ok()) {
      SayError(kNo, "NVRTC", "no kernel can be compiled: " + c.nvrtc.message());
    }
    if (!c.compiler.ok()) {
      SayError(kNo, "xla-gpu-compile", "no kernel can be compiled: " + c.compiler.message());
    }
    if (!c.cache.status.ok()) {
      SayError(kPartly, "kernel cache",
               "kernels are compiled anew by each process: " + c.cache.status.message());
    }
  }

  void Jaxlib(const PythonPackage& jaxlib) const {
    const std::string subject = StrCat("jaxlib ", jaxlib.version);
    if (CompareVersions(jaxlib.version, kOldestJaxlib) < 0) {
      return Say(kNo, subject,
                 StrCat("its XLA refuses handlers of FFI 0.1, and silently: calls fail with \"No "
                        "FFI handler registered\"; ",
                        kOldestJaxlib, " is the oldest that takes them"),
                 StrCat("pip install -U 'jax>=", kOldestJaxlib, "'"));
    }
    report.usable = true;
    const auto ffi = FfiVersionOfJaxlib(jaxlib.folder);
    const std::string reason =
        StrCat(ffi ? StrCat("FFI ", *ffi) : "FFI of unknown version", ", ours is 0.1: accepted");
    if (CompareVersions(jaxlib.version, kNewestTestedJaxlib) > 0) {
      Say(kPartly, subject,
          StrCat(reason, "; newer than any version tested (", kNewestTestedJaxlib, ")"),
          "check with: xla-gpu probe");
    } else {
      Say(kYes, subject, reason);
    }
    const PythonPackage* plugin = FindIn(f, jaxlib.folder, "jax-cuda13-plugin");
    if (plugin == nullptr) plugin = FindIn(f, jaxlib.folder, "jax-cuda12-plugin");
    if (plugin == nullptr) {
      if (!c.devices.empty()) {
        const char* extra = c.driver_version >= 13000 ? "cuda13" : "cuda12";
        Say(kNo, StrCat("jax on the GPU (", jaxlib.folder, ")"),
            "there is a GPU but no CUDA plugin of JAX, which so runs on the CPU",
            StrCat("pip install 'jax[", extra, "]==", jaxlib.version, "'"));
      }
    } else if (CompareVersions(plugin->version, jaxlib.version) != 0) {
      Say(kNo, StrCat(plugin->name, " ", plugin->version),
          StrCat("JAX loads only a plugin of jaxlib's own version, ", jaxlib.version),
          StrCat("pip install '", plugin->name, "==", jaxlib.version, "'"));
    }
  }

  // One framework over one plugin, by libxla_gpu_pjrt.so.
  void Pair(const PythonPackage& torch_xla, const PluginFinding& plugin) const {
    const std::string name =
        plugin.package.empty() ? plugin.path : StrCat(plugin.package, " ", plugin.version);
    const std::string subject = StrCat("torch-xla ", torch_xla.version, " over ", name);
    const char* remedy = "PJRT_DEVICE=XLA_GPU";
    const int minor = PjrtMinor(plugin.pjrt);
    if (minor < xla::kOldestBridgedMinor) {
      return Say(kNo, subject,
                 StrCat("PJRT ", plugin.pjrt, " is older than 0.", xla::kOldestBridgedMinor,
                        ", which changed the order of the functions"),
                 "use a newer plugin");
    }
    const std::string reason = StrCat("PJRT 0.", kTestedTorchXlaPjrt, " over ", plugin.pjrt, ", ",
                                      BridgedStructs(kTestedTorchXlaPjrt, minor));
    if (plugin.is_gpu && c.devices.empty()) {
      Say(kPartly, subject, reason + "; the plugin needs an NVIDIA GPU, none is visible");
    } else if (!plugin.takes_typed) {
      Say(kPartly, subject, reason + "; tensors work, the ops of xla_gpu cannot be called", remedy);
    } else if (minor > xla::kNewestBridgedMinor) {
      Say(kPartly, subject,
          StrCat(reason, "; newer than any tested (0.", xla::kNewestBridgedMinor, ")"), remedy);
    } else {
      Say(kYes, subject, reason, remedy);
    }
  }

  void TorchXla(const PythonPackage& torch_xla) const {
    const std::string subject = StrCat("torch-xla ", torch_xla.version);
    if (CompareVersions(torch_xla.version, kTestedTorchXla) < 0) {
      return Say(kPartly, subject, "never tried with this library",
                 StrCat("pip install 'torch==", kTestedTorchXla,
                        ".*' 'torch_xla==", kTestedTorchXla, ".*'"));
    }
    const PythonPackage* torch = FindIn(f, torch_xla.folder, "torch");
    if (torch != nullptr && CompareVersions(torch->version, torch_xla.version) != 0) {
      return Say(kNo, subject,
                 StrCat("it loads only with torch of its own version, not ", torch->version),
                 StrCat("pip install 'torch==", torch_xla.version, "'"));
    }
    bool any = false;
    for (const PluginFinding& plugin : f.plugins) {
      if (!plugin.problem.empty() || plugin.pjrt.empty()) continue;
      any = true;
      Pair(torch_xla, plugin);
    }
    if (!any) {
      Say(kPartly, subject,
          "its own XLA has no CUDA since 2.9, and no registry for custom calls; it needs a "
          "stock PJRT plugin, and none is there",
          "pip install xla-cpu-pjrt==0.0.1, and for an NVIDIA GPU 'jax-cuda12-pjrt>=0.7.2,<0.12'");
    }
  }

  // vLLM's JAX backend, by the package that is vLLM or by the one that is its backend.
  void Vllm(const PythonPackage& package) const {
    const bool is_vllm = package.name == "vllm-tpu";
    const char* other_name = is_vllm ? "tpu-inference" : "vllm-tpu";
    const PythonPackage* other = FindIn(f, package.folder, other_name);
    if (!is_vllm && other != nullptr) return;  // said at vllm-tpu
    const std::string subject = StrCat(
        "vLLM on XLA (", package.name, " ", package.version,
        other == nullptr ? std::string() : StrCat(", ", other->name, " ", other->version), ")");
    const std::string remedy =
        StrCat("pip install vllm-tpu==", kNewestVllm, " tpu-inference==", kNewestVllm);
    const auto* known =
        std::find_if(std::begin(kVllm), std::end(kVllm), [&package](const VllmRelease& release) {
          return CompareVersions(package.version, release.version) == 0;
        });
    const PythonPackage* jaxlib = FindIn(f, package.folder, "jaxlib");
    if (other == nullptr) {
      Say(kNo, subject, StrCat("it works with ", other_name, ", which is missing"), remedy);
    } else if (known == std::end(kVllm) || CompareVersions(other->version, known->version) != 0) {
      Say(kNo, subject,
          StrCat("xla_gpu.vllm_xla replaces functions of releases ", kVllm[0].version, " to ",
                 kNewestVllm, ", both packages of one, and refuses others"),
          remedy);
    } else if (jaxlib == nullptr || CompareVersions(jaxlib->version, known->jaxlib) != 0) {
      Say(kPartly, subject,
          StrCat("this release is made for jax ", known->jaxlib, ", there is ",
                 jaxlib == nullptr ? std::string("none") : jaxlib->version),
          StrCat("pip install jax==", known->jaxlib));
    } else {
      Say(kYes, subject, "a pair that xla_gpu.vllm_xla knows", "vllm serve MODEL");
    }
  }

  void Packages() const {
    for (const PythonPackage& package : f.packages) {
      if (package.name == "jaxlib") Jaxlib(package);
      if (package.name == "torch-xla") TorchXla(package);
      if (package.name == "vllm-tpu" || package.name == "tpu-inference") Vllm(package);
      if (package.name == "torch") {
        Say(kYes, StrCat("torch ", package.version), "tensors reach the ops through the C ABI");
      }
      if (package.name == "xla-gpu" && package.version != f.library_version) {
        Say(kPartly, StrCat("xla-gpu ", package.version),
            StrCat("the Python package in ", package.folder,
                   " is of another version than this program, ", f.library_version),
            "run the program of the environment you use, or reinstall the package");
      }
    }
  }

  void Plugin(const PluginFinding& plugin) const {
    const std::string subject = plugin.package.empty()
                                    ? StrCat("PJRT plugin ", plugin.path)
                                    : StrCat(plugin.package, " ", plugin.version);
    if (!plugin.problem.empty()) return SayError(kNo, subject, plugin.problem);
    const std::string versions =
        StrCat("PJRT ", plugin.pjrt, ", FFI ", plugin.ffi.empty() ? "unknown" : plugin.ffi);
    if (!plugin.takes_typed && !plugin.takes_legacy) {
      return Say(kNo, subject,
                 StrCat(versions,
                        "; it has neither the extension FFI nor Gpu_Custom_Call, so no "
                        "handler can be registered"),
                 "use a plugin that has one: xla-cpu-pjrt, jax-cuda12-pjrt, jax-cuda13-pjrt");
    }
    const int needs = CudaMajorOf(plugin);
    if (plugin.is_gpu && c.devices.empty()) {
      return Say(kPartly, subject, StrCat(versions, "; it needs an NVIDIA GPU, none is visible"));
    }
    if (plugin.is_gpu && c.driver_version < needs * 1000) {
      return Say(kNo, subject,
                 StrCat(versions, "; it is built for CUDA ", needs, " but the driver is for CUDA ",
                        CudaVersion(c.driver_version)),
                 needs == 13 ? "install driver 580 or newer, or jax-cuda12-pjrt"
                             : "install driver 525 or newer");
    }
    Say(kYes, subject,
        StrCat(versions, "; takes custom calls of API version ",
               plugin.takes_legacy ? "1, 2, 3, 4" : "4"));
  }
};

}  // namespace

Report Diagnose(Findings findings) {
  Report report{.findings = std::move(findings)};
  const Judge judge{report.findings, report};
  judge.Library();
  judge.Driver();
  judge.Compiler();
  judge.Packages();
  const auto of_plugins = static_cast<std::ptrdiff_t>(report.verdicts.size());
  for (const PluginFinding& plugin : report.findings.plugins) judge.Plugin(plugin);
  const auto fit = std::ranges::count(report.verdicts.begin() + of_plugins, report.verdicts.end(),
                                      Fit::kYes, &Verdict::fit);
  if (report.findings.plugins_named) {
    report.usable = fit == std::ssize(report.findings.plugins);
  } else if (fit > 0) {
    report.usable = true;
  } else if (!report.usable) {
    judge.Say(Fit::kNo, "XLA runtime",
              "none that takes custom calls was found in the folders searched",
              "pip install 'jax>=0.4.38' or xla-cpu-pjrt into this environment");
  }
  return report;
}

}  // namespace xla_gpu::cli
