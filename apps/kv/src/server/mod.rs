//! The server on the queues of a library OS: listeners, one coroutine a connection, the log's writer, housekeeping.

mod connection;

use crate::commands::stats_json;
use crate::config::Config;
use crate::log::Log;
use crate::log::load::{Loaded, Loader};
use crate::log::writer::{self, Writer};
use crate::state::State;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::future::poll_fn;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use towpath_cbuf::Sga;
use towpath_libos::{Address, Opt, Queue, Runtime};

/// How long connections may take to finish what they began once the server stops.
const GRACE: Duration = Duration::from_secs(3);
/// Between two looks at what idles, expires or grows.
const TICK: Duration = Duration::from_millis(100);
/// Most keys expired between two batches of other work.
const EXPIRE_STEP: usize = 1000;

/// Why a server could not start.
#[derive(Debug)]
pub enum Error {
    /// The library OS refused something.
    Libos(towpath_libos::Error),
    /// The log could not be read.
    Log {
        /// Its file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Libos(error) => write!(f, "{error}"),
            Error::Log { path, error } => {
                write!(
                    f,
                    "cannot read the log {}: {error}; is the folder right, and may this user read it?",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<towpath_libos::Error> for Error {
    fn from(error: towpath_libos::Error) -> Error {
        Error::Libos(error)
    }
}

/// Milliseconds of Unix time.
pub(crate) fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// What the server's coroutines share beside the data.
pub(crate) struct Shared {
    pub runtime: Runtime,
    pub state: Rc<RefCell<State>>,
    /// The queue of every connection, by its client's id.
    connections: RefCell<BTreeMap<u64, Rc<Queue>>>,
    /// Who waits for the last connection to end, or for the server to be told to stop.
    waiting: RefCell<Vec<Waker>>,
}

impl Shared {
    /// Something happened that someone may wait for.
    fn notify(&self) {
        self.waiting.borrow_mut().drain(..).for_each(Waker::wake);
    }

    async fn until(&self, mut done: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if done() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Closes the connections of clients that are to be disconnected.
    fn close_killed(&self) {
        let state = self.state.borrow();
        let killed: Vec<u64> = state.peers.values().filter(|p| p.killed.get()).map(|p| p.id).collect();
        drop(state);
        for id in killed {
            if let Some(queue) = self.connections.borrow_mut().remove(&id) {
                // What is pending on it completes with an error, and its coroutine ends.
                let _ = self.runtime.close(queue.qd());
            }
        }
    }
}

/// A running server.
pub struct Server {
    shared: Rc<Shared>,
    addresses: Vec<Address>,
    loaded: Option<(Loaded, u64)>,
    log_path: PathBuf,
}

impl Server {
    /// Reads the log if one is kept, opens the listeners and starts serving.
    ///
    /// # Errors
    /// An address that cannot be listened on, a log that cannot be opened. A log with a damaged end is no error: the
    /// end is kept aside (see [`Server::notices`]) and cut off.
    pub fn start(runtime: &Runtime, config: Config) -> Result<Server, Error> {
        let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), unix_millis());
        let mut state = State::new(config, runtime.memory().clone(), seed, unix_millis());
        let log_path = state.config.dir.join(&state.config.appendfilename);
        let loaded = if state.config.appendonly { Some(load(&mut state, &log_path)?) } else { None };
        let mut listeners = Vec::new();
        for ip in state.config.bind.clone() {
            let listener = runtime.listen(&Address::from(SocketAddr::new(ip, state.config.port)))?;
            // With port 0 all addresses listen on the one the system picked for the first.
            if let Address::Inet(address) = listener.local_addr()? {
                state.config.port = address.port();
            }
            listeners.push(listener);
        }
        let addresses = listeners.iter().map(Queue::local_addr).collect::<Result<Vec<_>, _>>()?;
        let file = match &loaded {
            Some((loaded, _)) => Some(writer::open(runtime, &log_path, loaded.good)?),
            None => None,
        };
        if let Some((loaded, _)) = &loaded {
            state.log = Some(Log::new(state.memory.clone(), loaded.good));
        }
        let state = Rc::new(RefCell::new(state));
        let shared = Rc::new(Shared {
            runtime: runtime.clone(),
            state: state.clone(),
            connections: RefCell::default(),
            waiting: RefCell::default(),
        });
        if let Some(file) = file {
            runtime.spawn(Writer::new(runtime.clone(), state.clone(), log_path.clone(), file).run())?;
            runtime.spawn(writer::every_second(runtime.clone(), state, log_path.clone()))?;
        }
        for listener in listeners {
            runtime.spawn(accept(shared.clone(), listener))?;
        }
        runtime.spawn(housekeeping(shared.clone()))?;
        Ok(Server { shared, addresses, loaded, log_path })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What a person starting the server should read about its log.
    pub fn notices(&self) -> Vec<String> {
        let Some((loaded, len)) = &self.loaded else { return Vec::new() };
        let path = self.log_path.display();
        let mut notices = Vec::new();
        if loaded.requests > 0 {
            notices.push(format!("read {} changes from {path}", loaded.requests));
        }
        if loaded.failed > 0 {
            notices.push(format!("passed over {} entries of {path} that are no changes or failed", loaded.failed));
        }
        if let Some(why) = &loaded.torn {
            notices.push(format!(
                "{path} is damaged after byte {} ({why}): the last {} bytes were cut off and kept in {}",
                loaded.good,
                len - loaded.good,
                aside(&self.log_path, loaded.good).display()
            ));
        }
        notices
    }

    /// The counters as one JSON object.
    pub fn stats_json(&self) -> String {
        stats_json(&self.shared.state.borrow())
    }

    /// Completes when a client has asked the server to stop.
    pub fn stop_asked(&self) -> impl Future<Output = ()> + use<> {
        let shared = self.shared.clone();
        async move { shared.until(|| shared.state.borrow().stop.is_some()).await }
    }

    /// Stops accepting, lets connections finish what they have received, writes and syncs the log.
    ///
    /// # Errors
    /// The text says which acknowledged changes may be missing from the log.
    pub async fn stop(&self) -> Result<(), String> {
        let shared = &self.shared;
        shared.state.borrow_mut().stop.get_or_insert(crate::state::Stop::Gracefully);
        shared.notify();
        let queues: Vec<Rc<Queue>> = shared.connections.borrow().values().cloned().collect();
        for queue in &queues {
            // What has been received is still served; then the connection reads the end of its stream.
            let _ = queue.shutdown(towpath_libos::How::Read);
        }
        let gone = shared.until(|| shared.connections.borrow().is_empty());
        if shared.runtime.timeout(GRACE, gone).await.is_err() {
            for peer in shared.state.borrow().peers.values() {
                peer.killed.set(true);
            }
            shared.close_killed();
        }
        self.finish_log().await
    }

    async fn finish_log(&self) -> Result<(), String> {
        let state = &self.shared.state;
        {
            let mut state = state.borrow_mut();
            state.stopping_log = true;
            let Some(log) = &mut state.log else { return Ok(()) };
            log.wake_writer();
        }
        let failure = poll_fn(|cx| {
            let mut state = state.borrow_mut();
            let Some(log) = &mut state.log else { return Poll::Ready(None) };
            if log.finished {
                return Poll::Ready(log.failure.clone());
            }
            log.wait(cx.waker());
            Poll::Pending
        })
        .await;
        match failure {
            None => Ok(()),
            Some(why) => Err(format!("the log could not be written to the end: {why}")),
        }
    }
}

/// Where the cut-off end of a log is kept.
fn aside(path: &Path, good: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".cut-at-{good}"));
    PathBuf::from(name)
}

/// Reads the log into the store; what loading came to, and the log's length.
fn load(state: &mut State, path: &Path) -> Result<(Loaded, u64), Error> {
    let failed = |error| Error::Log { path: path.to_path_buf(), error };
    let nothing = Loaded { requests: 0, failed: 0, good: 0, torn: None };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((nothing, 0)),
        Err(error) => return Err(failed(error)),
    };
    let len = file.metadata().map_err(failed)?.len();
    let mut loader = Loader::new(state);
    let mut chunk = vec![0; 256 * 1024];
    loop {
        let n = file.read(&mut chunk).map_err(failed)?;
        let memory = |error: towpath_cbuf::Error| failed(std::io::Error::other(error.to_string()));
        if n == 0 || !loader.feed(state, &Sga::from(state.memory.copy_from(&chunk[..n]).map_err(memory)?)) {
            break;
        }
    }
    let loaded = loader.finish(state, len);
    if loaded.good < len {
        keep_aside(path, loaded.good).map_err(failed)?;
    }
    Ok((loaded, len))
}

fn keep_aside(path: &Path, good: u64) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom};
    let mut log = File::open(path)?;
    log.seek(SeekFrom::Start(good))?;
    let mut copy = File::create(aside(path, good))?;
    std::io::copy(&mut log, &mut copy)?;
    copy.sync_all()
}

