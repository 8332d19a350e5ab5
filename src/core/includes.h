// The files that a C++ or CUDA text includes.
#ifndef XLA_GPU_CORE_INCLUDES_H_
#define XLA_GPU_CORE_INCLUDES_H_

#include <string>
#include <string_view>
#include <vector>

namespace xla_gpu {

// The X of every line `#include "X"`, and if `bracketed` of `#include <X>` and of `#define M "X"`,
// since `#include M` is one as well. Lines that the preprocessor would skip count too: a source too
// many does no harm.
std::vector<std::string> Includes(std::string_view text, bool bracketed);

// The content of all files that the text of `file` (which may be no path) may include, directly or
// not: from the folder of the file that includes, from the folders of a compiler's options (-I,
// -iquote, -isystem, -idirafter, --include-path), and those that options name.
std::vector<std::string> IncludedTexts(const std::string& text, const std::string& file,
                                       const std::vector<std::string>& options);

}  // namespace xla_gpu

#endif  // XLA_GPU_CORE_INCLUDES_H_
