#!/usr/bin/env bash
# Every suite at its large size, one after the other, and one table at the end: bash tests/full.sh (about a day on two cores).
# bash tests/full.sh NAME.. runs only these; FULL=small runs all of them as small as they get, to try the script itself.
# A suite that fails does not stop the others; the table says so, and the script ends with an error.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export CARGO_TERM_COLOR=never RUST_BACKTRACE=0 RUST_TEST_NOCAPTURE=1

# size LARGE SMALL
size() { [ "${FULL:-large}" = small ] && echo "$2" || echo "$1"; }

logs=$(mktemp -d) rows=() failed=0

# suite NAME PATTERN COMMAND..: runs it, and keeps the lines of its own count that match the pattern. With floor=N before it, the
# numbers that stand first in what matches `counted` have to come to N at the large size.
suite() {
  local name=$1 pattern=$2 began=$SECONDS result=ok reached
  shift 2
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  printf '\n== %s\n' "$name"
  "$@" 2>&1 | tee "$logs/$name"
  [ "${PIPESTATUS[0]}" -eq 0 ] || { result=FAILED failed=1; }
  # A suite that says nothing of what it did did nothing.
  grep -qE "$pattern" "$logs/$name" || { result="NO COUNT" failed=1; }
  if [ -n "${floor:-}" ]; then
    reached=$(grep -hoE "$counted" "$logs/$name" | sed -E 's/^[^0-9]*([0-9]+).*/\1/' | awk '{ n += $1 } END { print n + 0 }')
    [ "$reached" -ge "$(size "$floor" 1)" ] || { result="TOO FEW" failed=1; }
  fi
  rows+=("$(printf '%-12s %6s s  %-8s' "$name" "$((SECONDS - began))" "$result")")
  while IFS= read -r line; do rows+=("    $line"); done < <(grep -hE "$pattern" "$logs/$name" | sort -u)
}

test_suite() { cargo test --locked --features testkit --test suite -- --test-threads 2 "$@"; }
test_lib() { cargo test --locked --features testkit --lib -- "$@"; }

fuzz() {
  local target log seconds
  seconds=$(size 600 5)
  command -v cargo-fuzz >/dev/null || { echo "cargo-fuzz is missing: cargo install cargo-fuzz, and a nightly toolchain"; return 1; }
  for target in $(cargo +nightly fuzz list); do
    log=$logs/fuzz-$target
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -print_final_stats=1 >"$log" 2>&1 || { tail -n 40 "$log"; return 1; }
    echo "fuzz $target: $seconds s, $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions," \
      "$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log") a second, coverage" \
      "$(sed -nE 's/.* cov: ([0-9]+) ft: ([0-9]+) .*/\1 edges, \2 features/p' "$log" | tail -n 1), clean"
  done
}

wanted=("$@")
suite sweep 'crash sweep: |outbox sweep: |compensation: ' env ONCEWARD_SWEEP_IMAGES="$(size 1000000 2000)" bash -c "$(declare -f test_suite); test_suite sweep::"
floor=5000 counted='[0-9]+ failed fsyncs' \
  suite faults 'I/O faults: |one-phase: |increments: |dead disks|under the running file: |eight handlers: ' env ONCEWARD_FAULT_SEEDS="$(size 12 1)" bash -c "$(declare -f test_suite); test_suite faults:: failures:: under::"
floor=9000 counted='open_bytes: [0-9]+ inputs' \
  suite corruption 'fuzz drawn: ' env ONCEWARD_FUZZ_ONLY=open_bytes ONCEWARD_FUZZ_DRAWN="$(size 9000 300)" bash -c "$(declare -f test_suite); test_suite fuzz_replay::drawn_inputs_pass"
suite store 'images opened|intents: |index: |[0-9]+ refused \(|[0-9]+ runs, [0-9]+ faults' test_lib store::
suite outbox 'outbox sweep: |outbox: |hung: |traced: ' test_suite outbox::
suite model 'model: ' env ONCEWARD_MODEL_CASES="$(size 5000 20)" bash -c "$(declare -f test_suite); test_suite model::"
suite kit 'kit, ' test_suite kit::
floor=1000000 counted='[0-9]+ states, [0-9]+ steps' \
  suite rules "states, .* settings" env ONCEWARD_EXPLORE="$(size 3 2)" bash -c "$(declare -f test_lib); test_lib rules::"
suite races '^schedules: ' env ONCEWARD_SCHEDULES="$(size 20000 20)" bash tests/schedules.sh races::
floor=10000 counted='simulation: [0-9]+ worlds' \
  suite simulation '^simulation: ' env ONCEWARD_WORLDS="$(size 10000 20)" ONCEWARD_WORLD_ACTS="$(size 2000 40)" bash tests/schedules.sh simulation::
suite soak 'soak: ' env ONCEWARD_SOAK_SECS="$(size 3600 120)" bash -c "$(declare -f test_suite); test_suite soak::"
suite mutants 'caught' bash tests/mutants.sh $(size "" "--file src/rules/retry.rs")
suite kill 'kill -9|at named points|stopped: |lost [0-9]' env ONCEWARD_KILLS="$(size 10000 20)" ONCEWARD_STOPS="$(size 200 5)" bash -c "$(declare -f test_suite); test_suite kill::"
[ ! -d fuzz ] || suite fuzz 'fuzz .*clean' fuzz

printf '\n== summary\n'
printf '%s\n' "${rows[@]}"
exit "$failed"
