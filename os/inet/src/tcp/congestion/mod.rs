//! Congestion control: how much may be in flight. Windows are in bytes. The connection tells a controller what was
//! acknowledged and what was lost; while it recovers it holds the window itself (proportional rate reduction, RFC
//! 9937) and hands it back with [`Controller::set_window`].

mod cubic;
mod reno;

pub use cubic::Cubic;
pub use reno::Reno;

use crate::time::Nanos;

/// What one acknowledgement said, for a controller that is not in recovery.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// When it came.
    pub now: Nanos,
    /// Bytes newly acknowledged.
    pub bytes: u32,
    /// The smoothed round-trip time, zero if not yet known.
    pub srtt: Nanos,
    /// The latest sample of the round-trip time, if this acknowledgement gave one.
    pub rtt: Option<Nanos>,
    /// Whether the window, not the program, was what limited sending.
    pub window_limited: bool,
    /// The sender's maximum segment size.
    pub mss: u32,
    /// A round trip has passed since the last acknowledgement that said so.
    pub round: bool,
}

/// A congestion controller.
pub trait Controller {
    /// The congestion window in bytes.
    fn window(&self) -> u32;
    /// The slow start threshold in bytes.
    fn threshold(&self) -> u32;
    /// Bytes were acknowledged outside of recovery.
    fn on_ack(&mut self, acked: &Acked);
    /// Loss was detected by acknowledgements, or marked by ECN (`mark`): once a round trip. Sets the threshold, and the
    /// window to it.
    fn on_congestion(&mut self, now: Nanos, in_flight: u32, mss: u32, mark: bool);
    /// The retransmission timer expired: the window falls to one segment (RFC 5681 section 3.1).
    fn on_timeout(&mut self, now: Nanos, in_flight: u32, mss: u32);
    /// The last reduction was mistaken: nothing had been lost (RFC 4015).
    fn undo(&mut self);
    /// The window at the end of recovery, or after an idle time (RFC 5681 section 4.1).
    fn set_window(&mut self, window: u32);
    /// Bytes a second to spread sending over, given the smoothed round-trip time: by default twice the window a
    /// round trip in slow start and 1.2 times after it.
    fn pacing_rate(&self, srtt: Nanos) -> u64 {
        let window = u128::from(self.window());
        let (n, d) = if self.window() < self.threshold() / 2 { (2, 1) } else { (6, 5) };
        (window * 1_000_000_000 * n / d / u128::from(srtt.0.max(1))).min(u128::from(u64::MAX)) as u64
    }
}

/// Which controller a connection uses.
#[derive(Clone, Copy, Debug, Default)]
pub enum Algorithm {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 with RFC 6582.
    Reno,
    /// A controller of the program's, made by the given function from the initial window.
    Custom(fn(u32) -> Box<dyn Controller>),
}

/// The controller of one connection: the common ones in place, others boxed.
pub(crate) enum Congestion {
    Cubic(Cubic),
    Reno(Reno),
    Custom(Box<dyn Controller>),
}

macro_rules! each {
    ($self:ident, $c:ident => $e:expr) => {
        match $self {
            Congestion::Cubic($c) => $e,
            Congestion::Reno($c) => $e,
            Congestion::Custom($c) => $e,
        }
    };
}

impl Congestion {
    pub(crate) fn new(algorithm: Algorithm, window: u32) -> Congestion {
        match algorithm {
            Algorithm::Cubic => Congestion::Cubic(Cubic::new(window)),
            Algorithm::Reno => Congestion::Reno(Reno::new(window)),
            Algorithm::Custom(make) => Congestion::Custom(make(window)),
        }
    }
}

