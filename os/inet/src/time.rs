//! Time as the stack sees it: nanoseconds since an origin the caller chose. Nothing below reads a clock.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point in time, or a span of it, in nanoseconds; arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The origin, or an empty span.
    pub const ZERO: Nanos = Nanos(0);
    /// A point no clock reaches: "never".
    pub const NEVER: Nanos = Nanos(u64::MAX);

    /// So many microseconds.
    pub const fn micros(n: u64) -> Nanos {
        Nanos(n * 1_000)
    }

    /// So many milliseconds.
    pub const fn millis(n: u64) -> Nanos {
        Nanos(n * 1_000_000)
    }

    /// So many seconds.
    pub const fn secs(n: u64) -> Nanos {
        Nanos(n * 1_000_000_000)
    }

    /// Whole microseconds in this span.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds in this span.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Seconds in this span, with their fraction.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// From `earlier` to here, or zero if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// This span so many times over.
    pub const fn times(self, n: u64) -> Nanos {
        Nanos(self.0.saturating_mul(n))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        self.since(other)
    }
}

impl fmt::Debug for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Nanos::NEVER {
            return f.write_str("never");
        }
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
