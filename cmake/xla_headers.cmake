# Finds the two sets of C headers that describe XLA's ABI, both from PyPI:
#   XLA_FFI_INCLUDE_DIR  xla/ffi/api/c_api.h of jaxlib 0.7.2 (FFI 0.1: handlers built against it are
#                        accepted by every runtime since jaxlib 0.4.38; newer headers are not)
#   PJRT_INCLUDE_DIR     pjrt_c_api.h of xla-cpu-pjrt 0.0.1 (PJRT 0.81)
# Looked for in the Python that configures (scikit-build-core installs them there), else fetched by
# pip into build/deps, once, with the hashes of requirements/headers.txt: headers for any Python.
set(XLA_GPU_DEPS_DIR "${PROJECT_SOURCE_DIR}/build/deps" CACHE PATH "Where pip puts the XLA headers")
find_package(Python3 REQUIRED COMPONENTS Interpreter)

function(fetch_headers)
  set(requirements "${PROJECT_SOURCE_DIR}/requirements/headers.txt")
  message(STATUS "Fetching the packages of ${requirements} into ${XLA_GPU_DEPS_DIR}")
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -m pip install --quiet --no-deps --only-binary=:all: --no-compile
      --python-version 3.11 --ignore-requires-python --upgrade --target ${XLA_GPU_DEPS_DIR}
      --require-hashes -r ${requirements}
    RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "pip could not install the packages of ${requirements}; install them "
      "yourself and pass -DXLA_FFI_INCLUDE_DIR=.../jaxlib/include and "
      "-DPJRT_INCLUDE_DIR=.../xla_cpu_pjrt/include")
  endif()
endfunction()

# Sets `variable` to FOLDER/<suffix> where FOLDER is on sys.path of a package of this version.
function(find_in_python variable package version suffix)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.metadata as m; d = m.distribution('${package}'); print(d.locate_file('') if d.version.startswith('${version}') else '')"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(folder AND EXISTS "${folder}/${suffix}")
    set(${variable} "${folder}/${suffix}" CACHE PATH "")
  endif()
endfunction()

if(NOT XLA_FFI_INCLUDE_DIR)
  find_in_python(XLA_FFI_INCLUDE_DIR jaxlib 0.7. jaxlib/include)
endif()
if(NOT XLA_FFI_INCLUDE_DIR)
  if(NOT EXISTS ${XLA_GPU_DEPS_DIR}/jaxlib/include/xla/ffi/api/c_api.h)
    fetch_headers()
  endif()
  set(XLA_FFI_INCLUDE_DIR ${XLA_GPU_DEPS_DIR}/jaxlib/include CACHE PATH "XLA FFI headers" FORCE)
endif()

if(NOT PJRT_INCLUDE_DIR)
  find_in_python(PJRT_INCLUDE_DIR xla-cpu-pjrt 0.0.1 xla_plugins/xla_cpu_pjrt/include)
endif()
if(NOT PJRT_INCLUDE_DIR)
  if(NOT EXISTS ${XLA_GPU_DEPS_DIR}/xla_plugins/xla_cpu_pjrt/include/pjrt_c_api.h)
    fetch_headers()
  endif()
  set(PJRT_INCLUDE_DIR ${XLA_GPU_DEPS_DIR}/xla_plugins/xla_cpu_pjrt/include CACHE PATH "PJRT C API"
    FORCE)
endif()
message(STATUS "XLA FFI headers: ${XLA_FFI_INCLUDE_DIR}; PJRT header: ${PJRT_INCLUDE_DIR}")
