// TVM-FFI functions for the CPU, of every kind that a caller meets; test_tvm_ffi.py compiles it.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>

namespace ffi = tvm::ffi;
using ffi::Array;
using ffi::Tensor;
using ffi::TensorView;

namespace {

float* Data(TensorView t) { return static_cast<float*>(t.data_ptr()); }

Tensor Empty(ffi::ShapeView shape, DLDataType dtype, DLDevice device) {
  return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, shape, dtype, device);
}

Tensor Like(TensorView x) { return Empty(x.shape(), x.dtype(), x.device()); }

// A new tensor of scale * x + shift.
Tensor Affine(TensorView x, float scale, float shift) {
  Tensor out = Like(x);
  for (int64_t i = 0; i < x.numel(); ++i) Data(out)[i] = scale * Data(x)[i] + shift;
  return out;
}

// ---- Results that the caller allocates ----

void AddScaled(TensorView x, TensorView y, double alpha, TensorView out) {
  TVM_FFI_CHECK(x.shape().size() == y.shape().size(), ValueError)
      << "x has " << x.ndim() << " dimensions, y " << y.ndim();
  for (int i = 0; i < x.ndim(); ++i) {
    TVM_FFI_CHECK(x.stride(i) >= 0, ValueError) << "strides are null";
  }
  for (int64_t i = 0; i < x.numel(); ++i) {
    Data(out)[i] = Data(x)[i] + static_cast<float>(alpha) * Data(y)[i];
  }
}

void TripleOfOwned(Tensor x, Tensor out) {
  for (int64_t i = 0; i < x.numel(); ++i) Data(out)[i] = 3 * Data(x)[i];
}

// out[0] tells what came, digit by digit.
void Scalars(TensorView x, ffi::Optional<TensorView> bias, int64_t n, bool flag, double f,
             ffi::Optional<int64_t> nothing, TensorView out) {
  Data(out)[0] = static_cast<float>(n + (flag ? 100 : 0) + (bias.has_value() ? 1000 : 0) +
                                    (nothing.has_value() ? 10000 : 0) + f);
}

// In place, into the memory that y shares with a result.
void AddTo(TensorView x, TensorView y) {
  for (int64_t i = 0; i < x.numel(); ++i) Data(y)[i] += Data(x)[i];
}

void UseWorkspace(TensorView x, TensorView workspace, TensorView out) {
  TVM_FFI_CHECK(workspace.dtype().bits == 8 && workspace.ndim() == 1, TypeError) << "no bytes";
  Data(out)[0] = static_cast<float>(workspace.numel());
}

// ---- Results that the function allocates ----

Tensor Softmax(TensorView x) {
  Tensor out = Like(x);
  const int64_t cols = x.size(x.ndim() - 1);
  for (int64_t begin = 0; begin < x.numel(); begin += cols) {
    const float* in = Data(x) + begin;
    float* to = Data(out) + begin;
    const float most = *std::max_element(in, in + cols);
    float sum = 0;
    for (int64_t i = 0; i < cols; ++i) sum += to[i] = std::exp(in[i] - most);
    for (int64_t i = 0; i < cols; ++i) to[i] /= sum;
  }
  return out;
}

Tensor ScratchFirst(TensorView x) {
  const Tensor scratch = Affine(x, 2, 0);
  return Affine(scratch, 1, 1);
}

// The scratch is freed before the result is allocated, maybe in the same place.
Tensor FreedScratchFirst(TensorView x) {
  float first = 0;
  {
    const Tensor scratch = Affine(x, 2, 0);
    first = Data(scratch)[0];
  }
  return Affine(x, 1, first);
}

Array<Tensor> Two(TensorView x) {
  Tensor a = Affine(x, 1, 1), b = Affine(x, 1, 2);
  return {a, b};
}

Array<Tensor> TwoSwapped(TensorView x) {
  Tensor a = Affine(x, 1, 1), b = Affine(x, 1, 2);
  return {b, a};
}

Array<Tensor> ThreeRotated(TensorView x) {
  Tensor a = Affine(x, 1, 1), b = Affine(x, 1, 2), c = Affine(x, 1, 3);
  return {b, c, a};
}

// Another order at every call.
Array<Tensor> ChangesItsMind(TensorView x) {
  static int calls = 0;
  Array<Tensor> two = Two(x);
  return ++calls % 2 == 0 ? Array<Tensor>{two[1], two[0]} : two;
}

Array<Tensor> OneTwice(TensorView x) {
  Tensor a = Affine(x, 1, 1);
  return {a, a};
}

