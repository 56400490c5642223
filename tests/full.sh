#!/usr/bin/env bash
# Every suite at its large size, one after the other, and one table at the end: bash tests/full.sh (about half a day on two cores).
# bash tests/full.sh NAME.. runs only these; FULL=small runs all of them as small as they get, to try the script itself.
# A suite that fails does not stop the others; the table says so, and the script ends with an error.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export CARGO_TERM_COLOR=never RUST_BACKTRACE=0 RUST_TEST_NOCAPTURE=1

# size LARGE SMALL
size() { [ "${FULL:-large}" = small ] && echo "$2" || echo "$1"; }

logs=$(mktemp -d) rows=() failed=0

# suite NAME PATTERN COMMAND..: runs it, and keeps the lines of its own count that match the pattern.
suite() {
  local name=$1 pattern=$2 began=$SECONDS result=ok
  shift 2
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$logs/$name"
  [ "${PIPESTATUS[0]}" -eq 0 ] || { result=FAILED failed=1; }
  # A suite that says nothing of what it did did nothing.
  grep -qE "$pattern" "$logs/$name" || { result="NO COUNT" failed=1; }
  rows+=("$(printf '%-12s %6s s  %-8s' "$name" "$((SECONDS - began))" "$result")")
  while IFS= read -r line; do rows+=("    $line"); done < <(grep -hE "$pattern" "$logs/$name" | sort -u)
}

test_suite() { cargo test --locked --features testkit --test suite -- --test-threads 2 "$@"; }
test_lib() { cargo test --locked --features testkit --lib -- "$@"; }

fuzz() {
  local target
  command -v cargo-fuzz >/dev/null || { echo "cargo-fuzz is missing: cargo install cargo-fuzz, and a nightly toolchain"; return 1; }
  for target in $(cargo +nightly fuzz list); do
    cargo +nightly fuzz run "$target" -- -max_total_time="$(size 600 5)" -print_final_stats=1 2>&1 | tail -n 12 || return 1
    echo "fuzz $target: $(size 600 5) s, clean"
  done
}

wanted=("$@")
suite sweep 'crash sweep: |outbox sweep: |compensation: ' env ONCEWARD_SWEEP_IMAGES="$(size 1000000 2000)" bash -c "$(declare -f test_suite); test_suite sweep::"
suite faults 'I/O faults: |one-phase: |increments: |dead disks' env ONCEWARD_FAULT_SEEDS="$(size 3 1)" bash -c "$(declare -f test_suite); test_suite faults:: failures::"
suite model 'model: ' env ONCEWARD_MODEL_CASES="$(size 5000 20)" bash -c "$(declare -f test_suite); test_suite model::"
suite kit 'kit, ' test_suite kit::
suite rules "states, .* settings" env ONCEWARD_EXPLORE="$(size 4 2)" bash -c "$(declare -f test_lib); test_lib rules::"
suite kill 'kill -9' env ONCEWARD_KILLS="$(size 10000 20)" bash -c "$(declare -f test_suite); test_suite kill::"
[ ! -d fuzz ] || suite fuzz 'fuzz .*clean' fuzz

printf '\n== summary\n'
printf '%s\n' "${rows[@]}"
exit "$failed"
