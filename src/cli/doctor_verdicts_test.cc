// Each branch of each verdict of `xla-gpu doctor`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/cli/doctor_report.h"
#include "src/cli/doctor_testing.h"
#include "src/cuda/test_util.h"

namespace xla_gpu::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The verdict about `subject`, as one line.
std::string VerdictOn(const Report& report, const std::string& subject) {
  for (const Verdict& verdict : report.verdicts) {
    if (verdict.subject.find(subject) == std::string::npos) continue;
    const char* fit = verdict.fit == Fit::kYes      ? "yes"
                      : verdict.fit == Fit::kPartly ? "partly"
                                                    : "no";
    return std::string(fit) + ": " + verdict.reason + " => " + verdict.remedy;
  }
  return "none";
}

TEST(DoctorVerdicts, SaysWhatToInstallWhereNothingIs) {
  const Report report = Diagnose(Bare());
  EXPECT_FALSE(report.usable);
  EXPECT_THAT(VerdictOn(report, "XLA runtime"), HasSubstr("pip install 'jax>=0.4.38'"));
  EXPECT_THAT(VerdictOn(report, "NVIDIA driver"),
              HasSubstr("partly: libcuda.so.1 cannot be opened; the CPU works without it => "));
}

TEST(DoctorVerdicts, TheLibraryOfPython) {
  Findings f = Bare();
  EXPECT_EQ(VerdictOn(Diagnose(f), "XLA_GPU_LIBRARY"), "none");
  f.library = "/x/libxla_gpu.so";
  EXPECT_EQ(VerdictOn(Diagnose(f), "XLA_GPU_LIBRARY"), "yes: Python loads /x/libxla_gpu.so => ");
  f.library_problem = "/x/libxla_gpu.so is no libxla_gpu.so";
  EXPECT_THAT(VerdictOn(Diagnose(f), "XLA_GPU_LIBRARY"),
              AllOf(HasSubstr("no: /x/libxla_gpu.so is no"), HasSubstr("=> set it to")));
}

TEST(DoctorVerdicts, NamedPluginsAreTheQuestion) {
  Findings f = WithGpu(13000);
  f.plugins_named = true;
  f.plugins = {CudaPlugin("jax-cuda13-pjrt"), CudaPlugin("jax-cuda12-pjrt")};
  EXPECT_TRUE(Diagnose(f).usable);
  f.plugins[1].problem = "it is broken";
  EXPECT_FALSE(Diagnose(f).usable);
  EXPECT_EQ(VerdictOn(Diagnose(f), "XLA runtime"), "none");
  f.plugins_named = false;
  EXPECT_TRUE(Diagnose(f).usable);
}

TEST(DoctorVerdicts, TheFfiVersionOfJaxlib) {
  const cuda::TempFolder site;
  Findings f = Bare();
  f.packages = {{"jaxlib", "0.10.2", site.path()}};
  EXPECT_THAT(VerdictOn(Diagnose(f), "jaxlib"), HasSubstr("FFI of unknown version, ours is 0.1"));
  site.Write("jaxlib/include/xla/ffi/api/c_api.h",
             "#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 3\n");
  EXPECT_EQ(VerdictOn(Diagnose(f), "jaxlib"), "yes: FFI 0.3, ours is 0.1: accepted => ");
}

TEST(DoctorVerdicts, JaxlibVersions) {
  EXPECT_THAT(VerdictOn(Diagnose(WithPackage("jaxlib", "0.4.37")), "jaxlib"),
              AllOf(HasSubstr("no: "), HasSubstr("No FFI handler registered"),
                    HasSubstr("pip install -U 'jax>=0.4.38'")));
  EXPECT_FALSE(Diagnose(WithPackage("jaxlib", "0.4.37")).usable);
  for (const char* version : {"0.4.38", "0.10.2", "0.12.0.1"}) {
    EXPECT_THAT(VerdictOn(Diagnose(WithPackage("jaxlib", version)), "jaxlib"), HasSubstr("yes: "));
    EXPECT_TRUE(Diagnose(WithPackage("jaxlib", version)).usable);
  }
  EXPECT_THAT(VerdictOn(Diagnose(WithPackage("jaxlib", "0.13.0")), "jaxlib"),
              AllOf(HasSubstr("partly: "), HasSubstr("xla-gpu probe")));
}

