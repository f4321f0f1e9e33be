#!/bin/sh
# Every interleaving (within loom's preemption bound) of what threads share: remote wakes, sleeping, the last waker.
# TOWPATH_SOAK=1 lifts the bound.
set -eu
cd "$(dirname "$0")/../.."
export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom
if [ "${TOWPATH_SOAK:-}" != 1 ]; then
    export LOOM_MAX_PREEMPTIONS=2
fi
cargo test --locked -q --release -p towpath-coro --lib loom
