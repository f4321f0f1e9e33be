//! The scheduler: which class runs when, and what happens to coroutines that end, panic or are cancelled.

use crate::block::{Core, Unpark};
use crate::clock::Nanos;
use crate::lane::{LANE_MAX, Lane, Place};
use crate::sync::Arc;
use crate::task::{Class, Entry, Owned, SpawnError, TaskId};
use crate::timer::{Sleep, Wheel};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Told of a coroutine that panicked, with the panic's message.
pub type PanicHook = Box<dyn Fn(TaskId, &str)>;

/// How a scheduler is made.
pub struct Config {
    /// Most coroutines of the program class, and of the background class. At most 262,144: three levels of 64.
    pub max_tasks: usize,
    /// How often in a row a fast-path coroutine is polled before the others get a turn, unless it makes one of the
    /// program ready.
    pub fast_path_polls: u32,
    /// Wakes the runtime when it sleeps and another thread makes a coroutine ready.
    pub unpark: Option<std::sync::Arc<dyn Unpark>>,
    /// Told of coroutines that panicked; the message of the panic has been printed by then.
    pub on_panic: Option<PanicHook>,
}

impl Default for Config {
    fn default() -> Config {
        Config { max_tasks: LANE_MAX, fast_path_polls: 4, unpark: None, on_panic: None }
    }
}

/// Counters since the scheduler was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Coroutines spawned.
    pub spawned: u64,
    /// Coroutines that returned.
    pub finished: u64,
    /// Coroutines cancelled.
    pub canceled: u64,
    /// Coroutines that panicked, while they ran or while they were dropped.
    pub panicked: u64,
    /// Polls of coroutines.
    pub polls: u64,
    /// Coroutines made ready by other threads.
    pub remote_wakes: u64,
}

/// A single-threaded scheduler of coroutines; a handle, and cheap to clone.
///
/// A coroutine that holds a handle keeps its scheduler, and so itself, alive: [`Scheduler::shutdown`] breaks the circle.
#[derive(Clone)]
pub struct Scheduler {
    inner: Rc<Inner>,
}

struct Inner {
    program: Lane,
    background: Lane,
    fast: Lane,
    /// Shared with the timers, which may outlive this.
    timers: Rc<Wheel>,
    core: Arc<Core>,
    /// The coroutine that runs, else null.
    current: Cell<*const Entry>,
    running: Cell<Option<Class>>,
    inside: Cell<bool>,
    /// Which fast-path coroutine is next, and whether it or a background one is.
    fast_turn: Cell<usize>,
    fast_next: Cell<bool>,
    fast_path_polls: u32,
    on_panic: Option<PanicHook>,
    stats: Cell<Stats>,
}

/// Most fast-path coroutines: one an I/O stack.
const FAST_MAX: usize = 64;

impl Scheduler {
    /// A scheduler for this thread.
    pub fn new(config: Config) -> Scheduler {
        let core = Arc::new(Core::new(config.unpark));
        Scheduler {
            inner: Rc::new(Inner {
                program: Lane::new(Class::Program, config.max_tasks, core.clone()),
                background: Lane::new(Class::Background, config.max_tasks, core.clone()),
                fast: Lane::new(Class::FastPath, FAST_MAX, core.clone()),
                timers: Rc::new(Wheel::new()),
                core,
                current: Cell::new(std::ptr::null()),
                running: Cell::new(None),
                inside: Cell::new(false),
                fast_turn: Cell::new(0),
                fast_next: Cell::new(false),
                fast_path_polls: config.fast_path_polls.max(1),
                on_panic: config.on_panic,
                stats: Cell::new(Stats::default()),
            }),
        }
    }

    /// Adds a coroutine, ready to run. All the memory it will need is allocated here.
    pub fn spawn(&self, class: Class, future: impl Future<Output = ()> + 'static) -> Result<TaskId, SpawnError> {
        let (task, poll) = Owned::new(future);
        let id = self.inner.lane(class).install(task, poll)?;
        self.inner.count(|stats| stats.spawned += 1);
        Ok(id)
    }

