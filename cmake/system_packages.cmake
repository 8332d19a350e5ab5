# The header-only libraries that the build takes from the system, nlohmann_json and Highway: found,
# or all that is missing said at once.
set(missing)
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json QUIET)
  if(NOT nlohmann_json_FOUND)
    list(APPEND missing nlohmann-json3-dev)
  endif()
endif()
find_path(HWY_INCLUDE_DIR hwy/highway.h)
if(NOT HWY_INCLUDE_DIR)
  list(APPEND missing libhwy-dev)
endif()
if(missing)
  list(JOIN missing " " missing)
  message(FATAL_ERROR "xla_gpu: headers are missing: apt-get install ${missing} "
    "(elsewhere: nlohmann_json's CMake package, Highway's hwy/highway.h in HWY_INCLUDE_DIR)")
endif()
