//! CUBIC (RFC 9438), with the end of slow start found by rising delay (HyStart++, RFC 9406).

use super::{Acked, Controller, WINDOW_MAX};
use crate::time::Nanos;

/// RFC 9438 section 4.6.
const BETA: f32 = 0.7;
/// RFC 9438 section 5.
const C: f32 = 0.4;
/// RFC 9438 section 4.3: growth that matches Reno's share with this decrease.
const ALPHA: f32 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// RFC 9406 section 4.3.
const RTT_SAMPLES: u8 = 8;
const GROWTH_DIVISOR: u32 = 4;
const GENTLE_ROUNDS: u8 = 5;

/// The controller of RFC 9438.
#[derive(Clone, Debug)]
pub struct Cubic {
    window: u32,
    threshold: u32,
    before: (u32, u32, f32),
    /// W_max, in bytes.
    top: f32,
    /// K, in seconds; meaningful while an epoch runs.
    k: f32,
    /// W_est, in bytes.
    reno: f32,
    /// Start of this stage of congestion avoidance; `NEVER` if none runs.
    epoch: Nanos,
    /// The part of a byte of growth not yet given.
    fraction: f32,
    /// The least round-trip time of the last round and of this one, in microseconds.
    rtt_last: u32,
    rtt_now: u32,
    rtt_count: u8,
    /// Rounds of conservative slow start left; 0 in standard slow start.
    gentle: u8,
    rtt_base: u32,
}

impl Cubic {
    /// Starts in slow start with `window` bytes.
    pub fn new(window: u32) -> Cubic {
        Cubic {
            window,
            threshold: u32::MAX,
            before: (window, u32::MAX, 0.0),
            top: 0.0,
            k: 0.0,
            reno: 0.0,
            epoch: Nanos::NEVER,
            fraction: 0.0,
            rtt_last: u32::MAX,
            rtt_now: u32::MAX,
            rtt_count: 0,
            gentle: 0,
            rtt_base: u32::MAX,
        }
    }

    fn slow_start(&mut self, acked: &Acked) {
        let grow = if self.gentle > 0 { acked.bytes / GROWTH_DIVISOR } else { acked.bytes };
        self.window = (self.window + grow).min(WINDOW_MAX).min(self.threshold.max(self.window));
        if let Some(rtt) = acked.rtt {
            self.rtt_now = self.rtt_now.min(rtt.as_micros() as u32);
            self.rtt_count = self.rtt_count.saturating_add(1);
        }
        let known = self.rtt_count >= RTT_SAMPLES && self.rtt_now != u32::MAX;
        if self.gentle == 0 && known && self.rtt_last != u32::MAX {
            // RFC 9406 section 4.2: an eighth of the round trip, between 4 and 16 ms.
            let rise = (self.rtt_last / 8).clamp(4_000, 16_000);
            if self.rtt_now >= self.rtt_last + rise {
                self.rtt_base = self.rtt_now;
                self.gentle = GENTLE_ROUNDS + 1;
            }
        } else if self.gentle > 0 && known && self.rtt_now < self.rtt_base {
            self.gentle = 0;
        }
        if acked.round {
            self.rtt_last = self.rtt_now;
            self.rtt_now = u32::MAX;
            self.rtt_count = 0;
            if self.gentle > 0 {
                self.gentle -= 1;
                if self.gentle == 0 {
                    self.threshold = self.window;
                }
            }
        }
    }

    fn begin_epoch(&mut self, acked: &Acked) {
        self.epoch = acked.now;
        self.reno = self.window as f32;
        let window = self.window as f32;
        if window < self.top {
            self.k = ((self.top - window) / acked.mss as f32 / C).cbrt();
        } else {
            self.top = window;
            self.k = 0.0;
        }
    }

    fn reduce(&mut self, in_flight: u32, mss: u32) {
        self.before = (self.window, self.threshold, self.top);
        let window = self.window as f32;
        // RFC 9438 section 4.7, fast convergence: a flow that lost ground gives some up.
        self.top = if window < self.top { window * (1.0 + BETA) / 2.0 } else { window };
        self.threshold = ((in_flight.min(self.window) as f32 * BETA) as u32).max(2 * mss);
        self.epoch = Nanos::NEVER;
        self.fraction = 0.0;
        self.gentle = 0;
    }
}

impl Controller for Cubic {
    #[inline]
    fn window(&self) -> u32 {
        self.window
    }

    #[inline]
    fn threshold(&self) -> u32 {
        self.threshold
    }

    #[inline]
    fn on_ack(&mut self, acked: &Acked) {
        if !acked.window_limited {
            // RFC 9438 section 5.8: time in which the program limits does not count; the epoch starts again.
            self.epoch = Nanos::NEVER;
            return;
        }
        if self.window < self.threshold {
            self.slow_start(acked);
            return;
        }
        if self.epoch == Nanos::NEVER {
            self.begin_epoch(acked);
        }
        let (window, mss) = (self.window as f32, acked.mss as f32);
        let t = (acked.now.since(self.epoch) + acked.srtt).as_secs_f64() as f32;
        // RFC 9438 section 4.2: the target lies a round trip ahead, at most half the window above it.
        let target = (self.top + C * (t - self.k).powi(3) * mss).clamp(window, window * 1.5);
        // RFC 9438 section 4.3: never slower than Reno would be.
        let alpha = if self.reno < self.before.0 as f32 { ALPHA } else { 1.0 };
        self.reno += alpha * mss * acked.bytes as f32 / window;
        let grow =
            if self.reno > target { self.reno - window } else { (target - window) * acked.bytes as f32 / window };
        let grow = grow.clamp(0.0, acked.bytes as f32) + self.fraction;
        self.fraction = grow.fract();
        self.window = (self.window + grow as u32).min(WINDOW_MAX);
    }

    fn on_congestion(&mut self, _now: Nanos, in_flight: u32, mss: u32, _mark: bool) {
        self.reduce(in_flight, mss);
        self.window = self.threshold;
    }

    fn on_timeout(&mut self, _now: Nanos, in_flight: u32, mss: u32) {
        if self.window > mss {
            self.reduce(in_flight, mss);
        }
        self.window = mss;
    }

    fn undo(&mut self) {
        self.window = self.window.max(self.before.0);
        (self.threshold, self.top) = (self.before.1, self.before.2);
        self.epoch = Nanos::NEVER;
    }

    fn set_window(&mut self, window: u32) {
        self.window = window;
    }
}
