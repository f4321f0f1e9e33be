//! The scheduler beside a simple model: bytes are steps, and after each the scheduler must have done exactly the work
//! that the model says there was. Shared by the seeded test and the fuzz target.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use towpath_coro::{Class, Config, Scheduler, TaskId, yield_now};

/// A coroutine as the model knows it.
struct Known {
    id: TaskId,
    polls: Rc<Cell<usize>>,
    seen: usize,
    dropped: Rc<Cell<usize>>,
    kind: Kind,
}

enum Kind {
    /// Has this many polls to go, and is ready until then.
    Yields(usize),
    /// Is ready when woken, ends after as many wakes as are left.
    Waits {
        ready: bool,
        left: usize,
        waker: Rc<RefCell<Option<Waker>>>,
    },
    Ended,
}

impl Known {
    /// Polls that it will get when there is nothing but this to do.
    fn work(&self) -> usize {
        match self.kind {
            Kind::Yields(left) => left,
            Kind::Waits { ready, .. } => usize::from(ready),
            Kind::Ended => 0,
        }
    }

    /// Takes in what happened to the coroutine since the last look.
    fn look(&mut self) {
        let polled = self.polls.get() - self.seen;
        self.seen = self.polls.get();
        assert!(polled <= self.work(), "{:?} was polled {polled} times, not {} at most", self.id, self.work());
        if polled == 0 {
            return;
        }
        let ended = match &mut self.kind {
            Kind::Yields(left) => {
                *left -= polled;
                *left == 0
            }
            Kind::Waits { ready, left, .. } => {
                *ready = false;
                *left -= 1;
                *left == 0
            }
            Kind::Ended => false,
        };
        if ended {
            self.end();
        }
    }

    fn end(&mut self) {
        self.kind = Kind::Ended;
        assert_eq!(self.dropped.get(), 1, "{:?} was not dropped when it ended", self.id);
    }
}

struct Guard(Rc<Cell<usize>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

fn spawn(scheduler: &Scheduler, class: Class, yields: bool, n: usize) -> Known {
    let (polls, dropped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (p, guard) = (polls.clone(), Guard(dropped.clone()));
    if yields {
        let future = async move {
            let _guard = guard;
            for left in (0..n).rev() {
                p.set(p.get() + 1);
                if left != 0 {
                    yield_now().await;
                }
            }
        };
        let id = scheduler.spawn(class, future).expect("there is room");
        return Known { id, polls, seen: 0, dropped, kind: Kind::Yields(n) };
    }
    let waker = Rc::new(RefCell::new(None));
    let w = waker.clone();
    let future = async move {
        let _guard = guard;
        poll_fn(|cx| {
            p.set(p.get() + 1);
            *w.borrow_mut() = Some(cx.waker().clone());
            if p.get() == n { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    };
    let id = scheduler.spawn(class, future).expect("there is room");
    Known { id, polls, seen: 0, dropped, kind: Kind::Waits { ready: true, left: n, waker } }
}

/// Runs the steps that `bytes` spell.
pub fn run(bytes: &[u8]) {
    let scheduler = Scheduler::new(Config { max_tasks: 4096, ..Config::default() });
    let mut known: Vec<Known> = Vec::new();
    for step in bytes.chunks_exact(2) {
        let (what, with) = (step[0], usize::from(step[1]));
        match what % 8 {
            0..3 if scheduler.len() < 1000 => {
                let class = if what & 8 == 0 { Class::Program } else { Class::Background };
                known.push(spawn(&scheduler, class, what & 16 == 0, with % 5 + 1));
            }
            3 | 4 if !known.is_empty() => {
                let at = (with << 2 | usize::from(what >> 6)) % known.len();
                wake(&mut known[at], what & 32 != 0);
            }
            5 if !known.is_empty() => {
                let at = with % known.len();
                let alive = !matches!(known[at].kind, Kind::Ended);
                assert_eq!(scheduler.cancel(known[at].id), alive);
                known[at].end();
            }
            _ => check_run(&scheduler, &mut known, with),
        }
    }
    while known.iter().any(|k| k.work() != 0) {
        check_run(&scheduler, &mut known, 1000);
    }
    let alive = known.iter().filter(|k| !matches!(k.kind, Kind::Ended)).count();
    assert_eq!(scheduler.len(), alive);
    drop(scheduler);
    assert!(known.iter().all(|k| k.dropped.get() == 1), "every coroutine is dropped once");
}

/// Wakes a coroutine that was polled before, also one that has ended, from this thread or another.
fn wake(known: &mut Known, remote: bool) {
    let Kind::Waits { ready, waker, .. } = &mut known.kind else { return };
    let Some(waker) = waker.borrow().clone() else { return };
    *ready = true;
    if remote {
        std::thread::spawn(move || waker.wake()).join().expect("a wake does not panic");
    } else {
        waker.wake();
    }
}

fn check_run(scheduler: &Scheduler, known: &mut [Known], budget: usize) {
    let work: usize = known.iter().map(Known::work).sum();
    assert_eq!(scheduler.has_ready(), work != 0);
    assert_eq!(scheduler.run_ready(budget), work.min(budget));
    known.iter_mut().for_each(Known::look);
}
