// RMSNorm(x + residual) and its gradients in f32 and bf16; rms_norm.py calls them.
//   residual += x,  inverse = 1 / sqrt(mean(residual^2) + epsilon),  out = residual * inverse *
//   weight
// Sums are of f32, in one order for each shape: results are the same bits in each run.
#ifdef __CUDACC__
#include <cuda_bf16.h>
using bf16 = __nv_bfloat16;

// N elements that are loaded and stored at once.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <typename T, int N>
__device__ Pack<T, N>* Row(T* matrix, long row, int cols) {
  return reinterpret_cast<Pack<T, N>*>(matrix + row * cols);
}

template <typename T, int N>
__device__ const Pack<T, N>* Row(const T* matrix, long row, int cols) {
  return reinterpret_cast<const Pack<T, N>*>(matrix + row * cols);
}

// The sum over the block, known to each of its threads.
__device__ float BlockSum(float sum) {
  __shared__ float of_warp[32];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warp[warp];
  return sum;
}

// One block a row.
template <typename T, int N>
__global__ void rms_norm(const T* x, T* residual, const T* weight, T* out, float* inverse,
                         float epsilon, long rows, int cols) {
  const long row = blockIdx.x;
  const auto* from = Row<T, N>(x, row, cols);
  const auto* weights = Row<T, N>(weight, 0, cols);
  auto* kept = Row<T, N>(residual, row, cols);
  auto* to = Row<T, N>(out, row, cols);
  float squares = 0;
  for (int i = threadIdx.x; i < cols / N; i += blockDim.x) {
    const auto added = from[i];
    auto h = kept[i];
    for (int j = 0; j < N; ++j) {
      h.at[j] = T(float(h.at[j]) + float(added.at[j]));
      squares += float(h.at[j]) * float(h.at[j]);
    }
    kept[i] = h;
  }
  const float scale = rsqrtf(BlockSum(squares) / cols + epsilon);
  for (int i = threadIdx.x; i < cols / N; i += blockDim.x) {
    const auto h = kept[i], w = weights[i];
    Pack<T, N> made;
    for (int j = 0; j < N; ++j) made.at[j] = T(float(h.at[j]) * scale * float(w.at[j]));
    to[i] = made;
  }
  if (threadIdx.x == 0) inverse[row] = scale;
}

// One block a row. What x and residual share: d_h + inverse (g - h inverse^2 mean(g h)), g = d_out
// w.
template <typename T, int N>
__global__ void rms_norm_dx(const T* h, const T* weight, const float* inverse, const T* d_out,
                            const T* d_h, T* dx, long rows, int cols) {
  const long row = blockIdx.x;
  const auto* values = Row<T, N>(h, row, cols);
  const auto* weights = Row<T, N>(weight, 0, cols);
  const auto* gradients = Row<T, N>(d_out, row, cols);
  const auto* others = Row<T, N>(d_h, row, cols);
  auto* to = Row<T, N>(dx, row, cols);
  float products = 0;
  for (int i = threadIdx.x; i < cols / N; i += blockDim.x) {
    const auto v = values[i], w = weights[i], g = gradients[i];
    for (int j = 0; j < N; ++j) products += float(v.at[j]) * float(w.at[j]) * float(g.at[j]);
  }
  const float scale = inverse[row];
  const float shared = BlockSum(products) / cols * scale * scale;
  for (int i = threadIdx.x; i < cols / N; i += blockDim.x) {
    const auto v = values[i], w = weights[i], g = gradients[i], other = others[i];
    Pack<T, N> made;
    for (int j = 0; j < N; ++j) {
      const float through = float(g.at[j]) * float(w.at[j]) - float(v.at[j]) * shared;
      made.at[j] = T(float(other.at[j]) + scale * through);
    }
    to[i] = made;
  }
}

// One block for 32 columns, with a column in each lane; its warps share the rows.
template <typename T>
__global__ void rms_norm_dweight(const T* h, const float* inverse, const T* d_out, T* dweight,
                                 long rows, int cols) {
  __shared__ float of_warp[32][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const long col = blockIdx.x * 32L + lane;
  float sum = 0;
  for (long row = warp; row < rows && col < cols; row += warps) {
    sum += float(d_out[row * cols + col]) * float(h[row * cols + col]) * inverse[row];
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || col >= cols) return;
  for (int other = 1; other < warps; ++other) sum += of_warp[other][lane];
  dweight[col] = T(sum);
}

#else  // the same for CPUs, plainly
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

struct bf16 {
  uint16_t bits;
  bf16() = default;
  explicit bf16(float value) {  // rounded to nearest, ties to even
    uint32_t u;
    std::memcpy(&u, &value, 4);
    bits = value != value ? 0x7fc0 : uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  explicit operator float() const {
    const uint32_t u = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &u, 4);
    return value;
  }
};

template <typename T, int N>
void rms_norm(const T* x, T* residual, const T* weight, T* out, float* inverse, float epsilon,
              long rows, int cols) {
  for (long row = 0; row < rows; ++row, x += cols, residual += cols, out += cols) {
    float squares = 0;
    for (int i = 0; i < cols; ++i) {
      residual[i] = T(float(residual[i]) + float(x[i]));
      squares += float(residual[i]) * float(residual[i]);
    }
    inverse[row] = 1 / std::sqrt(squares / cols + epsilon);
    for (int i = 0; i < cols; ++i) out[i] = T(float(residual[i]) * inverse[row] * float(weight[i]));
  }
}

template <typename T, int N>
void rms_norm_dx(const T* h, const T* weight, const float* inverse, const T* d_out, const T* d_h,
                 T* dx, long rows, int cols) {
  for (long row = 0; row < rows; ++row, h += cols, d_out += cols, d_h += cols, dx += cols) {
    float products = 0;
    for (int i = 0; i < cols; ++i) products += float(h[i]) * float(weight[i]) * float(d_out[i]);
    const float scale = inverse[row], shared = products / cols * scale * scale;
    for (int i = 0; i < cols; ++i) {
      const float through = float(d_out[i]) * float(weight[i]) - float(h[i]) * shared;
      dx[i] = T(float(d_h[i]) + scale * through);
    }
  }
}

template <typename T>
void rms_norm_dweight(const T* h, const float* inverse, const T* d_out, T* dweight, long rows,
                      int cols) {
  std::vector<float> sums(cols);
  for (long row = 0; row < rows; ++row, h += cols, d_out += cols) {
    for (int i = 0; i < cols; ++i) sums[i] += float(d_out[i]) * float(h[i]) * inverse[row];
  }
  for (int i = 0; i < cols; ++i) dweight[i] = T(sums[i]);
}
#endif
