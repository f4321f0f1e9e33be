//! The runtime: one a core. It owns the coroutines, the queues and the library OS, and its loop moves between them:
//! ready coroutines first, then one pass over the devices, then timers; when nothing is left to do it waits as its
//! policy says.

use crate::config::{Config, LibOs, Waiting};
use crate::core::{Core, Counters, Os, Patience as Look, Qd, Request};
use crate::error::{Error, Result};
use crate::inet::Inet;
use crate::kernel::Kernel;
use crate::kernel::file::OpenOptions;
use crate::kernel::socket::Kind;
use crate::queue::Queue;
use crate::tokens::{Completion, Token};
use crate::waiting::{Patience, Unparker};
use crate::waitset::WaitSet;
use crate::{Address, Domain, signal};
use std::cell::{Cell, RefCell, RefMut};
use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use towpath_cbuf::{Memory, Sga};
use towpath_coro::{Class, Clock, Nanos, Scheduler, Sleep, TaskId};

/// Coroutines polled before the devices are looked at again.
const BATCH: usize = 128;

/// While coroutines are ready the devices are looked at this often: a system call among a few microseconds of work.
const LOOK_EVERY: Duration = Duration::from_micros(5);

/// A runtime; a handle, cheap to clone, that stays on its thread.
///
/// Coroutines usually hold a clone of it, and it holds them: call [`Runtime::shutdown`] to end them and close every
/// queue when the program goes on without it.
#[derive(Clone)]
pub struct Runtime(Rc<Inner>);

struct Inner {
    core: RefCell<Core>,
    scheduler: Scheduler,
    clock: Clock,
    memory: Memory,
    waiting: Cell<Waiting>,
    main: Arc<MainWake>,
    /// A loop runs: another one inside it would have to run coroutines from inside a coroutine.
    driving: Cell<bool>,
    parks: Cell<u64>,
    signals: RefCell<Signals>,
}

/// Who awaits a signal.
#[derive(Default)]
struct Signals {
    seen: u32,
    registration: Option<signal::Registration>,
    waiting: Vec<Waker>,
}

/// Wakes the future given to [`Runtime::block_on`].
struct MainWake {
    ready: AtomicBool,
    sleeping: AtomicBool,
    unpark: Arc<Unparker>,
}

impl Wake for MainWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.store(true, Ordering::SeqCst); // SYNC ready -> park
        // SYNC sleeping <- park: the sleeper sets it before it looks at `ready`, so one of the two sees the other.
        if self.sleeping.load(Ordering::SeqCst) {
            self.unpark.raise();
        }
    }
}

/// What a runtime is doing, for people and programs that watch it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Operations so far.
    pub operations: Counters,
    /// Queues open.
    pub queues: usize,
    /// Operations pending, and completions nobody has taken yet.
    pub tokens: usize,
    /// Coroutines alive.
    pub coroutines: usize,
    /// Polls of coroutines so far.
    pub polls: u64,
    /// Sleeps in the kernel so far.
    pub sleeps: u64,
}

impl Runtime {
    /// Starts the library OS that `config` names on this thread.
    pub fn start(config: Config) -> Result<Runtime> {
        let unpark = Arc::new(Unparker::new()?);
        let memory = Memory::new(config.memory.clone())?;
        let os = match config.libos {
            LibOs::Kernel(backend) => {
                Os::Kernel(Box::new(Kernel::new(backend, config.expected_queues, unpark.clone(), &memory)?))
            }
            LibOs::Inet(device) => Os::Inet(Box::new(Inet::new(device, &config.net, &memory, unpark.clone())?)),
        };
        let scheduler = Scheduler::new(towpath_coro::Config {
            max_tasks: config.coroutines_max,
            unpark: Some(unpark.clone()),
            ..Default::default()
        });
        Ok(Runtime(Rc::new(Inner {
            core: RefCell::new(Core::new(&config, memory.clone(), os)),
            scheduler,
            clock: Clock::new(),
            memory,
            waiting: Cell::new(config.waiting),
            main: Arc::new(MainWake { ready: AtomicBool::new(false), sleeping: AtomicBool::new(false), unpark }),
            driving: Cell::new(false),
            parks: Cell::new(0),
            signals: RefCell::new(Signals::default()),
        })))
    }

