# Before project(), whose own message names no package.
if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
  find_program(XLA_GPU_CXX NAMES c++ g++ clang++)
  if(NOT XLA_GPU_CXX)
    message(FATAL_ERROR "xla_gpu: no C++ compiler was found: apt-get install g++ (or set CXX)")
  endif()
endif()
