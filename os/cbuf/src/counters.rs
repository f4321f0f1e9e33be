//! Counters of the whole process.

use std::sync::atomic::{AtomicU64, Ordering};

static COPIED: AtomicU64 = AtomicU64::new(0);

/// Bytes of payload that were copied so far: every copy this system makes of a program's data is counted here.
pub fn copied_bytes() -> u64 {
    COPIED.load(Ordering::Relaxed)
}

/// Counts a copy of payload. Whoever copies calls this.
pub fn count_copy(bytes: usize) {
    COPIED.fetch_add(bytes as u64, Ordering::Relaxed);
}
