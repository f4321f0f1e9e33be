//! Counts of payload bytes that were copied: the figure that a zero-copy path keeps at zero.

use std::sync::atomic::{AtomicU64, Ordering};

static COPIED: AtomicU64 = AtomicU64::new(0);

/// Payload bytes copied by this process since it started.
pub fn copied_bytes() -> u64 {
    COPIED.load(Ordering::Relaxed)
}

/// Records a copy of `n` payload bytes.
pub fn count_copy(n: usize) {
    COPIED.fetch_add(n as u64, Ordering::Relaxed);
}
