//! How an idle runtime waits: what a wake-up costs here, when spinning for that long is worth it, and what ends a
//! sleep from another thread.

use crate::config::Waiting;
use crate::error::{Error, Result};
use crate::sys::{self, eventfd, eventfd_lower, eventfd_raise};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use towpath_coro::Nanos;

/// Ends the sleep of one runtime: an eventfd that its driver watches.
pub(crate) struct Unparker(OwnedFd);

impl Unparker {
    pub fn new() -> Result<Unparker> {
        eventfd().map(Unparker).map_err(|errno| Error::os("eventfd", errno))
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Any thread, any signal handler.
    pub fn raise(&self) {
        eventfd_raise(self.fd());
    }

    /// The runtime has seen it.
    pub fn lower(&self) {
        eventfd_lower(self.fd());
    }
}

impl towpath_coro::Unpark for Unparker {
    fn unpark(&self) {
        self.raise();
    }
}

/// Wake-ups measured: enough for a median, few enough to be done in about two milliseconds.
const ROUNDS: usize = 15;
/// Bounds of what is believed: below, the measurement missed; above, the machine was busy with something else.
const COST_MIN: Duration = Duration::from_micros(5);
const COST_MAX: Duration = Duration::from_micros(100);

/// What it costs to sleep in the kernel and be woken by another thread: half a round trip between two sleeping
/// threads, the median of a few. Measured once a process.
pub(crate) fn wake_cost() -> Duration {
    static COST: OnceLock<Duration> = OnceLock::new();
    *COST.get_or_init(|| measure().unwrap_or(COST_MAX).clamp(COST_MIN, COST_MAX))
}

fn measure() -> Option<Duration> {
    let (ping, pong) = (eventfd().ok()?, eventfd().ok()?);
    let sleep_until_raised = |fd: RawFd| {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd that outlives the call; the limit keeps a lost wake from hanging the start.
        let n = unsafe { libc::poll(&mut poll, 1, 20) };
        eventfd_lower(fd);
        n == 1
    };
    let mut costs = std::thread::scope(|scope| {
        let (ping, pong) = (ping.as_raw_fd(), pong.as_raw_fd());
        let other = std::thread::Builder::new().spawn_scoped(scope, move || {
            for _ in 0..ROUNDS {
                if !sleep_until_raised(ping) {
                    return;
                }
                eventfd_raise(pong);
            }
        });
        other.ok()?;
        let mut costs = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            eventfd_raise(ping);
            if !sleep_until_raised(pong) {
                return None;
            }
            costs.push(start.elapsed() / 2);
        }
        Some(costs)
    })?;
    costs.sort_unstable();
    Some(costs[costs.len() / 2])
}

/// Spins that in a row brought nothing before spinning is given up for a while.
const FRUITLESS_MAX: u32 = 4;
/// Of the idle times after that, one in this many spins again to see whether times have changed.
const PROBE_EVERY: u32 = 32;
/// How many sleeps pass between two looks at the count of involuntary switches.
const CROWDED_FOR: u32 = 64;

/// Decides, for an adaptive runtime, between spinning on and going to sleep.
pub(crate) struct Patience {
    limit: Duration,
    /// When the present idle time began.
    since: Nanos,
    idle: bool,
    /// Whether this idle time may spin.
    spins: bool,
    fruitless: u32,
    sleeps: u32,
    switches: i64,
    /// Sleeps left in which spinning would take the core from someone who needs it.
    crowded: u32,
}

impl Patience {
    pub fn new(waiting: Waiting) -> Patience {
        let limit = if waiting == Waiting::Adaptive { wake_cost() } else { Duration::ZERO };
        Patience {
            limit,
            since: Nanos(0),
            idle: false,
            spins: true,
            fruitless: 0,
            sleeps: 0,
            switches: sys::involuntary_switches(),
            crowded: 0,
        }
    }

    /// Something happened: the next idle time starts anew.
    #[inline]
    pub fn busy(&mut self) {
        if self.idle {
            self.idle = false;
            self.fruitless = 0;
        }
    }

    /// Nothing happens at `now`; whether to sleep.
    pub fn should_sleep(&mut self, now: Nanos) -> bool {
        if !self.idle {
            self.idle = true;
            self.since = now;
            let probe = self.sleeps.is_multiple_of(PROBE_EVERY);
            self.spins = self.crowded == 0 && (self.fruitless < FRUITLESS_MAX || probe);
        }
        !self.spins || now.0.saturating_sub(self.since.0) >= self.limit.as_nanos() as u64
    }

    /// A sleep is over: the spin before it, if there was one, brought nothing.
    pub fn slept(&mut self) {
        self.fruitless = self.fruitless.saturating_add(u32::from(self.spins));
        self.idle = false;
        self.sleeps = self.sleeps.wrapping_add(1);
        self.crowded = self.crowded.saturating_sub(1);
        if self.sleeps.is_multiple_of(CROWDED_FOR) {
            let switches = sys::involuntary_switches();
            if switches > self.switches + i64::from(CROWDED_FOR / 8) {
                self.crowded = CROWDED_FOR;
            }
            self.switches = switches;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_cost_measured_lies_in_its_bounds() {
        assert!((COST_MIN..=COST_MAX).contains(&wake_cost()));
    }

    #[test]
    fn patience_after_fruitless_spins_sleeps_at_once() {
        let mut patience = Patience::new(Waiting::Adaptive);
        patience.sleeps = 1;
        let mut now = Nanos(1);
        for _ in 0..FRUITLESS_MAX {
            assert!(!patience.should_sleep(now), "a spin comes first");
            now = Nanos(now.0 + 1_000_000);
            assert!(patience.should_sleep(now));
            patience.slept();
        }
        assert!(patience.should_sleep(now), "spinning was given up");
        patience.busy();
        assert!(!patience.should_sleep(now), "work that came during a spin makes it worth while again");
    }
}
