#include "src/cuda/child_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "src/cuda/test_util.h"

namespace xla_gpu::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr milliseconds kLong = seconds(60);

StatusOr<ChildResult> Shell(const std::string& script, std::string_view input = "",
                            milliseconds timeout = kLong) {
  return RunChild({"/bin/sh", "-c", script}, input, timeout);
}

// Neither running nor waiting to be collected.
bool HasNoChildren() { return waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD; }

TEST(ChildProcess, GivesOutputAndExitCode) {
  auto child = Shell("echo out; echo err >&2; exit 3");
  ASSERT_TRUE(child.ok()) << child.status().ToString();
  EXPECT_EQ(child->out, "out\n");
  EXPECT_EQ(child->err, "err\n");
  EXPECT_EQ(child->exit_code, 3);
  EXPECT_EQ(child->HowItEnded(), "ended with exit code 3");
  EXPECT_TRUE(HasNoChildren());
}

TEST(ChildProcess, MuchGoesBothWaysAtOnce) {
  const std::string input(20'000'000, 'x');
  auto child = Shell("cat", input);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->exit_code, 0);
  EXPECT_TRUE(child->out == input);
}

TEST(ChildProcess, TooMuchOnStderrIsDroppedAndDoesNotBlock) {
  auto child = Shell("head -c 5000000 /dev/zero >&2; echo done");
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->out, "done\n");
  EXPECT_EQ(child->err.size(), 65536u);
}

TEST(ChildProcess, OneThatDoesNotReadCausesNoSigpipe) {
  auto child = Shell("exec 0<&-; echo deaf", std::string(10'000'000, 'x'));
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->out, "deaf\n");
}

TEST(ChildProcess, ASignalIsNamed) {
  auto child = Shell("kill -SEGV $$");
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->signal, SIGSEGV);
  EXPECT_THAT(child->HowItEnded(), HasSubstr("signal 11 (Segmentation fault)"));
}

TEST(ChildProcess, PastTheTimeoutItIsKilledWithItsOwnChildren) {
  TempFolder folder;
  const auto start = std::chrono::steady_clock::now();
  auto child = Shell("(sleep 2; touch " + folder.path("alive") + ") & echo part; wait", "",
                     milliseconds(300));
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(child->timed_out);
  EXPECT_EQ(child->out, "part\n");
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(2));
  EXPECT_TRUE(HasNoChildren());
  std::this_thread::sleep_for(milliseconds(2500));
  EXPECT_FALSE(std::filesystem::exists(folder.path("alive")));
}

TEST(ChildProcess, PastTheTimeoutEvenIfItClosedItsOutput) {
  auto child = Shell("exec 1>&- 2>&-; sleep 60", "", milliseconds(300));
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE(child->timed_out);
  EXPECT_EQ(child->signal, SIGKILL);
  EXPECT_TRUE(HasNoChildren());
}

TEST(ChildProcess, AMissingProgramIsAnError) {
  auto child = RunChild({"/nowhere/program"}, "", kLong);
  ASSERT_FALSE(child.ok());
  EXPECT_THAT(child.status().message(),
              HasSubstr("/nowhere/program could not be started: No such"));
  EXPECT_TRUE(HasNoChildren());
}

TEST(ChildProcess, WorksWhereSigchldIsIgnored) {
  const auto old = signal(SIGCHLD, SIG_IGN);
  auto child = Shell("cat; exit 3", "hello");
  auto killed = Shell("kill -SEGV $$");
  auto late = Shell("sleep 60", "", milliseconds(100));
  signal(SIGCHLD, old);
  ASSERT_TRUE(child.ok() && killed.ok() && late.ok());
  EXPECT_EQ(child->out, "hello");
  EXPECT_THAT(killed->HowItEnded(), HasSubstr("SIGCHLD"));
  EXPECT_TRUE(late->timed_out);
}

TEST(ChildProcess, WorksWithoutStandardDescriptors) {
  EXPECT_EQ(RunForked([] {
              for (int fd : {0, 1, 2}) close(fd);
              auto child = Shell("cat; echo err >&2", "hello");
              return child.ok() && child->out == "hello" && child->err == "err\n";
            }),
            0);
}

TEST(ChildProcess, TheChildHasDefaultSignalsWhateverTheHostIgnores) {
  const auto old = signal(SIGTERM, SIG_IGN);
  auto child = Shell("kill -TERM $$; echo survived");
  signal(SIGTERM, old);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(child->signal, SIGTERM);
}

// A process that another thread of the host forks keeps a copy of each descriptor that is open
// then, for as long as it lives: it must not keep us waiting.
TEST(ChildProcess, AStrangerForkedMeanwhileDelaysNothing) {
  std::vector<pid_t> strangers;
  const auto fork_stranger = [&strangers] {
    const pid_t pid = fork();
    if (pid == 0) {
      pause();
      _exit(0);
    }
    strangers.push_back(pid);
  };
  // Forked while the child reads and writes.
  std::thread talk([] {
    auto child = Shell("sleep 0.3; wc -c", std::string(1'000'000, 'x'), seconds(10));
    EXPECT_TRUE(child.ok() && !child->timed_out && child->exit_code == 0);
    EXPECT_EQ(child->out, "1000000\n");
  });
  std::this_thread::sleep_for(milliseconds(100));
  fork_stranger();
  talk.join();
  // Forked at any time, also before we have closed the child's ends.
  std::atomic<bool> stop{false};
  std::thread many([&stop] {
    for (int i = 0; i < 200 && !testing::Test::HasFailure(); ++i) {
      auto child = Shell("cat; echo err >&2; exit 3", "hello", seconds(10));
      EXPECT_TRUE(child.ok() && !child->timed_out && child->exit_code == 3);
      EXPECT_EQ(child->out, "hello");
      EXPECT_EQ(child->err, "err\n");
    }
    stop = true;
  });
  while (!stop) {
    if (strangers.size() < 200) fork_stranger();
    std::this_thread::sleep_for(milliseconds(1));
  }
  many.join();
  for (pid_t pid : strangers) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

TEST(ChildProcess, ManyAtOnceLeakNoDescriptor) {
  auto lowest_free = [] {
    const int fd = open("/dev/null", O_RDONLY);
    close(fd);
    return fd;
  };
  const int before = lowest_free();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([] {
      for (int n = 0; n < 20; ++n) {
        auto child = Shell("cat", "hello");
        EXPECT_TRUE(child.ok() && child->out == "hello" && child->exit_code == 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lowest_free(), before);
  EXPECT_TRUE(HasNoChildren());
}

}  // namespace
}  // namespace xla_gpu::cuda
