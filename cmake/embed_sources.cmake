# xla_gpu_embed_sources(OUTPUT FILES...): writes a C++ file that holds the text of each device source under
# its path from the repository root, for src/cuda/embedded_sources.h. Rewritten when a file changes.
function(xla_gpu_embed_sources output)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-DROOT=${PROJECT_SOURCE_DIR}" "-DOUTPUT=${output}" "-DFILES=${ARGN}"
      -P ${PROJECT_SOURCE_DIR}/cmake/write_embedded_sources.cmake
    DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/write_embedded_sources.cmake
    VERBATIM)
endfunction()
