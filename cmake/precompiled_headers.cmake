# Half of the time of compiling a test, and most of a sanitized object of the library, went into
# reading headers: these are read once for each set of flags. CI has no compiler cache.
set(XLA_GPU_STD_HEADERS <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable>
  <cstdint> <cstdio> <cstdlib> <cstring> <filesystem> <functional> <limits> <map> <memory> <mutex>
  <optional> <random> <set> <span> <sstream> <stdexcept> <string> <string_view> <thread> <tuple>
  <utility> <variant> <vector> <nlohmann/json.hpp>)
# ccache keeps precompiled headers only so (and by CCACHE_SLOPPINESS=pch_defines,time_macros), and
# clang would refuse them once files are newer.
set(XLA_GPU_PRECOMPILED
  "$<IF:$<CXX_COMPILER_ID:Clang>,SHELL:-Xclang -fno-pch-timestamp,-fpch-preprocess>")

# The library's, in sanitized builds alone: elsewhere each source shows that it includes what it uses.
# The program's own code, a quarter of it, is of no test's time and not optimised; the SIMD kernels are
# compiled by other options. A precompiled header fits one set of them.
function(xla_gpu_precompile_library_headers library)
  target_precompile_headers(${library} PRIVATE ${XLA_GPU_STD_HEADERS})
  target_compile_options(${library} PRIVATE ${XLA_GPU_PRECOMPILED})
  file(GLOB program CONFIGURE_DEPENDS src/cli/*.cc)
  set_source_files_properties(${program} PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS -O0)
  file(GLOB kernels CONFIGURE_DEPENDS src/ops/*/cpu/kernels.cc)
  set_source_files_properties(${kernels} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# The tests', by their names: where sanitized those of ops compute and are optimised, others are not.
function(xla_gpu_precompile_test_headers test)
  target_compile_options(${test} PRIVATE ${XLA_GPU_PRECOMPILED})
  set(headers test_headers)
  if(XLA_GPU_SANITIZE AND test MATCHES "^ops")
    set(headers ops_test_headers)
  endif()
  if(NOT TARGET ${headers})
    set(empty ${PROJECT_BINARY_DIR}/generated/${headers}.cc)
    file(CONFIGURE OUTPUT ${empty} CONTENT "")
    add_library(${headers} OBJECT ${empty})
    get_target_property(options ${test} COMPILE_OPTIONS)
    target_compile_options(${headers} PRIVATE ${options} -fPIE)
    set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_link_libraries(${headers} PRIVATE xla_gpu_objects GTest::gtest GTest::gmock)
    target_precompile_headers(${headers} PRIVATE
      ${XLA_GPU_STD_HEADERS} <gtest/gtest.h> <gmock/gmock.h>)
  endif()
  target_precompile_headers(${test} REUSE_FROM ${headers})
endfunction()