TEST(DoctorVerdicts, JaxOnAMachineWithAGpu) {
  Findings f = WithGpu(13000);
  f.packages = {{"jaxlib", "0.11.2", kSite}};
  EXPECT_THAT(VerdictOn(Diagnose(f), "jax on the GPU"),
              HasSubstr("pip install 'jax[cuda13]==0.11.2'"));
  f.cuda.driver_version = 12040;
  EXPECT_THAT(VerdictOn(Diagnose(f), "jax on the GPU"), HasSubstr("jax[cuda12]"));
  f.packages.push_back({"jax-cuda13-plugin", "0.10.2", kSite});
  EXPECT_THAT(VerdictOn(Diagnose(f), "jax-cuda13-plugin"),
              AllOf(HasSubstr("no: "), HasSubstr("pip install 'jax-cuda13-plugin==0.11.2'")));
  f.packages.back().version = "0.11.2";
  EXPECT_EQ(VerdictOn(Diagnose(f), "jax-cuda13-plugin"), "none");
  EXPECT_EQ(VerdictOn(Diagnose(f), "jax on the GPU"), "none");
  f.packages.back().name = "jax-cuda12-plugin";
  EXPECT_EQ(VerdictOn(Diagnose(f), "jax on the GPU"), "none");
  f.packages.back().folder = "/another";
  EXPECT_THAT(VerdictOn(Diagnose(f), "jax on the GPU"), HasSubstr("no: "));
  EXPECT_EQ(VerdictOn(Diagnose(WithPackage("jaxlib", "0.11.2")), "jax on the GPU"), "none");
}

TEST(DoctorVerdicts, TorchXlaNeedsAPlugin) {
  EXPECT_THAT(VerdictOn(Diagnose(WithPackage("torch-xla", "2.9.0")), "torch-xla"),
              AllOf(HasSubstr("partly: "), HasSubstr("no CUDA since 2.9"),
                    HasSubstr("'jax-cuda12-pjrt>=0.7.2,<0.12'")));
  EXPECT_THAT(VerdictOn(Diagnose(WithPackage("torch-xla", "2.5.1")), "torch-xla"),
              HasSubstr("never tried"));
  Findings f = WithPackage("torch-xla", "2.9.0");
  f.packages.push_back({"torch", "2.11.0", kSite});
  EXPECT_THAT(VerdictOn(Diagnose(f), "torch-xla"),
              AllOf(HasSubstr("no: "), HasSubstr("not 2.11.0"), HasSubstr("torch==2.9.0")));
}

TEST(DoctorVerdicts, VllmAndItsJaxBackend) {
  EXPECT_THAT(VerdictOn(Diagnose(WithPackage("tpu-inference", "0.32.0")), "vLLM on XLA"),
              AllOf(HasSubstr("no: it works with vllm-tpu, which is missing"),
                    HasSubstr("pip install vllm-tpu==0.32.0 tpu-inference==0.32.0")));
  Findings f = WithPackage("vllm-tpu", "0.32.0");
  f.packages.push_back({"tpu-inference", "0.32.0", kSite});
  f.packages.push_back({"jaxlib", "0.11.2", kSite});
  EXPECT_THAT(VerdictOn(Diagnose(f), "vLLM on XLA (vllm-tpu 0.32.0, tpu-inference 0.32.0)"),
              HasSubstr("yes: "));
  EXPECT_EQ(VerdictOn(Diagnose(f), "vLLM on XLA (tpu-inference"), "none");
  f.packages[2].version = "0.12.0";
  EXPECT_THAT(VerdictOn(Diagnose(f), "vLLM on XLA"),
              AllOf(HasSubstr("partly: "), HasSubstr("pip install jax==0.11.2")));
  f.packages.pop_back();
  EXPECT_THAT(VerdictOn(Diagnose(f), "vLLM on XLA"), HasSubstr("partly: this release is made for "
                                                               "jax 0.11.2, there is none"));
  EXPECT_THAT(VerdictOn(Diagnose(WithPackage("vllm-tpu", "0.32.0")), "vLLM on XLA"),
              HasSubstr("no: it works with tpu-inference, which is missing"));
  f.packages[1].version = "0.33.0";
  EXPECT_THAT(VerdictOn(Diagnose(f), "vLLM on XLA"),
              AllOf(HasSubstr("no: "), HasSubstr("of releases 0.31.0 to 0.32.0")));
  f.packages[1].version = "0.31.0";
  EXPECT_THAT(VerdictOn(Diagnose(f), "vLLM on XLA"), HasSubstr("both packages of one"));
  f.packages[0].version = "0.31.0";
  f.packages.push_back({"jaxlib", "0.11.0", kSite});
  EXPECT_THAT(VerdictOn(Diagnose(f), "vLLM on XLA"), HasSubstr("yes: "));
}