impl Controller for Congestion {
    #[inline]
    fn window(&self) -> u32 {
        each!(self, c => c.window())
    }
    #[inline]
    fn threshold(&self) -> u32 {
        each!(self, c => c.threshold())
    }
    #[inline]
    fn on_ack(&mut self, acked: &Acked) {
        each!(self, c => c.on_ack(acked))
    }
    fn on_congestion(&mut self, now: Nanos, in_flight: u32, mss: u32, mark: bool) {
        each!(self, c => c.on_congestion(now, in_flight, mss, mark))
    }
    fn on_timeout(&mut self, now: Nanos, in_flight: u32, mss: u32) {
        each!(self, c => c.on_timeout(now, in_flight, mss))
    }
    fn undo(&mut self) {
        each!(self, c => c.undo())
    }
    fn set_window(&mut self, window: u32) {
        each!(self, c => c.set_window(window))
    }
    fn pacing_rate(&self, srtt: Nanos) -> u64 {
        each!(self, c => c.pacing_rate(srtt))
    }
}

/// The window no connection outgrows: the largest a scaled window can name.
pub(crate) const WINDOW_MAX: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(bytes: u32, now: Nanos) -> Acked {
        let rtt = Nanos::millis(50);
        Acked { now, bytes, srtt: rtt, rtt: Some(rtt), window_limited: true, mss: 1000, round: false }
    }

    #[test]
    fn reno_doubles_in_slow_start_and_adds_a_segment_a_round_trip_after_loss() {
        let mut reno = Reno::new(10_000);
        for _ in 0..10 {
            reno.on_ack(&ack(1000, Nanos::ZERO));
        }
        assert_eq!(reno.window(), 20_000);
        reno.on_congestion(Nanos::ZERO, 20_000, 1000, false);
        assert_eq!((reno.window(), reno.threshold()), (10_000, 10_000));
        for _ in 0..10 {
            reno.on_ack(&ack(1000, Nanos::ZERO));
        }
        assert_eq!(reno.window(), 11_000);
        reno.on_timeout(Nanos::ZERO, 11_000, 1000);
        assert_eq!((reno.window(), reno.threshold()), (1000, 5500));
    }

    #[test]
    fn cubic_returns_to_its_old_window_after_k_seconds_and_probes_beyond() {
        let mut cubic = Cubic::new(1_000_000);
        cubic.on_congestion(Nanos::ZERO, 1_000_000, 1000, false);
        assert_eq!(cubic.window(), 700_000);
        // RFC 9438 section 4.2: K = cbrt(W_max (1 - beta) / C) = cbrt(1000 * 0.3 / 0.4) = 9.09 s.
        let (mut now, rtt) = (Nanos::ZERO, Nanos::millis(50));
        let mut at_k = 0;
        while now < Nanos::secs(14) {
            now += rtt;
            cubic.on_ack(&ack(cubic.window(), now));
            if now <= Nanos::millis(9_100) {
                at_k = cubic.window();
            }
        }
        assert!((950_000..1_010_000).contains(&at_k), "window at K: {at_k}");
        assert!(cubic.window() > 1_020_000, "window after K: {}", cubic.window());
    }

    #[test]
    fn cubic_on_a_short_path_grows_no_slower_than_reno() {
        let (mut cubic, mut reno) = (Cubic::new(20_000), Reno::new(20_000));
        cubic.on_congestion(Nanos::ZERO, 20_000, 1000, false);
        reno.on_congestion(Nanos::ZERO, 20_000, 1000, false);
        let mut now = Nanos::ZERO;
        for _ in 0..400 {
            now += Nanos::micros(100);
            let small = |w: u32| Acked { srtt: Nanos::micros(100), ..ack(w, now) };
            cubic.on_ack(&small(cubic.window()));
            reno.on_ack(&small(reno.window()));
        }
        assert!(f64::from(cubic.window()) > 0.5 * f64::from(reno.window()), "{} {}", cubic.window(), reno.window());
    }

    #[test]
    fn window_of_every_controller_stays_put_when_the_program_limits_and_comes_back_on_undo() {
        for algorithm in [Algorithm::Cubic, Algorithm::Reno, Algorithm::Custom(|w| Box::new(Reno::new(w)))] {
            let mut c = Congestion::new(algorithm, 50_000);
            c.on_ack(&Acked { window_limited: false, ..ack(10_000, Nanos::ZERO) });
            assert_eq!(c.window(), 50_000);
            c.on_congestion(Nanos::ZERO, 50_000, 1000, false);
            assert!(c.window() < 50_000);
            c.undo();
            assert_eq!(c.window(), 50_000);
        }
    }
}