    /// This runtime's heap and frame pool.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// The library OS and driver in use, as it is named on the command line.
    pub fn libos(&self) -> &'static str {
        match &self.core().os {
            Os::Kernel(kernel) => kernel.name(),
            Os::Inet(inet) => inet.name(),
        }
    }

    /// The time, in nanoseconds from an arbitrary start.
    pub fn now(&self) -> Nanos {
        self.0.clock.now()
    }

    /// How this runtime waits.
    pub fn waiting(&self) -> Waiting {
        self.0.waiting.get()
    }

    /// Changes how this runtime waits, from its next wait on.
    pub fn set_waiting(&self, waiting: Waiting) {
        self.0.waiting.set(waiting);
    }

    /// What it is doing.
    pub fn stats(&self) -> Stats {
        let core = self.core();
        Stats {
            operations: core.counters,
            queues: core.queues.len(),
            tokens: core.ops.live(),
            coroutines: self.0.scheduler.len(),
            polls: self.0.scheduler.stats().polls,
            sleeps: self.0.parks.get(),
        }
    }

    /// Counters of the stack and of its device, with a library OS that has them.
    pub fn net_stats(&self) -> Option<(towpath_inet::Stats, towpath_device::Stats)> {
        match &self.core().os {
            Os::Kernel(_) => None,
            Os::Inet(inet) => Some(inet.stats()),
        }
    }

    /// The table of queues and the library OS. Never held across a call into a program's code.
    pub(crate) fn core(&self) -> RefMut<'_, Core> {
        self.0.core.borrow_mut()
    }

    /// The core, unless it is in use: for destructors.
    pub(crate) fn try_core(&self) -> Option<RefMut<'_, Core>> {
        self.0.core.try_borrow_mut().ok()
    }

    /// Wakes the waiters of what completed inside the last borrow of the core.
    #[inline]
    pub(crate) fn flush_wakes(&self) {
        let mut core = self.core();
        if core.ops.wakes.is_empty() {
            return;
        }
        let mut wakes = std::mem::take(&mut core.ops.wakes);
        drop(core);
        for waker in wakes.drain(..) {
            waker.wake();
        }
        let mut core = self.core();
        if core.ops.wakes.is_empty() {
            core.ops.wakes = wakes;
        }
    }
}