TEST(DoctorVerdicts, PairsOfFrameworkAndPlugin) {
  Findings f = WithGpu(13000);
  f.packages = {{"torch-xla", "2.9.0", kSite}, {"torch", "2.9.0+cu128", kSite}};
  f.plugins = {CudaPlugin("jax-cuda13-pjrt")};
  const std::string pair = "torch-xla 2.9.0 over jax-cuda13-pjrt 0.11.2";
  EXPECT_THAT(
      VerdictOn(Diagnose(f), pair),
      AllOf(HasSubstr("yes: PJRT 0.75 over 0.115"),
            HasSubstr("PJRT_ExecuteOptions (80 to 120 bytes)"), HasSubstr("PJRT_DEVICE=XLA_GPU")));
  f.plugins[0].pjrt = "0.75";
  EXPECT_THAT(VerdictOn(Diagnose(f), pair), HasSubstr("no struct differs"));
  f.plugins[0].pjrt = "0.300";
  EXPECT_THAT(VerdictOn(Diagnose(f), pair),
              AllOf(HasSubstr("partly: "), HasSubstr("newer than any tested (0.115)")));
  f.plugins[0].takes_typed = false;
  EXPECT_THAT(VerdictOn(Diagnose(f), pair), HasSubstr("the ops of xla_gpu cannot be called"));
  f.plugins[0].pjrt = "0.50";
  EXPECT_THAT(VerdictOn(Diagnose(f), pair), HasSubstr("no: PJRT 0.50 is older than 0.57"));
  f.plugins = {CudaPlugin("jax-cuda13-pjrt")};
  f.cuda.devices.clear();
  EXPECT_THAT(VerdictOn(Diagnose(f), pair), HasSubstr("needs an NVIDIA GPU"));
  f.plugins[0].problem = "it is broken";
  EXPECT_EQ(VerdictOn(Diagnose(f), pair), "none");
  f.plugins = {CudaPlugin("")};
  EXPECT_THAT(VerdictOn(Diagnose(f), "torch-xla 2.9.0 over /s/jax_plugins/"),
              HasSubstr("partly: "));
  f.plugins[0].pjrt = "1.0";
  EXPECT_THAT(VerdictOn(Diagnose(f), "torch-xla 2.9.0 over"), HasSubstr("no: PJRT 1.0 is older"));
  f.plugins[0].pjrt = "";
  EXPECT_THAT(VerdictOn(Diagnose(f), "torch-xla 2.9.0"), HasSubstr("none is there"));
  EXPECT_EQ(VerdictOn(Diagnose(f), "torch 2.9.0+cu128"),
            "yes: tensors reach the ops through the C ABI => ");
}

TEST(DoctorVerdicts, AnotherVersionOfThisPackage) {
  EXPECT_THAT(VerdictOn(Diagnose(WithPackage("xla-gpu", "0.0.9")), "xla-gpu"),
              HasSubstr("another version than this program, 0.1.0"));
  EXPECT_EQ(VerdictOn(Diagnose(WithPackage("xla-gpu", "0.1.0")), "xla-gpu"), "none");
}

TEST(DoctorVerdicts, Drivers) {
  EXPECT_THAT(VerdictOn(Diagnose(WithGpu(11080)), "NVIDIA driver"),
              AllOf(HasSubstr("no: "), HasSubstr("cuLibraryLoadData"), HasSubstr("525")));
  EXPECT_THAT(VerdictOn(Diagnose(WithGpu(13000)), "NVIDIA driver for CUDA 13.0"),
              HasSubstr("yes: 1 GPU(s)"));
  Findings f = Bare();
  f.gpu_device_files = true;
  EXPECT_EQ(VerdictOn(Diagnose(f), "NVIDIA driver"),
            "no: libcuda.so.1 cannot be opened => install the driver");
  f = WithGpu(13000);
  EXPECT_EQ(VerdictOn(Diagnose(f), "GPU 0 NVIDIA H200"), "yes: compute capability 9.0 => ");
  f.cuda.devices_status = Unavailable("cuInit failed");
  EXPECT_THAT(VerdictOn(Diagnose(f), "NVIDIA driver"),
              AllOf(HasSubstr("no: cuInit failed"), HasSubstr("nvidia-smi")));
  f.cuda.devices_status = OkStatus();
  f.cuda.devices[0].compute_major = 7;
  f.cuda.devices[0].compute_minor = 5;
  EXPECT_THAT(VerdictOn(Diagnose(f), "GPU 0"), HasSubstr("need 8.0"));
}