/// Accepts until the server stops.
async fn accept(shared: Rc<Shared>, listener: Queue) {
    let listener = Rc::new(listener);
    let closer = {
        let (shared, listener) = (shared.clone(), listener.clone());
        async move {
            shared.until(|| shared.state.borrow().stop.is_some()).await;
            let _ = shared.runtime.close(listener.qd());
        }
    };
    if shared.runtime.spawn(closer).is_err() {
        return;
    }
    loop {
        let accepted = listener.accept().await;
        if shared.state.borrow().stop.is_some() {
            return;
        }
        match accepted {
            Ok((queue, peer)) => admit(&shared, queue, &peer),
            // Out of descriptors or memory: connections wait in the backlog until some are free.
            Err(_) => shared.runtime.sleep(TICK).await,
        }
    }
}

/// Starts a connection's coroutine, or turns it away.
fn admit(shared: &Rc<Shared>, queue: Queue, peer: &Address) {
    let mut state = shared.state.borrow_mut();
    if state.peers.len() >= state.config.maxclients {
        state.totals.rejected += 1;
        let refusal = state.memory.copy_from(b"-ERR max number of clients reached\r\n");
        drop(state);
        if let Ok(text) = refusal {
            // Sent if the socket takes it at once, which a fresh one does.
            let _ = shared.runtime.spawn(async move { drop(queue.push(text).await) });
        }
        return;
    }
    let keepalive = state.config.tcp_keepalive;
    if !keepalive.is_zero() {
        let _ = queue.set_option(Opt::KeepAlive(Some(keepalive)));
    }
    let local = queue.local_addr().map_or_else(|_| String::new(), |a| a.to_string());
    state.store.now = unix_millis();
    let session = state.connect(peer.to_string(), local);
    drop(state);
    let (id, queue) = (session.peer.id, Rc::new(queue));
    shared.connections.borrow_mut().insert(id, queue.clone());
    let job = connection::serve(shared.clone(), queue, session);
    if shared.runtime.spawn(job).is_err() {
        shared.connections.borrow_mut().remove(&id);
        shared.state.borrow_mut().peers.remove(&id);
    }
}