/// Coroutines and time.
impl Runtime {
    /// Starts a coroutine.
    ///
    /// # Errors
    /// [`Error::Spawn`] when [`Config::coroutines_max`] are alive.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> Result<TaskId> {
        self.spawn_class(Class::Program, future)
    }

    /// Starts a coroutine of the given class.
    ///
    /// # Errors
    /// As [`Runtime::spawn`].
    pub fn spawn_class(&self, class: Class, future: impl Future<Output = ()> + 'static) -> Result<TaskId> {
        self.0.scheduler.spawn(class, future).map_err(|error| Error::Spawn(error.to_string().into()))
    }

    /// Ends a coroutine at its next await; false if it has ended already.
    pub fn cancel(&self, task: TaskId) -> bool {
        self.0.scheduler.cancel(task)
    }

    /// Completes after `time`.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.0.scheduler.sleep_until(self.now().after(time))
    }

    /// Awaits `future` at most for `time`, then drops it: a pop that was under way loses nothing.
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub async fn timeout<T>(&self, time: Duration, future: impl Future<Output = T>) -> Result<T> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep(time));
        poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(value));
            }
            sleep.as_mut().poll(cx).map(|_| Err(Error::TimedOut))
        })
        .await
    }

    /// Completes with the signal's number when SIGTERM or SIGINT comes after this call. From the first call on, these
    /// signals no longer end the process, except the second of a kind.
    pub fn shutdown_signal(&self) -> impl Future<Output = i32> + use<> {
        signal::install();
        let runtime = self.clone();
        {
            let mut signals = self.0.signals.borrow_mut();
            if signals.registration.is_none() {
                signals.registration = signal::Registration::new(self.0.main.unpark.fd());
                signals.seen = signal::received();
            }
        }
        let before = signal::received();
        poll_fn(move |cx| {
            if signal::received() != before {
                return Poll::Ready(signal::last());
            }
            runtime.0.signals.borrow_mut().waiting.push(cx.waker().clone());
            Poll::Pending
        })
    }

    /// Ends every coroutine and closes every queue. Handles that remain find their queues closed.
    pub fn shutdown(&self) {
        self.0.scheduler.shutdown();
        let open = self.core().queues.open();
        for qd in open {
            let _ = self.core().close(qd);
        }
        self.flush_wakes();
    }

    /// Runs `future`, and coroutines beside it, until it completes.
    ///
    /// # Panics
    /// When called from inside a coroutine: await the future instead.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let waker = Waker::from(self.0.main.clone());
        let mut cx = Context::from_waker(&waker);
        let mut future = pin!(future);
        self.0.main.ready.store(true, Ordering::Relaxed);
        let poll = || {
            if !self.0.main.ready.load(Ordering::Acquire) {
                return None;
            }
            self.0.main.ready.store(false, Ordering::SeqCst);
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(value) => Some(value),
                Poll::Pending => None,
            }
        };
        match self.drive(None, None, poll) {
            Ok(value) => value,
            Err(error) => panic!("block_on: {error}"),
        }
    }

    /// The loop: until `ready` has something, or `timeout` has passed.
    pub(crate) fn drive<T>(
        &self,
        waiting: Option<Waiting>,
        timeout: Option<Duration>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Result<T> {
        let inner = &*self.0;
        if inner.scheduler.is_running() || inner.driving.replace(true) {
            return Err(Error::InsideCoroutine);
        }
        let _end = Driving(&inner.driving);
        let waiting = waiting.unwrap_or(inner.waiting.get());
        let mut patience = Patience::new(waiting);
        let until = timeout.map(|time| self.now().after(time));
        let mut looked = Nanos(0);
        loop {
            if let Some(value) = ready() {
                return Ok(value);
            }
            let mut worked = inner.scheduler.run_ready(BATCH) > 0;
            if worked && let Some(value) = ready() {
                return Ok(value);
            }
            let now = inner.clock.now();
            if inner.scheduler.next_deadline().is_some_and(|deadline| deadline <= now) {
                worked |= inner.scheduler.expire_timers(now) > 0;
            }
            self.look_for_signals();
            if until.is_some_and(|until| until <= now) {
                return Err(Error::TimedOut);
            }
            let more = inner.scheduler.has_ready() || inner.main.ready.load(Ordering::Relaxed);
            let seen = if more {
                if now.since(looked) < LOOK_EVERY {
                    continue;
                }
                looked = now;
                self.look(false)
            } else {
                match waiting {
                    Waiting::Spin => self.look(true),
                    Waiting::Block => self.park(now, until),
                    Waiting::Adaptive if worked || !patience.should_sleep(now) => self.look(true),
                    Waiting::Adaptive => {
                        let seen = self.park(now, until);
                        patience.slept();
                        seen
                    }
                }
            };
            if worked || more || seen > 0 {
                patience.busy();
            }
        }
    }

    #[inline]
    fn look(&self, hot: bool) -> usize {
        let seen = self.core().poll(Look::Look { hot });
        if seen > 0 {
            self.flush_wakes();
        }
        seen
    }

    /// Sleeps until the library OS, a timer, another thread or a signal has something to do.
    fn park(&self, now: Nanos, until: Option<Nanos>) -> usize {
        let inner = &*self.0;
        let deadline = match (inner.scheduler.next_deadline(), until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let limit = deadline.map(|deadline| Duration::from_nanos(deadline.0.saturating_sub(now.0)));
        inner.main.sleeping.store(true, Ordering::SeqCst); // SYNC sleeping -> wake_by_ref
        // SYNC ready <- wake_by_ref
        let idle = !inner.main.ready.load(Ordering::SeqCst) && inner.scheduler.park_begin();
        let signaled = signal::received() != inner.signals.borrow().seen;
        let patience = if idle && !signaled { Look::Sleep(limit) } else { Look::Look { hot: false } };
        inner.parks.set(inner.parks.get() + u64::from(idle));
        let seen = self.core().poll(patience);
        inner.scheduler.park_end();
        inner.main.sleeping.store(false, Ordering::Relaxed);
        self.flush_wakes();
        seen
    }

    #[inline]
    fn look_for_signals(&self) {
        let received = signal::received();
        if received == self.0.signals.borrow().seen {
            return;
        }
        let mut signals = self.0.signals.borrow_mut();
        signals.seen = received;
        let waiting = std::mem::take(&mut signals.waiting);
        drop(signals);
        for waker in waiting {
            waker.wake();
        }
    }
}

/// Ends a loop, also when it unwinds.
struct Driving<'a>(&'a Cell<bool>);

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// Queues: PDPIX' calls that return one (Demikernel Figure 2).
impl Runtime {
    /// A socket.
    pub fn socket(&self, domain: Domain, kind: Kind) -> Result<Queue> {
        let qd = self.core().socket(domain, kind)?;
        Ok(Queue::new(self, qd))
    }