    /// Ends a coroutine: it is dropped at once, or, when it cancels itself, as soon as it gives way. False if it had
    /// ended or was cancelled before.
    pub fn cancel(&self, id: TaskId) -> bool {
        let inner = &*self.inner;
        let lane = inner.lane(id.class());
        let Some(place) = lane.find(id) else { return false };
        inner.count(|stats| stats.canceled += 1);
        if lane.is_at(place, inner.current.get()) {
            lane.cancel_running(place);
        } else {
            inner.end(lane, place);
        }
        true
    }

    /// Runs ready coroutines until none is ready or `max_polls` polls are used up; returns how many polls were made.
    /// Fast-path coroutines, which are always ready, each get a turn a call when nothing else is ready.
    ///
    /// # Panics
    /// When called from inside a coroutine.
    pub fn run_ready(&self, max_polls: usize) -> usize {
        let inner = &*self.inner;
        assert!(!inner.inside.replace(true), "run_ready was called from inside a coroutine: await instead");
        let left = Cell::new(max_polls);
        while let Err(payload) = catch_unwind(AssertUnwindSafe(|| inner.rounds(&left))) {
            inner.panicked(payload, &left);
        }
        inner.current.set(std::ptr::null());
        inner.inside.set(false);
        let polls = max_polls - left.get();
        inner.count(|stats| stats.polls += polls as u64);
        polls
    }

    /// Whether a program or background coroutine is ready, or a fast-path one was woken from outside.
    pub fn has_ready(&self) -> bool {
        let inner = &*self.inner;
        inner.program.has_ready() || inner.background.has_ready() || inner.fast.has_ready()
    }

    /// How many coroutines are alive.
    pub fn len(&self) -> usize {
        self.inner.program.live() + self.inner.background.live() + self.inner.fast.live()
    }

    /// Whether no coroutine is alive.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The coroutine that runs now, if this is called from inside one.
    pub fn current(&self) -> Option<TaskId> {
        let inner = &*self.inner;
        let lane = inner.lane(inner.running.get()?);
        lane.place_of(inner.current.get()).map(|place| lane.id(place))
    }

    /// Whether a coroutine runs now: [`Scheduler::run_ready`] must not be called.
    pub fn is_running(&self) -> bool {
        self.inner.inside.get()
    }

    /// Announces that this thread is about to sleep: from here on a wake from another thread calls
    /// [`Unpark::unpark`]. False, and nothing announced, if something is ready already. After the sleep, or instead of
    /// it, comes [`Scheduler::park_end`].
    pub fn park_begin(&self) -> bool {
        let inner = &*self.inner;
        inner.core.sleep_begin();
        let lanes = [&inner.program, &inner.background, &inner.fast];
        if lanes.iter().any(|lane| lane.has_remote_before_sleep() || lane.has_ready()) {
            inner.core.sleep_end();
            return false;
        }
        true
    }

    /// This thread is awake again.
    pub fn park_end(&self) {
        self.inner.core.sleep_end();
    }

    /// A future that is ready once [`Scheduler::expire_timers`] was called with `deadline` or later. It allocates nothing.
    pub fn sleep_until(&self, deadline: Nanos) -> Sleep {
        Sleep::new(self.inner.timers.clone(), deadline)
    }

    /// A time before which no timer fires: the earliest deadline, or an earlier time if that timer was dropped since.
    /// `None` when no timer is armed.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.inner.timers.next_deadline()
    }

    /// Fires the timers whose deadline is `now` or earlier; returns how many. Costs a comparison when none is.
    pub fn expire_timers(&self, now: Nanos) -> usize {
        self.inner.timers.expire(now)
    }

    /// How many timers are armed.
    pub fn timers(&self) -> usize {
        self.inner.timers.armed()
    }

    /// Cancels every coroutine. One that calls this is dropped when it gives way.
    pub fn shutdown(&self) {
        for class in [Class::Program, Class::Background, Class::FastPath] {
            for id in self.inner.lane(class).ids() {
                self.cancel(id);
            }
        }
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.inner.stats.get()
    }
}

impl Inner {
    #[inline(always)]
    fn lane(&self, class: Class) -> &Lane {
        match class {
            Class::Program => &self.program,
            Class::Background => &self.background,
            Class::FastPath => &self.fast,
        }
    }

