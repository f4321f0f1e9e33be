//! What the scheduler promises, one promise a test.

use crate::{Class, Config, Nanos, Scheduler, SpawnError, TaskId, Unpark, yield_now};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

fn scheduler() -> Scheduler {
    Scheduler::new(Config::default())
}

/// Runs until nothing is ready, at most a million polls.
fn run(scheduler: &Scheduler) -> usize {
    let mut polls = 0;
    while scheduler.has_ready() {
        polls += scheduler.run_ready(1000);
        assert!(polls < 1_000_000, "it never ends");
    }
    polls
}

type Polls = Rc<Cell<usize>>;
type Given = Rc<RefCell<Option<Waker>>>;

/// A coroutine that counts its polls and gives out its waker.
fn sleeper(scheduler: &Scheduler, class: Class) -> (TaskId, Polls, Given) {
    let (polls, waker) = (Polls::default(), Given::default());
    let (p, w) = (polls.clone(), waker.clone());
    let future = poll_fn(move |cx| {
        p.set(p.get() + 1);
        *w.borrow_mut() = Some(cx.waker().clone());
        Poll::<()>::Pending
    });
    (scheduler.spawn(class, future).unwrap(), polls, waker)
}

struct OnDrop(Rc<Cell<usize>>);
impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn coroutine_that_returns_is_dropped_once_and_its_id_is_dead() {
    let (s, drops) = (scheduler(), Rc::new(Cell::new(0)));
    let guard = OnDrop(drops.clone());
    let id = s.spawn(Class::Program, async move { drop(guard) }).unwrap();
    assert_eq!((s.len(), run(&s), drops.get(), s.len()), (1, 1, 1, 0));
    assert!(!s.cancel(id));
    assert_eq!(s.stats().finished, 1);
}

#[test]
fn coroutines_that_yield_run_in_turn() {
    let s = scheduler();
    let trace = Rc::new(RefCell::new(String::new()));
    for name in ['a', 'b', 'c'] {
        let trace = trace.clone();
        let future = async move {
            for _ in 0..3 {
                trace.borrow_mut().push(name);
                yield_now().await;
            }
        };
        s.spawn(Class::Program, future).unwrap();
    }
    run(&s);
    assert_eq!(*trace.borrow(), "abcabcabc");
}

#[test]
fn small_budgets_reach_every_coroutine() {
    let s = scheduler();
    let counts: Vec<Rc<Cell<usize>>> = (0..if cfg!(miri) { 70 } else { 200 }).map(|_| Rc::default()).collect();
    for count in counts.clone() {
        let future = async move {
            loop {
                count.set(count.get() + 1);
                yield_now().await;
            }
        };
        s.spawn(Class::Program, future).unwrap();
    }
    for _ in 0..counts.len() * 5 {
        assert_eq!(s.run_ready(1), 1);
    }
    assert!(counts.iter().all(|c| c.get() == 5), "{:?}", counts.iter().map(|c| c.get()).collect::<Vec<_>>());
    s.shutdown();
}

#[test]
fn blocked_coroutines_are_not_polled() {
    let s = scheduler();
    let (all, one) = if cfg!(miri) { (200, 123) } else { (5000, 4321) };
    let sleepers: Vec<_> = (0..all).map(|_| sleeper(&s, Class::Program)).collect();
    run(&s);
    sleepers[one].2.borrow().as_ref().unwrap().wake_by_ref();
    assert_eq!(run(&s), 1);
    assert_eq!(sleepers.iter().map(|x| x.1.get()).sum::<usize>(), all + 1);
    assert_eq!(sleepers[one].1.get(), 2);
}

#[test]
fn wakes_before_the_poll_count_once() {
    let s = scheduler();
    let (_, polls, waker) = sleeper(&s, Class::Program);
    run(&s);
    for _ in 0..10 {
        waker.borrow().as_ref().unwrap().wake_by_ref();
    }
    assert_eq!((run(&s), polls.get()), (1, 2));
}

