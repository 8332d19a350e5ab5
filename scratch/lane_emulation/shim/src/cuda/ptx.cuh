#ifndef SHIM_PTX
#define SHIM_PTX
#include <barrier>
#include <cstring>
#include <algorithm>
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
struct Dim { unsigned x; };
inline thread_local Dim threadIdx, blockIdx;
inline std::barrier<>* g_warp[64]; inline std::barrier<>* g_block;
inline unsigned long long g_slots[64][32]; inline int g_or[2048]; inline int g_threads;
inline std::barrier<>& W() { return *g_warp[threadIdx.x / 32]; }
template <class T> T X(T v, int from) {
  static_assert(sizeof(T) <= 8);
  unsigned long long b = 0; memcpy(&b, &v, sizeof(T));
  auto* s = g_slots[threadIdx.x / 32];
  s[threadIdx.x % 32] = b; W().arrive_and_wait();
  b = s[from & 31]; T r; memcpy(&r, &b, sizeof(T)); W().arrive_and_wait(); return r;
}
template <class T, class F> T R(T v, F f) {
  unsigned long long b = 0; memcpy(&b, &v, sizeof(T));
  auto* s = g_slots[threadIdx.x / 32];
  s[threadIdx.x % 32] = b; W().arrive_and_wait();
  T r; memcpy(&r, &s[0], sizeof(T));
  for (int i = 1; i < 32; ++i) { T o; memcpy(&o, &s[i], sizeof(T)); r = f(r, o); }
  W().arrive_and_wait(); return r;
}
#define LANE int(threadIdx.x % 32)
template <class T> T __shfl_up_sync(unsigned, T v, int d) { return X(v, LANE >= d ? LANE - d : LANE); }
template <class T> T __shfl_sync(unsigned, T v, int l) { return X(v, l); }
template <class T> T __reduce_add_sync(unsigned, T v) { return R(v, [](T a, T b) { return T(unsigned(a) + unsigned(b)); }); }
template <class T> T __reduce_max_sync(unsigned, T v) { return R(v, [](T a, T b) { return a > b ? a : b; }); }
template <class T> T __reduce_min_sync(unsigned, T v) { return R(v, [](T a, T b) { return a < b ? a : b; }); }
inline unsigned __ballot_sync(unsigned, bool p) { return R(p ? 1u << LANE : 0u, [](unsigned a, unsigned b) { return a | b; }); }
inline bool __any_sync(unsigned m, bool p) { return __ballot_sync(m, p) != 0; }
inline void __syncthreads() { g_block->arrive_and_wait(); }
inline int __syncthreads_or(int x) { g_or[threadIdx.x] = x; __syncthreads(); int r = 0; for (int i = 0; i < g_threads; ++i) r |= g_or[i]; __syncthreads(); return r; }
inline void __syncwarp() { W().arrive_and_wait(); }
template <class T> T atomicAdd(T* p, T v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
template <class T> T __ldcg(const T* p) { return *p; }
using std::min; using std::max;
namespace xla_gpu {
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline void LetNextLaunchBegin() {}
inline void WaitForLaunchesBefore() {}
template <class T> void TouchParams(const T&) {}
}
#include "src/ops/paged_attention/cuda/params.cuh"
namespace xla_gpu::paged_attention {
inline int Quotient(int x, const Divisor& d) { return d.magic == 0 ? x : int(__umulhi(unsigned(x), d.magic) >> d.shift); }
inline int LoadIndex(const int* p) { return *p; }
}
#endif
