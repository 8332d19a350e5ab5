// What tests share: folders, environment variables and processes of their own.
#ifndef XLA_GPU_CORE_TEST_UTIL_H_
#define XLA_GPU_CORE_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace xla_gpu {

// A folder that goes when the test ends.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "xla_gpu_test.XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string path(const std::string& name = "") const {
    return name.empty() ? path_ : path_ + "/" + name;
  }
  // A file with this content; returns its path.
  std::string Write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string WriteScript(const std::string& name, const std::string& body) const {
    std::string file = Write(name, "#!/bin/sh\n" + body);
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file;
  }

 private:
  std::string path_;
};

inline std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Sets (or, given null, unsets) an environment variable for its scope.
class ScopedEnv {
 public:
  ScopedEnv(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    Set(value);
  }
  ScopedEnv(const char* name, const std::string& value) : ScopedEnv(name, value.c_str()) {}
  ~ScopedEnv() { Set(old_ ? old_->c_str() : nullptr); }
  ScopedEnv(const ScopedEnv&) = delete;
  ScopedEnv& operator=(const ScopedEnv&) = delete;

 private:
  void Set(const char* value) {
    if (value == nullptr) {
      unsetenv(name_);
    } else {
      setenv(name_, value, 1);
    }
  }

  const char* name_;
  std::optional<std::string> old_;
};

// For its scope the program writes numbers as in Germany: 0,5.
class ScopedGermanLocale {
 public:
  ScopedGermanLocale() {
    const std::string make = "localedef -i de_DE -f UTF-8 " + folder_.path("de_DE");
    made_ = std::system((make + " >/dev/null 2>&1").c_str()) == 0 &&
            std::setlocale(LC_ALL, "de_DE") != nullptr;
  }
  ~ScopedGermanLocale() { std::setlocale(LC_ALL, "C"); }
  ScopedGermanLocale(const ScopedGermanLocale&) = delete;
  ScopedGermanLocale& operator=(const ScopedGermanLocale&) = delete;
  bool made() const { return made_; }  // not where the machine has no locales to make it of

 private:
  TempFolder folder_;
  ScopedEnv places_{"LOCPATH", folder_.path()};
  bool made_ = false;
};

// Runs `body` in a child: its exit code, which `body` returns, or minus the signal that ended it;
// one that runs for longer than `seconds` (0: no limit) is ended by SIGALRM.
template <typename Body>
int InChild(Body body, unsigned seconds = 20) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(seconds);
    _exit(body());
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// As InChild; 0 if `body` returned true.
template <typename Body>
int RunForked(Body body, unsigned seconds = 0) {
  return InChild([&body] { return body() ? 0 : 1; }, seconds);
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_TEST_UTIL_H_
