//! Reading a log back at start.
//!
//! A log that ends in the middle of a request (a crash, a full disk) or of a transaction is used up to its last
//! complete one. A log that holds something else than requests is used up to there as well: a server that starts with
//! what can be read is more use than one that refuses to.

use crate::commands::{Flags, execute, find};
use crate::resp::{Gather, Input, Limits, ProtocolError};
use crate::state::{Session, State};
use towpath_cbuf::Sga;

/// What reading came to.
#[derive(Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Requests run.
    pub requests: u64,
    /// Requests that were refused or made no sense; they were passed over.
    pub failed: u64,
    /// Bytes up to which the log is good.
    pub good: u64,
    /// Why the rest is not, if there is a rest.
    pub torn: Option<String>,
}

/// Runs the requests of a log as its bytes come in.
pub struct Loader {
    input: Input,
    session: Session,
    replies: Gather,
    limits: Limits,
    fed: u64,
    loaded: Loaded,
}

impl Loader {
    /// Prepares `state` for loading.
    pub fn new(state: &mut State) -> Loader {
        state.store.loading = true;
        let mut session = state.connect(String::new(), String::new());
        session.authenticated = true;
        Loader {
            input: Input::new(state.memory.clone()),
            session,
            replies: Gather::new(state.memory.clone()),
            limits: Limits { query_max: usize::MAX, ..Limits::default() },
            fed: 0,
            loaded: Loaded { requests: 0, failed: 0, good: 0, torn: None },
        }
    }

    /// Runs what `bytes` completes; false once nothing further can be read.
    pub fn feed(&mut self, state: &mut State, bytes: &Sga) -> bool {
        self.fed += bytes.len() as u64;
        let outcome = self.input.feed(bytes).and_then(|()| self.run(state));
        if let Err(error) = outcome {
            self.loaded.torn = Some(error.to_string());
        }
        self.loaded.torn.is_none()
    }

    fn run(&mut self, state: &mut State) -> Result<(), ProtocolError> {
        while self.input.next(&self.limits)? {
            let args = self.input.args();
            let allowed = find(&args.get(0)).is_some_and(|(_, spec)| {
                spec.flags.has(Flags::WRITE) || ["select", "multi", "exec"].contains(&spec.name)
            });
            let errors = state.totals.errors;
            if allowed {
                execute(state, &mut self.session, &args, &mut self.replies);
            }
            if !allowed || state.totals.errors != errors {
                self.loaded.failed += 1;
            }
            if self.replies.len() > 64 * 1024 {
                self.replies.take();
            }
            self.loaded.requests += 1;
            if self.session.queue.is_none() {
                self.loaded.good = self.fed - self.input.waiting() as u64;
            }
        }
        self.input.settle()
    }

    /// Ends loading; `len` is the length of the log.
    pub fn finish(mut self, state: &mut State, len: u64) -> Loaded {
        state.disconnect(&mut self.session);
        state.store.loading = false;
        state.totals = Default::default();
        state.store.counts = Default::default();
        state.calls.fill(0);
        if self.loaded.good < len && self.loaded.torn.is_none() {
            let open = if self.session.queue.is_some() { "a transaction" } else { "a request" };
            self.loaded.torn = Some(format!("it ends in the middle of {open}"));
        }
        self.loaded
    }
}
