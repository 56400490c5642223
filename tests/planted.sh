#!/usr/bin/env bash
# Bugs planted on purpose, one at a time: bash tests/planted.sh (all of them), bash tests/planted.sh BUG.. (these).
# The crate is built once, into a directory of its own, with a switch that nothing else sets; then each bug is switched on for the tests
# beside it, which have to fail. A bug that no test notices ends the script with an error, and so does a test that fails without a bug.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 RUST_BACKTRACE=0 RUSTFLAGS="--cfg onceward_planted"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/planted"
# Of the fuzz targets only the one that damages files; more lives and images would not find these any sooner.
export ONCEWARD_FUZZ_ONLY=open_bytes

# Bug (its place in src/ is where this name stands) and the tests that find it.
table='
sync-skipped            effects::memory::an_acknowledged_commit_survives_every_crash
epoch-reused            deaths::tokens_rise_across_retries_restarts_and_replays
older-copy-trusted      rewind::whatever_copy_is_put_back_nothing_happens_again
rewound-unseen          forward::an_older_copy_of_the_file_runs_nothing_until_a_person_resumes
heal-verdict-wrong      faults::increments_are_the_acknowledged_calls
failed-commit-answered  faults::increments_are_the_acknowledged_calls
inode-unwatched         faults::a_file_that_is_removed_or_replaced_stops_the_queue
checksum-ignored        fuzz_replay::drawn_inputs_pass
index-row-left          failures::backoff_survives_a_restart
intent-forgotten        identity::a_later_job_is_remembered_while_an_older_one_is_in_the_trash
confirmed-called-again  effects::records::a_retry_gets_the_recorded_result_and_the_provider_is_not_called
attempt-uncounted       failures::three_retries_are_four_attempts_at_1_5_and_15_minutes
finish-ungated          effects::stops::
unknown-as-unsent       effects::recovery::every_other_failure_of_a_performer_is_unknown
settle-time-ignored     effects::recovery::not_there_is_believed_after_the_settle_time
key-never-old           effects::recovery::a_key_is_used_for_nine_tenths_of_its_life
new-key-unasked         letters::it_did_not_happen_keeps_the_key
undone-forwards         undo::the_last_is_undone_first_and_one_after_the_other
reboot-blamed           deaths::a_suspect_is_who_ran_in_the_same_boot_and_another_process
confirmed-first         effects::crashes::a_death_at_any_point_never_charges_twice
fenced-call-made        effects::concurrent::a_fenced_attempt_never_enters_its_performer
marked-first            outbox::crashes::a_death_between_delivery_and_mark_delivers_again_with_the_same_id
pause-unstored          running::keeping::a_pause_lasts_until_it_is_lifted_also_across_a_restart
'

stop() { echo "planted: $*" >&2; exit 1; }

suite=$(cargo test --locked --features testkit --test suite --no-run --message-format=json | python3 -c '
import json, sys
for line in sys.stdin:
    built = json.loads(line)
    if built.get("executable") and built["target"]["name"] == "suite":
        print(built["executable"])') || stop "it does not build"

# Every name of the table is planted somewhere, and every planted name is in the table.
planted=$(grep -rhoE '\bon\("[a-z-]+"\)' src | sed -E 's/.*"(.*)".*/\1/' | sort -u)
listed=$(awk 'NF { print $1 }' <<<"$table" | sort -u)
[ "$planted" = "$listed" ] || stop "the table and the sources differ:"$'\n'"$(diff <(echo "$planted") <(echo "$listed"))"

log=$(mktemp) missed=0 tried=0
mapfile -t filters < <(awk 'NF { print $2 }' <<<"$table" | sort -u)
"$suite" "${filters[@]}" >"$log" 2>&1 || { tail -n 40 "$log"; stop "these tests fail without a bug"; }
sed -n 's/^test result: ok. \([0-9]*\) passed.*/without a bug: \1 tests pass/p' "$log"

while read -r bug filter; do
  [ -n "$bug" ] || continue
  [ $# -eq 0 ] || [[ " $* " == *" $bug "* ]] || continue
  tried=$((tried + 1)) began=$(date +%s%N)
  # A bug that makes a test wait for ever was noticed too.
  ONCEWARD_PLANTED=$bug timeout 900 "$suite" "$filter" >"$log" 2>&1
  case $? in
    0) result="NOT CAUGHT" missed=$((missed + 1)) ;;
    124) result="caught: it hangs" ;;
    *) result=caught ;;
  esac
  ms=$((($(date +%s%N) - began) / 1000000))
  printf '%-24s %4d.%01d s  %-10s  %s\n' "$bug" $((ms / 1000)) $((ms % 1000 / 100)) "$result" "$filter"
done <<<"$table"

echo "planted: $((tried - missed)) of $tried bugs were caught"
[ "$tried" -gt 0 ] && [ "$missed" -eq 0 ]
