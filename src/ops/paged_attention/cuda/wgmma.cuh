// Hopper's warpgroup matrix instructions (sm_90a): operands in 128-byte swizzled shared memory.
//
// A panel is rows of 64 16-bit elements (128 bytes), eight 16-byte chunks a row; chunk c of row r
// lies at place c ^ (r % 8), so that neither rows nor columns collide in the banks. Panels begin at
// multiples of 1024 bytes.
#ifndef XLA_GPU_OPS_PAGED_ATTENTION_CUDA_WGMMA_CUH_
#define XLA_GPU_OPS_PAGED_ATTENTION_CUDA_WGMMA_CUH_

#include "src/cuda/numeric.cuh"

namespace xla_gpu {

// Byte offset of a 16-byte chunk in a panel.
__device__ __forceinline__ unsigned SwizzledChunk(int row, int chunk) {
  return static_cast<unsigned>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// The matrix descriptor of a panel from `shared` on: groups of eight rows follow each other,
// 128-byte swizzle. It serves operands whose rows run along K (queries, keys) and along N (values)
// alike.
__device__ __forceinline__ unsigned long long PanelDescriptor(unsigned shared) {
  constexpr unsigned long long kEightRows = 1024 >> 4;
  constexpr unsigned long long kSwizzle128 = 1ull << 62;
  return kSwizzle128 | kEightRows << 32 | 1ull << 16 | ((shared & 0x3ffffu) >> 4);
}

// Orders this thread's register accesses, and its shared memory writes that a barrier made known,
// before the warpgroup's matrix instructions.
__device__ __forceinline__ void WarpgroupFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void WarpgroupCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int kPending>
__device__ __forceinline__ void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Makes ordinary shared memory writes (cp.async included) visible to matrix instructions; each
// writing thread calls it before the barrier.
__device__ __forceinline__ void FenceForMatrixReads() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#define XLA_GPU_WGMMA_ACCUMULATORS(c)                                                           \
  "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),     \
      "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), \
      "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), \
      "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), \
      "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), \
      "+f"(c[7][2]), "+f"(c[7][3])
#define XLA_GPU_WGMMA_REGISTERS                                                                 \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31}"

// c[64x64] (+)= a[64x16] * b[64x16]^T, both from shared memory with rows along K; `add` false
// overwrites c. A warp holds rows 16 * warp to 16 * warp + 15, in mma.m16n8's order.
template <typename T>
__device__ __forceinline__ void WarpgroupMma(float (*c)[4], unsigned long long a,
                                             unsigned long long b, bool add) {
  if constexpr (kSameType<T, BF16>) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " XLA_GPU_WGMMA_REGISTERS
        ", %32, %33, p, 1, 1, 0, 0;}"
        : XLA_GPU_WGMMA_ACCUMULATORS(c)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " XLA_GPU_WGMMA_REGISTERS
        ", %32, %33, p, 1, 1, 0, 0;}"
        : XLA_GPU_WGMMA_ACCUMULATORS(c)
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));
  }
}

