//! Every interleaving of a remote wake with an owner that takes, sleeps or goes, by the loom model checker:
//! `RUSTFLAGS="--cfg loom" cargo test -p towpath-coro --release loom`.

use crate::block::Unpark;
use crate::{Class, Config, Scheduler};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A hook that remembers that it was called.
struct Called(AtomicBool);

impl Unpark for Called {
    fn unpark(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A scheduler with one coroutine that counts its polls, and its waker.
fn blocked(hook: Option<std::sync::Arc<dyn Unpark>>) -> (Scheduler, Rc<Cell<usize>>, Waker) {
    let scheduler = Scheduler::new(Config { max_tasks: 2, unpark: hook, ..Config::default() });
    let (polls, waker) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
    let (p, w) = (polls.clone(), waker.clone());
    let future = poll_fn(move |cx| {
        p.set(p.get() + 1);
        if w.borrow().is_none() && p.get() == 1 {
            *w.borrow_mut() = Some(cx.waker().clone());
        }
        Poll::<()>::Pending
    });
    scheduler.spawn(Class::Program, future).expect("there is room");
    scheduler.run_ready(10);
    let waker = waker.borrow_mut().take().expect("it was polled");
    (scheduler, polls, waker)
}

#[test]
fn wake_is_either_seen_before_sleep_or_calls_the_hook() {
    loom::model(|| {
        let hook = std::sync::Arc::new(Called(AtomicBool::new(false)));
        let (scheduler, polls, waker) = blocked(Some(hook.clone()));
        let thread = loom::thread::spawn(move || waker.wake());
        let sleeps = scheduler.park_begin();
        thread.join().expect("waking does not panic");
        if sleeps {
            assert!(hook.0.load(Ordering::SeqCst), "the owner would sleep for ever");
        }
        scheduler.park_end();
        scheduler.run_ready(10);
        assert_eq!(polls.get(), 2, "the wake was lost");
    });
}

#[test]
fn two_wakers_and_an_owner_that_takes_lose_no_wake() {
    loom::model(|| {
        let (scheduler, polls, waker) = blocked(None);
        let told = Arc::new(AtomicUsize::new(0));
        let other = (waker.clone(), told.clone());
        let thread = loom::thread::spawn(move || {
            other.1.store(1, Ordering::Relaxed);
            other.0.wake_by_ref();
        });
        scheduler.run_ready(10);
        thread.join().expect("waking does not panic");
        scheduler.run_ready(10);
        assert!(polls.get() >= 2, "the wake was lost");
        drop(waker);
    });
}

#[test]
fn block_is_freed_once_whoever_drops_the_last_waker() {
    loom::model(|| {
        let (scheduler, _, waker) = blocked(None);
        let thread = loom::thread::spawn(move || {
            let copy = waker.clone();
            drop(waker);
            copy.wake();
        });
        drop(scheduler);
        thread.join().expect("dropping does not panic");
        // Loom reports an `Arc` of the block's that was dropped twice or never.
    });
}
