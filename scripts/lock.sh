#!/usr/bin/env bash
# Remakes requirements/NAME.txt, every package in it with its hashes, from requirements/NAME.in, whose
# line "# lock:" has the options. Versions that the file has stay where they can: remove it to take
# the newest. Usage: scripts/lock.sh [NAME...]; without arguments every file.
set -euo pipefail
cd "$(dirname "$0")/.."
names=("$@")
((${#names[@]})) || names=(headers test cuda12 cuda13 lint torch vllm wheel)
for name in "${names[@]}"; do
  read -ra options < <(sed -n 's/^# lock: //p' "requirements/$name.in")
  "${UV:-.venv/bin/uv}" pip compile --quiet --universal --generate-hashes --no-annotate \
    --custom-compile-command "scripts/lock.sh $name" "${options[@]}" \
    "requirements/$name.in" -o "requirements/$name.txt"
done
