// xla_gpu_run_objects with a framework of our own: its objects are DLPack tensors, its tuples
// arrays.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "src/core/dlpack.h"
#include "xla_gpu/xla_gpu.h"

namespace {

using xla_gpu::dlpack::ExchangeApi;
using xla_gpu::dlpack::Tensor;

int none_object = 0;
int gil_depth = 1;

int FromObject(void* object, Tensor* out) {
  EXPECT_NE(object, &none_object) << "None was taken for a tensor";
  *out = *static_cast<Tensor*>(object);
  return 0;
}
int Fails(void*, Tensor*) { return -1; }
void* Item(void* tuple, ptrdiff_t i) { return static_cast<void**>(tuple)[i]; }
void* Release() {
  --gil_depth;
  return &gil_depth;
}
void Acquire(void* state) { ++*static_cast<int*>(state); }

class ObjectCallTest : public ::testing::Test {
 protected:
  ObjectCallTest() {
    for (size_t i = 0; i < 3; ++i) {
      tensors[i] = {values[i].data(), {1, 0}, 1, {2, 32, 1}, &dim, &stride, 0};
      tuple[i] = &tensors[i];
      types[i] = {sizeof(xla_gpu_tensor), nullptr, XLA_GPU_DTYPE_F32, 1, &dim};
    }
    call = {sizeof(call),     "simple_add",
            "Host",           nullptr,
            types.data(),     2,
            types.data() + 2, 1,
            nullptr,          0};
    object_call = {sizeof(object_call), &call, &api,    1,       0,
                   &none_object,        Item,  Release, Acquire, nullptr};
  }

  ~ObjectCallTest() override { xla_gpu_object_call_clear(&object_call); }

  int Run() { return xla_gpu_run_objects(&object_call, tuple.data(), &status); }

  void ExpectError(const std::string& message) {
    EXPECT_EQ(Run(), 2);
    EXPECT_EQ(xla_gpu_status_message(status), message);
    xla_gpu_status_free(status);
  }

