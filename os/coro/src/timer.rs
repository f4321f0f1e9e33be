//! Timers: a hierarchical wheel with a resolution of a nanosecond and no allocation.
//!
//! A deadline stands in the level of its highest digit (base 64) that differs from the wheel's time, in the slot of that
//! digit; when time enters a slot of a higher level, its timers move down. A word a level says which slots hold any. The
//! timers are the [`Sleep`] futures themselves, linked into their slot from their first poll until they fire or are
//! dropped.

use crate::clock::Nanos;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

const DIGIT: u32 = 6;
const SLOTS: usize = 1 << DIGIT;
/// Eleven digits of six bits hold any 64-bit time.
const LEVELS: usize = 64usize.div_ceil(DIGIT as usize);
/// The row of the list of timers that are about to fire.
const EXPIRED: usize = LEVELS;

/// A list of timers, and a time no later than the earliest of them.
struct Slot {
    first: Cell<Option<NonNull<Timer>>>,
    earliest: Cell<u64>,
}

impl Slot {
    fn new() -> Slot {
        Slot { first: Cell::new(None), earliest: Cell::new(u64::MAX) }
    }
}

/// The timers of a scheduler.
pub(crate) struct Wheel {
    /// Every deadline up to here has fired.
    now: Cell<u64>,
    /// No timer fires before.
    next: Cell<u64>,
    occupied: [Cell<u64>; LEVELS],
    slots: Box<[[Slot; SLOTS]; LEVELS]>,
    expired: Slot,
    armed: Cell<usize>,
}

/// The part of a [`Sleep`] that the wheel links. Its fields are cells because wheel and future share it.
struct Timer {
    deadline: u64,
    next: Cell<Option<NonNull<Timer>>>,
    previous: Cell<Option<NonNull<Timer>>>,
    /// Level and slot, while it is linked.
    place: Cell<Option<(u8, u8)>>,
    fired: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel {
            now: Cell::new(0),
            next: Cell::new(u64::MAX),
            occupied: std::array::from_fn(|_| Cell::new(0)),
            slots: Box::new(std::array::from_fn(|_| std::array::from_fn(|_| Slot::new()))),
            expired: Slot::new(),
            armed: Cell::new(0),
        }
    }

    /// How many timers are armed.
    pub(crate) fn armed(&self) -> usize {
        self.armed.get()
    }

    /// A time before which no timer fires: the earliest deadline, or an earlier one if that timer was dropped.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        // Lower levels lie wholly before higher ones, and in a level lower slots before higher ones.
        let level = self.occupied.iter().position(|word| word.get() != 0)?;
        let slot = self.occupied[level].get().trailing_zeros() as usize;
        Some(Nanos(self.slots[level][slot].earliest.get()))
    }

    fn list(&self, level: usize, slot: usize) -> &Slot {
        if level == EXPIRED { &self.expired } else { &self.slots[level][slot] }
    }

    /// Links a timer whose deadline lies ahead.
    fn arm(&self, timer: NonNull<Timer>, deadline: u64) {
        let level = ((63 - ((deadline ^ self.now.get()) | 1).leading_zeros()) / DIGIT) as usize;
        let slot = digit(deadline, level);
        self.link(timer, level, slot);
        let list = &self.slots[level][slot];
        list.earliest.set(list.earliest.get().min(deadline));
        self.occupied[level].set(self.occupied[level].get() | 1 << slot);
        self.next.set(self.next.get().min(deadline));
        self.armed.set(self.armed.get() + 1);
    }

    fn link(&self, timer: NonNull<Timer>, level: usize, slot: usize) {
        let first = self.list(level, slot).first.replace(Some(timer));
        // SAFETY: linked timers are alive and pinned: `Sleep` unlinks itself when dropped.
        unsafe {
            if let Some(first) = first {
                first.as_ref().previous.set(Some(timer));
            }
            timer.as_ref().next.set(first);
            timer.as_ref().previous.set(None);
            timer.as_ref().place.set(Some((level as u8, slot as u8)));
        }
    }

    fn unlink(&self, t: &Timer) {
        let Some((level, slot)) = t.place.take() else { return };
        let (level, slot) = (level as usize, slot as usize);
        let (next, previous) = (t.next.take(), t.previous.take());
        let list = self.list(level, slot);
        // SAFETY: as in `link`.
        unsafe {
            match previous {
                Some(previous) => previous.as_ref().next.set(next),
                None => list.first.set(next),
            }
            if let Some(next) = next {
                next.as_ref().previous.set(previous);
            }
        }
        if level == EXPIRED {
            return;
        }
        if list.first.get().is_none() {
            list.earliest.set(u64::MAX);
            self.occupied[level].set(self.occupied[level].get() & !(1 << slot));
        }
        self.armed.set(self.armed.get() - 1);
    }

    /// Fires every timer whose deadline is `now` or earlier; returns how many. An earlier time than before fires none.
    pub(crate) fn expire(&self, now: Nanos) -> usize {
        let now = now.0;
        if now < self.next.get() || now < self.now.get() {
            return 0;
        }
        self.now.set(now);
        for level in 0..LEVELS {
            let mut slots = self.occupied[level].get();
            while slots != 0 {
                let slot = slots.trailing_zeros() as usize;
                slots &= slots - 1;
                // Besides what is due, the slot that time is in moves down; its timers differ from now in a lower digit.
                if self.slots[level][slot].earliest.get() <= now || slot == digit(now, level) {
                    self.sort_out(level, slot, now);
                }
            }
        }
        self.next.set(self.next_deadline().map_or(u64::MAX, |next| next.0));
        self.fire()
    }

    /// Moves what is due to the expired list, and the rest to where it belongs as seen from `now`.
    fn sort_out(&self, level: usize, slot: usize, now: u64) {
        let mut next = self.slots[level][slot].first.get();
        let mut left = None;
        while let Some(timer) = next {
            // SAFETY: linked timers are alive, and none is dropped here: no waker is called.
            let t = unsafe { timer.as_ref() };
            next = t.next.get();
            self.unlink(t);
            if t.deadline <= now {
                self.link(timer, EXPIRED, 0);
            } else {
                t.next.set(left);
                left = Some(timer);
            }
        }
        while let Some(timer) = left {
            // SAFETY: as above.
            let t = unsafe { timer.as_ref() };
            left = t.next.get();
            self.arm(timer, t.deadline);
        }
    }

    /// Wakes what stands in the expired list. One at a time from the head: a waker may run any code, and drop any timer.
    fn fire(&self) -> usize {
        let mut fired = 0;
        while let Some(timer) = self.expired.first.get() {
            // SAFETY: linked timers are alive.
            let t = unsafe { timer.as_ref() };
            self.unlink(t);
            t.fired.set(true);
            fired += 1;
            if let Some(waker) = t.waker.take() {
                waker.wake();
            }
        }
        fired
    }
}

