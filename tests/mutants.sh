#!/usr/bin/env bash
# Small changes to the pure part (src/rules, src/wheel.rs), one at a time: a comparison turned round, an arm left out, a constant in
# the place of a function. Its unit tests have to notice each of them: bash tests/mutants.sh (all of them, about 800; an hour on
# two cores), bash tests/mutants.sh --shard 1/8 (an eighth), bash tests/mutants.sh --file src/wheel.rs (a file). Whatever is
# given is handed on to cargo mutants.
# The whole crate takes minutes to build, so a crate of its own is made of these floors and what they import, in a temporary folder:
# the same files, the same tests, seconds. The first panic ends the process there, because one failed test is enough.
# Needs cargo-mutants (cargo install cargo-mutants --locked). tests/mutants.txt names the changes that nobody can notice, and why.
# It fails if fewer than nine of ten are caught. The logs stay in target/mutants.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

stop() { echo "mutants: $*" >&2; exit 1; }
cargo mutants --version >/dev/null 2>&1 || stop "cargo-mutants is missing: cargo install cargo-mutants --locked"

out="${CARGO_TARGET_DIR:-target}/mutants"
mkdir -p "$out"
out=$(cd "$out" && pwd)
# Each copy of the crate is built beside itself; a common folder would make them wait for each other.
unset CARGO_TARGET_DIR RUSTFLAGS
export CARGO_TERM_COLOR=never RUST_BACKTRACE=0
# Of every mutant as much is tried as of the original.
unset ONCEWARD_EXPLORE ONCEWARD_BLESS ONCEWARD_PLANTED

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# One that inserts for ever must not take the machine along.
ulimit -v 8000000
export TMPDIR="$dir/copies"
mkdir -p "$TMPDIR" "$dir/crate/src"
cp -R src/rules src/wheel.rs src/model src/planted.rs "$dir/crate/src"
# A test compares docs/states.md with the rules.
cp -R docs Cargo.lock "$dir/crate"

cat >"$dir/crate/Cargo.toml" <<TOML
[package]
name = "onceward"
version = "0.0.0"
edition = "2024"

[lib]
doctest = false

[features]
testkit = []

[dependencies]
$(grep -E '^(serde|serde_json|thiserror|sha2|getrandom) =' Cargo.toml)

[lints.rust]
unexpected_cfgs = { level = "warn", check-cfg = ["cfg(onceward_planted)"] }

[profile.test]
opt-level = 1
debug = false
incremental = true
TOML

cat >"$dir/crate/src/lib.rs" <<'RUST'
pub mod model;
mod planted;
pub mod rules;
pub mod wheel;

#[cfg(test)]
mod first_panic {
    use std::io::Write;

    extern "C" fn ends_the_process() {
        std::panic::set_hook(Box::new(|panic| {
            // Past the output that the tests keep to themselves.
            let _ = writeln!(std::io::stderr(), "{panic}");
            std::process::exit(101);
        }));
    }

    #[used]
    #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
    #[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
    static BEFORE_MAIN: extern "C" fn() = ends_the_process;
}
RUST

cd "$dir/crate"
# A mutant that makes a test wait for ever was noticed too, but it is counted apart. The tests run in ten seconds.
cargo mutants --dir . --output "$out" -j2 --build-timeout 600 --timeout 60 --no-times --cargo-arg=--lib \
  --exclude 'src/model/**' --exclude src/planted.rs --exclude src/lib.rs --exclude 'src/rules/explore*' --exclude 'src/rules/explore/**' \
  --exclude src/rules/fixture.rs --exclude src/rules/invariants.rs --exclude src/rules/states.rs \
  "$@" || case $? in 2 | 3) ;; *) stop "cargo mutants could not run, or the tests fail without a mutant" ;; esac

cd - >/dev/null
found="$out/mutants.out"
count() { wc -l <"$found/$1.txt" | tr -d ' '; }
caught=$(count caught) missed=$(count missed)
# Lines move: a mutant is known by its file and what it changes.
while read -r name; do
  grep -qF "$name | " tests/mutants.txt || echo "missed, and nobody said why: $name"
done < <(sed -E 's/^([^:]*):[0-9]+:[0-9]+: /\1: /' "$found/missed.txt" | sort -u)
echo "mutants: $caught caught, $missed missed, $(count unviable) unviable, $(count timeout) timeout"
[ $((caught + missed)) -gt 0 ] || stop "nothing was tried"
[ $((caught * 10)) -ge $(((caught + missed) * 9)) ] || stop "fewer than nine of ten were caught"
