// The built shared libraries as other programs meet them: what they export, how they are hardened,
// and that closing one does not take the code from under a running thread.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "src/core/child_process.h"
#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

std::string Library(const char* variable) {
  const char* path = std::getenv(variable);
  return path == nullptr ? "" : path;
}

#define REQUIRE_LIBRARY(path, variable)       \
  const std::string path = Library(variable); \
  if (path.empty()) GTEST_SKIP() << variable << " is not set (ctest sets it)"

std::string Readelf(const std::string& what, const std::string& path) {
  const auto child = RunChild({"readelf", "--wide", what, path}, "",
                              ChildLimits{.timeout = std::chrono::minutes(1)});
  EXPECT_TRUE(child.ok() && child->exit_code == 0) << "readelf " << what << " " << path;
  return child.ok() ? child->out : "";
}

// The names of the dynamic symbols that the library defines, or those that it wants of others.
std::vector<std::string> Symbols(const std::string& path, bool defined) {
  std::vector<std::string> names;
  std::istringstream lines(Readelf("--dyn-syms", path));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, value, size, type, binding, visibility, section, name;
    words >> number >> value >> size >> type >> binding >> visibility >> section >> name;
    if (name.empty() || name == "Name" || (section != "UND") != defined) continue;
    names.push_back(name.substr(0, name.find('@')));
  }
  return names;
}

TEST(LibraryTest, ExportsItsCAbiAlone) {
  REQUIRE_LIBRARY(path, "XLA_GPU_LIBRARY");
  const std::vector<std::string> names = Symbols(path, /*defined=*/true);
  EXPECT_THAT(names, Each(AnyOf(StartsWith("xla_gpu_"), StartsWith("__tvm_ffi_"))));
  for (const auto& op : OpRegistry::Global().ops()) {
    EXPECT_THAT(names, Contains(StrCat("__tvm_ffi_", op->name)));
  }
  EXPECT_THAT(names, IsSupersetOf({"xla_gpu_run", "xla_gpu_client_run", "xla_gpu_status_free",
                                   "xla_gpu_run_objects", "xla_gpu_pjrt_compat_api"}));
}

TEST(LibraryTest, ThePluginExportsOneFunction) {
  REQUIRE_LIBRARY(path, "XLA_GPU_PJRT_SHIM");
  EXPECT_THAT(Symbols(path, /*defined=*/true), ElementsAre("GetPjrtApi"));
}

TEST(LibraryTest, IsHardened) {
  for (const char* variable :
       {"XLA_GPU_LIBRARY", "XLA_GPU_PJRT_SHIM", "XLA_GPU_PROGRAM", "XLA_GPU_COMPILER"}) {
    REQUIRE_LIBRARY(path, variable);
    SCOPED_TRACE(path);
    const std::string dynamic = Readelf("--dynamic", path);
    EXPECT_THAT(dynamic, ContainsRegex("FLAGS_1[^\n]* NOW"));
    EXPECT_THAT(dynamic, Not(HasSubstr("TEXTREL")));
    EXPECT_THAT(dynamic, ContainsRegex(path.ends_with(".so") ? "FLAGS_1[^\n]* NODELETE"
                                                             : "FLAGS_1[^\n]* PIE"));
    const std::string segments = Readelf("--segments", path);
    EXPECT_THAT(segments, HasSubstr("GNU_RELRO"));
    EXPECT_THAT(segments, ContainsRegex("GNU_STACK[^\n]* RW "));
  }
}

TEST(LibraryTest, StacksAndBuffersAreGuarded) {
#if defined(XLA_GPU_SANITIZED) || !defined(__OPTIMIZE__)
  GTEST_SKIP() << "sanitizers, or no optimisation: built without FORTIFY";
#endif
  REQUIRE_LIBRARY(path, "XLA_GPU_LIBRARY");
  const std::vector<std::string> names = Symbols(path, /*defined=*/false);
  EXPECT_THAT(names, Contains("__stack_chk_fail"));
  EXPECT_THAT(names, Contains(::testing::EndsWith("_chk")));
}

TEST(LibraryTest, ClosingItUnderLoadIsSafe) {
  REQUIRE_LIBRARY(path, "XLA_GPU_LIBRARY");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto* run = reinterpret_cast<decltype(&xla_gpu_run)>(dlsym(library, "xla_gpu_run"));
  ASSERT_NE(run, nullptr);
  std::atomic<bool> stop = false;
  std::atomic<int> calls = 0, failed = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      // Large enough for the library's own threads.
      const int64_t dims[] = {1 << 18};
      std::vector<float> a(1 << 18, 1), c(1 << 18);
      const xla_gpu_tensor in{sizeof(in), a.data(), XLA_GPU_DTYPE_F32, 1, dims};
      const xla_gpu_tensor args[] = {in, in};
      const xla_gpu_tensor out{sizeof(out), c.data(), XLA_GPU_DTYPE_F32, 1, dims};
      const xla_gpu_call call{
          sizeof(call), "simple_add", "Host", nullptr, args, 2, &out, 1, nullptr, 0};
      while (!stop) {
        if (run(&call) != nullptr || c.back() != 2) ++failed;
        ++calls;
      }
    });
  }
  while (calls < 20) std::this_thread::yield();
  EXPECT_EQ(dlclose(library), 0);
  for (const int enough = calls + 100; calls < enough;) std::this_thread::yield();
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  // The callers are gone, whose thread-local data held it; its own threads are not.
  for (int i = 0; i < 2; ++i) {
    void* still_there = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(still_there, nullptr) << "unmapped";
    EXPECT_EQ(dlsym(still_there, "xla_gpu_run"), reinterpret_cast<void*>(run));
    dlclose(still_there);
  }
}

}  // namespace
}  // namespace xla_gpu
