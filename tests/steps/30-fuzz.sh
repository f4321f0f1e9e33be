#!/bin/sh
# Every fuzz target for a short while, or for an hour each with TOWPATH_SOAK=1. Needs a nightly compiler and a C++
# compiler; says so and passes where they are missing.
set -eu
cd "$(dirname "$0")/../../fuzz"
if ! cargo +nightly --version >/dev/null 2>&1; then echo "skipped: no nightly compiler"; exit 0; fi
if ! c++ --version >/dev/null 2>&1; then echo "skipped: no C++ compiler"; exit 0; fi
seconds=10
[ "${TOWPATH_SOAK:-0}" = 1 ] && seconds=3600
# What cargo-fuzz would do, without having to install it.
host=$(rustc +nightly -vV | sed -n 's/^host: //p')
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags="$flags -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address"
flags="$flags --cfg fuzzing -Cdebug-assertions -Ccodegen-units=1"
RUSTFLAGS=$flags cargo +nightly build --quiet --release --target "$host" --bins
for source in fuzz_targets/*.rs; do
    name=$(basename "$source" .rs)
    mkdir -p "corpus/$name" "artifacts/$name"
    echo "$name, $seconds s"
    "target/$host/release/$name" -max_total_time="$seconds" -artifact_prefix="artifacts/$name/" -verbosity=0 \
        -print_final_stats=1 "corpus/$name"
done
