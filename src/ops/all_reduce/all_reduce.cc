#include "src/ops/all_reduce/all_reduce.h"

#include <charconv>
#include <set>
#include <string_view>

#include "src/core/op_registry.h"
#include "src/core/strings.h"
#include "src/ops/all_reduce/exchange.cuh"

namespace xla_gpu {
namespace all_reduce {
namespace {

constexpr char kName[] = "all_reduce";
constexpr char kDevices[] = "devices";

StatusOr<std::vector<TensorSpec>> Infer(const Call& call, Platform platform) {
  const std::vector<int> devices = DevicesOf(call);
  const std::set<int> distinct(devices.begin(), devices.end());
  if (devices.empty() || devices.size() > kMostDevices || distinct.size() < devices.size()) {
    return InvalidArgument(kName, ": attribute '", kDevices, "' is \"",
                           call.attributes->GetString(kDevices), "\"; it must be 1 to ",
                           kMostDevices, " CUDA ordinals joined by commas, none twice");
  }
  const TensorView& x = call.args[0];
  if (x.size_bytes() > kMostBytes) {
    return InvalidArgument(kName, ": x is ", x.ToString(), ", ", x.size_bytes(), " bytes; at most ",
                           kMostBytes,
                           " are summed, and the framework's own is faster from there on "
                           "(jax.lax.psum)");
  }
  return std::vector{x.spec()};
}

Op MakeOp() {
  return Op{
      .name = kName,
      .target = "xla_gpu_all_reduce",
      .doc =
          "The sum of the x of several GPUs of one process, on each of them: in f32, in the "
          "order of devices, rounded once, so that all have the same bits. Each of them makes "
          "the same calls in the same order, one at a time, with x of one type. For small sums, "
          "of at most 2 MiB; larger ones are the framework's own. The GPUs must reach each "
          "other's memory. One that waits two minutes for another's part ends with an error.",
      .args = {{"x", {DType::kF32, DType::kBF16, DType::kF16}, "any shape, at most 2 MiB"}},
      .results = {{.name = "out", .doc = "as x", .like = "x"}},
      .attrs =
          {{kDevices, AttrType::kString,
            "CUDA ordinals of the devices that sum, up to 8, joined by commas: \"0,1\"; the same "
            "text in all calls"}},
      .instead_of_gradient = "use the framework's own (jax.lax.psum)",
      .instead_of_batching = "it works on any shape, so call it on the whole batch",
      .infer = Infer,
      .make_plan = {MakeAllReduceHostPlan, MakeAllReduceCudaPlan},
  };
}

XLA_GPU_REGISTER_OP(MakeOp());

}  // namespace

std::vector<int> DevicesOf(const Call& call) {
  const std::string_view text = call.attributes->GetString(kDevices);
  std::vector<int> devices;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    uint16_t device = 0;
    const auto [after, error] = std::from_chars(at, end, device);
    if (error != std::errc() || (after < end && (*after != ',' || after + 1 == end))) return {};
    devices.push_back(device);
    at = after + 1;
  }
  return devices;
}

}  // namespace all_reduce
}  // namespace xla_gpu
