// Which plugins are found in Python environments made up for the test, and which one a name means.
#include "src/xla/pjrt_discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "src/core/elf_testing.h"
#include "src/core/test_util.h"
#include "src/xla/testing/pjrt_test_plugin.h"

namespace xla_gpu::xla {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kCuda13[] = "jax_plugins/xla_cuda13/xla_cuda_plugin.so";
constexpr char kCuda12[] = "jax_plugins/xla_cuda12/xla_cuda_plugin.so";
constexpr char kCpu[] = "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so";

std::string Plugin() { return SharedObject({"malloc", "GetPjrtApi"}); }

// A virtual environment that is the only one this process sees.
class PjrtDiscoveryTest : public ::testing::Test {
 protected:
  std::string Site(const std::string& below = "") const {
    return folder_.path("venv/lib/python3.12/site-packages" + (below.empty() ? "" : "/" + below));
  }
  std::string Write(const std::string& below, const std::string& content) const {
    folder_.Write("venv/lib/python3.12/site-packages/" + below, content);
    return fs::canonical(Site(below));
  }
  std::vector<std::string> Found() const {
    std::vector<std::string> paths;
    for (const FoundPlugin& plugin : FindPjrtPlugins({Site()})) paths.push_back(plugin.path);
    return paths;
  }

  TempFolder folder_;
  ScopedEnv venv_{"VIRTUAL_ENV", folder_.path("venv")};
  ScopedEnv conda_{"CONDA_PREFIX", nullptr};
  ScopedEnv python_path_{"PYTHONPATH", nullptr};
  ScopedEnv plugin_{"XLA_GPU_PJRT_PLUGIN", nullptr};
  ScopedEnv path_{"PATH", folder_.path("bin")};  // no python3 but the test's
};

TEST_F(PjrtDiscoveryTest, PluginsComeWithTheirPackage) {
  const std::string cuda = Write(kCuda13, Plugin());
  const std::string cpu = Write(kCpu, Plugin());
  Write("jax_cuda13_pjrt-0.11.2.dist-info/RECORD",
        "jax_plugins/xla_cuda13/__init__.py,,\n" + std::string(kCuda13) + ",sha256=x,1\n");
  Write("jax-0.11.2.dist-info/METADATA", "no RECORD here");
  Write("other/RECORD", std::string(kCpu) + ",,\n");
  const std::vector<FoundPlugin> found = FindPjrtPlugins({Site(), Site("nothing")});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].path, cuda);
  EXPECT_EQ(found[0].package, "jax-cuda13-pjrt");
  EXPECT_EQ(found[0].version, "0.11.2");
  EXPECT_TRUE(found[0].is_cuda());
  EXPECT_EQ(found[1].path, cpu);
  EXPECT_EQ(found[1].package, "") << "only a distribution's RECORD counts";
  EXPECT_FALSE(found[1].is_cuda()) << "however the folders above are named";
  for (const FoundPlugin& plugin : found) {
    EXPECT_FALSE(plugin.loaded);
    EXPECT_EQ(plugin.unusable, "");
  }
}

TEST_F(PjrtDiscoveryTest, EntryPointsNameFolders) {
  const std::string one = Write("vendor/one/plugin.so", Plugin());
  const std::string two = Write("two/plugin.so", Plugin());
  Write("three/plugin.so", Plugin());
  Write("four/plugin.so", Plugin());
  Write("vendor-1.0.dist-info/entry_points.txt",
        "[console_scripts]\nfour = four:main\n[jax_plugins]\n# comment\none = vendor.one\n"
        "two=two:initialize\nempty =\nno equals\n\n[jax_plugins_of_others]\nthree = three\n");
  EXPECT_THAT(Found(), ElementsAre(one, two));
}

