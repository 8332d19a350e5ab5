#include "src/core/file.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <utility>

namespace xla_gpu {
namespace {

namespace fs = std::filesystem;

Status CannotBeRead(const std::string& path, const char* why) {
  return NotFound(path, ": cannot be read: ", why);
}

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "no regular file";
}

}  // namespace

StatusOr<RegularFile> RegularFile::Check(int fd, const std::string& path) {
  RegularFile file;
  file.path_ = path;
  file.fd_ = UniqueFd(fd);
  if (fd < 0 || fstat(fd, &file.info_) != 0) return CannotBeRead(path, std::strerror(errno));
  if (!S_ISREG(file.info_.st_mode)) {
    return InvalidArgument(path, " is ", KindOf(file.info_.st_mode), "; a regular file is wanted");
  }
  return file;
}

StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe without a writer would wait for one.
  return Check(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), path);
}

StatusOr<RegularFile> RegularFile::OpenAt(int folder, const std::string& name) {
  return Check(
      openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC),
      name);
}

StatusOr<std::string> RegularFile::ReadAt(uint64_t offset, size_t size) const {
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n =
        pread(fd_.get(), bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CannotBeRead(path_, std::strerror(errno));
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

StatusOr<std::string> RegularFile::ReadAll(uint64_t limit) const {
  const auto too_large = [&](uint64_t size) {
    return InvalidArgument(path_, " has ", size, " bytes; at most ", limit, " are allowed here");
  };
  if (size() > limit) return too_large(size());
  XLA_GPU_ASSIGN_OR_RETURN(std::string bytes, ReadAt(0, size()));
  // Files of /proc tell no size, others may grow.
  constexpr size_t kChunk = 1 << 16;
  for (;;) {
    XLA_GPU_ASSIGN_OR_RETURN(const std::string more, ReadAt(bytes.size(), kChunk));
    if (more.empty()) return bytes;
    bytes += more;
    if (bytes.size() > limit) return too_large(bytes.size());
  }
}

StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit) {
  XLA_GPU_ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
  return file.ReadAll(limit);
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

Status WriteFile(const std::string& path, std::string_view bytes) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666));
  struct stat info {};
  if (fd.open() && fstat(fd.get(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return InvalidArgument(path, " is ", KindOf(info.st_mode), "; it is not written to");
  }
  const bool opened = fd.open() && ftruncate(fd.get(), 0) == 0;
  // Some file systems say only when the file is closed that there was no room.
  if (opened && WriteAll(fd.get(), bytes) && close(fd.Release()) == 0) return OkStatus();
  Status status = Unavailable(path, ": cannot be written: ", std::strerror(errno));
  if (opened) unlink(path.c_str());
  return status;
}

std::vector<std::string> ListFolder(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> entries;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path().string());
  }
  std::ranges::sort(entries);  // the order must not depend on the file system
  return entries;
}

std::vector<std::string> Glob(const std::string& folder, const std::string& below) {
  std::string pattern;
  for (const char c : folder) {
    if (std::string_view("\\[]*?").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  pattern += below;
  std::vector<std::string> paths;
  glob_t found{};
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return paths;
}

std::string Env(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(std::move(part));
  }
  return parts;
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(line);
  }
  return lines;
}

bool HasTrustedOwner(const std::string& path, const std::string& own) {
  struct stat trusted {
  }, link{}, target{};
  if (lstat(path.c_str(), &link) != 0 || stat(path.c_str(), &target) != 0) return false;
  if (own.empty() || stat(own.c_str(), &trusted) != 0) trusted.st_uid = 0;
  return std::ranges::all_of(std::array{link.st_uid, target.st_uid}, [&](uid_t owner) {
    return owner == geteuid() || owner == 0 || owner == trusted.st_uid;
  });
}

}  // namespace xla_gpu
