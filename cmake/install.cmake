# What `cmake --install` and wheels hold: the libraries, the programs, the headers, and for other
# projects the packages of CMake (find_package(xla_gpu)) and pkg-config, which may be moved.
include(CMakePackageConfigHelpers)
if(SKBUILD)
  set(programs ${SKBUILD_SCRIPTS_DIR})
  set(helpers ${CMAKE_INSTALL_LIBDIR}/bin)
  set(packages ${CMAKE_INSTALL_LIBDIR}/cmake)  # so that xla_gpu_ROOT may be the package's folder
else()
  set(programs ${CMAKE_INSTALL_BINDIR})
  set(helpers ${CMAKE_INSTALL_BINDIR})
  set(packages ${CMAKE_INSTALL_LIBDIR}/cmake/xla_gpu)
endif()
set(pkgconfig ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS xla_gpu EXPORT xla_gpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS xla_gpu_pjrt LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS xla-gpu RUNTIME DESTINATION ${programs})
install(TARGETS xla-gpu-compile RUNTIME DESTINATION ${helpers})
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# The targets need no other package, so they are the whole of the configuration.
install(EXPORT xla_gpu NAMESPACE xla_gpu:: FILE xla_gpu-config.cmake DESTINATION ${packages})
export(EXPORT xla_gpu NAMESPACE xla_gpu:: FILE cmake/xla_gpu-config.cmake)  # the build's own
set(version_file ${CMAKE_CURRENT_BINARY_DIR}/cmake/xla_gpu-config-version.cmake)
write_basic_package_version_file(${version_file} COMPATIBILITY SameMinorVersion)
install(FILES ${version_file} DESTINATION ${packages})

# From the folder of xla_gpu.pc to the headers; either may be absolute.
foreach(folder pkgconfig CMAKE_INSTALL_INCLUDEDIR)
  cmake_path(ABSOLUTE_PATH ${folder} BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX} OUTPUT_VARIABLE full_${folder})
endforeach()
file(RELATIVE_PATH includedir ${full_pkgconfig} ${full_CMAKE_INSTALL_INCLUDEDIR})
set(pc_file ${CMAKE_CURRENT_BINARY_DIR}/generated/xla_gpu.pc)
configure_file(cmake/xla_gpu.pc.in ${pc_file} @ONLY)
install(FILES ${pc_file} DESTINATION ${pkgconfig})
