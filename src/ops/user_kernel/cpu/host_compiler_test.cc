#include "src/ops/user_kernel/cpu/host_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "src/core/strings.h"
#include "src/core/test_util.h"

namespace xla_gpu::user_kernel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Compilations are counted by a compiler of the test's own, which is the system's.
class HostCompilerTest : public testing::Test {
 protected:
  static Implementation Source(const std::string& text, const std::string& entry = "f") {
    Implementation implementation;
    implementation.kind = Implementation::Kind::kHostSource;
    implementation.text = text;
    implementation.entry = entry;
    return implementation;
  }
  std::string WriteCompiler(const std::string& name) const {
    return folder_.WriteScript(
        name, StrCat("case \"$*\" in *--version*) echo ", name, ";; *-dM*) ;; *) echo x >>",
                     folder_.path("count"), ";; esac\nexec c++ \"$@\"\n"));
  }
  size_t NumCompilations() const { return ReadWhole(folder_.path("count")).size() / 2; }
  static int CallInt(const StatusOr<const void*>& function) {
    EXPECT_TRUE(function.ok()) << function.status().ToString();
    return function.ok() ? reinterpret_cast<int (*)()>(const_cast<void*>(*function))() : -1;
  }
  // In a process of its own, so with nothing in memory.
  static bool GivesInNewProcess(const Implementation& source, int value) {
    return RunForked([&] {
             const auto function = CompileHostSource("k", source);
             return function.ok() && CallInt(function) == value;
           }) == 0;
  }

  TempFolder folder_;
  ScopedEnv cache_{"XLA_GPU_CACHE_DIR", folder_.path("cache")};
  ScopedEnv compiler_{"CXX", WriteCompiler("one")};
};

TEST_F(HostCompilerTest, CompiledOnceThenFromMemoryThenFromDisk) {
  const Implementation source = Source("int f() { return 41; }");
  const auto first = CompileHostSource("k", source);
  EXPECT_EQ(CallInt(first), 41);
  EXPECT_EQ(*CompileHostSource("k", source), *first);
  EXPECT_TRUE(GivesInNewProcess(source, 41));
  EXPECT_EQ(NumCompilations(), 1u);
}

TEST_F(HostCompilerTest, AnotherTextOptionOrCompilerIsAnotherEntry) {
  Implementation source = Source("int f() { return N; }");
  source.options = {"-DN=1"};
  EXPECT_TRUE(GivesInNewProcess(source, 1));
  source.options = {"-DN=2"};
  EXPECT_TRUE(GivesInNewProcess(source, 2));
  source.text += " ";
  EXPECT_TRUE(GivesInNewProcess(source, 2));
  source.file = "other.cc";
  EXPECT_TRUE(GivesInNewProcess(source, 2));
  EXPECT_EQ(NumCompilations(), 4u);
  {
    ScopedEnv other("CXX", WriteCompiler("two"));
    EXPECT_TRUE(GivesInNewProcess(source, 2));
  }
  EXPECT_EQ(NumCompilations(), 5u);
  EXPECT_TRUE(GivesInNewProcess(source, 2));
  EXPECT_EQ(NumCompilations(), 5u);
}

TEST_F(HostCompilerTest, AnIncludedFileThatChangesIsCompiledAgain) {
  Implementation source = Source("#include \"value.h\"\nint f() { return kValue; }");
  source.options = {StrCat("-I", folder_.path("include"))};
  folder_.Write("include/value.h", "#include <more.h>\n");
  folder_.Write("include/more.h", "constexpr int kValue = 3;\n");
  EXPECT_TRUE(GivesInNewProcess(source, 3));
  folder_.Write("include/more.h", "constexpr int kValue = 4;\n");
  EXPECT_TRUE(GivesInNewProcess(source, 4));
}

TEST_F(HostCompilerTest, WhateverIsIncludedAndChangesIsCompiledAgain) {
  folder_.Write("lib/inner/value.h", "#include \"more.h\"\n");
  folder_.Write("lib/forced.h", "constexpr int kOther = 0;\n");
  Implementation source = Source("#include <inner/value.h>\nint f() { return kValue + kOther; }");
  source.options = {StrCat("-I", folder_.path("lib")), "-include", folder_.path("lib/forced.h")};
  folder_.Write("lib/inner/more.h", "constexpr int kValue = 3;\n");
  EXPECT_TRUE(GivesInNewProcess(source, 3));
  folder_.Write("lib/inner/more.h", "constexpr int kValue = 4;\n");
  EXPECT_TRUE(GivesInNewProcess(source, 4));
  folder_.Write("lib/forced.h", "constexpr int kOther = 10;\n");
  EXPECT_TRUE(GivesInNewProcess(source, 14));
  const Implementation other = Source("#include <there.h>\nint f() { return kThere; }");
  ScopedEnv path("CPLUS_INCLUDE_PATH", folder_.path("environment"));
  folder_.Write("environment/there.h", "constexpr int kThere = 5;\n");
  EXPECT_TRUE(GivesInNewProcess(other, 5));
  folder_.Write("environment/there.h", "constexpr int kThere = 6;\n");
  EXPECT_TRUE(GivesInNewProcess(other, 6));
}

