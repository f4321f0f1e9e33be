#!/bin/sh
# Miri over the tests of the scheduler: undefined behaviour, aliasing, leaks. The quick ones; TOWPATH_SOAK=1 runs all.
set -eu
cd "$(dirname "$0")/../.."
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "skipped: Miri needs the nightly toolchain (rustup toolchain install nightly)"
    exit 0
fi
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    if ! rustup component add --toolchain nightly miri rust-src >/dev/null 2>&1; then
        echo "skipped: Miri cannot be installed here (rustup component add --toolchain nightly miri rust-src)"
        exit 0
    fi
fi
# Tests read the clock; everything else stays isolated. Its own folder, so that it and cargo's do not rebuild each other.
export MIRIFLAGS="-Zmiri-disable-isolation" CARGO_TARGET_DIR=target/miri-step
miri() { cargo +nightly miri test --locked -q "$@"; }
if [ "${TOWPATH_SOAK:-}" = 1 ]; then
    miri -p towpath-coro --lib
else
    miri -p towpath-coro --lib -- tests::coroutine tests::cancel tests::waker tests::panic timer_model::waker
fi
