cd /work/wt-own
for r in 16 32; do g++ -std=c++20 -O1 -fpermissive -w -DROWS=$r -include /tmp/emud/pre.h -I/tmp/emud/shim -I. -Isrc /tmp/emud/emu.cc -c -o /tmp/emud/e$r.o || exit 1
cmd=$(ninja -C build/release -t commands ops.paged_attention.cuda.config_test | tail -1 | sed 's/^.*&& \(\/.*\) && :.*$/\1/'); (cd build/release; cmd2=$(echo "$cmd" | sed "s#[^ ]*config_test.cc.o#/tmp/emud/e$r.o#; s#-o [^ ]*config_test#-o /tmp/emud/emu$r#; s#[^ ]*libgtest_main[^ ]*##g; s#[^ ]*libgmock_main[^ ]*##g"); eval "$cmd2" ) || exit 1; done