// Machines of different processors may share the cache folder.
TEST_F(HostCompilerTest, CodeForThisProcessorIsNotAnothers) {
  Implementation source = Source("int f() {\n#ifdef __SECOND__\nreturn 2;\n#endif\nreturn 1; }");
  // One compiler, which finds out where it runs.
  const auto on = [&](const std::string& machine) {
    return folder_.WriteScript(
        "machine", StrCat("case \"$*\" in *--version*|*-dM*) ;; *) echo x >>",
                          folder_.path("count"), ";; esac\nexec c++ -D", machine, " \"$@\"\n"));
  };
  for (const auto& [option, compilations] : {std::pair("-O1", 1u), {"-march=native", 3u}}) {
    source.options = {option};
    ScopedEnv compiler("CXX", on("__FIRST__"));
    EXPECT_TRUE(GivesInNewProcess(source, 1));
    on("__SECOND__");
    EXPECT_TRUE(GivesInNewProcess(source, compilations == 1 ? 1 : 2));
    EXPECT_TRUE(GivesInNewProcess(source, compilations == 1 ? 1 : 2));
    EXPECT_EQ(NumCompilations(), compilations);
  }
}

TEST_F(HostCompilerTest, FilesBesideTheUsersAreFound) {
  folder_.Write("user/value.h", "constexpr int kValue = 5;\n");
  Implementation source = Source("#include \"value.h\"\nint f() { return kValue; }");
  source.file = folder_.path("user/kernel.cc");
  EXPECT_TRUE(GivesInNewProcess(source, 5));
}

TEST_F(HostCompilerTest, ManyInOneProcessFromManyThreads) {
  std::vector<std::thread> threads;
  std::array<int, 12> came{};
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&came, i] {
      const auto function =
          CompileHostSource("k", Source(StrCat("int f() { return ", i % 4, "; }")));
      if (function.ok()) came[static_cast<size_t>(i)] = 1 + CallInt(function);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 12; ++i) EXPECT_EQ(came[static_cast<size_t>(i)], 1 + i % 4);
  EXPECT_EQ(NumCompilations(), 4u);
}

TEST_F(HostCompilerTest, EntriesOfAnyName) {
  EXPECT_EQ(CallInt(CompileHostSource("k", Source("namespace a { template <int N> int f() { return "
                                                  "N; } }",
                                                  "a::f<6>"))),
            6);
  EXPECT_EQ(CallInt(CompileHostSource("k", Source("extern \"C\" int g() { return 7; }", "g"))), 7);
}

TEST_F(HostCompilerTest, EntriesOfOneTextAreCompiledOnce) {
  const std::string text = R"(
    #include <unistd.h>
    extern "C" int a() { return 1; }
    int b() { return 2; }
    namespace n { int b(int x = 3) { return x; } int (*c(const int*))(int) { return nullptr; } }
    static int s() { return 4; }
    int d() { return 5; }
    int d(int) { return 6; }
    template <typename T> int e() { return sizeof(T); }
    int uses() { return e<char>() + (getpid() > 0) + s() - 4; }
  )";
  const auto call = [&](const std::string& entry) {
    return CallInt(CompileHostSource(entry, Source(text, entry)));
  };
  EXPECT_EQ(call("b"), 2);
  EXPECT_EQ(call("a"), 1);
  EXPECT_EQ(call("uses"), 2);
  EXPECT_TRUE(CompileHostSource("k", Source(text, "n::c")).ok());
  EXPECT_EQ(call("b"), 2);
  EXPECT_EQ(NumCompilations(), 1u);
  EXPECT_EQ(call("e<char>"), 1);
  EXPECT_EQ(call("e<int>"), 4);
  EXPECT_EQ(call("s"), 4);
  EXPECT_EQ(call("getpid"), getpid());  // what the text uses is none of its functions
  EXPECT_EQ(NumCompilations(), 5u);
  for (const char* entry : {"d", "no_such", "n"}) {
    EXPECT_THAT(CompileHostSource("k", Source(text, entry)).status().message(),
                HasSubstr("kernel k does not compile"))
        << entry;
  }
  EXPECT_EQ(call("e<int>"), 4);
  EXPECT_EQ(NumCompilations(), 8u);
  Implementation hidden = Source(text, "a");
  hidden.options = {"-fvisibility=hidden"};
  EXPECT_EQ(CallInt(CompileHostSource("a", hidden)), 1);
  hidden.entry = "b";
  EXPECT_EQ(CallInt(CompileHostSource("b", hidden)), 2);
  EXPECT_EQ(NumCompilations(), 10u);
}

