// Seeds of a fuzz target, made by code: `TARGET --write-seeds FOLDER` writes them and exits.
#ifndef XLA_GPU_CORE_FUZZ_SEEDS_H_
#define XLA_GPU_CORE_FUZZ_SEEDS_H_

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace xla_gpu {

// For LLVMFuzzerInitialize.
inline void WriteSeedsIfAsked(int argc, char** argv, const std::vector<std::string>& seeds) {
  if (argc != 3 || std::string_view(argv[1]) != "--write-seeds") return;
  for (size_t i = 0; i < seeds.size(); ++i) {
    const std::string path = std::string(argv[2]) + "/seed-" + std::to_string(i);
    std::ofstream file(path, std::ios::binary);
    file.write(seeds[i].data(), static_cast<std::streamsize>(seeds[i].size()));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write %s\n", path.c_str());
      std::exit(1);
    }
  }
  std::exit(0);
}

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_FUZZ_SEEDS_H_