Tensor AsOneDimension(TensorView x) {
  const int64_t n = x.numel();
  Tensor flat = Empty(ffi::ShapeView(&n, 1), x.dtype(), x.device());
  for (int64_t i = 0; i < n; ++i) Data(flat)[i] = -Data(x)[i];
  return flat.as_strided(x.shape(), x.strides());
}

Tensor Identity(Tensor x) { return x; }

Tensor Many(TensorView x) {
  Tensor last = Affine(x, 1, 0);
  for (int i = 0; i < 20; ++i) last = Affine(last, 1, 1);
  return last;
}

// ---- What is wrong ----

void Fails(TensorView x) { TVM_FFI_THROW(TypeError) << "rows must be even, not " << x.size(0); }
void FailsOtherwise(TensorView) { throw std::runtime_error("a plain C++ exception"); }
Tensor FailsWithResult(TensorView x) {
  Tensor out = Like(x);
  TVM_FFI_CHECK(false, ValueError) << "after an allocation of " << out.numel();
  return out;
}
void Keeps(Tensor x) {
  static ffi::Optional<Tensor> kept;
  kept = x;
}
Tensor KeepsScratch(TensorView x) {
  static ffi::Optional<Tensor> kept;
  kept = Like(x);
  return Affine(x, 1, 0);
}
void AllocatesInAThread(TensorView x) {
  std::string error;
  std::thread([&] {
    try {
      Like(x);
    } catch (const std::exception& e) {
      error = e.what();
    }
  }).join();
  TVM_FFI_CHECK(error.empty(), RuntimeError) << "in the thread: " << error;
}
Tensor WrongDType(TensorView x) { return Empty(x.shape(), {kDLInt, 32, 1}, x.device()); }
Tensor WrongShape(TensorView x) {
  const int64_t shape[] = {1, 2, 3};
  return Empty(ffi::ShapeView(shape, 3), x.dtype(), x.device());
}
Tensor Transposed(TensorView x) {
  const int64_t shape[] = {x.size(1), x.size(0)}, strides[] = {1, x.size(1)};
  return Like(x).as_strided(ffi::ShapeView(shape, 2), ffi::ShapeView(strides, 2));
}
Tensor OnCuda(TensorView x) { return Empty(x.shape(), x.dtype(), {kDLCUDA, 0}); }
Tensor TooMuch(TensorView x) {
  const int64_t shape[] = {int64_t{1} << 31, int64_t{1} << 31};
  return Empty(ffi::ShapeView(shape, 2), {kDLFloat, 64, 1}, x.device());
}
Tensor MoreThanThereIs(TensorView x) {
  const int64_t shape[] = {int64_t{1} << 55};
  return Empty(ffi::ShapeView(shape, 1), {kDLFloat, 32, 1}, x.device());
}
Tensor NegativeShape(TensorView x) {
  const int64_t shape[] = {-1, 0};
  return Empty(ffi::ShapeView(shape, 2), x.dtype(), x.device());
}
void ReturnsNothing(TensorView) {}
int64_t ReturnsAnInt(TensorView) { return 7; }
Array<ffi::Any> ReturnsOthers(TensorView x) { return {Like(x), 7}; }
Array<Tensor> ReturnsThree(TensorView x) { return {Like(x), Like(x), Like(x)}; }

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_scaled, AddScaled)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(triple_of_owned, TripleOfOwned)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scalars, Scalars)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(add_to, AddTo)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(use_workspace, UseWorkspace)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(softmax, Softmax)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scratch_first, ScratchFirst)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(freed_scratch_first, FreedScratchFirst)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(two, Two)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(two_swapped, TwoSwapped)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(three_rotated, ThreeRotated)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(changes_its_mind, ChangesItsMind)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(one_twice, OneTwice)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(as_one_dimension, AsOneDimension)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(identity, Identity)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(many, Many)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fails, Fails)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fails_otherwise, FailsOtherwise)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(fails_with_result, FailsWithResult)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(keeps, Keeps)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(keeps_scratch, KeepsScratch)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(allocates_in_a_thread, AllocatesInAThread)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(wrong_dtype, WrongDType)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(wrong_shape, WrongShape)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(transposed, Transposed)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(on_cuda, OnCuda)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(too_much, TooMuch)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(more_than_there_is, MoreThanThereIs)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(negative_shape, NegativeShape)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(returns_nothing, ReturnsNothing)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(returns_an_int, ReturnsAnInt)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(returns_others, ReturnsOthers)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(returns_three, ReturnsThree)
