# warm.sh JOBFILE: compiles all kernels into $XLA_GPU_CACHE_DIR with the fake driver
cd /work/wt-decode
mkdir -p build/trial/driver
ln -sf $PWD/build/release/tests/libfake_libcuda.so build/trial/driver/libcuda.so.1
printf '#!/bin/sh\nunset LD_LIBRARY_PATH\nexec "%s" "$@"\n' $PWD/build/release/xla-gpu-compile > build/trial/compile; chmod +x build/trial/compile
XLA_GPU_COMPILER=$PWD/build/trial/compile LD_LIBRARY_PATH=$PWD/build/trial/driver FAKE_CUDA_VERSION=13050 build/trial/bench warm $1
