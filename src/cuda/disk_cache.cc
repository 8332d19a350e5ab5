#include "src/cuda/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "src/core/file.h"
#include "src/core/strings.h"

namespace xla_gpu::cuda {
namespace {

// The folder may hold files of others', since the user names it: a file is ours only if its whole
// name is one that is made here.
constexpr std::string_view kPrefix = "xla_gpu-";
constexpr std::string_view kEntrySuffix = ".kernel";
constexpr std::string_view kLockSuffix = ".lock";
constexpr std::string_view kTempSuffix = ".tmp";
constexpr uint64_t kMaxEntryBytes = uint64_t{1} << 30;
constexpr time_t kHour = 3600;
constexpr time_t kDay = 24 * kHour;
constexpr time_t kKeepUnused = 90 * kDay;  // entries of versions long gone
constexpr time_t kKeepTemp = kHour;        // files that a killed process left behind

std::string ErrnoText() { return std::strerror(errno); }

std::string NameOf(const Sha256::Digest& key, std::string_view suffix) {
  return std::string(kPrefix).append(Sha256::Hex(key)).append(suffix);
}

std::string EntryName(const Sha256::Digest& key) { return NameOf(key, kEntrySuffix); }

// xla_gpu-KEY.SUFFIX, and for temporary files xla_gpu-KEY.PID.TIME.COUNT.tmp
bool IsOurs(std::string_view name, std::string_view suffix) {
  if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return false;
  name.remove_prefix(kPrefix.size());
  if (name.size() < 64 + suffix.size()) return false;
  const std::string_view middle = name.substr(64, name.size() - suffix.size() - 64);
  return name.substr(0, 64).find_first_not_of("0123456789abcdef") == name.npos &&
         middle.find_first_not_of(".0123456789") == middle.npos &&
         std::ranges::count(middle, '.') == (suffix == kTempSuffix ? 3 : 0) &&
         (middle.empty() || middle.front() == '.');
}

std::string HomeFolder() {
  if (std::string home = Env("HOME"); home.starts_with('/')) return home;
  passwd entry{};
  passwd* found = nullptr;
  char buffer[4096];
  const int error = getpwuid_r(geteuid(), &entry, buffer, sizeof(buffer), &found);
  return error == 0 && found != nullptr && *entry.pw_dir == '/' ? entry.pw_dir : "";
}

// Every name in the folder.
std::vector<std::string> Names(int folder) {
  std::vector<std::string> names;
  // A descriptor of its own: reading moves its position.
  const int fd = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return names;
  std::unique_ptr<DIR, int (*)(DIR*)> stream(fdopendir(fd), closedir);
  if (stream == nullptr) {
    close(fd);
    return names;
  }
  while (const dirent* entry = readdir(stream.get())) names.emplace_back(entry->d_name);
  std::ranges::sort(names);
  return names;
}

Status CheckPrivate(const std::string& folder, const struct stat& info) {
  if (info.st_uid != geteuid()) {
    return FailedPrecondition("cuda: cache folder ", folder, " belongs to user ", info.st_uid,
                              ", not to user ", geteuid(),
                              " who runs this; set XLA_GPU_CACHE_DIR to a folder of yours");
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return FailedPrecondition("cuda: others may write to cache folder ", folder,
                              ", and what lies in it runs on the GPU; chmod 700 it, or set "
                              "XLA_GPU_CACHE_DIR to another folder");
  }
  return OkStatus();
}

// 0 if the folder, which is missing, could be made with its parents; else as mkdir.
int CouldMake(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path parent = folder.parent_path();
  while (!std::filesystem::exists(parent, error) && parent.has_relative_path()) {
    parent = parent.parent_path();
  }
  return access((parent / ".").c_str(), W_OK | X_OK);
}

bool SameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace

std::string DiskCache::DefaultFolder() {
  // Empty is a wish too: no disk cache.
  if (const char* folder = std::getenv("XLA_GPU_CACHE_DIR"); folder != nullptr) return folder;
  // The XDG specification: a relative path is to be ignored.
  if (const std::string xdg = Env("XDG_CACHE_HOME"); xdg.starts_with('/')) return xdg + "/xla_gpu";
  const std::string home = HomeFolder();
  return home.empty() ? "" : home + "/.cache/xla_gpu";
}

StatusOr<DiskCache> DiskCache::Open(const std::string& folder) { return Open(folder, true); }

StatusOr<DiskCache> DiskCache::OpenExisting(const std::string& folder) {
  return Open(folder, false);
}

StatusOr<DiskCache> DiskCache::Open(const std::string& given, bool make) {
  // "x/" and "x/." name the same folder as "x", but their parent would be "x", and a link would be
  // followed.
  std::string folder = given;
  while (folder.size() > 1 && (folder.ends_with('/') || folder.ends_with("/."))) folder.pop_back();
  if (folder.empty()) {
    return FailedPrecondition(
        "cuda: there is no disk cache: XLA_GPU_CACHE_DIR is empty, or no home folder is known");
  }
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::absolute(folder, error);
    if (make) std::filesystem::create_directories(path.parent_path(), error);
    if ((make ? mkdir(folder.c_str(), 0700) : CouldMake(path)) != 0 && errno != EEXIST) {
      return FailedPrecondition("cuda: cache folder ", folder, " could not be made: ", ErrnoText(),
                                "; set XLA_GPU_CACHE_DIR to another");
    }
    if (!make) return NotFound("cuda: cache folder ", folder, " is not there yet");
  }
  if (lstat(folder.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
    return FailedPrecondition(
        "cuda: cache folder ", folder,
        " is a link, which somebody else may have put there to a folder of yours; set "
        "XLA_GPU_CACHE_DIR to the folder itself");
  }
  UniqueFd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.open() || fstat(fd.get(), &info) != 0) {
    return FailedPrecondition("cuda: cache folder ", folder, " could not be opened: ", ErrnoText(),
                              "; set XLA_GPU_CACHE_DIR to another");
  }
  XLA_GPU_RETURN_IF_ERROR(CheckPrivate(folder, info));
  return DiskCache(folder, std::move(fd));
}

std::optional<std::string> DiskCache::ReadFile(const std::string& name, bool mark_used) const {
  const StatusOr<RegularFile> file = RegularFile::OpenAt(fd_.get(), name);
  if (!file.ok()) return std::nullopt;
  if (mark_used && std::time(nullptr) - file->info().st_mtime > kDay) {
    futimens(file->fd(), nullptr);
  }
  StatusOr<std::string> bytes = file->ReadAll(kMaxEntryBytes);
  return bytes.ok() ? std::optional<std::string>(*std::move(bytes)) : std::nullopt;
}

std::optional<CacheEntry> DiskCache::Read(const Sha256::Digest& key) const {
  const std::string name = EntryName(key);
  std::optional<std::string> bytes = ReadFile(name, /*mark_used=*/true);
  if (!bytes) return std::nullopt;
  std::optional<CacheEntry> entry = ParseCacheEntry(*bytes);
  if (entry && entry->key == key) return entry;
  Remove(key);
  return std::nullopt;
}

void DiskCache::Remove(const Sha256::Digest& key) const {
  unlinkat(fd_.get(), EntryName(key).c_str(), 0);
}

Status DiskCache::Write(const CacheEntry& entry) const {
  RemoveOutdated();
  static std::atomic<uint64_t> counter = 0;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const std::string temp =
      NameOf(entry.key, StrCat(".", getpid(), ".", now, ".", counter++, kTempSuffix));
  auto failed = [&](const char* what) {
    Status status =
        FailedPrecondition("cuda: a kernel could not be kept in cache folder ", folder_, ": ", what,
                           ": ", ErrnoText(), "; it will be compiled again by the next process");
    unlinkat(fd_.get(), temp.c_str(), 0);
    return status;
  };
  UniqueFd fd(
      openat(fd_.get(), temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.open()) return failed("create");
  if (!WriteAll(fd.get(), SerializeCacheEntry(entry))) return failed("write");
  // Some file systems rename before they have the content; after a power cut that would leave an
  // empty entry.
  if (fsync(fd.get()) != 0) return failed("fsync");
  if (renameat(fd_.get(), temp.c_str(), fd_.get(), EntryName(entry.key).c_str()) != 0) {
    return failed("rename");
  }
  return OkStatus();
}

DiskCache::KeyLock DiskCache::Lock(const Sha256::Digest& key,
                                   std::chrono::milliseconds timeout) const {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  KeyLock lock(fd_.get(), NameOf(key, kLockSuffix));
  auto pause = std::chrono::milliseconds(1);
  do {
    UniqueFd fd(openat(fd_.get(), lock.name_.c_str(),
                       O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!fd.open()) return lock;  // read-only or full
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      // The last holder may have removed the file between our open and our lock.
      struct stat ours {
      }, current{};
      if (fstat(fd.get(), &ours) == 0 &&
          fstatat(fd_.get(), lock.name_.c_str(), &current, AT_SYMLINK_NOFOLLOW) == 0 &&
          SameFile(ours, current)) {
        lock.fd_ = std::move(fd);
        return lock;
      }
      continue;
    }
    if (errno != EWOULDBLOCK && errno != EINTR) return lock;  // a file system without locks
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  } while (Clock::now() < deadline);
  return lock;
}

DiskCache::KeyLock::~KeyLock() {
  if (!fd_.open()) return;
  unlinkat(folder_, name_.c_str(), 0);
  // Explicitly: a child forked meanwhile has a copy of the descriptor, which would keep the lock.
  flock(fd_.get(), LOCK_UN);
}

void DiskCache::RemoveOutdated() const {
  const time_t now = std::time(nullptr);
  for (const std::string& name : Names(fd_.get())) {
    time_t keep = 0;
    if (IsOurs(name, kTempSuffix)) keep = kKeepTemp;
    if (IsOurs(name, kEntrySuffix)) keep = kKeepUnused;
    struct stat info {};
    if (keep != 0 && fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        now - info.st_mtime > keep) {
      unlinkat(fd_.get(), name.c_str(), 0);
    }
  }
}

std::vector<CachedKernel> DiskCache::List() const {
  std::vector<CachedKernel> files;
  for (const std::string& name : Names(fd_.get())) {
    struct stat info {};
    if (!IsOurs(name, kEntrySuffix) ||
        fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    CachedKernel file{.file = name, .bytes = info.st_size, .modified = info.st_mtime};
    const std::optional<std::string> bytes = ReadFile(name, /*mark_used=*/false);
    if (std::optional<CacheEntry> entry = bytes ? ParseCacheEntry(*bytes) : std::nullopt) {
      file.valid = EntryName(entry->key) == name;
      file.description = std::move(entry->description);
    }
    files.push_back(std::move(file));
  }
  return files;
}

StatusOr<int> DiskCache::Clear() const {
  int removed = 0;
  for (const std::string& name : Names(fd_.get())) {
    const bool entry = IsOurs(name, kEntrySuffix);
    // A lock file that is removed while held costs a second compilation at most.
    if (!entry && !IsOurs(name, kTempSuffix) && !IsOurs(name, kLockSuffix)) continue;
    if (unlinkat(fd_.get(), name.c_str(), 0) != 0 && errno != ENOENT) {
      return FailedPrecondition("cuda: ", folder_, "/", name,
                                " could not be removed: ", ErrnoText());
    }
    removed += entry ? 1 : 0;
  }
  return removed;
}

}  // namespace xla_gpu::cuda