TEST_F(HostCompilerTest, ATextsNamesAreItsOwn) {
  for (const char* compiler : {"g++", "clang++"}) {
    if (std::system(StrCat(compiler, " --version >/dev/null 2>&1").c_str()) != 0) continue;
    ScopedEnv env("CXX", compiler);
    const auto at_1 = [](const std::string& table) {
      const std::string text =
          StrCat("template <typename T> T f(const T* i) { static const T table[] = ", table,
                 "; static T calls = 0; return table[*i] + 100 * calls++; }\n"
                 "extern \"C\" int getpagesize() { return 9; }");
      EXPECT_EQ(CallInt(CompileHostSource("k", Source(text, "getpagesize"))), 9);
      const auto f = CompileHostSource("k", Source(text, "f<int>"));
      EXPECT_TRUE(f.ok()) << f.status().ToString();
      const int i = 1;
      return f.ok() ? reinterpret_cast<int (*)(const int*)>(const_cast<void*>(*f))(&i) : -1;
    };
    EXPECT_EQ(at_1("{1, 2}"), 2) << compiler;
    EXPECT_EQ(at_1("{3, 4}"), 4) << compiler;
  }
}

TEST_F(HostCompilerTest, AnEntryThatFailsIsNoOtherEntrysError) {
  const std::string text = "int f() { return 8; }";
  std::vector<std::thread> threads;
  std::array<int, 4> came{};
  for (size_t i = 0; i < came.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto made = CompileHostSource("k", Source(text, i % 2 == 0 ? "f" : "g"));
      came[i] = made.ok() ? CallInt(made) : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(came, testing::ElementsAre(8, 0, 8, 0));
}

TEST_F(HostCompilerTest, ErrorsShowTheUsersLines) {
  Implementation source = Source("int g() { return 0; }\nint f() {\n  return oops;\n}\n");
  source.file = "/some/where/mine.cc";
  const Status status = CompileHostSource("scale", source).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("kernel scale does not compile:\n"), HasSubstr("mine.cc:3:10: error"),
                    HasSubstr("return oops;"), Not(HasSubstr("xla_gpu.")), Not(HasSubstr("/tmp"))));
  EXPECT_THAT(CompileHostSource("scale", Source("int f() { return 0; }", "h")).status().message(),
              HasSubstr("kernel.cc:2:"));
  EXPECT_THAT(CompileHostSource("scale", Source("extern int missing(); int f() { return missing(); "
                                                "}"))
                  .status()
                  .message(),
              AllOf(HasSubstr("its code cannot be loaded"), HasSubstr("missing")));
}

TEST_F(HostCompilerTest, ACompilerOfSeveralWords) {
  std::filesystem::create_directory(folder_.path("a b"));
  for (const std::string& compiler :
       {StrCat("env  ", WriteCompiler("plain"), " -DN=3"), WriteCompiler("a b/c++")}) {
    const ScopedEnv env("CXX", compiler);
    Implementation source = Source("#ifndef N\n#define N 3\n#endif\nint f() { return N; }");
    source.options = {"-march=native"};
    EXPECT_TRUE(GivesInNewProcess(source, 3)) << compiler;
  }
}

TEST_F(HostCompilerTest, WithoutACompiler) {
  ScopedEnv none("CXX", "/no/such/compiler");
  EXPECT_THAT(CompileHostSource("k", Source("int f() { return 1; }")).status().message(),
              HasSubstr("no C++ compiler: /no/such/compiler (CXX) cannot be started; install g++"));
  ScopedEnv broken("CXX", folder_.WriteScript("broken", "exit 3"));
  EXPECT_THAT(CompileHostSource("k", Source("int f() { return 1; }")).status().message(),
              HasSubstr("broken (CXX) "));
}

TEST_F(HostCompilerTest, ACompilerThatHangsIsKilled) {
  ScopedEnv slow("CXX", folder_.WriteScript("slow", "case $1 in --version) ;; *) sleep 60;; esac"));
  ScopedEnv timeout("XLA_GPU_COMPILE_TIMEOUT", "0.2");
  EXPECT_THAT(CompileHostSource("k", Source("int f() { return 1; }")).status().message(),
              HasSubstr("did not end within 0.2 s; XLA_GPU_COMPILE_TIMEOUT"));
}

}  // namespace
}  // namespace xla_gpu::user_kernel
