// What tests of the C ABI share: a call of paged_attention, and processes to run it in.
#ifndef XLA_GPU_CAPI_TEST_UTIL_H_
#define XLA_GPU_CAPI_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/core/test_util.h"
#include "xla_gpu/xla_gpu.h"

namespace xla_gpu {

#ifdef __has_feature
inline constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
inline constexpr bool kAddressSanitizer = __has_feature(address_sanitizer);
#else
#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#endif

// The message of a status, which is freed; "" for success.
inline std::string Take(xla_gpu_status* status) {
  std::string message = xla_gpu_status_message(status);
  xla_gpu_status_free(status);
  return message;
}

// Eight sequences, so that a thread pool has something to share out: decoding with one token each,
// prefill with more.
class AttentionCall {
 public:
  explicit AttentionCall(int64_t tokens = 1)
      : query_dims_{kSeqs * tokens, 2, kHeadDim}, query_(kSeqs * tokens * 2 * kHeadDim) {
    for (int64_t i = 0; i < kSeqs; ++i) {
      lens_[i] = static_cast<int32_t>(tokens + i % 4);
      tables_[i] = static_cast<int32_t>(i % 2);
      starts_[i + 1] = static_cast<int32_t>((i + 1) * tokens);
    }
    for (size_t i = 0; i < query_.size(); ++i) query_[i] = static_cast<float>(i % 7) * 0.1f;
    for (size_t i = 0; i < cache_.size(); ++i) {
      const bool value = i / kHeadDim % 2 == 1;
      cache_[i] = value ? kValue : static_cast<float>(i % 11) * 0.1f;
    }
    Add(args_, query_.data(), XLA_GPU_DTYPE_F32, query_dims_);
    Add(args_, cache_.data(), XLA_GPU_DTYPE_F32, cache_dims_);
    Add(args_, lens_.data(), XLA_GPU_DTYPE_I32, lens_dims_);
    Add(args_, tables_.data(), XLA_GPU_DTYPE_I32, tables_dims_);
    Add(args_, starts_.data(), XLA_GPU_DTYPE_I32, starts_dims_);
    Add(args_, &num_seqs_, XLA_GPU_DTYPE_I32, num_dims_);
    Add(results_, out_.data(), XLA_GPU_DTYPE_F32, query_dims_);
    attr_.struct_size = sizeof(attr_);
    attr_.name = "scale";
    attr_.type = XLA_GPU_ATTR_FLOAT;
    call_.struct_size = sizeof(call_);
    call_.op = "paged_attention";
    call_.platform = "Host";
    call_.args = args_.data();
    call_.num_args = args_.size();
    call_.results = results_.data();
    call_.num_results = results_.size();
    call_.attrs = &attr_;
    call_.num_attrs = 1;
  }
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  // Each scale is a problem of its own.
  const xla_gpu_call* WithScale(double scale) {
    attr_.f = scale;
    return &call_;
  }
  // The error's message, or "".
  std::string Run(double scale) { return Take(xla_gpu_run(WithScale(scale))); }

  bool IsNan() const { return std::isnan(out_[0]); }
  // All values are equal, so that this comes out whatever the weights. Forgets what came out.
  bool IsRight() {
    const bool right =
        std::ranges::all_of(out_, [](float x) { return x > kValue - 1e-5f && x < kValue + 1e-5f; });
    std::ranges::fill(out_, 0.0f);
    return right;
  }

 private:
  static constexpr int64_t kSeqs = 8;
  static constexpr int64_t kHeadDim = 8;
  static constexpr int64_t kPageSize = 32;
  static constexpr float kValue = 0.5f;

  static void Add(std::vector<xla_gpu_tensor>& to, void* data, int32_t dtype,
                  const std::vector<int64_t>& dims) {
    xla_gpu_tensor tensor = {};
    tensor.struct_size = sizeof(tensor);
    tensor.data = data;
    tensor.dtype = dtype;
    tensor.rank = static_cast<int32_t>(dims.size());
    tensor.dims = dims.data();
    to.push_back(tensor);
  }

  const std::vector<int64_t> query_dims_, cache_dims_ = {2, kPageSize, 4, kHeadDim},
                                          lens_dims_ = {kSeqs}, tables_dims_ = {kSeqs, 1},
                                          starts_dims_ = {kSeqs + 1}, num_dims_ = {1};
  std::vector<float> query_, out_ = query_;
  std::vector<float> cache_ = std::vector<float>(2 * kPageSize * 4 * kHeadDim);
  std::vector<int32_t> lens_ = std::vector<int32_t>(kSeqs), tables_ = lens_,
                       starts_ = std::vector<int32_t>(kSeqs + 1);
  int32_t num_seqs_ = kSeqs;
  std::vector<xla_gpu_tensor> args_, results_;
  xla_gpu_attr attr_ = {};
  xla_gpu_call call_ = {};
};

// Of tests whose children start threads.
class ForkingTest : public testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitizer) GTEST_SKIP() << "TSan ends a forked child that starts threads";
  }
};

}  // namespace xla_gpu

#endif  // XLA_GPU_CAPI_TEST_UTIL_H_
