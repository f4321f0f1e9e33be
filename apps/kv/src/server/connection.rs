//! One connection: requests in, replies out, in order.
//!
//! All requests of what was received are run, and their replies leave in one push, which is awaited before anything
//! more is read: a client that does not read its replies holds one batch of them and no more, and the kernel makes it
//! wait. Changes are acknowledged when the log says so.

use super::{Shared, unix_millis};
use crate::commands::{Flags, execute, find, misconf};
use crate::config::Fsync;
use crate::resp::{Gather, Input, Limits, Reply};
use crate::state::{Session, State};
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use towpath_cbuf::Sga;
use towpath_libos::Queue;

/// Bytes of replies after which a batch is sent, though more requests wait.
const BATCH_MAX: usize = 256 * 1024;
/// Longest sleep of a paused client before it looks again.
const PAUSE_LOOK: Duration = Duration::from_millis(50);

/// Why a batch ended.
#[derive(PartialEq)]
enum Ended {
    /// Everything received was run.
    Idle,
    /// The replies are long enough to be sent.
    Full,
    /// Clients are paused.
    Paused,
    /// The connection is over once the replies are sent.
    Closing,
}

/// One connection's state beside its session.
struct Connection {
    session: Session,
    input: Input,
    out: Gather,
    /// A request has been parsed and waits for a pause to end.
    parsed: bool,
    /// End of each reply in `out`, and whether its command changed the data; kept only with a log.
    marks: Vec<(usize, bool)>,
    /// Where the log must have got to before the replies may leave.
    acknowledge: Option<u64>,
}

/// Serves a connection until it ends.
pub(super) async fn serve(shared: Rc<Shared>, queue: Rc<Queue>, session: Session) {
    let memory = shared.runtime.memory().clone();
    let mut connection = Connection {
        session,
        input: Input::new(memory.clone()),
        out: Gather::new(memory),
        parsed: false,
        marks: Vec::new(),
        acknowledge: None,
    };
    let id = connection.session.peer.id;
    while let Ok(received) = queue.pop().await {
        if received.is_empty() || !connection.received(&shared, &queue, received).await {
            break;
        }
    }
    shared.state.borrow_mut().disconnect(&mut connection.session);
    shared.connections.borrow_mut().remove(&id);
    shared.notify();
}

impl Connection {
    /// Runs what was received; false when the connection is over.
    async fn received(&mut self, shared: &Shared, queue: &Queue, received: Sga) -> bool {
        let fed = self.input.feed(&received);
        {
            let mut state = shared.state.borrow_mut();
            state.totals.read_bytes += received.len() as u64;
            if let Err(error) = fed {
                Reply { out: &mut self.out, protocol: self.session.peer.protocol.get() }.error(&format!("ERR {error}"));
                self.session.closing = true;
            }
        }
        drop(received);
        loop {
            let ended = if self.session.closing { Ended::Closing } else { self.batch(&shared.state) };
            if !self.send(shared, queue).await {
                return false;
            }
            match ended {
                Ended::Idle => return self.input.settle().is_ok(),
                Ended::Full => {}
                Ended::Paused => shared.runtime.sleep(PAUSE_LOOK).await,
                Ended::Closing => {
                    if shared.state.borrow().stop.is_some() {
                        shared.notify();
                    }
                    return false;
                }
            }
        }
    }

