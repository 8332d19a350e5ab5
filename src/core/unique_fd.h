// A file descriptor that closes itself.
#ifndef XLA_GPU_CORE_UNIQUE_FD_H_
#define XLA_GPU_CORE_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace xla_gpu {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_UNIQUE_FD_H_
