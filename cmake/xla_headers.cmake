# Finds the two sets of C headers that describe XLA's ABI, both in Python packages:
#   XLA_FFI_INCLUDE_DIR  xla/ffi/api/c_api.h of jaxlib 0.6 or 0.7 (FFI 0.1: handlers built against it are
#                        accepted by every runtime since jaxlib 0.4.38; newer headers are not)
#   PJRT_INCLUDE_DIR     pjrt_c_api.h of xla-cpu-pjrt 0.0.1 (PJRT 0.81)
# Where these are not given, they are looked for in the Python that configures (scikit-build-core
# installs them there), then below XLA_GPU_XLA_HEADERS. There pip puts them, once, with the hashes
# of requirements/headers.txt: headers for any Python. As part of another project nothing is fetched.
set(XLA_GPU_XLA_HEADERS "${PROJECT_SOURCE_DIR}/build/deps" CACHE PATH
  "Folder of the packages of requirements/headers.txt, as pip install --target makes it")
find_package(Python3 COMPONENTS Interpreter)

function(xla_gpu_fetch_headers variable)
  set(requirements "${PROJECT_SOURCE_DIR}/requirements/headers.txt")
  set(pip -m pip install --no-deps --only-binary=:all: --no-compile --python-version 3.11
    --ignore-requires-python --upgrade --target ${XLA_GPU_XLA_HEADERS}
    --require-hashes -r ${requirements})
  if(PROJECT_IS_TOP_LEVEL AND Python3_FOUND)
    message(STATUS "Fetching the packages of ${requirements} into ${XLA_GPU_XLA_HEADERS}")
    execute_process(COMMAND ${Python3_EXECUTABLE} ${pip} --quiet RESULT_VARIABLE failed)
    if(NOT failed)
      return()
    endif()
  endif()
  list(JOIN pip " " pip)
  message(FATAL_ERROR "xla_gpu: ${variable} is not set, and XLA_GPU_XLA_HEADERS "
    "(${XLA_GPU_XLA_HEADERS}) does not hold XLA's headers. Install them by\n  python3 ${pip}\n"
    "and pass -DXLA_GPU_XLA_HEADERS=FOLDER if it is another folder; or pass "
    "-DXLA_FFI_INCLUDE_DIR=.../jaxlib/include -DPJRT_INCLUDE_DIR=.../xla_cpu_pjrt/include")
endfunction()

# Sets `variable` to the folder `suffix` of a package of these versions, which holds `header`.
function(xla_gpu_find_headers variable package versions suffix header)
  if(NOT ${variable} AND Python3_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c
        "import importlib.metadata as m; d = m.distribution('${package}'); print(d.locate_file('') if d.version.startswith((${versions},)) else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(folder AND EXISTS "${folder}/${suffix}/${header}")
      set(${variable} "${folder}/${suffix}")
    endif()
  endif()
  if(NOT ${variable})
    set(${variable} "${XLA_GPU_XLA_HEADERS}/${suffix}")
    if(NOT EXISTS "${${variable}}/${header}")
      xla_gpu_fetch_headers(${variable})
    endif()
  endif()
  if(NOT EXISTS "${${variable}}/${header}")
    message(FATAL_ERROR "xla_gpu: ${variable} is ${${variable}}, which holds no ${header}")
  endif()
  set(${variable} "${${variable}}" CACHE PATH "Folder of ${header}" FORCE)
endfunction()

xla_gpu_find_headers(XLA_FFI_INCLUDE_DIR jaxlib "'0.6.', '0.7.'" jaxlib/include xla/ffi/api/c_api.h)
xla_gpu_find_headers(PJRT_INCLUDE_DIR xla-cpu-pjrt "'0.0.1'" xla_plugins/xla_cpu_pjrt/include
  pjrt_c_api.h)
file(STRINGS ${XLA_FFI_INCLUDE_DIR}/xla/ffi/api/c_api.h version REGEX "define XLA_FFI_API_M(AJOR 0|INOR 1)$")
list(LENGTH version lines)
if(NOT lines EQUAL 2)
  message(FATAL_ERROR "xla_gpu: XLA_FFI_INCLUDE_DIR is ${XLA_FFI_INCLUDE_DIR}, whose FFI is not "
    "version 0.1; older runtimes would refuse what is built with it. Take jaxlib 0.7.2's")
endif()
message(STATUS "XLA FFI headers: ${XLA_FFI_INCLUDE_DIR}; PJRT header: ${PJRT_INCLUDE_DIR}")
