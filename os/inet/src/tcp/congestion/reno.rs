//! Reno: additive increase, multiplicative decrease (RFC 5681), counting bytes (RFC 3465).

use super::{Acked, Controller, WINDOW_MAX};
use crate::time::Nanos;

/// The controller of RFC 5681.
#[derive(Clone, Debug)]
pub struct Reno {
    window: u32,
    threshold: u32,
    /// Bytes acknowledged since the window last grew in congestion avoidance.
    counted: u32,
    before: (u32, u32),
}

impl Reno {
    /// Starts in slow start with `window` bytes.
    pub fn new(window: u32) -> Reno {
        Reno { window, threshold: u32::MAX, counted: 0, before: (window, u32::MAX) }
    }
}

impl Controller for Reno {
    fn window(&self) -> u32 {
        self.window
    }

    fn threshold(&self) -> u32 {
        self.threshold
    }

    fn on_ack(&mut self, acked: &Acked) {
        if !acked.window_limited {
            return;
        }
        if self.window < self.threshold {
            self.window = (self.window + acked.bytes).min(WINDOW_MAX).min(self.threshold.max(self.window));
            return;
        }
        self.counted += acked.bytes;
        if self.counted >= self.window {
            self.counted -= self.window;
            self.window = (self.window + acked.mss).min(WINDOW_MAX);
        }
    }

    fn on_congestion(&mut self, _now: Nanos, in_flight: u32, mss: u32, _mark: bool) {
        self.before = (self.window, self.threshold);
        self.threshold = (in_flight.min(self.window) / 2).max(2 * mss);
        self.window = self.threshold;
        self.counted = 0;
    }

    fn on_timeout(&mut self, _now: Nanos, in_flight: u32, mss: u32) {
        // RFC 5681 section 3.1, equation 4; a repeated timeout of the same data keeps the threshold.
        if self.window > mss {
            self.before = (self.window, self.threshold);
            self.threshold = (in_flight.min(self.window) / 2).max(2 * mss);
        }
        self.window = mss;
        self.counted = 0;
    }

    fn undo(&mut self) {
        self.window = self.window.max(self.before.0);
        self.threshold = self.before.1;
    }

    fn set_window(&mut self, window: u32) {
        self.window = window;
    }
}
