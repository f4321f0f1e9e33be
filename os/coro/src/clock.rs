//! Time: nanoseconds of `CLOCK_MONOTONIC`, read from the processor's time stamp counter.
//!
//! A read of the counter costs a fraction of a call of `clock_gettime`. Its rate is calibrated when the process first
//! makes a clock, and checked against `CLOCK_MONOTONIC` about ten times a second while the clock is in use: each check
//! steers the rate so that the error is gone by the next one, so time neither jumps nor goes back. Where the counter is
//! not invariant, or the kernel distrusts it, or checks keep failing, the clock reads `CLOCK_MONOTONIC` itself.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

/// A point in time: nanoseconds of `CLOCK_MONOTONIC` (or of a simulated clock).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The latest time there is.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// This much later; stops at [`Nanos::MAX`].
    #[must_use]
    pub fn after(self, duration: Duration) -> Nanos {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Nanos(self.0.saturating_add(nanos))
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// What a clock reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The time stamp counter, checked against `CLOCK_MONOTONIC`.
    Tsc,
    /// `CLOCK_MONOTONIC`, for the reason given.
    Monotonic(&'static str),
}

/// A clock of one thread.
#[derive(Debug)]
pub struct Clock {
    steering: Cell<Steering>,
    source: Cell<Source>,
    /// Never go back, whatever processor the thread moves to.
    last: Cell<u64>,
    failures: Cell<u32>,
}

/// Checks that fail in a row before the counter is given up.
const FAILURES_MAX: u32 = 3;
/// An error that no drift explains: this much, and 500 parts per million of the time since the last check.
const TOLERANCE: u64 = 1_000_000;
/// Time between checks: short at first, while the rate is known to a few dozen parts per million only.
const FIRST_CHECK: u64 = 10_000_000;
const CHECK_EVERY: u64 = 100_000_000;

impl Clock {
    /// A clock that agrees with `CLOCK_MONOTONIC`. The first of a process calibrates for a millisecond.
    pub fn new() -> Clock {
        static CALIBRATED: OnceLock<Result<u64, &'static str>> = OnceLock::new();
        let rate = *CALIBRATED.get_or_init(|| counter::usable().map(|()| calibrate(1_000_000)));
        let (steering, source) = match rate {
            Ok(rate) => {
                let (ticks, nanos) = observe();
                (Steering::new(ticks, nanos, rate), Source::Tsc)
            }
            Err(why) => (Steering::new(0, 0, 0), Source::Monotonic(why)),
        };
        Clock { steering: Cell::new(steering), source: Cell::new(source), last: Cell::new(0), failures: Cell::new(0) }
    }

    /// Now. Never earlier than the time returned before.
    #[inline]
    pub fn now(&self) -> Nanos {
        let time = match self.source.get() {
            Source::Tsc => {
                let ticks = counter::read();
                let steering = self.steering.get();
                match steering.short(ticks) {
                    Some(nanos) => nanos,
                    None => self.check(ticks, steering),
                }
            }
            Source::Monotonic(_) => monotonic(),
        };
        let time = time.max(self.last.get());
        self.last.set(time);
        Nanos(time)
    }

    /// What it reads.
    pub fn source(&self) -> Source {
        self.source.get()
    }

    /// Ticks of the counter a second, as measured; `None` when it is not used.
    pub fn ticks_per_second(&self) -> Option<f64> {
        let rate = self.steering.get().measured;
        (self.source.get() == Source::Tsc).then(|| 1e9 * 4_294_967_296.0 / rate as f64)
    }

    #[cold]
    fn check(&self, ticks: u64, mut steering: Steering) -> u64 {
        if (ticks.wrapping_sub(steering.ticks) as i64) < 0 {
            // Another processor's counter is a few ticks behind.
            return steering.nanos;
        }
        let (ticks, nanos) = observe();
        if steering.check(ticks, nanos) {
            self.failures.set(0);
        } else {
            self.failures.set(self.failures.get() + 1);
            if self.failures.get() >= FAILURES_MAX {
                self.source.set(Source::Monotonic("the counter kept straying from CLOCK_MONOTONIC"));
                return nanos;
            }
        }
        self.steering.set(steering);
        steering.nanos
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// A line through the last check: `nanos + (ticks - self.ticks) * rate`. Rates are nanoseconds a tick times 2^32.
#[derive(Clone, Copy, Debug)]
struct Steering {
    ticks: u64,
    nanos: u64,
    rate: u64,
    /// Ticks after which the line is to be checked.
    valid: u64,
    /// The last check as observed, and the rate measured between the last two.
    seen: (u64, u64),
    measured: u64,
}

impl Steering {
    fn new(ticks: u64, nanos: u64, rate: u64) -> Steering {
        let mut steering = Steering { ticks, nanos, rate, valid: 0, seen: (ticks, nanos), measured: rate };
        steering.valid = steering.ticks_in(FIRST_CHECK);
        steering
    }

    fn ticks_in(&self, nanos: u64) -> u64 {
        ((u128::from(nanos) << 32) / u128::from(self.measured.max(1))) as u64
    }

    /// The time at `ticks`, unless the line has to be checked first.
    #[inline(always)]
    fn short(&self, ticks: u64) -> Option<u64> {
        let elapsed = ticks.wrapping_sub(self.ticks);
        // A tenth of a second is below 2^30 ticks and a rate below 2^33: the product fits.
        (elapsed < self.valid).then(|| self.nanos + ((elapsed * self.rate) >> 32))
    }

    fn long(&self, ticks: u64) -> u64 {
        let elapsed = u128::from(ticks.wrapping_sub(self.ticks));
        self.nanos.saturating_add(((elapsed * u128::from(self.rate)) >> 32) as u64)
    }

    /// Takes in that at `ticks` it was `nanos`; false if the counter strayed further than drift explains.
    fn check(&mut self, ticks: u64, nanos: u64) -> bool {
        let predicted = self.long(ticks);
        let (ticks_before, nanos_before) = self.seen;
        let passed = nanos.saturating_sub(nanos_before);
        let error = predicted as i64 - nanos as i64;
        let good = error.unsigned_abs() <= TOLERANCE + passed / 2000;
        if good && ticks > ticks_before && passed > 0 {
            self.measured = ((u128::from(passed) << 32) / u128::from(ticks - ticks_before)) as u64;
        }
        self.seen = (ticks, nanos);
        self.ticks = ticks;
        // Time may jump ahead (the machine slept), never back: then it waits at most half speed.
        self.nanos = if good { predicted } else { predicted.max(nanos) };
        self.valid = self.ticks_in(CHECK_EVERY);
        let ahead = self.nanos as i64 - nanos as i64;
        let most = (self.measured / 2) as i128;
        let correction = ((i128::from(ahead) << 32) / i128::from(self.valid.max(1))).clamp(-most, most);
        self.rate = (i128::from(self.measured) - correction) as u64;
        good
    }
}

/// The counter and `CLOCK_MONOTONIC` at nearly the same time: the tightest of a few tries.
fn observe() -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..5 {
        let before = counter::read();
        let nanos = monotonic();
        let width = counter::read().wrapping_sub(before);
        if width < best.0 {
            best = (width, before.wrapping_add(width / 2), nanos);
        }
    }
    (best.1, best.2)
}

/// Measures the counter's rate for about `nanos`.
fn calibrate(nanos: u64) -> u64 {
    let (ticks_first, nanos_first) = observe();
    while monotonic() < nanos_first + nanos {
        std::hint::spin_loop();
    }
    let (ticks_last, nanos_last) = observe();
    let ticks = ticks_last.wrapping_sub(ticks_first).max(1);
    ((u128::from(nanos_last - nanos_first) << 32) / u128::from(ticks)) as u64
}

/// `CLOCK_MONOTONIC` in nanoseconds.
fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours; this clock exists on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod counter {
    /// Whether the counter runs at one rate on all processors.
    pub(super) fn usable() -> Result<(), &'static str> {
        use std::arch::x86_64::__cpuid;
        let invariant = __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0;
        if !invariant {
            return Err("the processor does not promise an invariant time stamp counter");
        }
        let chosen = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        match chosen.as_deref().map(str::trim) {
            Ok("tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page") | Err(_) => Ok(()),
            Ok(_) => Err("the kernel does not use the time stamp counter as its clock"),
        }
    }

    #[inline(always)]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 has the instruction; Linux leaves it enabled for programs.
        unsafe { std::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod counter {
    pub(super) fn usable() -> Result<(), &'static str> {
        Err("no time stamp counter is known for this processor")
    }

    pub(super) fn read() -> u64 {
        super::monotonic()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn clock_agrees_with_the_kernel_and_never_goes_back() {
        let clock = Clock::new();
        let mut last = Nanos(0);
        let end = monotonic() + if cfg!(miri) { 100_000 } else { 150_000_000 };
        while monotonic() < end {
            let (before, now, after) = (monotonic(), clock.now(), monotonic());
            assert!(now >= last);
            last = now;
            // Generous: another process may run between any two reads, but the clock may not run away.
            assert!(now.0 + 1_000_000 > before && now.0 < after + 1_000_000, "{before} {} {after}", now.0);
        }
    }

    #[test]
    fn two_clocks_of_a_process_agree() {
        let (a, b) = (Clock::new(), Clock::new());
        assert_eq!(a.source(), b.source());
        let (x, y, z) = (a.now(), b.now(), a.now());
        assert!(y.0 + 100_000 > x.0 && y.0 < z.0 + 100_000);
    }

    /// The clock against a counter of `ticks_per_us` whose rate strays by `ppm` from what was calibrated.
    fn steer(ppm: i64, seconds: u64) -> i64 {
        let real = 2_596_000_000f64;
        let calibrated = ((1e9 * 4_294_967_296.0) / real) as u64;
        let ticks_at = |nanos: u64| (nanos as f64 / 1e9 * real * (1.0 + ppm as f64 / 1e6)) as u64;
        let mut steering = Steering::new(ticks_at(0), 5_000_000_000, calibrated);
        let (mut last, mut error) = (0, 0);
        for step in 1..seconds * 1000 {
            let nanos = step * 1_000_000;
            let ticks = ticks_at(nanos);
            let time = steering.short(ticks).unwrap_or_else(|| {
                assert!(steering.check(ticks, 5_000_000_000 + nanos), "{ppm} ppm is drift");
                steering.nanos
            });
            assert!(time >= last, "time went back");
            last = time;
            error = time as i64 - (5_000_000_000 + nanos) as i64;
        }
        error
    }

    #[test]
    fn steered_clock_follows_a_counter_that_was_misjudged() {
        for ppm in if cfg!(miri) { &[30][..] } else { &[-400, -30, 0, 30, 400] } {
            let error = steer(*ppm, if cfg!(miri) { 1 } else { 3 });
            assert!(error.abs() < 1000, "{ppm} ppm leave {error} ns");
        }
    }

    #[test]
    fn check_after_a_long_sleep_jumps_ahead_and_says_so() {
        let rate = 1u64 << 32;
        let mut steering = Steering::new(0, 0, rate);
        assert!(!steering.check(10_000_000, 60_000_000_000), "the counter stood still while the machine slept");
        assert_eq!(steering.nanos, 60_000_000_000);
        assert!(steering.check(110_000_000, 60_100_000_000));
    }

    #[test]
    fn clock_ahead_of_the_kernel_waits_and_does_not_go_back() {
        let rate = 1u64 << 32;
        let mut steering = Steering::new(0, 50_000_000, rate);
        assert!(!steering.check(10_000_000, 10_000_000));
        assert_eq!(steering.nanos, 60_000_000);
        assert!(steering.rate >= rate / 2 && steering.rate < rate);
    }

    #[test]
    fn nanos_add_and_subtract_without_wrapping() {
        assert_eq!(Nanos(5).after(Duration::from_nanos(7)), Nanos(12));
        assert_eq!(Nanos::MAX.after(Duration::from_secs(1)), Nanos::MAX);
        assert_eq!(Nanos(5).since(Nanos(7)), Duration::ZERO);
        assert_eq!(Nanos(1_500_000_000).to_string(), "1.500000000s");
    }
}
