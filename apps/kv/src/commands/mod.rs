//! The commands: what may run when ([`execute`]), what each does (one module a group), what clients may ask about
//! them ([`TABLE`]).

mod client;
mod config;
mod counters;
mod expire;
mod help;
mod info;
mod keys;
mod server;
mod strings;
mod table;
#[cfg(test)]
mod tests;
mod transactions;

pub use info::stats_json;
pub use table::{Flags, Spec, TABLE, find};

use crate::log::Part;
use crate::resp::{Args, Gather, Protocol, Reply};
use crate::state::{Replies, Session, State};
use crate::store::{DATABASES, Value};
use std::borrow::Cow;

/// An error reply: its line, code included.
pub struct Fault(pub Cow<'static, str>);

impl From<&'static str> for Fault {
    fn from(text: &'static str) -> Fault {
        Fault(Cow::Borrowed(text))
    }
}

impl From<String> for Fault {
    fn from(text: String) -> Fault {
        Fault(Cow::Owned(text))
    }
}

impl From<towpath_cbuf::Error> for Fault {
    fn from(error: towpath_cbuf::Error) -> Fault {
        Fault(Cow::Owned(format!("OOM {error}")))
    }
}

/// What a command's function returns; the error becomes the reply.
pub type Outcome = Result<(), Fault>;

pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
pub(crate) const BAD_DB: &str = "ERR DB index is out of range";

/// What a command runs in.
pub struct Cx<'a> {
    /// What all clients share.
    pub state: &'a mut State,
    /// The client.
    pub session: &'a mut Session,
    /// Its replies.
    pub reply: Reply<'a>,
    effect: Effect,
}

/// How a command changed the data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    None,
    /// The log gets the request as it came.
    AsSent,
    /// The log has got what stands for it.
    Logged,
}

impl Cx<'_> {
    /// The selected database.
    pub fn db(&self) -> usize {
        self.session.db()
    }

    /// The data was changed; the request itself says how.
    pub fn changed(&mut self) {
        if self.effect == Effect::None {
            self.effect = Effect::AsSent;
        }
    }

    /// The data was changed; `parts` is a request that says how without a clock or a rounding of its own.
    pub fn changed_as(&mut self, parts: &[Part<'_>]) {
        self.state.log_gone();
        let db = self.db();
        if let Some(log) = &mut self.state.log {
            log.record(db, parts);
        }
        self.effect = Effect::Logged;
    }

    /// The time in milliseconds of Unix time.
    pub fn now(&self) -> u64 {
        self.state.store.now
    }
}

/// Runs one request and writes its reply; true if it changed the data.
pub fn execute(state: &mut State, session: &mut Session, args: &Args<'_>, out: &mut Gather) -> bool {
    if session.replies == Replies::SkipNext {
        session.replies = Replies::Skip;
    }
    let protocol = session.peer.protocol.get();
    if session.replies == Replies::On {
        return run(state, session, args, out, protocol);
    }
    let mut nowhere = Gather::new(state.memory.clone());
    let was = session.replies;
    let changed = run(state, session, args, &mut nowhere, protocol);
    // `CLIENT REPLY ON` is answered; every other reply is dropped.
    if was != Replies::On && session.replies == Replies::On {
        out.bytes(b"+OK\r\n");
    }
    if session.replies == Replies::Skip {
        session.replies = Replies::On;
    }
    changed
}

fn run(state: &mut State, session: &mut Session, args: &Args<'_>, out: &mut Gather, protocol: Protocol) -> bool {
    state.totals.commands += 1;
    let name = args.get(0);
    let Some((index, spec)) = find(&name) else {
        session.queue_failed |= session.queue.is_some();
        state.totals.errors += 1;
        let line = unknown(args);
        Reply { out, protocol }.error(&line);
        return false;
    };
    state.calls[index] += 1;
    session.peer.command.set(spec.name);
    let mut cx = Cx { state, session, reply: Reply { out, protocol }, effect: Effect::None };
    let outcome = match admit(&mut cx, spec, args) {
        Ok(Admitted::Run) => (spec.run)(&mut cx, args),
        Ok(Admitted::Queued) => {
            cx.reply.simple("QUEUED");
            return false;
        }
        Err(fault) => {
            cx.session.queue_failed |= cx.session.queue.is_some();
            Err(fault)
        }
    };
    finish(cx, args, outcome)
}

