//! The coroutine scheduler of a core: waker blocks, three classes, a timer wheel and a clock.
//!
//! Coroutines are Rust futures. They are cooperative and single-threaded: a [`Scheduler`] and everything it runs stay
//! on the thread that made it, while the wakers it hands out work from any thread. Sixty-four coroutines share a *waker
//! block*, a word of ready bits that is scanned by counting trailing zeros; a summary word above the blocks, and one
//! above the summaries, make blocked coroutines free however many there are. A wake from the scheduler's own thread is a
//! plain store, a wake from another thread goes to an atomic word of its own that the scheduler swaps only when a load
//! finds it non-zero. Nothing is allocated after a coroutine was spawned.
//!
//! The shape follows Demikernel (SOSP 2021), sections 4.1 and 5.4: program coroutines come first, then background
//! coroutines and the fast-path coroutines that poll devices, which are always ready and yield after n polls.
//!
//! ```
//! use towpath_coro::{Class, Config, Scheduler, yield_now};
//! let scheduler = Scheduler::new(Config::default());
//! let seen = std::rc::Rc::new(std::cell::Cell::new(0));
//! let inside = seen.clone();
//! scheduler.spawn(Class::Program, async move {
//!     for _ in 0..3 {
//!         inside.set(inside.get() + 1);
//!         yield_now().await;
//!     }
//! }).unwrap();
//! while scheduler.has_ready() {
//!     scheduler.run_ready(64);
//! }
//! assert_eq!(seen.get(), 3);
//! assert_eq!(scheduler.len(), 0);
//! ```

mod block;
mod clock;
mod lane;
#[cfg(all(test, loom))]
mod loom_tests;
mod scheduler;
mod sync;
mod task;
#[cfg(all(test, not(loom)))]
mod tests;
mod timer;
#[cfg(all(test, not(loom)))]
mod timer_model;
mod yielding;

pub use block::Unpark;
pub use clock::{Clock, Nanos, Source};
pub use scheduler::{Config, PanicHook, Scheduler, Stats};
pub use task::{Class, SpawnError, TaskId};
pub use timer::Sleep;
pub use yielding::{YieldNow, yield_now};
