// The few PTX instructions that the tensor-core kernels are made of (sm_80 and later).
#ifndef XLA_GPU_CUDA_PTX_CUH_
#define XLA_GPU_CUDA_PTX_CUH_

#include "src/cuda/numeric.cuh"

namespace xla_gpu {

inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Ordinary accesses by shared address.
template <typename T>
__device__ __forceinline__ T LoadShared(unsigned shared) {
  return *static_cast<const T*>(__cvta_shared_to_generic(shared));
}
template <typename T>
__device__ __forceinline__ void StoreShared(unsigned shared, T value) {
  *static_cast<T*>(__cvta_shared_to_generic(shared)) = value;
}

// Launches of one call overlap on Hopper (programmatic dependent launch): each lets the next begin
// at once, as far as there is room beside its own blocks, and waits for all before it, and for what
// they write, before it reads that. Elsewhere both are nothing, and so are they in a launch without
// the attribute.
__device__ __forceinline__ void LetNextLaunchBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void WaitForLaunchesBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Has the constant cache read a launch's parameters while there is nothing else to do: the first
// use of each line waits for memory.
template <typename T>
__device__ __forceinline__ void TouchParams(const T& params) {
  constexpr int kLineWords = 16, kWords = sizeof(T) / 4;
  const unsigned* const words = reinterpret_cast<const unsigned*>(&params);
  unsigned any = words[kWords - 1];
#pragma unroll
  for (int i = 0; i < kWords; i += kLineWords) any |= words[i];
  // For the compiler they are used.
  asm volatile("{.reg .pred p; setp.eq.u32 p, %0, 0; @p nanosleep.u32 0;}" ::"r"(any));
}

// Copies kBytes from global to shared memory in the background; writes zeros and reads nothing if
// `read` is false.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(unsigned shared, const void* global, bool read) {
  const int bytes = read ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared),
                 "l"(global), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global),
                 "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Barrier `id` (1 to 15) of `threads` threads, which are whole warps.
__device__ __forceinline__ void SyncThreads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void LoadMatrix4(unsigned (&r)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void LoadMatrix4Transposed(unsigned (&r)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

// c[16x8] += a[16x16] * b[16x8], f32 accumulators.
template <typename T>
__device__ __forceinline__ void Mma(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  if constexpr (kSameType<T, BF16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// c[16x8] += a[16x8] * b[8x8] of tf32, f32 accumulators.
__device__ __forceinline__ void MmaTf32(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                        unsigned b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x with a relative error below 2^-22; 2^-inf is 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x / d of params.cuh's Divisor.
template <typename Divisor>
__device__ __forceinline__ int Quotient(int x, const Divisor& d) {
  if (d.magic == 0) return x;
  return static_cast<int>(__umulhi(static_cast<unsigned>(x), d.magic) >> d.shift);
}

// 1 / x to within a rounding, of an x that is not subnormal.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The lesser, NaN if one is.
__device__ __forceinline__ float MinOrNaN(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

__device__ __forceinline__ int LoadIndex(const int* pointer) {
  int value;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(pointer));
  return value;
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CUDA_PTX_CUH_
