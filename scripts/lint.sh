#!/usr/bin/env bash
# All static checks. Usage: scripts/lint.sh [--no-tidy | --fix]; --fix formats, and checks nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t cpp < <(git ls-files -co --exclude-standard '*.h' '*.hpp' '*.c' '*.cc' '*.cu' '*.cuh')
mapfile -t shell < <(git ls-files -co --exclude-standard '*.sh' .ci/run)
if [[ ${1:-} == --fix ]]; then
  .venv/bin/clang-format -i "${cpp[@]}"
  .venv/bin/ruff check --quiet --fix . || true
  .venv/bin/ruff format --quiet .
  exit
fi
echo "lint: clang-format (${#cpp[@]} files)"
.venv/bin/clang-format --dry-run --Werror "${cpp[@]}"
echo "lint: ruff"
.venv/bin/ruff format --check --quiet . || { echo "lint: run make format" >&2; exit 1; }
.venv/bin/ruff check --quiet .
echo "lint: mypy"
.venv/bin/mypy --no-error-summary
echo "lint: shellcheck (${#shell[@]} files)"
shellcheck --severity=warning "${shell[@]}"
echo "lint: layers"
.venv/bin/python scripts/check_layers.py
[[ ${1:-} == --no-tidy ]] || .venv/bin/python scripts/tidy.py
echo "lint: clean"
