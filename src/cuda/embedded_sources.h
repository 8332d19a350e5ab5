// The text of every device source in this library, embedded at build time by CMake
// (cmake/embed_sources.cmake), so that NVRTC needs no file at run time.
#ifndef XLA_GPU_CUDA_EMBEDDED_SOURCES_H_
#define XLA_GPU_CUDA_EMBEDDED_SOURCES_H_

namespace xla_gpu::cuda {

struct EmbeddedSource {
  const char* path;  // from the repository root: "src/ops/simple_add/cuda/simple_add.cu"
  const char* text;
};

// All sources; the last entry has an empty path.
const EmbeddedSource* EmbeddedSources();

}  // namespace xla_gpu::cuda

#endif  // XLA_GPU_CUDA_EMBEDDED_SOURCES_H_