/// Logs, tells watchers, writes the error if there is one.
fn finish(mut cx: Cx<'_>, args: &Args<'_>, outcome: Outcome) -> bool {
    if let Err(fault) = outcome {
        cx.state.totals.errors += 1;
        cx.reply.error(&fault.0);
    }
    if !cx.state.store.gone.is_empty() {
        cx.state.log_gone();
    }
    let db = cx.db();
    if cx.effect == Effect::AsSent
        && let Some(log) = &mut cx.state.log
    {
        log.record_args(db, args);
    }
    if !cx.state.store.touched.is_empty() {
        cx.state.tell_watchers();
    }
    cx.effect != Effect::None
}

enum Admitted {
    Run,
    Queued,
}

/// Whether the command may run now.
fn admit(cx: &mut Cx<'_>, spec: &Spec, args: &Args<'_>) -> Result<Admitted, Fault> {
    let n = args.len() as i32;
    let fits = if spec.arity >= 0 { n == i32::from(spec.arity) } else { n >= -i32::from(spec.arity) };
    if !fits {
        return Err(wrong_number(spec.name));
    }
    if !cx.session.authenticated && !spec.flags.has(Flags::NO_AUTH) {
        return Err("NOAUTH Authentication required.".into());
    }
    let queueing = cx.session.queue.is_some() && !cx.session.executing;
    if spec.flags.has(Flags::WRITE) {
        if let Some(why) = cx.state.log.as_ref().and_then(|log| log.failure.as_ref()) {
            return Err(misconf(why).into());
        }
        if spec.flags.has(Flags::DENY_OOM) && cx.state.config.maxmemory > 0 && !cx.state.store.loading {
            let limit = usize::try_from(cx.state.config.maxmemory).unwrap_or(usize::MAX);
            let policy = cx.state.config.maxmemory_policy;
            if !cx.state.store.make_room(limit, policy) {
                return Err("OOM command not allowed when used memory > 'maxmemory'.".into());
            }
        }
    }
    if queueing && !spec.flags.has(Flags::IN_MULTI) {
        if spec.flags.has(Flags::NO_MULTI) {
            return Err("ERR Command not allowed inside a transaction".into());
        }
        let command = args.to_command();
        if let Some(queue) = &mut cx.session.queue {
            queue.push(command);
            cx.session.peer.queued.set(queue.len() as i64);
        }
        return Ok(Admitted::Queued);
    }
    Ok(Admitted::Run)
}

/// The error for changes while the log cannot be written.
pub fn misconf(why: &str) -> String {
    format!("MISCONF Errors writing to the AOF file: {why}")
}

pub(crate) fn wrong_number(name: &str) -> Fault {
    format!("ERR wrong number of arguments for '{}' command", name.to_lowercase()).into()
}

pub(crate) fn unknown_subcommand(args: &Args<'_>) -> Fault {
    let command = String::from_utf8_lossy(&args.get(0)).to_uppercase();
    format!("ERR unknown subcommand '{}'. Try {command} HELP.", clipped(&args.get(1), 128)).into()
}

fn unknown(args: &Args<'_>) -> String {
    let mut line = format!("ERR unknown command '{}', with args beginning with: ", clipped(&args.get(0), 128));
    for i in 1..args.len() {
        if line.len() >= 256 {
            break;
        }
        line.push_str(&format!("'{}' ", clipped(&args.get(i), 128)));
    }
    line
}

fn clipped(bytes: &[u8], most: usize) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned()
}

/// Argument `i` as an integer.
pub(crate) fn int(args: &Args<'_>, i: usize) -> Result<i64, Fault> {
    crate::number::parse_i64(&args.get(i)).ok_or_else(|| NOT_INTEGER.into())
}

/// Argument `i` as the number of a database.
pub(crate) fn database(args: &Args<'_>, i: usize) -> Result<usize, Fault> {
    let n = int(args, i)?;
    usize::try_from(n).ok().filter(|n| *n < DATABASES).ok_or_else(|| BAD_DB.into())
}

/// Writes the value of a key, or null.
pub(crate) fn reply_value(cx: &mut Cx<'_>, key: &[u8]) {
    let db = cx.db();
    match cx.state.store.read(db, key) {
        Some(entry) => {
            if matches!(entry.value, Value::Raw(_)) {
                entry.value.settle(&cx.state.memory);
            }
            cx.reply.value(&entry.value);
        }
        None => cx.reply.null(),
    }
}
