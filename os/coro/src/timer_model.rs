//! Random steps of the timer wheel beside a sorted set of deadlines.

use crate::clock::Nanos;
use crate::timer::{Sleep, Wheel};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

struct Count(AtomicUsize);
impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn step_beside_model(seed: u64, steps: usize) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let wheel = Rc::new(Wheel::new());
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let mut now = 0u64;
    let mut timers: Vec<Option<Pin<Box<Sleep>>>> = Vec::new();
    let mut model: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut dropped = false;
    for _ in 0..steps {
        let far = rng.random_range(0..63);
        match rng.random_range(0..10) {
            0..5 => {
                let deadline = now.saturating_add(rng.random_range(1..=1u64 << far));
                let mut sleep = Box::pin(Sleep::new(wheel.clone(), Nanos(deadline)));
                let poll = sleep.as_mut().poll(&mut Context::from_waker(&waker));
                if deadline > now {
                    assert_eq!(poll, Poll::Pending, "SEED={seed}");
                    model.insert((deadline, timers.len()));
                }
                timers.push(Some(sleep));
            }
            5..7 if !timers.is_empty() => {
                let victim = rng.random_range(0..timers.len());
                if let Some(sleep) = timers[victim].take() {
                    dropped |= model.remove(&(sleep.deadline().0, victim));
                }
            }
            _ => {
                let ahead = match model.first() {
                    Some(&(first, _)) if rng.random_bool(0.5) => {
                        let next = wheel.next_deadline().expect("timers are armed").0;
                        assert!(next <= first, "SEED={seed}: {next} promised, {first} due");
                        assert!(dropped || next == first, "SEED={seed}: none was dropped, so it is exact");
                        first - now + rng.random_range(0..3) - 1
                    }
                    _ => rng.random_range(0..=1u64 << (far % 40)),
                };
                now = now.saturating_add(ahead);
                let later = model.split_off(&(now + 1, 0));
                let due = std::mem::replace(&mut model, later);
                let before = count.0.load(Ordering::Relaxed);
                assert_eq!(wheel.expire(Nanos(now)), due.len(), "SEED={seed} at {now}");
                assert_eq!(count.0.load(Ordering::Relaxed) - before, due.len(), "SEED={seed}");
                for (_, index) in due {
                    let sleep = timers[index].as_mut().expect("it lives");
                    assert_eq!(sleep.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(()), "SEED={seed}");
                }
                dropped &= !model.is_empty();
            }
        }
        assert_eq!(wheel.armed(), model.len(), "SEED={seed}");
    }
}

#[test]
fn wheel_fires_what_a_sorted_set_would() {
    let (seeds, steps) = if cfg!(miri) { (2, 60) } else { (60, 3000) };
    for seed in 0..seeds {
        step_beside_model(seed, steps);
    }
}

#[test]
fn waker_that_drops_another_expired_timer_is_safe() {
    struct Dropper(std::sync::Mutex<Vec<SendBox>>);
    struct SendBox(#[allow(dead_code, reason = "held to be dropped")] Pin<Box<Sleep>>);
    // SAFETY: this test has one thread; the bound comes from `Wake`.
    unsafe impl Send for SendBox {}
    impl Wake for Dropper {
        fn wake(self: Arc<Self>) {
            self.0.lock().unwrap().clear();
        }
    }
    let wheel = Rc::new(Wheel::new());
    let dropper = Arc::new(Dropper(std::sync::Mutex::new(Vec::new())));
    let waker = Waker::from(dropper.clone());
    let mut own = Box::pin(Sleep::new(wheel.clone(), Nanos(100)));
    for deadline in [100, 100, 101, 5000] {
        let mut sleep = Box::pin(Sleep::new(wheel.clone(), Nanos(deadline)));
        assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        dropper.0.lock().unwrap().push(SendBox(sleep));
    }
    assert!(own.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    wheel.expire(Nanos(101));
    assert_eq!(wheel.armed(), 0);
    assert!(dropper.0.lock().unwrap().is_empty());
}
