#include "src/cli/cli.h"

int main(int argc, char** argv) { return xla_gpu::cli::Main(argc, argv); }