TEST_F(PjrtDiscoveryTest, WhatIsNoPluginIsLeftOut) {
  Write("xla_plugins/a/text.so", "no ELF file");
  Write("xla_plugins/a/empty.so", "");
  Write("xla_plugins/a/cut.so", Plugin().substr(0, 100));
  Write("xla_plugins/a/other.so", SharedObject({"GetPjrtApi2", "NotGetPjrtApi"}));
  Write("xla_plugins/a/shim.so", SharedObject({"GetPjrtApi", "xla_gpu_pjrt_compat_api"}));
  Write("xla_plugins/a/plugin.so.bak", Plugin());
  Write("xla_plugins/a/folder.so/plugin.so", Plugin());
  fs::create_symlink("nowhere", Site("xla_plugins/a/dangling.so"));
  ASSERT_EQ(mkfifo(Site("xla_plugins/a/pipe.so").c_str(), 0600), 0);
  EXPECT_THAT(Found(), IsEmpty());
  EXPECT_TRUE(IsCompatPlugin(Site("xla_plugins/a/shim.so")));
  EXPECT_FALSE(IsCompatPlugin(Site("xla_plugins/a/other.so")));
}

TEST_F(PjrtDiscoveryTest, AFileIsFoundOnceHoweverItIsReached) {
  const std::string cpu = Write(kCpu, Plugin());
  fs::create_directories(Site("jax_plugins/link"));
  fs::create_symlink(cpu, Site("jax_plugins/link/plugin.so"));
  fs::create_symlink(Site(), folder_.path("other_site"));
  const ScopedEnv plugin("XLA_GPU_PJRT_PLUGIN", folder_.path("other_site/") + kCpu);
  EXPECT_EQ(FindPjrtPlugins({Site(), folder_.path("other_site")}).size(), 1u);
}

TEST_F(PjrtDiscoveryTest, TheEnvironmentsPluginComesFirst) {
  const std::string cpu = Write(kCpu, Plugin());
  const std::string mine = folder_.Write("mine.so", Plugin());
  const ScopedEnv plugin("XLA_GPU_PJRT_PLUGIN", mine);
  EXPECT_THAT(Found(), ElementsAre(fs::canonical(mine).string(), cpu));
  const ScopedEnv missing("XLA_GPU_PJRT_PLUGIN", folder_.path("missing.so"));
  EXPECT_THAT(Found(), ElementsAre(cpu));
}

TEST_F(PjrtDiscoveryTest, ABrokenReleaseIsListedButNeverChosen) {
  const std::string plugin = Write("xla_plugins/xla_cuda13/xla_cuda_plugin.so", Plugin());
  Write("xla_cuda13_pjrt-0.0.1.dist-info/RECORD", "xla_plugins/xla_cuda13/xla_cuda_plugin.so,,\n");
  ASSERT_THAT(Found(), ElementsAre(plugin));
  EXPECT_THAT(FindPjrtPlugins({Site()})[0].unusable, HasSubstr("install jax-cuda13-pjrt instead"));
  EXPECT_THAT(ChoosePjrtPlugin("cuda").status().message(),
              AllOf(HasSubstr("no cuda PJRT plugin was found"), HasSubstr("found: " + plugin)));
}

TEST_F(PjrtDiscoveryTest, AnEndlessRecordIsNotRead) {
  Write(kCpu, Plugin());
  fs::resize_file(Write("a-1.dist-info/RECORD", std::string(kCpu) + ",,\n"), 65 << 20);
  EXPECT_EQ(FindPjrtPlugins({Site()})[0].package, "");
}

TEST_F(PjrtDiscoveryTest, TheFoldersOfTheEnvironmentInTheirOrder) {
  const auto folder = [&](const std::string& name) {
    fs::create_directories(folder_.path(name));
    return fs::canonical(folder_.path(name)).string();
  };
  const std::string lib = folder("venv/lib/python3.12/site-packages");
  const std::string lib64 = folder("venv/lib64/python3.9/site-packages");
  folder("venv/lib/python2.7/site-packages");
  folder("venv/lib/python3.13");  // without site-packages
  const std::string conda = folder("conda/lib/python3.11/site-packages");
  const std::string a = folder("a"), b = folder("b");
  const ScopedEnv conda_prefix("CONDA_PREFIX", folder_.path("conda"));
  const ScopedEnv python_path("PYTHONPATH", ":" + a + "::" + folder_.path("no") + ":" + b + ":" +
                                                a + "/../a:" + folder_.Write("file", ""));
  EXPECT_THAT(SitePackages(), ElementsAre(lib, lib64, conda, a, b));
}

