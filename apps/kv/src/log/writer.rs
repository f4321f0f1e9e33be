//! Writing the log: one coroutine writes and syncs, another rewrites.
//!
//! Whatever changed while a batch was on its way to the disk makes up the next batch: with `always` many connections
//! share one sync, and while it runs the others are served. A batch that cannot be written is kept and tried again
//! every second; until then changes are refused, so nothing that was acknowledged is lost.

use super::{Failure, Log, Part, request};
use crate::config::Fsync;
use crate::resp::Gather;
use crate::state::State;
use crate::store::Item;
use std::cell::RefCell;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use towpath_cbuf::{Memory, Sga};
use towpath_libos::{OpenOptions, Queue, Runtime, yield_now};

/// How long to wait before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Keys read from the snapshot in one step of a rewrite.
const STEP: usize = 128;

/// What the writer and the rewriter share.
struct Rewrite {
    /// Changes since the snapshot was taken.
    since: Vec<Sga>,
    /// The new file once the snapshot is in it, and its size.
    ready: Option<(Queue, u64)>,
    /// There will be none.
    failed: bool,
}

/// The writer of one log.
pub struct Writer {
    runtime: Runtime,
    state: Rc<RefCell<State>>,
    path: PathBuf,
    file: Queue,
    rewrite: Option<Rc<RefCell<Rewrite>>>,
}

/// The end of the log that `good` bytes were read from.
///
/// # Errors
/// The file cannot be opened for writing or cut.
pub fn open(runtime: &Runtime, path: &Path, good: u64) -> towpath_libos::Result<Queue> {
    let file = runtime.open(path, OpenOptions::new().write(true).append(true).create(true))?;
    if file.size()? > good {
        file.truncate(good)?;
    }
    Ok(file)
}

/// What the writer does next.
enum Work {
    Batch(Option<Sga>, u64, Fsync),
    Stop,
}

impl Writer {
    /// A writer that appends to `file`, which lies at `path`.
    pub fn new(runtime: Runtime, state: Rc<RefCell<State>>, path: PathBuf, file: Queue) -> Writer {
        Writer { runtime, state, path, file, rewrite: None }
    }

    /// Writes until the server stops and everything is written and durable.
    pub async fn run(mut self) {
        loop {
            if self.rewrite.as_ref().is_some_and(|r| r.borrow().ready.is_some()) {
                self.switch().await;
            }
            match self.work().await {
                Work::Batch(Some(batch), end, fsync) => self.write(batch, end, fsync).await,
                Work::Batch(None, ..) => self.lost(),
                Work::Stop => break,
            }
        }
        if let Err(error) = self.file.sync().await {
            self.with_log(|log| log.failure = Some(error.to_string()));
        }
        self.with_log(|log| {
            if log.failure.is_none() {
                log.synced = log.written;
            }
            log.finished = true;
            log.progress();
        });
    }

    fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Option<T> {
        self.state.borrow_mut().log.as_mut().map(act)
    }

    /// Changes were lost on their way to the log: only a rewrite makes it whole again, and until then it has failed.
    fn lost(&self) {
        self.with_log(|log| {
            log.failure = Some("out of memory for the log".to_string());
            log.holed = true;
            log.rewrite_wanted = true;
            log.progress();
        });
    }