TEST(DoctorVerdicts, Compiler) {
  Findings f = WithGpu(13000);
  EXPECT_EQ(VerdictOn(Diagnose(f), "NVRTC"), "yes: from pip package => ");
  f.cuda.nvrtcs[0].version = "13.0";
  EXPECT_THAT(VerdictOn(Diagnose(f), "NVRTC 13.0"),
              AllOf(HasSubstr("from pip package; "), HasSubstr("C7517"),
                    HasSubstr("nvidia-cuda-nvrtc>=13.5")));
  f.cuda.nvrtcs[0].chosen = false;
  EXPECT_THAT(VerdictOn(Diagnose(f), "NVRTC 13.0"), ::testing::EndsWith("=> "));
  f.cuda.nvrtcs[0].problem = "too new for the driver";
  EXPECT_EQ(VerdictOn(Diagnose(f), "NVRTC 13.0"), "partly: too new for the driver => ");
  f.cuda.nvrtc = Unavailable("none");
  EXPECT_EQ(VerdictOn(Diagnose(f), "NVRTC 13.0"), "no: too new for the driver => ");
  f.cuda.nvrtcs = {};
  f.cuda.nvrtc = Unavailable("looked in /usr/local/cuda; found a; pip install b");
  EXPECT_EQ(VerdictOn(Diagnose(f), "NVRTC"),
            "no: no kernel can be compiled: looked in /usr/local/cuda; found a => pip install b");
  EXPECT_EQ(VerdictOn(Diagnose(f), "xla-gpu-compile"), "none");
  f.cuda.compiler = NotFound("no helper");
  EXPECT_EQ(VerdictOn(Diagnose(f), "xla-gpu-compile"),
            "no: no kernel can be compiled: no helper => ");
  f.cuda.cache.status = FailedPrecondition("others may write to it; chmod 700 it");
  EXPECT_EQ(VerdictOn(Diagnose(f), "kernel cache"),
            "partly: kernels are compiled anew by each process: others may write to it => "
            "chmod 700 it");
  // Without a GPU nothing of this matters.
  EXPECT_EQ(VerdictOn(Diagnose(Bare()), "NVRTC"), "none");
}

TEST(DoctorVerdicts, Plugins) {
  Findings f = WithGpu(13000);
  f.plugins = {CudaPlugin("jax-cuda13-pjrt")};
  EXPECT_TRUE(Diagnose(f).usable);
  EXPECT_THAT(VerdictOn(Diagnose(f), "jax-cuda13-pjrt 0.11.2"),
              HasSubstr("PJRT 0.115, FFI 0.4; takes custom calls of API version 1, 2, 3, 4"));

  f.cuda.driver_version = 12080;
  EXPECT_FALSE(Diagnose(f).usable);
  EXPECT_THAT(VerdictOn(Diagnose(f), "jax-cuda13-pjrt"),
              AllOf(HasSubstr("built for CUDA 13 but the driver is for CUDA 12.8"),
                    HasSubstr("jax-cuda12-pjrt")));
  f.plugins = {CudaPlugin("jax-cuda12-pjrt")};
  EXPECT_TRUE(Diagnose(f).usable);
  f.cuda.driver_version = 11080;
  EXPECT_THAT(VerdictOn(Diagnose(f), "jax-cuda12-pjrt"),
              AllOf(HasSubstr("built for CUDA 12"), HasSubstr("=> install driver 525 or newer")));
  f.plugins[0].path = "/s/plugin.so";
  f.plugins[0].package = "";  // of no CUDA version that is known
  EXPECT_TRUE(Diagnose(f).usable);

  f = Bare();
  f.plugins = {CudaPlugin("jax-cuda12-pjrt")};
  EXPECT_THAT(VerdictOn(Diagnose(f), "jax-cuda12-pjrt"), HasSubstr("needs an NVIDIA GPU"));

  f.plugins = {{"/s/a.so", "", "", false, "0.60", "", {"Profiler"}, false, false, ""}};
  EXPECT_THAT(VerdictOn(Diagnose(f), "/s/a.so"), HasSubstr("no handler can be registered"));
  f.plugins[0].problem = "it has no CUDA platform inside; install another";
  EXPECT_EQ(VerdictOn(Diagnose(f), "/s/a.so"),
            "no: it has no CUDA platform inside => install another");
  f.plugins = {
      {"/s/a.so", "xla-cpu-pjrt", "0.0.1", false, "0.81", "0.1", {"FFI"}, true, false, ""}};
  EXPECT_TRUE(Diagnose(f).usable);
  EXPECT_THAT(VerdictOn(Diagnose(f), "xla-cpu-pjrt"),
              HasSubstr("takes custom calls of API version 4"));
}

}  // namespace
}  // namespace xla_gpu::cli
