#!/bin/sh
# Miri over the tests of crates with unsafe code: undefined behaviour, aliasing, leaks, races. The part that runs in
# about a minute and a half; TOWPATH_SOAK=1 runs every test of these crates.
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
    miri -p towpath-cbuf --lib -- --skip arena --skip shared --skip fork
else
    miri -p towpath-coro --lib -- tests::c tests::wa tests::p tests::f timer_model::waker
    miri -p towpath-cbuf --lib -- sga
fi
