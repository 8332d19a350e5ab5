#!/usr/bin/env bash
# Runs each libFuzzer target (src/**/*_fuzz.cc) for SECONDS. Corpora grow in build/fuzz/corpus; what
# crashes a target is left in build/fuzz/findings. Usage: scripts/fuzz.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
build=build/fuzz
cmake --preset fuzz --log-level=WARNING -DPython3_EXECUTABLE="$PWD/.venv/bin/python" >/dev/null
targets=()
while read -r source; do targets+=("$(basename "$source" .cc)"); done < <(find src -name '*_fuzz.cc' | sort)
((${#targets[@]})) || { echo "fuzz: there is no target"; exit 0; }
cmake --build --preset fuzz --parallel "${JOBS:-$(nproc)}" --target "${targets[@]}"
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target" "$build/findings"
  if grep -rlq WriteSeedsIfAsked --include="$target.cc" src; then
    "$build/$target" --write-seeds "$build/corpus/$target"
  fi
  echo "fuzz: $target for $seconds s"
  if ! "$build/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="$build/findings/$target-" "$build/corpus/$target" >"$build/$target.log" 2>&1; then
    tail -n 60 "$build/$target.log"
    echo "fuzz: $target failed; reproduce with $build/$target $build/findings/$target-*" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units|average_exec_per_sec' "$build/$target.log"
done
echo "fuzz: ${#targets[@]} targets, no finding"
