#include "src/cli/doctor_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/cli/doctor_testing.h"

namespace xla_gpu::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Doctor, TextNamesEverythingFound) {
  Findings f = WithGpu(13000);
  f.packages = {{"jaxlib", "0.11.2", kSite}};
  f.plugins = {CudaPlugin("jax-cuda13-pjrt")};
  const std::string text = ReportToText(Diagnose(f));
  for (const char* part :
       {"xla-gpu 0.1.0", "CUDA 13.0", "NVIDIA H200", "140 GiB", "13.5 (used)", kSite,
        "jaxlib 0.11.2", "PJRT 0.115", "Gpu_Custom_Call", "takes the custom calls of xla_gpu"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// The reason stands in the verdict alone.
TEST(Doctor, TextSaysAReasonOnce) {
  Findings f = WithGpu(13000);
  f.cuda.compiler = NotFound("no helper");
  f.plugins = {CudaPlugin("jax-cuda13-pjrt")};
  f.plugins[0].pjrt = "";
  f.plugins[0].problem = "it is broken";
  for (const char* reason : {"no helper", "it is broken"}) {
    const std::string text = ReportToText(Diagnose(f));
    EXPECT_EQ(text.find(reason), text.rfind(reason)) << text;
    EXPECT_THAT(text, HasSubstr(reason));
  }
  const std::string text = ReportToText(Diagnose(Bare()));
  EXPECT_EQ(text.find("libcuda.so.1"), text.rfind("libcuda.so.1")) << text;
}

TEST(Doctor, TextOfPluginsThatAreNamed) {
  Findings f = WithGpu(13000);
  f.site_packages = {};
  f.plugins_named = true;
  f.plugins = {CudaPlugin("jax-cuda13-pjrt")};
  EXPECT_THAT(ReportToText(Diagnose(f)), HasSubstr("Every plugin named takes the custom calls"));
  f.plugins.push_back(f.plugins[0]);
  f.plugins[1].problem = "it is broken";
  const std::string text = ReportToText(Diagnose(f));
  EXPECT_THAT(text, HasSubstr("Not every plugin named takes the custom calls"));
  EXPECT_THAT(text, Not(HasSubstr("Python packages")));
}

// Scripts read these members: renaming or removing one needs a new schema number.
TEST(Doctor, JsonMembersAreStable) {
  Findings f = WithGpu(13000);
  f.packages = {{"jaxlib", "0.11.2", kSite}};
  f.plugins = {CudaPlugin("jax-cuda13-pjrt")};
  f.cuda.nvrtcs[0].path = "/not\xff/utf8";
  const auto json = nlohmann::ordered_json::parse(ReportToJson(Diagnose(f)));
  const auto keys = [](const nlohmann::ordered_json& object) {
    std::vector<std::string> names;
    for (const auto& [key, value] : object.items()) names.push_back(key);
    return names;
  };
  EXPECT_THAT(keys(json),
              ElementsAre("schema", "usable", "library", "driver", "gpus", "nvrtc", "compiler",
                          "cache", "site_packages", "packages", "plugins", "verdicts"));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["usable"], true);
  EXPECT_THAT(keys(json["library"]), ElementsAre("version", "ffi", "ops"));
  EXPECT_THAT(keys(json["driver"]), ElementsAre("cuda", "error"));
  EXPECT_THAT(keys(json["gpus"][0]),
              ElementsAre("ordinal", "name", "compute_capability", "memory_bytes"));
  EXPECT_THAT(keys(json["nvrtc"][0]),
              ElementsAre("path", "version", "origin", "problem", "chosen"));
  EXPECT_THAT(keys(json["compiler"]), ElementsAre("path", "error"));
  EXPECT_THAT(keys(json["cache"]), ElementsAre("folder", "kernels", "bytes", "error"));
  EXPECT_THAT(keys(json["packages"][0]), ElementsAre("name", "version", "folder"));
  EXPECT_THAT(keys(json["plugins"][0]),
              ElementsAre("path", "package", "version", "gpu", "pjrt", "ffi", "extensions", "typed",
                          "legacy", "problem"));
  EXPECT_THAT(keys(json["verdicts"][0]), ElementsAre("subject", "fits", "reason", "remedy"));
}

}  // namespace
}  // namespace xla_gpu::cli