#[test]
fn wake_from_another_thread_is_seen_and_unparks_a_sleeper() {
    struct Count(AtomicUsize);
    impl Unpark for Count {
        fn unpark(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let s = Scheduler::new(Config { unpark: Some(count.clone()), ..Config::default() });
    let (_, polls, waker) = sleeper(&s, Class::Background);
    run(&s);
    let remote = waker.borrow_mut().take().unwrap();
    let other = remote.clone();
    std::thread::spawn(move || other.wake()).join().unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 0, "nobody slept");
    assert!(!s.park_begin(), "something is ready");
    assert_eq!((run(&s), polls.get(), s.stats().remote_wakes), (1, 2, 1));
    assert!(s.park_begin());
    std::thread::spawn(move || remote.wake()).join().unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    s.park_end();
    assert_eq!((run(&s), polls.get()), (1, 3));
}

#[test]
fn waker_outlives_task_and_scheduler_and_never_reaches_the_next_task() {
    let s = scheduler();
    let (id, polls, waker) = sleeper(&s, Class::Program);
    run(&s);
    let stale = waker.borrow_mut().take().unwrap();
    assert!(s.cancel(id));
    let others: Vec<_> = (0..64).map(|_| sleeper(&s, Class::Program)).collect();
    run(&s);
    stale.wake_by_ref();
    assert_eq!(run(&s), 0);
    assert!(others.iter().all(|o| o.1.get() == 1));
    drop((others, s));
    let there = std::thread::spawn(move || {
        stale.wake_by_ref();
        stale.clone()
    });
    there.join().unwrap().wake();
    assert_eq!(polls.get(), 1);
}

#[test]
fn slots_whose_wakers_are_gone_are_used_again() {
    let s = Scheduler::new(Config { max_tasks: 64, ..Config::default() });
    for _ in 0..1000 {
        let all: Vec<_> = (0..64).map(|_| sleeper(&s, Class::Program)).collect();
        run(&s);
        assert_eq!(s.spawn(Class::Program, pending()), Err(SpawnError::Full { limit: 64 }));
        // Wakers that leave by another thread free their slot as well.
        let wakers: Vec<Waker> = all.iter().map(|x| x.2.borrow_mut().take().unwrap()).collect();
        if !cfg!(miri) {
            std::thread::scope(|scope| {
                scope.spawn(|| wakers.iter().for_each(Waker::wake_by_ref));
            });
        }
        all.iter().for_each(|x| assert!(s.cancel(x.0)));
        drop(wakers);
        if cfg!(miri) {
            break;
        }
    }
}

#[test]
fn cancelled_coroutine_is_dropped_at_once_and_once() {
    let (s, drops) = (scheduler(), Rc::new(Cell::new(0)));
    let guard = OnDrop(drops.clone());
    let id = s
        .spawn(Class::Program, async move {
            let _guard = guard;
            pending::<()>().await
        })
        .unwrap();
    run(&s);
    assert!(s.cancel(id));
    assert_eq!((drops.get(), s.cancel(id), s.len()), (1, false, 0));
    drop(s);
    assert_eq!(drops.get(), 1);
}

#[test]
fn coroutine_that_cancels_itself_ends_when_it_gives_way() {
    let (s, drops) = (scheduler(), Rc::new(Cell::new(0)));
    let (guard, inside, after) = (OnDrop(drops.clone()), s.clone(), Rc::new(Cell::new(false)));
    let seen = after.clone();
    s.spawn(Class::Program, async move {
        let _guard = guard;
        let me = inside.current().unwrap();
        assert!(inside.cancel(me));
        assert!(!inside.cancel(me), "once");
        seen.set(true);
        yield_now().await;
        unreachable!("it was cancelled");
    })
    .unwrap();
    run(&s);
    assert!(after.get());
    assert_eq!((drops.get(), s.len(), s.stats().canceled, s.stats().panicked), (1, 0, 1, 0));
}

#[test]
fn coroutine_may_cancel_one_that_is_ready_in_the_same_pass() {
    let s = scheduler();
    let victim = Rc::new(Cell::new(None));
    let (v, inside) = (victim.clone(), s.clone());
    s.spawn(Class::Program, async move { assert!(inside.cancel(v.get().unwrap())) }).unwrap();
    victim.set(Some(s.spawn(Class::Program, async { unreachable!("cancelled before it ran") }).unwrap()));
    run(&s);
    assert_eq!((s.len(), s.stats().canceled, s.stats().panicked), (0, 1, 0));
}

#[test]
fn panic_ends_its_coroutine_only_and_is_reported() {
    let told = Rc::new(RefCell::new(Vec::new()));
    let t = told.clone();
    let hook = Box::new(move |id, message: &str| t.borrow_mut().push((id, message.to_string())));
    let s = Scheduler::new(Config { on_panic: Some(hook), ..Config::default() });
    let done = Rc::new(Cell::new(0));
    let mut bad = Vec::new();
    for n in 0..70 {
        let done = done.clone();
        let future = async move {
            if n % 10 == 3 {
                panic!("number {n}");
            }
            yield_now().await;
            done.set(done.get() + 1);
        };
        let id = s.spawn(Class::Program, future).unwrap();
        if n % 10 == 3 {
            bad.push((id, format!("number {n}")));
        }
    }
    assert_eq!(s.run_ready(1_000_000), 70 + 63);
    assert_eq!((done.get(), s.len(), s.stats().panicked), (63, 0, 7));
    assert_eq!(*told.borrow(), bad);
}

#[test]
fn program_runs_before_background_and_both_before_the_fast_path_starves_none() {
    let s = Scheduler::new(Config { fast_path_polls: 3, ..Config::default() });
    let trace = Rc::new(RefCell::new(String::new()));
    let add = |class, name: char, n: usize| {
        let trace = trace.clone();
        let future = async move {
            for _ in 0..n {
                trace.borrow_mut().push(name);
                yield_now().await;
            }
        };
        s.spawn(class, future).unwrap();
    };
    add(Class::FastPath, 'f', 100);
    add(Class::Background, 'b', 2);
    add(Class::Program, 'p', 3);
    s.run_ready(12);
    assert_eq!(*trace.borrow(), "pbpfpbffffff"[..trace.borrow().len()]);
    s.shutdown();
}

#[test]
fn fast_path_gets_n_polls_a_call_when_alone_and_never_counts_as_ready() {
    let s = Scheduler::new(Config { fast_path_polls: 3, ..Config::default() });
    let (_, polls, waker) = sleeper(&s, Class::FastPath);
    assert_eq!((s.run_ready(1000), polls.get(), s.has_ready()), (3, 3, false));
    assert_eq!((s.run_ready(2), polls.get()), (2, 5));
    waker.borrow().as_ref().unwrap().wake_by_ref();
    assert!(s.has_ready(), "woken from outside");
    s.run_ready(1000);
    assert!(!s.has_ready());
}

#[test]
fn fast_path_gives_way_when_it_wakes_the_program() {
    let s = Scheduler::new(Config { fast_path_polls: 100, ..Config::default() });
    let (_, polls, waker) = sleeper(&s, Class::Program);
    let turns = Rc::new(Cell::new(0));
    let t = turns.clone();
    let fast = poll_fn(move |_| {
        t.set(t.get() + 1);
        if t.get() == 7
            && let Some(waker) = &*waker.borrow()
        {
            waker.wake_by_ref();
        }
        Poll::<()>::Pending
    });
    s.spawn(Class::FastPath, fast).unwrap();
    s.run_ready(9);
    assert_eq!((polls.get(), turns.get()), (2, 7));
}

#[test]
fn coroutines_spawn_coroutines() {
    let (s, done) = (scheduler(), Rc::new(Cell::new(0)));
    fn grow(s: Scheduler, done: Rc<Cell<usize>>, depth: usize) {
        let inside = s.clone();
        s.spawn(Class::Program, async move {
            done.set(done.get() + 1);
            if depth > 0 {
                grow(inside.clone(), done.clone(), depth - 1);
                yield_now().await;
                grow(inside, done, depth - 1);
            }
        })
        .unwrap();
    }
    grow(s.clone(), done.clone(), if cfg!(miri) { 5 } else { 9 });
    run(&s);
    assert_eq!(done.get(), (2 << if cfg!(miri) { 5 } else { 9 }) - 1);
    assert!(s.is_empty());
}

#[test]
fn run_from_inside_a_coroutine_is_refused_with_a_reason() {
    let told = Rc::new(RefCell::new(String::new()));
    let t = told.clone();
    let s = Scheduler::new(Config {
        on_panic: Some(Box::new(move |_, message| t.borrow_mut().push_str(message))),
        ..Config::default()
    });
    let inside = s.clone();
    s.spawn(Class::Program, async move {
        inside.run_ready(1);
    })
    .unwrap();
    run(&s);
    assert!(told.borrow().contains("from inside a coroutine"), "{}", told.borrow());
    assert!(!s.is_running());
}

#[test]
fn panic_while_dropped_is_contained() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("dropped badly");
        }
    }
    let s = scheduler();
    let bad = Bad;
    let id = s
        .spawn(Class::Program, async move {
            let _bad = &bad;
            pending::<()>().await
        })
        .unwrap();
    assert!(s.cancel(id));
    assert_eq!((s.len(), s.stats().panicked), (0, 1));
}

#[test]
fn sleeping_coroutines_wake_at_their_deadline() {
    let (s, order) = (scheduler(), Rc::new(RefCell::new(Vec::new())));
    for deadline in [300, 5, 1_000_000, 299] {
        let (inside, order) = (s.clone(), order.clone());
        let future = async move {
            inside.sleep_until(Nanos(deadline)).await;
            order.borrow_mut().push(deadline);
        };
        s.spawn(Class::Program, future).unwrap();
    }
    run(&s);
    while let Some(next) = s.next_deadline() {
        assert_eq!(s.expire_timers(Nanos(next.0 - 1)), 0);
        assert_eq!(s.expire_timers(next), 1);
        run(&s);
    }
    assert_eq!((&*order.borrow(), s.len(), s.timers()), (&vec![5, 299, 300, 1_000_000], 0, 0));
}

#[test]
fn sleep_outlives_its_scheduler() {
    let s = scheduler();
    let mut sleep = Box::pin(s.sleep_until(Nanos(7)));
    assert!(sleep.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending());
    drop(s);
    assert_eq!(sleep.deadline(), Nanos(7));
}
