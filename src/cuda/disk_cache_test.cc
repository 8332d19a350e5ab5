#include "src/cuda/disk_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "src/cuda/test_util.h"

namespace xla_gpu::cuda {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::HasSubstr;

CacheEntry EntryOf(const std::string& name, std::string cubin = "machine code") {
  return {Sha256Of(name), name, std::move(cubin)};
}

class DiskCacheTest : public testing::Test {
 protected:
  DiskCache Open() {
    StatusOr<DiskCache> cache = DiskCache::Open(folder_.path("cache"));
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    return *std::move(cache);
  }
  static std::string Name(const Sha256::Digest& key) { return "xla_gpu-" + Sha256::Hex(key); }
  std::string File(const CacheEntry& entry, const std::string& suffix = ".kernel") {
    return folder_.path("cache/" + Name(entry.key) + suffix);
  }

  // Files of the user's in the folder, under names that resemble ours.
  std::vector<std::string> Foreign() {
    const std::string hex = Sha256::Hex(Sha256Of("f"));
    std::vector<std::string> paths;
    for (const std::string& name : std::vector<std::string>{
             "mine.txt", "tmp.1.2.3", "tmp.tar", hex + ".kernel", hex + ".lock", "xla_gpu-" + hex,
             "xla_gpu-" + hex + ".kernel.txt", "xla_gpu-" + hex + "0.kernel",
             "xla_gpu-" + hex.substr(1) + ".kernel", "xla_gpu-" + hex.substr(1) + "g.kernel",
             "xla_gpu-" + hex + ".1.2.tmp", "xla_gpu-" + hex + ".1.2.3.4.tmp",
             "xla_gpu-" + hex + ".1.2.x.tmp", "xla_gpu-" + hex + "1.2.3.tmp", "xla_gpu-notes.tmp",
             "my-xla_gpu-" + hex + ".kernel"}) {
      paths.push_back(folder_.Write("cache/" + name, "not the cache's"));
    }
    return paths;
  }

  TempFolder folder_;
};

TEST_F(DiskCacheTest, KeepsEntriesForOtherProcesses) {
  const CacheEntry entry = EntryOf("a");
  EXPECT_EQ(RunForked([&] { return Open().Write(entry).ok(); }), 0);
  const auto back = Open().Read(entry.key);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->cubin, entry.cubin);
  EXPECT_FALSE(Open().Read(Sha256Of("b")).has_value());
}

TEST_F(DiskCacheTest, TheFolderIsPrivate) {
  umask(0);
  ASSERT_TRUE(DiskCache::Open(folder_.path("a/b/cache/")).ok());
  EXPECT_EQ(fs::status(folder_.path("a/b/cache")).permissions(), fs::perms::owner_all);
  umask(022);
  fs::permissions(folder_.path("a/b/cache"), fs::perms(0770));
  EXPECT_THAT(DiskCache::Open(folder_.path("a/b/cache")).status().message(),
              HasSubstr("chmod 700"));
  fs::permissions(folder_.path("a/b/cache"), fs::perms(0755));
  EXPECT_TRUE(DiskCache::Open(folder_.path("a/b/cache")).ok());
}

TEST_F(DiskCacheTest, AFolderOfAnotherUserIsRefused) {
  fs::create_directory(folder_.path("cache"));
  if (chown(folder_.path("cache").c_str(), geteuid() + 1, getegid()) != 0) {
    GTEST_SKIP() << "only root can make a folder of another user";
  }
  EXPECT_THAT(DiskCache::Open(folder_.path("cache")).status().message(),
              HasSubstr("belongs to user"));
}

TEST_F(DiskCacheTest, ALinkAsTheFolderIsRefused) {
  fs::create_directory(folder_.path("mine"));
  fs::permissions(folder_.path("mine"), fs::perms::owner_all);
  fs::create_directory_symlink(folder_.path("mine"), folder_.path("cache"));
  for (const char* end : {"", "/", "/.", "//./"}) {
    EXPECT_THAT(DiskCache::Open(folder_.path("cache") + end).status().message(),
                HasSubstr("is a link"))
        << end;
    EXPECT_TRUE(DiskCache::Open(folder_.path("mine") + end).ok()) << end;
  }
}

