#pragma once
#include <functional>
#include "src/ops/paged_attention/cuda/prefill_sm90_shared.cuh"
namespace xla_gpu {
struct TensorMapX {};
template <int N> void CopyAsync(unsigned, const void*, bool) {}
template <class T> void CopyBox(unsigned, const T*, unsigned, int, int, int, int, int) {}
inline unsigned SharedAddress(const void*) { return 0; }
inline std::function<void()>* g_arrive = nullptr;
inline void Arrive(unsigned) { if (g_arrive) (*g_arrive)(); }
inline void ArriveExpecting(unsigned, int) {}
inline void ArriveCopied(unsigned) {}
inline void Wait(unsigned, int) {}
}
namespace xla_gpu::paged_attention {
inline int PageIndex(const Params& p, int key) { return Quotient(key, p.by_page); }
inline long long QueryRow(const Params&, const Tile&, int) { return 0; }
}
namespace xla_gpu::paged_attention::sm90 {
using Query = unsigned short; using Cache = unsigned short;
inline constexpr int kHeadDim = 128, kTileDims = 128;
template <int kCount> struct Place { int index = 0, parity = 0; void Next() { if (++index == kCount) index = 0, parity ^= 1; } };
template <class B, int N> unsigned At(const B (&)[N], const Place<N>& p) { return p.index; }
inline int SwizzledChunk(int, int) { return 0; }
inline unsigned PlaceInTile(int, int) { return 0; }
inline int Uniform(int x) { return x; }
}
