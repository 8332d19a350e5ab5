// Files that others may have made, read and written with a limit: no folder, device or pipe in a
// file's place blocks or fills the memory, and no failed write is lost.
#ifndef XLA_GPU_CORE_FILE_H_
#define XLA_GPU_CORE_FILE_H_

#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/status.h"
#include "src/core/unique_fd.h"

namespace xla_gpu {

// A regular file, open for reading. Errors name the path and what is wrong with it.
class RegularFile {
 public:
  static StatusOr<RegularFile> Open(const std::string& path);
  // In the folder that is open as `folder`; a link in the file's place is refused.
  static StatusOr<RegularFile> OpenAt(int folder, const std::string& name);

  // As the file system tells it: 0 for files of /proc that have content.
  uint64_t size() const { return static_cast<uint64_t>(info_.st_size); }
  const struct stat& info() const { return info_; }
  int fd() const { return fd_.get(); }

  // `size` bytes from `offset`, fewer where the file ends before.
  StatusOr<std::string> ReadAt(uint64_t offset, size_t size) const;
  // The whole file; one of more than `limit` bytes is an error.
  StatusOr<std::string> ReadAll(uint64_t limit) const;

 private:
  static StatusOr<RegularFile> Check(int fd, const std::string& path);

  std::string path_;
  UniqueFd fd_;
  struct stat info_ {};
};

StatusOr<std::string> ReadFile(const std::string& path, uint64_t limit);

// Replaces the file's content, or leaves no file where that fails.
Status WriteFile(const std::string& path, std::string_view bytes);

// False, with errno set, if not all could be written.
bool WriteAll(int fd, std::string_view bytes);

// The paths of a folder's entries, sorted; none if it cannot be read.
std::vector<std::string> ListFolder(const std::string& folder);

// The paths below `folder`, which is taken as it is, that match a shell pattern; sorted.
std::vector<std::string> Glob(const std::string& folder, const std::string& pattern);

// An environment variable, empty where it is not set.
std::string Env(const char* name);

// The parts of a text between separators, without empty ones.
std::vector<std::string> Split(const std::string& text, char separator);

// The lines of a text, without their ends ("\n", "\r\n").
std::vector<std::string_view> Lines(std::string_view text);

// True if the path, and what it leads to where it is a link, belongs to this user, to root or to
// the owner of `own`, a file or folder that is trusted already: code from there is code that this
// user chose to run.
bool HasTrustedOwner(const std::string& path, const std::string& own = "");

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_FILE_H_