fn digit(time: u64, level: usize) -> usize {
    (time >> (level as u32 * DIGIT)) as usize & (SLOTS - 1)
}

/// The future of [`Scheduler::sleep_until`](crate::Scheduler::sleep_until): ready once the timers were expired with a
/// time no earlier than its deadline.
#[must_use = "a future does nothing unless awaited"]
pub struct Sleep {
    timer: Timer,
    wheel: Rc<Wheel>,
    /// The wheel points into it.
    _pinned: PhantomPinned,
}

impl Sleep {
    pub(crate) fn new(wheel: Rc<Wheel>, deadline: Nanos) -> Sleep {
        let timer = Timer {
            deadline: deadline.0,
            next: Cell::new(None),
            previous: Cell::new(None),
            place: Cell::new(None),
            fired: Cell::new(false),
            waker: Cell::new(None),
        };
        Sleep { timer, wheel, _pinned: PhantomPinned }
    }

    /// When it ends.
    pub fn deadline(&self) -> Nanos {
        Nanos(self.timer.deadline)
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.into_ref().get_ref();
        let timer = &this.timer;
        if timer.fired.get() || timer.deadline <= this.wheel.now.get() {
            this.wheel.unlink(timer);
            timer.fired.set(true);
            return Poll::Ready(());
        }
        let waker = timer.waker.take().filter(|waker| waker.will_wake(cx.waker()));
        timer.waker.set(Some(waker.unwrap_or_else(|| cx.waker().clone())));
        if timer.place.get().is_none() {
            this.wheel.arm(NonNull::from(timer), timer.deadline);
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.wheel.unlink(&self.timer);
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.timer.deadline).field("fired", &self.timer.fired.get()).finish()
    }
}
