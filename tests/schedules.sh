#!/usr/bin/env bash
# Many orders of threads, and whole simulated worlds (tests/schedules): builds the crate with a scheduler in place of the operating
# system's threads and locks (src/sync.rs), and runs what is tried with it. A few minutes; all arguments go to the test program.
#
#   bash tests/schedules.sh                                  as in every run: 100 schedules of each story and order, 300 worlds
#   ONCEWARD_SCHEDULES=20000 bash tests/schedules.sh races:: more of them
#   ONCEWARD_WORLDS=10000 ONCEWARD_WORLD_ACTS=2000 bash tests/schedules.sh simulation::
#   ONCEWARD_WORLD=17 ONCEWARD_WORLDS=1 ONCEWARD_STORY=1 bash tests/schedules.sh no_world        one world again, with all that happened
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR=never RUST_BACKTRACE="${RUST_BACKTRACE:-0}"

# A folder of its own: the flag would have everything built anew, here and then again there.
RUSTFLAGS="--cfg onceward_shuttle ${RUSTFLAGS:-}" cargo test --locked --target-dir target/schedules --features testkit --test schedules -- \
  --nocapture --test-threads 2 "$@"