TEST_F(DiskCacheTest, AFolderThatCannotBeMadeIsAnError) {
  folder_.Write("file", "");
  EXPECT_THAT(DiskCache::Open(folder_.path("file/cache")).status().message(),
              HasSubstr("could not be made: Not a directory"));
  EXPECT_THAT(DiskCache::Open(folder_.path("file")).status().message(),
              HasSubstr("could not be opened: Not a directory"));
  EXPECT_THAT(DiskCache::Open("").status().message(), HasSubstr("XLA_GPU_CACHE_DIR is empty"));
}

TEST_F(DiskCacheTest, LookingMakesNothing) {
  const std::string missing = folder_.path("a/b/cache/");
  EXPECT_EQ(DiskCache::OpenExisting(missing).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(fs::exists(folder_.path("a")));
  ASSERT_TRUE(DiskCache::Open(missing).ok());
  EXPECT_TRUE(DiskCache::OpenExisting(missing).ok());
  folder_.Write("file", "");
  for (const char* not_a_place : {"file/cache", "file/x/cache"}) {
    EXPECT_THAT(DiskCache::OpenExisting(folder_.path(not_a_place)).status().message(),
                HasSubstr("could not be made: Not a directory"));
  }
}

TEST_F(DiskCacheTest, DefaultFolderFollowsXdg) {
  ScopedEnv home("HOME", "/h");
  ScopedEnv xdg("XDG_CACHE_HOME", nullptr);
  ScopedEnv own("XLA_GPU_CACHE_DIR", nullptr);
  EXPECT_EQ(DiskCache::DefaultFolder(), "/h/.cache/xla_gpu");
  ScopedEnv relative("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(DiskCache::DefaultFolder(), "/h/.cache/xla_gpu");
  ScopedEnv absolute("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(DiskCache::DefaultFolder(), "/x/xla_gpu");
  ScopedEnv given("XLA_GPU_CACHE_DIR", "/mine");
  EXPECT_EQ(DiskCache::DefaultFolder(), "/mine");
  ScopedEnv off("XLA_GPU_CACHE_DIR", "");
  EXPECT_EQ(DiskCache::DefaultFolder(), "");
}

TEST_F(DiskCacheTest, DamagedEntriesAreRemovedWhereverTheDamageIs) {
  const DiskCache cache = Open();
  const CacheEntry entry = EntryOf("a");
  const std::string good = SerializeCacheEntry(entry);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string changed = good;
    changed[i] = static_cast<char>(~changed[i]);
    for (const std::string& bad : {changed, good.substr(0, i)}) {
      folder_.Write("cache/" + Name(entry.key) + ".kernel", bad);
      EXPECT_FALSE(cache.Read(entry.key).has_value()) << i;
      EXPECT_FALSE(fs::exists(File(entry))) << i;
    }
  }
  ASSERT_TRUE(cache.Write(entry).ok());
  EXPECT_TRUE(cache.Read(entry.key).has_value());
}

TEST_F(DiskCacheTest, AnEntryUnderAnotherKeyIsNotTaken) {
  const DiskCache cache = Open();
  ASSERT_TRUE(cache.Write(EntryOf("a")).ok());
  fs::rename(File(EntryOf("a")), File(EntryOf("b")));
  EXPECT_FALSE(cache.Read(EntryOf("b").key).has_value());
  EXPECT_FALSE(fs::exists(File(EntryOf("b"))));
}

TEST_F(DiskCacheTest, WhatIsNoRegularFileIsNotRead) {
  const DiskCache cache = Open();
  folder_.Write("elsewhere", SerializeCacheEntry(EntryOf("link")));
  fs::create_symlink(folder_.path("elsewhere"), File(EntryOf("link")));
  EXPECT_FALSE(cache.Read(EntryOf("link").key).has_value());
  ASSERT_EQ(mkfifo(File(EntryOf("fifo")).c_str(), 0600), 0);
  EXPECT_FALSE(cache.Read(EntryOf("fifo").key).has_value());
  fs::create_directory(File(EntryOf("folder")));
  EXPECT_FALSE(cache.Read(EntryOf("folder").key).has_value());
  EXPECT_FALSE(cache.Write(EntryOf("folder")).ok());
}

TEST_F(DiskCacheTest, AFullDiskLeavesNothingBehind) {
  EXPECT_EQ(RunForked([&] {
              signal(SIGXFSZ, SIG_IGN);
              const rlimit small = {1000, 1000};
              setrlimit(RLIMIT_FSIZE, &small);
              const DiskCache cache = Open();
              const Status status = cache.Write(EntryOf("a", std::string(100'000, 'x')));
              return !status.ok() &&
                     status.message().find("write: File too large") != status.message().npos &&
                     cache.Write(EntryOf("small")).ok();
            }),
            0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path("cache")), {}), 1);
}

TEST_F(DiskCacheTest, AReadOnlyFolderIsReadAndSaidToBeSo) {
  ASSERT_TRUE(Open().Write(EntryOf("a")).ok());
  fs::permissions(folder_.path("cache"), fs::perms(0500));
  EXPECT_EQ(
      RunForked([&] {
        if (geteuid() == 0) {  // root may write anywhere
          constexpr uid_t kNobody = 65534;
          const std::string parent = folder_.path();
          for (const std::string& path : {parent, folder_.path("cache"), File(EntryOf("a"))}) {
            if (chown(path.c_str(), kNobody, kNobody) != 0) return false;
          }
          if (seteuid(kNobody) != 0) return false;
        }
        const DiskCache cache = Open();
        const Status status = cache.Write(EntryOf("b"));
        return status.message().find("create: Permission denied") != std::string::npos &&
               cache.Read(EntryOf("a").key).has_value() &&
               !cache.Lock(EntryOf("b").key, milliseconds(100)).held() && !cache.Clear().ok();
      }),
      0);
  fs::permissions(folder_.path("cache"), fs::perms(0700));
}

TEST_F(DiskCacheTest, WritersAndReadersAtOnceSeeWholeEntriesOnly) {
  const CacheEntry one = EntryOf("a", std::string(200'000, '1'));
  const CacheEntry two = EntryOf("a", std::string(300'000, '2'));
  std::atomic<bool> stop = false;
  std::atomic<int> reads = 0, strange = 0;
  ASSERT_TRUE(Open().Write(one).ok());
  std::vector<std::thread> threads;
  for (const CacheEntry* entry : {&one, &two}) {
    threads.emplace_back([&, entry] {
      const DiskCache cache = Open();
      while (!stop) EXPECT_TRUE(cache.Write(*entry).ok());
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const DiskCache cache = Open();
      while (!stop) {
        const auto entry = cache.Read(one.key);
        ++reads;
        if (!entry || (entry->cubin != one.cubin && entry->cubin != two.cubin)) ++strange;
      }
    });
  }
  std::this_thread::sleep_for(milliseconds(500));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(reads, 0);
  EXPECT_EQ(strange, 0);
}

TEST_F(DiskCacheTest, ALockExcludesThreadsAndProcesses) {
  constexpr int kThreads = 4, kProcesses = 3, kRounds = 25;
  const std::string counter = folder_.Write("counter", "0");
  // A read, a pause and a write: rounds that overlap would lose counts.
  auto count = [&] {
    const DiskCache cache = Open();
    for (int i = 0; i < kRounds; ++i) {
      const DiskCache::KeyLock lock = cache.Lock(Sha256Of("key"), std::chrono::seconds(60));
      if (!lock.held()) return false;
      const int value = std::stoi(ReadWhole(counter));
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      std::ofstream(counter) << value + 1;
    }
    return true;
  };
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t pid = fork();
    if (pid == 0) _exit(count() ? 0 : 1);
    children.push_back(pid);
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&] { EXPECT_TRUE(count()); });
  for (std::thread& thread : threads) thread.join();
  for (pid_t pid : children) {
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(ReadWhole(counter), std::to_string((kThreads + kProcesses) * kRounds));
  EXPECT_FALSE(fs::exists(File(EntryOf("key"), ".lock")));
}

TEST_F(DiskCacheTest, ADeadHoldersLockIsFree) {
  const DiskCache cache = Open();
  RunForked([&] {
    const DiskCache::KeyLock lock = cache.Lock(Sha256Of("key"), milliseconds(0));
    kill(getpid(), SIGKILL);
    return true;
  });
  ASSERT_TRUE(fs::exists(File(EntryOf("key"), ".lock")));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(cache.Lock(Sha256Of("key"), std::chrono::seconds(30)).held());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(DiskCacheTest, ALockThatStaysTakenIsNotWaitedForForever) {
  const DiskCache cache = Open();
  const DiskCache::KeyLock lock = cache.Lock(Sha256Of("key"), milliseconds(0));
  EXPECT_TRUE(lock.held());
  EXPECT_FALSE(cache.Lock(Sha256Of("key"), milliseconds(100)).held());
  EXPECT_TRUE(cache.Lock(Sha256Of("other"), milliseconds(100)).held());
}

TEST_F(DiskCacheTest, AForkedChildDoesNotKeepTheLock) {
  const DiskCache cache = Open();
  pid_t child = 0;
  {
    const DiskCache::KeyLock lock = cache.Lock(Sha256Of("key"), milliseconds(0));
    child = fork();
    if (child == 0) {
      pause();
      _exit(0);
    }
  }
  EXPECT_TRUE(cache.Lock(Sha256Of("key"), milliseconds(0)).held());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(DiskCacheTest, ListAndClear) {
  const DiskCache cache = Open();
  ASSERT_TRUE(cache.Write(EntryOf("a")).ok());
  ASSERT_TRUE(cache.Write(EntryOf("b")).ok());
  folder_.Write("cache/" + Name(Sha256Of("b")) + ".kernel", "damaged");
  folder_.Write("cache/" + Name(Sha256Of("c")) + ".1.2.3.tmp", "left behind");
  folder_.Write("cache/" + Name(Sha256Of("c")) + ".lock", "");
  const std::vector<std::string> foreign = Foreign();
  const auto files = cache.List();
  ASSERT_EQ(files.size(), 2u);
  for (const CachedKernel& file : files) {
    EXPECT_EQ(file.valid, file.description == "a");
    EXPECT_GT(file.bytes, 0);
  }
  EXPECT_EQ(*cache.Clear(), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path("cache")), {}), foreign.size());
  for (const std::string& path : foreign) EXPECT_TRUE(fs::exists(path)) << path;
}

TEST_F(DiskCacheTest, OutdatedFilesGoWhenAnEntryIsWritten) {
  const DiskCache cache = Open();
  const auto now = fs::file_time_type::clock::now();
  auto write = [&](const std::string& name, std::chrono::hours age) {
    fs::last_write_time(folder_.Write("cache/" + name, ""), now - age);
    return folder_.path("cache/" + name);
  };
  const std::string unused = write(Name(Sha256Of("x")) + ".kernel", std::chrono::hours(24 * 91));
  const std::string used = write(Name(Sha256Of("y")) + ".kernel", std::chrono::hours(24 * 89));
  const std::string dead_temp = write(Name(Sha256Of("z")) + ".1.2.3.tmp", std::chrono::hours(2));
  const std::string live_temp = write(Name(Sha256Of("z")) + ".1.2.4.tmp", std::chrono::hours(0));
  const std::vector<std::string> foreign = Foreign();
  for (const std::string& path : foreign) {
    fs::last_write_time(path, now - std::chrono::hours(24 * 1000));
  }
  ASSERT_TRUE(cache.Write(EntryOf("a")).ok());
  EXPECT_FALSE(fs::exists(unused));
  EXPECT_TRUE(fs::exists(used));
  EXPECT_FALSE(fs::exists(dead_temp));
  EXPECT_TRUE(fs::exists(live_temp));
  for (const std::string& path : foreign) EXPECT_TRUE(fs::exists(path)) << path;
}

TEST_F(DiskCacheTest, ReadingMarksAnEntryAsUsed) {
  const DiskCache cache = Open();
  ASSERT_TRUE(cache.Write(EntryOf("a")).ok());
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(24 * 50);
  fs::last_write_time(File(EntryOf("a")), old);
  ASSERT_TRUE(cache.Read(EntryOf("a").key).has_value());
  EXPECT_GT(fs::last_write_time(File(EntryOf("a"))), old + std::chrono::hours(24 * 49));
}

}  // namespace
}  // namespace xla_gpu::cuda