    /// Runs requests until there are no more, or the replies should be sent.
    fn batch(&mut self, state: &RefCell<State>) -> Ended {
        let mut state = state.borrow_mut();
        let state = &mut *state;
        state.store.now = unix_millis();
        let peer = self.session.peer.clone();
        peer.active.set(state.store.now);
        let mut ended = Ended::Idle;
        loop {
            if !self.parsed {
                let limits = limits(state, &self.session);
                match self.input.next(&limits) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        state.totals.errors += 1;
                        let protocol = peer.protocol.get();
                        Reply { out: &mut self.out, protocol }.error(&format!("ERR {error}"));
                        ended = Ended::Closing;
                        break;
                    }
                }
            }
            let args = self.input.args();
            self.parsed = state.pause.is_some() && paused(state, &args.get(0));
            if self.parsed {
                ended = Ended::Paused;
                break;
            }
            let changed = execute(state, &mut self.session, &args, &mut self.out);
            if let Some(log) = &state.log {
                self.marks.push((self.out.len(), changed));
                if changed {
                    self.acknowledge = Some(log.end());
                }
            }
            if self.session.closing || state.stop.is_some() && peer.killed.get() {
                ended = Ended::Closing;
                break;
            }
            if self.out.len() >= BATCH_MAX {
                ended = Ended::Full;
                break;
            }
        }
        peer.held.set((self.input.held(), self.out.len()));
        ended
    }

    /// Sends the replies once they may be sent; false if the connection is broken.
    async fn send(&mut self, shared: &Shared, queue: &Queue) -> bool {
        let acknowledge = self.acknowledge.take();
        if self.out.is_empty() && acknowledge.is_none() {
            self.marks.clear();
            return true;
        }
        // Memory for replies ran out: the client cannot be answered any more.
        let Some(mut replies) = self.out.take() else { return false };
        if let Some(end) = acknowledge
            && let Err(why) = logged(&shared.state, end).await
        {
            replies = refuse(replies, &self.marks, &misconf(&why), &mut self.out);
        }
        self.marks.clear();
        let len = replies.len();
        if len > 0 {
            {
                let totals = &mut shared.state.borrow_mut().totals;
                totals.batches += 1;
                totals.written_bytes += len as u64;
            }
            if queue.push(replies).await.is_err() {
                return false;
            }
        }
        self.session.peer.held.set((self.input.held(), 0));
        if self.session.peer.killed.get() || shared.state.borrow().stop.is_some() {
            shared.close_killed();
            shared.notify();
        }
        true
    }
}

fn limits(state: &State, session: &Session) -> Limits {
    Limits {
        bulk_max: state.config.proto_max_bulk_len as usize,
        query_max: state.config.client_query_buffer_limit as usize,
        unauthenticated: !session.authenticated,
    }
}

/// Whether a command has to wait for the end of `CLIENT PAUSE`.
fn paused(state: &mut State, name: &[u8]) -> bool {
    let Some((until, writes_only)) = state.pause else { return false };
    if state.store.now >= until {
        state.pause = None;
        return false;
    }
    match find(name) {
        Some((_, spec)) if spec.name == "client" => false,
        Some((_, spec)) => !writes_only || spec.flags.has(Flags::WRITE) || spec.name == "exec",
        None => !writes_only,
    }
}

/// Completes when the log has got to `end` as its policy demands.
async fn logged(state: &RefCell<State>, end: u64) -> Result<(), String> {
    poll_fn(|cx| {
        let mut state = state.borrow_mut();
        let always = state.config.appendfsync == Fsync::Always;
        let Some(log) = &mut state.log else { return Poll::Ready(Ok(())) };
        if end <= if always { log.synced } else { log.written } {
            return Poll::Ready(Ok(()));
        }
        if let Some(why) = &log.failure {
            return Poll::Ready(Err(why.clone()));
        }
        log.wait(cx.waker());
        Poll::Pending
    })
    .await
}

/// The replies with an error in place of each that would acknowledge a change.
fn refuse(mut replies: Sga, marks: &[(usize, bool)], error: &str, out: &mut Gather) -> Sga {
    let mut at = 0;
    for (end, changed) in marks {
        let reply = replies.split_to(end - at);
        at = *end;
        if *changed && !reply.is_empty() {
            Reply { out, protocol: Default::default() }.error(error);
        } else {
            out.append(reply);
        }
    }
    out.append(replies);
    out.take().unwrap_or_default()
}
