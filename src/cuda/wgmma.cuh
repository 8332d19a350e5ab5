// Hopper's warpgroup matrix instructions (sm_90a): operands in 128-byte swizzled shared memory.
//
// A panel is rows of 64 16-bit elements (128 bytes), eight 16-byte chunks a row; chunk c of row r
// lies at place c ^ (r % 8), so that neither rows nor columns collide in the banks. Panels begin at
// multiples of 1024 bytes.
#ifndef XLA_GPU_CUDA_WGMMA_CUH_
#define XLA_GPU_CUDA_WGMMA_CUH_

#include "src/cuda/numeric.cuh"

namespace xla_gpu {

// Byte offset of a 16-byte chunk in a panel.
__device__ __forceinline__ unsigned SwizzledChunk(int row, int chunk) {
  return static_cast<unsigned>(row * 128 + ((chunk ^ (row & 7)) << 4));
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

// Keeps what the program does before with these registers before what follows.
template <int kTiles>
__device__ __forceinline__ void HoldRegisters(float (&c)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    asm volatile("" : "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])::"memory");
  }
}

// Waits until at most `kPending` groups are under way, and holds what comes after in the program
// back from the accumulators of those that are done.
template <int kPending, int kTiles>
__device__ __forceinline__ void WarpgroupWait(float (&c)[kTiles][4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  HoldRegisters(c);
}

// A matrix descriptor is two words, of which only the lower changes. The upper one says how many
// bytes lie between groups of eight rows, 128 bytes each.
template <int kGroupBytes>
inline constexpr unsigned kMatrixLayout = 1u << 30 | kGroupBytes >> 4;

// The lower word: the address (of a cluster's block only the place in it), and the bytes between
// panels of 64 columns where there are several along N.
__device__ __forceinline__ unsigned MatrixAddress(unsigned shared, int panel_bytes) {
  return (shared & 0x3ffffu) >> 4 | static_cast<unsigned>(panel_bytes >> 4) << 16;
}

// A warp of c[64xN] holds rows 16 * warp to 16 * warp + 15, in mma.m16n8's order.
#define XLA_GPU_TILE(c, i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define XLA_GPU_TILES2(c, i) XLA_GPU_TILE(c, i), XLA_GPU_TILE(c, i + 1)
#define XLA_GPU_TILES8(c, i) \
  XLA_GPU_TILES2(c, i), XLA_GPU_TILES2(c, i + 2), XLA_GPU_TILES2(c, i + 4), XLA_GPU_TILES2(c, i + 6)
#define XLA_GPU_REGISTERS8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define XLA_GPU_REGISTERS16 XLA_GPU_REGISTERS8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define XLA_GPU_REGISTERS24 XLA_GPU_REGISTERS16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define XLA_GPU_REGISTERS32 XLA_GPU_REGISTERS24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define XLA_GPU_REGISTERS40 XLA_GPU_REGISTERS32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define XLA_GPU_REGISTERS48 XLA_GPU_REGISTERS40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define XLA_GPU_REGISTERS56 XLA_GPU_REGISTERS48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define XLA_GPU_REGISTERS64 XLA_GPU_REGISTERS56 ",%56,%57,%58,%59,%60,%61,%62,%63"

#define XLA_GPU_TILES16(c) XLA_GPU_TILES8(c, 0), XLA_GPU_TILES8(c, 8)

// c[64xkN] (+)= a[64x16] * b[kNx16]^T, both from shared memory with rows along K; `add` false
// overwrites c.
template <typename T, int kN, int kGroupBytes>
__device__ __forceinline__ void WarpgroupDot(float (*c)[4], unsigned a, unsigned b, bool add) {
#define XLA_GPU_WGMMA(type, n, registers, a_, b_, add_, layout_, ...)                        \
  asm volatile("{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, " add_                       \
               ", 0;\n"                                                                      \
               "mov.b64 da, {" a_ ", " layout_ "}; mov.b64 db, {" b_ ", " layout_            \
               "};\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers \
               "}, da, db, p, 1, 1, 0, 0;}"                                                  \
               : __VA_ARGS__                                                                 \
               : "r"(a), "r"(b), "r"(static_cast<int>(add)), "n"(kMatrixLayout<kGroupBytes>))
#define XLA_GPU_WGMMA_N(type)                                                   \
  if constexpr (kN == 128) {                                                    \
    XLA_GPU_WGMMA(type, "128", XLA_GPU_REGISTERS64, "%64", "%65", "%66", "%67", \
                  XLA_GPU_TILES16(c));                                          \
  } else if constexpr (kN == 80) {                                              \
    XLA_GPU_WGMMA(type, "80", XLA_GPU_REGISTERS40, "%40", "%41", "%42", "%43",  \
                  XLA_GPU_TILES8(c, 0), XLA_GPU_TILES2(c, 8));                  \
  } else if constexpr (kN == 64) {                                              \
    XLA_GPU_WGMMA(type, "64", XLA_GPU_REGISTERS32, "%32", "%33", "%34", "%35",  \
                  XLA_GPU_TILES8(c, 0));                                        \
  } else {                                                                      \
    static_assert(kN == 32);                                                    \
    XLA_GPU_WGMMA(type, "32", XLA_GPU_REGISTERS16, "%16", "%17", "%18", "%19",  \
                  XLA_GPU_TILES2(c, 0), XLA_GPU_TILES2(c, 2));                  \
  }
  if constexpr (kSameType<T, BF16>) {
    XLA_GPU_WGMMA_N("bf16");
  } else {
    XLA_GPU_WGMMA_N("f16");
  }
#undef XLA_GPU_WGMMA_N
#undef XLA_GPU_WGMMA
}

// c[64xkN] += a[64x16] * b[16xkN]: a in registers, in mma.m16n8k16's order; b from shared memory
// with rows along N or, unless kAlongN, along K.
template <typename T, int kN, int kGroupBytes, bool kAlongN = true>
__device__ __forceinline__ void WarpgroupAdd(float (*c)[4], const unsigned (&a)[4], unsigned b) {
#define XLA_GPU_WGMMA(type, n, registers, a_, b_, layout_, along_, ...)                      \
  asm volatile("{.reg .b64 db; mov.b64 db, {" b_ ", " layout_                                \
               "};\n"                                                                        \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers \
               "}, {" a_ "}, db, 1, 1, 1, " along_ ";}"                                      \
               : __VA_ARGS__                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b),                         \
                 "n"(kMatrixLayout<kGroupBytes>), "n"(static_cast<int>(kAlongN)))
#define XLA_GPU_WGMMA_N(type)                                                               \
  if constexpr (kN == 128) {                                                                \
    XLA_GPU_WGMMA(type, "128", XLA_GPU_REGISTERS64, "%64,%65,%66,%67", "%68", "%69", "%70", \
                  XLA_GPU_TILES16(c));                                                      \
  } else if constexpr (kN == 112) {                                                         \
    XLA_GPU_WGMMA(type, "112", XLA_GPU_REGISTERS56, "%56,%57,%58,%59", "%60", "%61", "%62", \
                  XLA_GPU_TILES8(c, 0), XLA_GPU_TILES2(c, 8), XLA_GPU_TILES2(c, 10),        \
                  XLA_GPU_TILES2(c, 12));                                                   \
  } else if constexpr (kN == 96) {                                                          \
    XLA_GPU_WGMMA(type, "96", XLA_GPU_REGISTERS48, "%48,%49,%50,%51", "%52", "%53", "%54",  \
                  XLA_GPU_TILES8(c, 0), XLA_GPU_TILES2(c, 8), XLA_GPU_TILES2(c, 10));       \
  } else if constexpr (kN == 80) {                                                          \
    XLA_GPU_WGMMA(type, "80", XLA_GPU_REGISTERS40, "%40,%41,%42,%43", "%44", "%45", "%46",  \
                  XLA_GPU_TILES8(c, 0), XLA_GPU_TILES2(c, 8));                              \
  } else if constexpr (kN == 48) {                                                          \
    XLA_GPU_WGMMA(type, "48", XLA_GPU_REGISTERS24, "%24,%25,%26,%27", "%28", "%29", "%30",  \
                  XLA_GPU_TILES2(c, 0), XLA_GPU_TILES2(c, 2), XLA_GPU_TILES2(c, 4));        \
  } else if constexpr (kN == 64) {                                                          \
    XLA_GPU_WGMMA(type, "64", XLA_GPU_REGISTERS32, "%32,%33,%34,%35", "%36", "%37", "%38",  \
                  XLA_GPU_TILES8(c, 0));                                                    \
  } else if constexpr (kN == 32) {                                                          \
    XLA_GPU_WGMMA(type, "32", XLA_GPU_REGISTERS16, "%16,%17,%18,%19", "%20", "%21", "%22",  \
                  XLA_GPU_TILES2(c, 0), XLA_GPU_TILES2(c, 2));                              \
  } else {                                                                                  \
    static_assert(kN == 16);                                                                \
    XLA_GPU_WGMMA(type, "16", XLA_GPU_REGISTERS8, "%8,%9,%10,%11", "%12", "%13", "%14",     \
                  XLA_GPU_TILES2(c, 0));                                                    \
  }
  if constexpr (kSameType<T, BF16>) {
    XLA_GPU_WGMMA_N("bf16");
  } else {
    XLA_GPU_WGMMA_N("f16");
  }
#undef XLA_GPU_WGMMA_N
#undef XLA_GPU_WGMMA
}

// c[64xkN] += a[64x16] * b[kNx16]^T, or `add` false overwrites c: both from shared memory, b with
// rows along K, a with rows along K or, if kColumns, along M.
template <typename T, int kN, int kGroupBytesA, int kGroupBytesB, bool kColumns>
__device__ __forceinline__ void WarpgroupProduct(float (*c)[4], unsigned a, unsigned b, bool add) {
#define XLA_GPU_WGMMA(type, n, registers, a_, b_, add_, layout_a_, layout_b_, columns_, ...)   \
  asm volatile("{.reg .pred p; .reg .b64 da, db; setp.ne.b32 p, " add_                         \
               ", 0;\n"                                                                        \
               "mov.b64 da, {" a_ ", " layout_a_ "}; mov.b64 db, {" b_ ", " layout_b_          \
               "};\n"                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers   \
               "}, da, db, p, 1, 1, " columns_ ", 0;}"                                         \
               : __VA_ARGS__                                                                   \
               : "r"(a), "r"(b), "r"(static_cast<int>(add)), "n"(kMatrixLayout<kGroupBytesA>), \
                 "n"(kMatrixLayout<kGroupBytesB>), "n"(static_cast<int>(kColumns)))
#define XLA_GPU_WGMMA_N(type)                                                                 \
  if constexpr (kN == 128) {                                                                  \
    XLA_GPU_WGMMA(type, "128", XLA_GPU_REGISTERS64, "%64", "%65", "%66", "%67", "%68", "%69", \
                  XLA_GPU_TILES16(c));                                                        \
  } else if constexpr (kN == 64) {                                                            \
    XLA_GPU_WGMMA(type, "64", XLA_GPU_REGISTERS32, "%32", "%33", "%34", "%35", "%36", "%37",  \
                  XLA_GPU_TILES8(c, 0));                                                      \
  } else if constexpr (kN == 32) {                                                            \
    XLA_GPU_WGMMA(type, "32", XLA_GPU_REGISTERS16, "%16", "%17", "%18", "%19", "%20", "%21",  \
                  XLA_GPU_TILES2(c, 0), XLA_GPU_TILES2(c, 2));                                \
  } else {                                                                                    \
    static_assert(kN == 16);                                                                  \
    XLA_GPU_WGMMA(type, "16", XLA_GPU_REGISTERS8, "%8", "%9", "%10", "%11", "%12", "%13",     \
                  XLA_GPU_TILES2(c, 0));                                                      \
  }
  if constexpr (kSameType<T, BF16>) {
    XLA_GPU_WGMMA_N("bf16");
  } else {
    XLA_GPU_WGMMA_N("f16");
  }
#undef XLA_GPU_WGMMA_N
#undef XLA_GPU_WGMMA
}

#undef XLA_GPU_TILE
#undef XLA_GPU_TILES2
#undef XLA_GPU_TILES8
#undef XLA_GPU_TILES16
#undef XLA_GPU_REGISTERS8
#undef XLA_GPU_REGISTERS16
#undef XLA_GPU_REGISTERS24
#undef XLA_GPU_REGISTERS32
#undef XLA_GPU_REGISTERS40
#undef XLA_GPU_REGISTERS48
#undef XLA_GPU_REGISTERS56
#undef XLA_GPU_REGISTERS64

}  // namespace xla_gpu

#endif  // XLA_GPU_CUDA_WGMMA_CUH_