/// Expires keys, disconnects clients that idle or were killed, starts rewrites of the log.
async fn housekeeping(shared: Rc<Shared>) {
    loop {
        let pause = {
            let mut state = shared.state.borrow_mut();
            if state.stop.is_some() {
                return;
            }
            let state = &mut *state;
            state.store.now = unix_millis();
            let removed = state.store.expire_due(EXPIRE_STEP);
            state.log_gone();
            state.tell_watchers();
            find_idle(state);
            want_rewrite(state);
            if removed == EXPIRE_STEP { Duration::ZERO } else { next_look(state) }
        };
        shared.close_killed();
        if pause.is_zero() {
            towpath_libos::yield_now().await;
        } else {
            shared.runtime.sleep(pause).await;
        }
    }
}

/// Soon if a key ends soon, else seldom: an idle server should sleep.
fn next_look(state: &State) -> Duration {
    let until = state.store.next_ending().map_or(1000, |when| when.saturating_sub(state.store.now));
    Duration::from_millis(until.clamp(TICK.as_millis() as u64, 1000))
}

fn find_idle(state: &mut State) {
    let (now, timeout) = (state.store.now, state.config.timeout.as_millis() as u64);
    if timeout == 0 {
        return;
    }
    for peer in state.peers.values() {
        if now.saturating_sub(peer.active.get()) > timeout {
            peer.killed.set(true);
        }
    }
}

fn want_rewrite(state: &mut State) {
    let (percent, least) = (state.config.auto_aof_rewrite_percentage, state.config.auto_aof_rewrite_min_size);
    let Some(log) = &mut state.log else { return };
    let grown = log.file_size.saturating_sub(log.base_size).saturating_mul(100) / log.base_size.max(1);
    let large = percent > 0 && log.file_size >= least && grown >= percent && log.failure.is_none();
    if (large || log.holed) && !log.rewriting {
        log.rewrite_wanted = true;
        log.wake_writer();
    }
}