    /// A socket bound to `address` that listens.
    pub fn listen(&self, address: &Address) -> Result<Queue> {
        let queue = self.socket(address.domain(), Kind::Stream)?;
        queue.bind(address)?;
        queue.listen(crate::BACKLOG)?;
        Ok(queue)
    }

    /// A stream connected to `address`.
    pub async fn connect_to(&self, address: &Address) -> Result<Queue> {
        let queue = self.socket(address.domain(), Kind::Stream)?;
        queue.connect(address).await?;
        Ok(queue)
    }

    /// An in-memory queue between coroutines.
    pub fn queue(&self) -> Result<Queue> {
        let qd = self.core().memory_queue()?;
        Ok(Queue::new(self, qd))
    }

    /// Opens a file; its cursor stands at the start.
    pub fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<Queue> {
        let qd = self.core().open_file(path.as_ref(), options)?;
        Ok(Queue::new(self, qd))
    }

    /// Creates a file, or empties it, for writing and reading (`creat`).
    pub fn creat(&self, path: impl AsRef<Path>) -> Result<Queue> {
        self.open(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
    }

    /// A handle for an open queue known by its descriptor, such as one from [`Outcome::Accepted`]; dropping the handle
    /// closes the queue.
    ///
    /// [`Outcome::Accepted`]: crate::Outcome::Accepted
    pub fn adopt(&self, qd: Qd) -> Result<Queue> {
        self.core().queues.get(qd)?;
        Ok(Queue::new(self, qd))
    }
}

/// Token style: each call starts an operation and names it; `wait` takes its result.
impl Runtime {
    fn start_token(&self, qd: Qd, request: Request<'_>) -> Result<Token> {
        let token = self.core().start_token(qd, request);
        self.flush_wakes();
        token
    }

    /// Starts a push. Its data may be freed or pushed again when the token completes.
    pub fn push(&self, qd: Qd, sga: impl Into<Sga>) -> Result<Token> {
        self.start_token(qd, Request::Push { sga: sga.into(), to: None, durable: false })
    }

    /// Starts a push of one datagram to `to`.
    pub fn push_to(&self, qd: Qd, sga: impl Into<Sga>, to: &Address) -> Result<Token> {
        self.start_token(qd, Request::Push { sga: sga.into(), to: Some(to), durable: false })
    }

    /// Starts a push to a file that completes when the data is on the disk.
    pub fn push_sync(&self, qd: Qd, sga: impl Into<Sga>) -> Result<Token> {
        self.start_token(qd, Request::Push { sga: sga.into(), to: None, durable: true })
    }

    /// Starts a pop.
    pub fn pop(&self, qd: Qd) -> Result<Token> {
        self.start_token(qd, Request::Pop)
    }

