set -e
cd /work/wt-decode
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
ninja -C build/release -j2 xla_gpu_pjrt xla-gpu-compile fake_libcuda 2>&1 | tail -3
objs=$(find build/release/CMakeFiles/xla_gpu_objects.dir -name '*.o')
inc=$(ninja -C build/release -t commands CMakeFiles/xla_gpu_objects.dir/src/ops/paged_attention/cuda/config.cc.o 2>/dev/null | tail -1 | grep -oE -- '-(I|isystem) ?[^ ]+' | tr '\n' ' ')
g++ -std=c++20 -O1 -w -I. -Iinclude $inc build/trial/bench.cc $objs -o build/trial/bench -ldl -lpthread -static-libstdc++ -static-libgcc
ls -la build/trial/bench