TEST_F(PjrtDiscoveryTest, PythonIsAskedWhereNothingElseHasAPlugin) {
  EXPECT_THAT(PythonSysPath(), IsEmpty()) << "there is no python3";
  fs::create_directories(Site());
  const std::string plugin = folder_.Write("asked/xla_plugins/cpu/plugin.so", Plugin());
  const std::string answer = "echo " + folder_.path("asked") + "; echo /no/such/folder; echo";
  folder_.WriteScript("bin/python3", answer);
  EXPECT_THAT(PythonSysPath(), ElementsAre(fs::canonical(folder_.path("asked")).string()));
  ASSERT_EQ(FindPjrtPlugins().size(), 1u);
  EXPECT_EQ(FindPjrtPlugins()[0].path, fs::canonical(plugin));
  const std::string nearer = Write(kCpu, Plugin());
  ASSERT_EQ(FindPjrtPlugins().size(), 1u);
  EXPECT_EQ(FindPjrtPlugins()[0].path, nearer);
  folder_.WriteScript("bin/python3", answer + "; exit 1");
  EXPECT_THAT(PythonSysPath(), IsEmpty());
}

TEST_F(PjrtDiscoveryTest, NamesMeanPlugins) {
  const std::string cuda12 = Write(kCuda12, Plugin());
  const std::string cuda13 = Write(kCuda13, Plugin());
  const std::string cpu = Write(kCpu, Plugin());
  const auto chosen = [](const std::string& name) {
    const StatusOr<FoundPlugin> plugin = ChoosePjrtPlugin(name);
    return plugin.ok() ? plugin->path : plugin.status().message();
  };
  EXPECT_EQ(chosen("cpu"), cpu);
  EXPECT_EQ(chosen("cuda"), cuda12) << "the first";
  EXPECT_EQ(chosen("cuda12"), cuda12);
  EXPECT_EQ(chosen("cuda13"), cuda13);
  EXPECT_EQ(chosen(""), MachineHasNvidiaGpu() ? cuda12 : cpu);
  EXPECT_EQ(chosen("plugin.so"), "plugin.so") << "a path is not looked at here";
  EXPECT_EQ(chosen("./plugin"), "./plugin");
  EXPECT_THAT(chosen("cuda14"), StartsWith("no cuda14 PJRT plugin was found (found: "));
  for (const char* name : {"rocm", "CPU", "gpu", "xla_cpu_pjrt"}) {
    EXPECT_EQ(chosen(name),
              "plugin '" + std::string(name) +
                  "' is neither a path to a .so nor one of cpu, cuda, cuda12, cuda13");
  }
  {
    const ScopedEnv wish("XLA_GPU_PJRT_PLUGIN", "cuda13");
    EXPECT_EQ(chosen(""), cuda13);
    EXPECT_EQ(chosen("cpu"), cpu) << "who names one gets it";
  }
  {
    const ScopedEnv wish("XLA_GPU_PJRT_PLUGIN", "tpu");
    EXPECT_THAT(chosen(""), StartsWith("XLA_GPU_PJRT_PLUGIN is 'tpu': plugin 'tpu' is neither"));
  }
  fs::remove(cpu);
  EXPECT_THAT(chosen("cpu"), StartsWith("no cpu PJRT plugin was found"));
  const ScopedEnv empty("XLA_GPU_PJRT_PLUGIN", "");
  fs::remove(cuda12);
  fs::remove(cuda13);
  EXPECT_THAT(chosen(""), StartsWith("no usable PJRT plugin was found"));
}