    fn count(&self, change: impl FnOnce(&mut Stats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    /// A pass over the program, then one background poll or one turn of the fast path, and again.
    fn rounds(&self, left: &Cell<usize>) {
        let mut fast_turns = 0;
        while left.get() != 0 {
            self.take_remote();
            let before = left.get();
            if self.program.maybe_ready() {
                self.running.set(Some(Class::Program));
                self.program.run(&self.current, left, |place| self.finished(&self.program, place));
            }
            self.others(left, &mut fast_turns);
            if left.get() == before && !self.program.maybe_ready() && !self.background.maybe_ready() {
                break;
            }
        }
        self.running.set(None);
        self.current.set(std::ptr::null());
    }

    #[inline(always)]
    fn take_remote(&self) {
        let woken = self.program.take_remote() + self.background.take_remote() + self.fast.take_remote();
        if woken != 0 {
            self.count(|stats| stats.remote_wakes += woken);
        }
    }

    /// One background poll or one turn of a fast-path coroutine, in turn.
    #[inline(always)]
    fn others(&self, left: &Cell<usize>, fast_turns: &mut usize) {
        let background = self.background.maybe_ready();
        if (background || self.fast.live() != 0) && left.get() != 0 {
            self.some_other(left, background, fast_turns);
        }
    }

    fn some_other(&self, left: &Cell<usize>, background: bool, fast_turns: &mut usize) {
        // Alone, each fast-path coroutine gets one turn a call of `run_ready`.
        let fast =
            self.fast.live() != 0 && (background || self.program.maybe_ready() || *fast_turns < self.fast.live());
        if fast && (self.fast_next.get() || !background) {
            self.fast_next.set(false);
            *fast_turns += 1;
            let turn = self.fast_turn.get();
            self.fast_turn.set(turn.wrapping_add(1));
            self.running.set(Some(Class::FastPath));
            let go_on = || !self.program.has_ready();
            let ended = |place| self.finished(&self.fast, place);
            self.fast.run_fast(turn, self.fast_path_polls, &self.current, left, go_on, ended);
        } else if background {
            self.fast_next.set(true);
            self.running.set(Some(Class::Background));
            let one = Cell::new(1);
            left.set(left.get() - 1);
            self.background.run(&self.current, &one, |place| self.finished(&self.background, place));
            left.set(left.get() + one.get());
        }
    }

    /// A coroutine returned.
    #[cold]
    fn finished(&self, lane: &Lane, place: Place) {
        if lane.find(lane.id(place)).is_some() {
            self.count(|stats| stats.finished += 1);
        }
        self.current.set(std::ptr::null());
        self.end(lane, place);
    }

    /// Drops the coroutine at `place`.
    fn end(&self, lane: &Lane, place: Place) {
        let id = lane.id(place);
        if let Some(task) = lane.remove(place) {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(task))) {
                self.report(id, &*payload);
            }
            lane.settle(place);
        }
    }

    /// A panic left the coroutine that was running: it ends, the others go on.
    #[cold]
    fn panicked(&self, payload: Box<dyn Any + Send>, left: &Cell<usize>) {
        let entry = self.current.replace(std::ptr::null());
        let Some(class) = self.running.take() else { return };
        let lane = self.lane(class);
        let Some(place) = lane.place_of(entry) else { return };
        match class {
            Class::Program => left.set(left.get() - lane.resume_after(place.slot)),
            // Both were charged before the poll.
            Class::Background => {
                lane.resume_after(place.slot);
            }
            Class::FastPath => {}
        }
        let id = lane.id(place);
        self.end(lane, place);
        self.report(id, &*payload);
    }

    fn report(&self, id: TaskId, payload: &(dyn Any + Send)) {
        self.count(|stats| stats.panicked += 1);
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("a panic without a message");
        if let Some(hook) = &self.on_panic {
            // What a hook does wrong must not take the other coroutines along.
            let _ = catch_unwind(AssertUnwindSafe(|| hook(id, message)));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for lane in [&self.program, &self.background, &self.fast] {
            for id in lane.ids() {
                if let Some(place) = lane.find(id) {
                    self.end(lane, place);
                }
            }
        }
    }
}
