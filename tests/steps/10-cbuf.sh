#!/bin/sh
# Buffers: every interleaving of the remote-free queues (loom).
set -eu
cd "$(dirname "$0")/../.."
echo "loom: the queues that bring frees of other cores home"
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -q --locked --release -p towpath-cbuf --lib
