# Run as a script by xla_gpu_embed_sources(): -DROOT= -DOUTPUT= -DFILES=a;b;c
set(text "// Made by cmake/write_embedded_sources.cmake.\n#include \"src/cuda/embedded_sources.h\"\n\n")
string(APPEND text "namespace xla_gpu::cuda {\n\nstatic const EmbeddedSource kSources[] = {\n")
foreach(file IN LISTS FILES)
  file(RELATIVE_PATH name ${ROOT} ${file})
  # Read as hex: CMake lists would mangle brackets and semicolons of the source.
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" escaped "${hex}")
  string(REGEX REPLACE "(................................................................................)"
    "\\1\"\n\"" escaped "${escaped}")
  string(APPEND text "{\"${name}\",\n\"${escaped}\"},\n")
endforeach()
string(APPEND text "{\"\", \"\"},\n};\n\nconst EmbeddedSource* EmbeddedSources() { return kSources; }\n\n}\n")
file(WRITE ${OUTPUT} "${text}")