TEST_F(PjrtDiscoveryTest, WhereNothingIsFoundTheErrorSaysWhatHelps) {
  fs::create_directories(Site());
  EXPECT_EQ(ChoosePjrtPlugin("").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(ChoosePjrtPlugin("cuda").status().message(),
              AllOf(HasSubstr("found: none; looked in: " + fs::canonical(Site()).string()),
                    HasSubstr("pip install xla-cpu-pjrt, or jax-cuda13-pjrt"),
                    HasSubstr("XLA_GPU_PJRT_PLUGIN")));
}

// Names of the files below `folder` that this process has loaded.
std::vector<std::string> LoadedBelow(const std::string& folder) {
  std::vector<std::string> loaded{folder};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& list = *static_cast<std::vector<std::string>*>(data);
        const std::string name = info->dlpi_name;
        if (name.starts_with(list[0])) list.push_back(name.substr(list[0].size() + 1));
        return 0;
      },
      &loaded);
  loaded.erase(loaded.begin());
  return loaded;
}

TEST_F(PjrtDiscoveryTest, TheLibrariesOfTheNvidiaWheelsAreLoadedForTheirPlugin) {
  const char* library = std::getenv("XLA_GPU_FAKE_DRIVER");  // any that loads
  if (library == nullptr) GTEST_SKIP() << "ctest names a library by XLA_GPU_FAKE_DRIVER";
  for (const char* file :
       {"cuda_runtime/lib/libcudart.so.12", "cuda_runtime/lib/libcudart.so.12.9.1",
        "cuda_runtime/lib/libcudart.so", "cuda_runtime/lib/libother.so.1",
        "cublas/lib/libcublas.so.12", "cublas/lib/libcublasLt.so.12", "cu13/lib/libcudart.so.13",
        "cudnn/lib/libcudnn.so.9"}) {
    fs::create_directories(fs::path(Site("nvidia/") + file).parent_path());
    fs::copy_file(library, Site("nvidia/") + file);
  }
  Write("nvidia/nccl/lib/libnccl.so.2", "no library");
  ASSERT_EQ(mkfifo(Site("nvidia/nccl/lib/libcupti.so.12").c_str(), 0600), 0);
  const auto loads = [&](const std::string& plugin, const std::vector<std::string>& wanted) {
    return RunForked([&] {
      PreloadNvidiaLibraries(Site(plugin));
      EXPECT_EQ(LoadedBelow(Site("nvidia")), wanted);
      return !::testing::Test::HasFailure();
    });
  };
  EXPECT_EQ(loads(kCuda12, {"cuda_runtime/lib/libcudart.so.12", "cublas/lib/libcublasLt.so.12",
                            "cublas/lib/libcublas.so.12", "cudnn/lib/libcudnn.so.9"}),
            0);
  EXPECT_EQ(loads(kCuda13, {"cu13/lib/libcudart.so.13", "cudnn/lib/libcudnn.so.9"}), 0);
  EXPECT_EQ(loads(kCpu, {}), 0);
}

TEST_F(PjrtDiscoveryTest, ALoadedPluginIsFoundWhereverItLies) {
  const std::string path = CpuPluginForTest();
  if (path.empty()) GTEST_SKIP() << "xla-cpu-pjrt is not installed";
  EXPECT_EQ(RunForked([&] {  // so that it is loaded in no other test
              EXPECT_TRUE(PjrtPlugin::Load(path).ok());
              const ScopedEnv named("XLA_GPU_PJRT_PLUGIN", path);
              for (int i = 0; i < 2; ++i, unsetenv("XLA_GPU_PJRT_PLUGIN")) {
                const std::vector<FoundPlugin> found = FindPjrtPlugins(std::vector<std::string>{});
                EXPECT_EQ(found.size(), 1u);
                EXPECT_EQ(found.at(0).path, fs::canonical(path));
                EXPECT_EQ(found.at(0).package, "xla-cpu-pjrt");
                EXPECT_TRUE(found.at(0).loaded);
              }
              return !HasFailure();
            }),
            0);
}

}  // namespace
}  // namespace xla_gpu::xla
