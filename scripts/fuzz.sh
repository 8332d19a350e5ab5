#!/usr/bin/env bash
# Runs each libFuzzer target (src/**/*_fuzz.cc) for SECONDS, JOBS side by side. Corpora grow in
# build/fuzz/corpus; what crashes a target is left in build/fuzz/findings.
# Usage: scripts/fuzz.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."
export build=build/fuzz seconds=${1:-60}
jobs=${JOBS:-$(nproc)}
cmake --preset fuzz --log-level=WARNING -DPython3_EXECUTABLE="$PWD/.venv/bin/python" >/dev/null
mapfile -t targets < <(find src -name '*_fuzz.cc' -exec basename {} .cc \; | sort)
cmake --build --preset fuzz --parallel "$jobs" --target "${targets[@]}"

fuzz_one() {
  local target=$1
  mkdir -p "$build/corpus/$target" "$build/findings"
  if grep -rlq WriteSeedsIfAsked --include="$target.cc" src; then
    "$build/$target" --write-seeds "$build/corpus/$target"
  fi
  echo "fuzz: $target for $seconds s"
  if ! "$build/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 \
    -print_final_stats=1 -artifact_prefix="$build/findings/$target-" "$build/corpus/$target" \
    >"$build/$target.log" 2>&1; then
    tail -n 60 "$build/$target.log"
    echo "fuzz: $target failed; reproduce with $build/$target $build/findings/$target-*" >&2
    return 1
  fi
  echo "fuzz: $target: $(awk '/number_of_executed_units/ {print $2}' "$build/$target.log") inputs"
}
export -f fuzz_one
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -euo pipefail -c 'fuzz_one {}'
echo "fuzz: ${#targets[@]} targets, no finding"