    /// Starts an accept.
    pub fn accept(&self, qd: Qd) -> Result<Token> {
        self.start_token(qd, Request::Accept)
    }

    /// Starts a connect.
    pub fn connect(&self, qd: Qd, to: &Address) -> Result<Token> {
        self.start_token(qd, Request::Connect(to))
    }

    /// Starts waiting for the disk to hold what was pushed to a file.
    pub fn sync(&self, qd: Qd) -> Result<Token> {
        self.start_token(qd, Request::Sync)
    }

    /// Closes a queue; what is pending on it completes with [`Error::Canceled`].
    pub fn close(&self, qd: Qd) -> Result<()> {
        let result = self.core().close(qd);
        self.flush_wakes();
        result
    }

    /// Waits for one token and takes its completion, running coroutines meanwhile.
    ///
    /// # Errors
    /// [`Error::StaleToken`] for a token waited for before; [`Error::AlreadyWaited`] while someone else waits;
    /// [`Error::TimedOut`], after which it can be waited for again; [`Error::InsideCoroutine`]. What the operation
    /// itself came to is in the completion.
    pub fn wait(&self, token: Token, timeout: Option<Duration>) -> Result<Completion> {
        self.wait_with(token, timeout, self.waiting())
    }

    /// [`Runtime::wait`] with a waiting policy for this call.
    pub fn wait_with(&self, token: Token, timeout: Option<Duration>, waiting: Waiting) -> Result<Completion> {
        if let Some(completion) = self.core().ops.take(token)? {
            return Ok(completion);
        }
        if self.0.scheduler.is_running() {
            return Err(Error::InsideCoroutine);
        }
        self.core().ops.wait_blocked(token)?;
        let result = self.drive(Some(waiting), timeout, || self.core().ops.take(token).transpose());
        if result.is_err() {
            self.core().ops.unwait(token);
        }
        result?
    }

    /// Waits for the first of several tokens and takes its completion. Costs time in the number of tokens: keep a
    /// [`WaitSet`] for many.
    ///
    /// # Errors
    /// As [`Runtime::wait`]; nothing is taken then.
    pub fn wait_any(&self, tokens: &[Token], timeout: Option<Duration>) -> Result<(usize, Completion)> {
        let set = self.set_of(tokens)?;
        let completion = set.wait(timeout)?;
        let index = tokens.iter().position(|&token| token == completion.token).unwrap_or_default();
        Ok((index, completion))
    }

    /// Waits for every one of several tokens; completions come in the order of the tokens.
    ///
    /// # Errors
    /// As [`Runtime::wait`]. When the time runs out nothing is taken: all can be waited for again.
    pub fn wait_all(&self, tokens: &[Token], timeout: Option<Duration>) -> Result<Vec<Completion>> {
        drop(self.set_of(tokens)?);
        let all_done = || {
            let core = self.core();
            let mut done = tokens.iter().map(|&token| core.ops.is_done(token));
            let failed = done.find(|done| !matches!(done, Ok(true)));
            match failed {
                None => Some(Ok(())),
                Some(Ok(_)) => None,
                Some(Err(error)) => Some(Err(error)),
            }
        };
        self.drive(None, timeout, all_done)??;
        let mut core = self.core();
        tokens.iter().map(|&token| core.ops.take(token)?.ok_or(Error::StaleToken(token))).collect()
    }

    fn set_of(&self, tokens: &[Token]) -> Result<WaitSet> {
        let set = self.wait_set();
        for &token in tokens {
            set.add(token)?;
        }
        Ok(set)
    }

    /// An empty wait set.
    pub fn wait_set(&self) -> WaitSet {
        WaitSet::new(self)
    }

    /// Awaits one token and takes its completion: [`Runtime::wait`] for coroutines.
    ///
    /// # Errors
    /// [`Error::StaleToken`], [`Error::AlreadyWaited`].
    pub async fn completion(&self, token: Token) -> Result<Completion> {
        crate::queue::Waiting::new(self, token, false).await
    }
}
