#include "src/cli/python_packages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "src/cuda/test_util.h"

namespace xla_gpu::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A folder of its own for each test, removed at its end.
class PythonPackages : public ::testing::Test {
 protected:
  void AddPackage(const std::string& site, const std::string& name, const std::string& version) {
    folder_.Write(site + "/" + name + "-" + version + ".dist-info/METADATA",
                  "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version +
                      "\nSummary: x\n\nName: not this\nVersion: 9\n");
  }

  std::vector<std::string> Find(const std::vector<std::string>& sites) {
    std::vector<std::string> folders;
    for (const std::string& site : sites) folders.push_back(folder_.path(site));
    std::vector<std::string> found;
    for (const PythonPackage& package : FindPythonPackages(folders)) {
      found.push_back(fs::path(package.folder).filename().string() + " " + package.name + " " +
                      package.version);
    }
    return found;
  }

  cuda::TempFolder folder_;
};

TEST_F(PythonPackages, ListsThoseThatMatterFolderByFolder) {
  AddPackage("a", "jaxlib", "0.10.2");
  AddPackage("a", "jax", "0.10.2");
  AddPackage("a", "requests", "2.0");
  AddPackage("a", "jax_cuda13_pjrt", "0.11.2");
  AddPackage("b", "torch_xla", "2.9.0");
  AddPackage("b", "nvidia_cuda_nvrtc_cu12", "12.9.86");
  EXPECT_THAT(Find({"b", "a", "missing"}),
              ElementsAre("b nvidia-cuda-nvrtc-cu12 12.9.86", "b torch-xla 2.9.0", "a jax 0.10.2",
                          "a jax-cuda13-pjrt 0.11.2", "a jaxlib 0.10.2"));
}

TEST_F(PythonPackages, NamesAreNormalised) {
  folder_.Write("s/Torch_XLA-2.9.0.dist-info/METADATA",
                "Name: Torch.XLA\r\nVersion: 2.9.0\r\n\r\n");
  EXPECT_THAT(Find({"s"}), ElementsAre("s torch-xla 2.9.0"));
}

TEST_F(PythonPackages, BrokenMetadataIsNoPackage) {
  folder_.Write("s/jax-1.dist-info/METADATA", "");
  folder_.Write("s/jaxlib-1.dist-info/METADATA", "Name: jaxlib\n\nVersion: 1\n");
  folder_.Write("s/torch-1.dist-info/OTHER", "Name: torch\nVersion: 1\n");
  fs::create_directories(folder_.path("s/vllm-1.dist-info/METADATA"));
  EXPECT_THAT(Find({"s"}), IsEmpty());
}

TEST_F(PythonPackages, ReadsTheFfiVersionOfJaxlib) {
  folder_.Write("s/jaxlib/include/xla/ffi/api/c_api.h",
                "#define XLA_FFI_API_MAJOR 0\n// more\n#define XLA_FFI_API_MINOR 3\n");
  EXPECT_EQ(FfiVersionOfJaxlib(folder_.path("s")), "0.3");
  EXPECT_EQ(FfiVersionOfJaxlib(folder_.path("missing")), std::nullopt);
}

TEST(CompareVersions, ComparesNumbersNotText) {
  EXPECT_EQ(CompareVersions("0.4.38", "0.4.38"), 0);
  EXPECT_LT(CompareVersions("0.4.9", "0.4.38"), 0);
  EXPECT_GT(CompareVersions("0.10.2", "0.9"), 0);
  EXPECT_EQ(CompareVersions("0.10", "0.10.0"), 0);
  EXPECT_GT(CompareVersions("0.12.0.1", "0.12.0"), 0);
  EXPECT_EQ(CompareVersions("2.9.0+cu130", "2.9.0"), 0);
  EXPECT_EQ(CompareVersions("2.9.0rc1", "2.9.0"), 0);
  EXPECT_EQ(CompareVersions("", "0"), 0);
  EXPECT_LT(CompareVersions("nonsense", "0.1"), 0);
  EXPECT_GT(CompareVersions("0.1", "0.99999999999999999999999"),
            0);  // no number, so it counts as 0
}

}  // namespace
}  // namespace xla_gpu::cli