  int64_t dim = 2, stride = 1, other = 7;
  std::array<std::array<float, 2>, 3> values = {{{1, 2}, {10, 20}, {0, 0}}};
  std::array<Tensor, 3> tensors;
  std::array<void*, 3> tuple;
  std::array<xla_gpu_tensor, 3> types;
  ExchangeApi api{1, 3, nullptr, nullptr, nullptr, nullptr, FromObject, nullptr};
  xla_gpu_call call;
  xla_gpu_object_call object_call;
  xla_gpu_status* status = nullptr;
};

TEST_F(ObjectCallTest, RunsWithoutTheGilAndTakesItBack) {
  EXPECT_EQ(Run(), 0);
  EXPECT_EQ(values[2], (std::array<float, 2>{11, 22}));
  EXPECT_EQ(gil_depth, 1);
  EXPECT_EQ(call.args[0].data, nullptr) << "the caller's call must stay as it is";
  values[1] = {20, 30};
  EXPECT_EQ(Run(), 0) << "by the plan that the first run kept";
  EXPECT_EQ(values[2], (std::array<float, 2>{21, 32}));
  EXPECT_NE(object_call.plan, nullptr);
  xla_gpu_object_call_clear(&object_call);
  EXPECT_EQ(object_call.plan, nullptr);
  EXPECT_EQ(Run(), 0);
  tensors[0].data = nullptr;
  EXPECT_EQ(Run(), 1);
  xla_gpu_object_call_clear(nullptr);
}

TEST_F(ObjectCallTest, ByteOffsetAndMissingStrides) {
  std::array<float, 3> wide = {0, 5, 6};
  tensors[0].data = wide.data();
  tensors[0].byte_offset = sizeof(float);
  tensors[0].strides = nullptr;
  EXPECT_EQ(Run(), 0);
  EXPECT_EQ(values[2], (std::array<float, 2>{15, 26}));
}

TEST_F(ObjectCallTest, AScalarIsAVectorOfOne) {
  dim = 1;
  tensors[0].rank = 0;
  EXPECT_EQ(Run(), 0);
  EXPECT_EQ(values[2], (std::array<float, 2>{11, 0}));
}

TEST_F(ObjectCallTest, OtherTypesAreNotRun) {
  const auto expect_other = [&](const char* what, auto change) {
    const Tensor before = tensors[1];
    change(tensors[1]);
    EXPECT_EQ(Run(), 1) << what;
    tensors[1] = before;
  };
  expect_other("shape", [&](Tensor& t) { t.shape = &other; });
  expect_other("stride", [&](Tensor& t) { t.strides = &other; });
  expect_other("rank", [](Tensor& t) { t.rank = 0; });
  expect_other("dtype", [](Tensor& t) { t.dtype = {0, 32, 1}; });
  expect_other("bits", [](Tensor& t) { t.dtype = {2, 64, 1}; });
  expect_other("lanes", [](Tensor& t) { t.dtype.lanes = 2; });
  expect_other("device type", [](Tensor& t) { t.device.type = 2; });
  expect_other("device", [](Tensor& t) { t.device.id = 1; });
  expect_other("address", [](Tensor& t) { t.data = static_cast<char*>(t.data) - 1; });
  tuple[1] = &none_object;
  EXPECT_EQ(Run(), 1);
  tuple[1] = nullptr;
  EXPECT_EQ(Run(), 1);
  tuple[1] = &tensors[1];
  api.tensor_from_object = Fails;
  EXPECT_EQ(Run(), 1);
  EXPECT_EQ(values[2], (std::array<float, 2>{0, 0}));
}

TEST_F(ObjectCallTest, OverlapIsNotRunButInPlaceIs) {
  std::array<float, 3> shared = {1, 2, 3};
  tensors[0].data = shared.data();
  tensors[2].data = shared.data() + 1;
  EXPECT_EQ(Run(), 1);
  tensors[2].data = shared.data();
  EXPECT_EQ(Run(), 0);
  EXPECT_EQ(shared[0], 11);
  tensors[1].data = shared.data();  // in place for one, under way for the other
  EXPECT_EQ(Run(), 1);
}

TEST_F(ObjectCallTest, WrongCalls) {
  EXPECT_EQ(xla_gpu_run_objects(&object_call, tuple.data(), nullptr), 2);
  EXPECT_EQ(xla_gpu_run_objects(nullptr, tuple.data(), &status), 2);
  xla_gpu_status_free(status);
  EXPECT_EQ(xla_gpu_run_objects(&object_call, nullptr, &status), 2);
  xla_gpu_status_free(status);
  object_call.struct_size = 8;
  ExpectError("xla_gpu_object_call.struct_size is 8 but must be at least " +
              std::to_string(sizeof(object_call)) + " (sizeof(xla_gpu_object_call))");
  object_call.struct_size = sizeof(object_call);
  object_call.release_gil = nullptr;
  ExpectError("a pointer in xla_gpu_object_call is NULL");
  object_call.release_gil = Release;
  api.major_version = 2;
  ExpectError("the framework's DLPack has version 2; 1 is supported");
  api.major_version = 1;
  call.num_args = 65;
  ExpectError("65 arguments came; at most 64 may");
  call.num_args = 2;
  call.args = nullptr;
  ExpectError("call.args[0] must be an xla_gpu_tensor with a struct_size of 32");
  call.args = types.data();
  types[2].struct_size = 0;
  ExpectError("call.results[0] must be an xla_gpu_tensor with a struct_size of 32");
  types[2].struct_size = sizeof(xla_gpu_tensor);
  types[0].dims = nullptr;
  EXPECT_EQ(Run(), 1);
  types[0].dims = &dim;
  call.op = "nothing";
  EXPECT_EQ(Run(), 2);
  EXPECT_NE(std::string(xla_gpu_status_message(status)).find("no op is named 'nothing'"),
            std::string::npos);
  xla_gpu_status_free(status);
  EXPECT_EQ(gil_depth, 1);
}

}  // namespace