    /// Waits until there is something to do.
    async fn work(&mut self) -> Work {
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            let (stopping, fsync) = (state.stopping_log, state.config.appendfsync);
            let Some(log) = &mut state.log else { return Poll::Ready(Work::Stop) };
            if self.rewrite.as_ref().is_some_and(|r| r.borrow().failed) {
                self.rewrite = None;
            }
            let begin = log.rewrite_wanted && self.rewrite.is_none() && !stopping;
            if begin {
                log.rewrite_wanted = false;
                log.rewriting = true;
            }
            let switch = self.rewrite.as_ref().is_some_and(|r| r.borrow().ready.is_some());
            if log.waiting_bytes() == 0 && !begin && !switch {
                if stopping {
                    return Poll::Ready(Work::Stop);
                }
                log.wait_for_work(cx.waker());
                return Poll::Pending;
            }
            let (batch, end) = (log.take(), log.end());
            if let (Some(rewrite), Some(batch)) = (&self.rewrite, &batch) {
                rewrite.borrow_mut().since.push(batch.clone());
            }
            if begin {
                // What has been taken is in the snapshot; what comes from here on is not.
                log.forget_database();
                state.store.snapshot_begin();
                let rewrite = Rc::new(RefCell::new(Rewrite { since: Vec::new(), ready: None, failed: false }));
                self.rewrite = Some(rewrite.clone());
                let job = rewriter(self.runtime.clone(), self.state.clone(), temporary(&self.path), rewrite);
                if self.runtime.spawn(job).is_err() {
                    self.rewrite = None;
                    state.store.snapshot_cancel();
                    log.rewriting = false;
                    log.rewrite_ok = false;
                }
            }
            Poll::Ready(Work::Batch(batch, end, fsync))
        })
        .await
    }

    /// Writes one batch, however often it takes.
    async fn write(&mut self, batch: Sga, end: u64, fsync: Fsync) {
        if batch.is_empty() {
            return;
        }
        let (size, len) = (self.with_log(|log| log.file_size).unwrap_or(0), batch.len() as u64);
        loop {
            let outcome = match fsync {
                Fsync::Always => self.file.push_sync(batch.clone()).await,
                Fsync::Everysec | Fsync::No => self.file.push(batch.clone()).await,
            };
            let Err(error) = outcome else { break };
            // What was written of the batch is taken back, so that the file ends with a whole request.
            let cut = self.file.truncate(size);
            let why = describe(&error);
            if cut.is_err() {
                // The file may end with half a request now, and nothing may follow that.
                self.lost();
                return;
            }
            let give_up = self.with_log(|log| {
                log.failure = Some(why);
                log.progress();
            });
            if give_up.is_none() || self.state.borrow().stopping_log {
                return;
            }
            self.runtime.sleep(RETRY).await;
        }
        let mut state = self.state.borrow_mut();
        if let Some(log) = &mut state.log {
            if !log.holed {
                log.failure = None;
            }
            log.file_size = size + len;
            log.written = end;
            if fsync == Fsync::Always {
                log.synced = end;
                log.syncs += 1;
            }
            log.progress();
        }
    }

    /// Replaces the log by the rewritten one.
    async fn switch(&mut self) {
        let Some(rewrite) = self.rewrite.take() else { return };
        let Some((file, mut size)) = rewrite.borrow_mut().ready.take() else { return };
        let outcome = async {
            let since = std::mem::take(&mut rewrite.borrow_mut().since);
            for batch in since {
                size += batch.len() as u64;
                file.push(batch).await?;
            }
            file.sync().await
        }
        .await
        .map_err(|error| describe(&error))
        .and_then(|()| replace(&temporary(&self.path), &self.path).map_err(|error| error.to_string()));
        let good = outcome.is_ok();
        if good {
            self.file = file;
        } else {
            let _ = std::fs::remove_file(temporary(&self.path));
        }
        let mut state = self.state.borrow_mut();
        state.last_save = state.store.now / 1000;
        if let Some(log) = &mut state.log {
            log.rewriting = false;
            log.rewrite_ok = good;
            if good {
                (log.file_size, log.base_size) = (size, size);
                // Everything in the new file was synced above.
                log.synced = log.written;
                if std::mem::take(&mut log.holed) {
                    log.failure = None;
                }
            }
        }
    }
}

/// The system's own words where it has some: they are what Redis shows.
fn describe(error: &towpath_libos::Error) -> Failure {
    let text = std::io::Error::from_raw_os_error(error.errno()).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}

fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".rewrite");
    PathBuf::from(name)
}

/// Renames, and makes the renaming durable.
fn replace(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::rename(from, to)?;
    let folder = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder)?.sync_all()
}

/// Once a second makes durable what has been written since (`everysec`).
pub async fn every_second(runtime: Runtime, state: Rc<RefCell<State>>, path: PathBuf) {
    let mut file: Option<Queue> = None;
    loop {
        runtime.sleep(Duration::from_secs(1)).await;
        let target = {
            let state = state.borrow();
            let Some(log) = &state.log else { return };
            if log.finished {
                return;
            }
            (state.config.appendfsync == Fsync::Everysec && log.written > log.synced && !log.rewriting)
                .then_some(log.written)
        };
        let Some(target) = target else {
            file = None;
            continue;
        };
        // A descriptor of its own: the file behind the path changes when the log is rewritten.
        let outcome = match file.take().map_or_else(|| open_to_sync(&runtime, &path), Ok) {
            Ok(open) => open.sync().await.map(|()| open),
            Err(error) => Err(error),
        };
        let mut state = state.borrow_mut();
        let Some(log) = &mut state.log else { return };
        match outcome {
            Ok(_) => {
                log.synced = log.synced.max(target);
                log.syncs += 1;
            }
            Err(error) => log.failure = Some(describe(&error)),
        }
    }
}

fn open_to_sync(runtime: &Runtime, path: &Path) -> towpath_libos::Result<Queue> {
    runtime.open(path, OpenOptions::new().write(true))
}

/// Writes the snapshot into a new file, then hands it to the writer.
async fn rewriter(runtime: Runtime, state: Rc<RefCell<State>>, path: PathBuf, rewrite: Rc<RefCell<Rewrite>>) {
    let outcome = dump(&runtime, &state, &path).await;
    let mut state = state.borrow_mut();
    state.store.snapshot_cancel();
    match outcome {
        Ok(ready) => rewrite.borrow_mut().ready = Some(ready),
        Err(_) => {
            let _ = std::fs::remove_file(&path);
            if let Some(log) = &mut state.log {
                log.rewriting = false;
                log.rewrite_ok = false;
            }
            rewrite.borrow_mut().failed = true;
        }
    }
    if let Some(log) = &mut state.log {
        log.wake_writer();
    }
}

async fn dump(runtime: &Runtime, state: &Rc<RefCell<State>>, path: &Path) -> towpath_libos::Result<(Queue, u64)> {
    // One left behind by a crash.
    let _ = std::fs::remove_file(path);
    let file = runtime.open(path, OpenOptions::new().write(true).append(true).create_new(true))?;
    let (mut size, mut db) = (0, None);
    loop {
        let (items, memory) = {
            let mut state = state.borrow_mut();
            (state.store.snapshot_next(STEP), state.memory.clone())
        };
        if items.is_empty() {
            return Ok((file, size));
        }
        let batch = describe_items(&items, &mut db, memory).ok_or(towpath_libos::Error::Canceled)?;
        size += batch.len() as u64;
        file.push(batch).await?;
        yield_now().await;
    }
}

/// The requests that make these keys; `None` without memory for them.
fn describe_items(items: &[Item], db: &mut Option<usize>, memory: Memory) -> Option<Sga> {
    let mut out = Gather::new(memory);
    for item in items {
        if *db != Some(item.db) {
            *db = Some(item.db);
            request(&mut out, &[Part::Bytes(b"SELECT"), Part::Int(item.db as i64)]);
        }
        let set = [Part::Bytes(b"SET"), Part::Bytes(item.key.as_bytes()), Part::Value(&item.value)];
        match item.expires {
            None => request(&mut out, &set),
            Some(when) => {
                let [set, key, value] = set;
                request(&mut out, &[set, key, value, Part::Bytes(b"PXAT"), Part::Int(when as i64)]);
            }
        }
    }
    out.take()
}