// c[64x64] += a[64x16] * b[16x64]: a in registers, in mma.m16n8k16's order; b from shared memory
// with rows along N.
template <typename T>
__device__ __forceinline__ void WarpgroupMmaAdd(float (*c)[4], const unsigned (&a)[4],
                                                unsigned long long b) {
  if constexpr (kSameType<T, BF16>) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " XLA_GPU_WGMMA_REGISTERS
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : XLA_GPU_WGMMA_ACCUMULATORS(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " XLA_GPU_WGMMA_REGISTERS
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
                 : XLA_GPU_WGMMA_ACCUMULATORS(c)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

#undef XLA_GPU_WGMMA_REGISTERS

// Wider instructions, with descriptors as two words so that only one of them changes. The upper one
// says how many bytes lie between groups of eight rows.
template <int kGroupBytes>
inline constexpr unsigned kMatrixLayout = 1u << 30 | kGroupBytes >> 4;

// The lower word: the address (of a cluster's block only the place in it), and the bytes between
// panels of 64 columns where there are several along N.
__device__ __forceinline__ unsigned MatrixAddress(unsigned shared, int panel_bytes) {
  return (shared & 0x3ffffu) >> 4 | static_cast<unsigned>(panel_bytes >> 4) << 16;
}

#define XLA_GPU_WGMMA_ACCUMULATORS128(c) \
  XLA_GPU_WGMMA_ACCUMULATORS(c), XLA_GPU_WGMMA_ACCUMULATORS((c + 8))
#define XLA_GPU_WGMMA_REGISTERS128                                                              \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,"    \
  "%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

// c[64x128] (+)= a[64x16] * b[128x16]^T, both from shared memory with rows along K.
template <typename T, int kGroupBytes>
__device__ __forceinline__ void WarpgroupDot(float (*c)[4], unsigned a, unsigned b, bool add) {
#define XLA_GPU_WGMMA(type)                                                        \
  asm volatile(                                                                    \
      "{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, %66, 0;\n"                  \
      "mov.b64 da, {%64, %67}; mov.b64 db, {%65, %67};\n"                          \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                 \
      " " XLA_GPU_WGMMA_REGISTERS128 ", da, db, p, 1, 1, 0, 0;}"                   \
      : XLA_GPU_WGMMA_ACCUMULATORS128(c)                                           \
      : "r"(a), "r"(b), "r"(static_cast<int>(add)), "n"(kMatrixLayout<kGroupBytes>))
  if constexpr (kSameType<T, BF16>) {
    XLA_GPU_WGMMA("bf16");
  } else {
    XLA_GPU_WGMMA("f16");
  }
#undef XLA_GPU_WGMMA
}

// c[64x128] += a[64x16] * b[16x128]: a in registers, b from shared memory with rows along N.
template <typename T, int kGroupBytes>
__device__ __forceinline__ void WarpgroupAdd(float (*c)[4], const unsigned (&a)[4], unsigned b) {
#define XLA_GPU_WGMMA(type)                                                          \
  asm volatile(                                                                      \
      "{.reg .b64 db; mov.b64 db, {%68, %69};\n"                                     \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                   \
      " " XLA_GPU_WGMMA_REGISTERS128 ", {%64,%65,%66,%67}, db, 1, 1, 1, 1;}"         \
      : XLA_GPU_WGMMA_ACCUMULATORS128(c)                                             \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "n"(kMatrixLayout<kGroupBytes>))
  if constexpr (kSameType<T, BF16>) {
    XLA_GPU_WGMMA("bf16");
  } else {
    XLA_GPU_WGMMA("f16");
  }
#undef XLA_GPU_WGMMA
}

// Waits until at most `kPending` groups are under way, and holds what comes after in the program
// back from the accumulators of those that are done.
template <int kPending>
__device__ __forceinline__ void WarpgroupWait(float (&c)[16][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %64;"
               : XLA_GPU_WGMMA_ACCUMULATORS128(c)
               : "n"(kPending)
               : "memory");
}
template <int kPending>
__device__ __forceinline__ void WarpgroupWait(float (&c)[8][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %32;"
               : XLA_GPU_WGMMA_ACCUMULATORS(c)
               : "n"(kPending)
               : "memory");
}

// Keeps what the program does before with these registers before what follows.
__device__ __forceinline__ void HoldRegisters(float (&c)[16][4]) {
  asm volatile("" : XLA_GPU_WGMMA_ACCUMULATORS128(c)::"memory");
}
__device__ __forceinline__ void HoldRegisters(float (&c)[8][4]) {
  asm volatile("" : XLA_GPU_WGMMA_ACCUMULATORS(c)::"memory");
}

#undef XLA_GPU_WGMMA_ACCUMULATORS
#undef XLA_GPU_WGMMA_ACCUMULATORS128
#undef XLA_GPU_WGMMA_REGISTERS128

}  // namespace xla_gpu

#endif  // XLA_GPU_OPS_PAGED_ATTENTION_CUDA_WGMMA_CUH_
