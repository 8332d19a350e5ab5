// SingleFlight: values made once each, by one thread while others wait for it. Internal to
// src/cuda.
#ifndef XLA_GPU_CUDA_SINGLE_FLIGHT_H_
#define XLA_GPU_CUDA_SINGLE_FLIGHT_H_

#include <exception>
#include <future>
#include <mutex>
#include <string>
#include <unordered_map>

#include "src/core/status.h"

namespace xla_gpu::cuda {

template <typename Value>
class SingleFlight {
 public:
  // The value under `key`. Where there is none, `make` (a function that returns StatusOr<Value>)
  // runs in this thread, and all threads that ask meanwhile get its outcome; an error is not kept
  // for those who ask later. `make` must not ask for the same key.
  template <typename Make>
  StatusOr<Value> Get(const std::string& key, Make make) {
    std::promise<StatusOr<Value>> promise;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (auto found = flights_.find(key); found != flights_.end()) {
        std::shared_future<StatusOr<Value>> flight = found->second;
        lock.unlock();
        return flight.get();
      }
      flights_.emplace(key, promise.get_future().share());
    }
    try {
      StatusOr<Value> value = make();
      if (!value.ok()) Forget(key);
      promise.set_value(value);
      return value;
    } catch (...) {
      Forget(key);
      promise.set_exception(std::current_exception());
      throw;
    }
  }

  // Whoever asks for `key` from now on has it made anew.
  void Forget(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    flights_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_future<StatusOr<Value>>> flights_;
};

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_SINGLE_FLIGHT_H_
