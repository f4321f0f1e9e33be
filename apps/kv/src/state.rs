//! What all connections of a server share, and what each has for itself.

use crate::config::Config;
use crate::log::Log;
use crate::resp::{Command, Protocol};
use crate::store::{Key, Store};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use towpath_cbuf::Memory;

/// One connected client, as other clients see it.
pub struct Peer {
    /// Never used again.
    pub id: u64,
    /// Its address.
    pub addr: String,
    /// The address it connected to.
    pub laddr: String,
    /// `CLIENT SETNAME`.
    pub name: RefCell<String>,
    /// `CLIENT SETINFO`: name and version of its library.
    pub client_library: RefCell<(String, String)>,
    /// The selected database.
    pub db: Cell<usize>,
    /// The name of its last command.
    pub command: Cell<&'static str>,
    /// When it connected, in milliseconds of Unix time.
    pub since: u64,
    /// When it last sent a command, in milliseconds of Unix time.
    pub active: Cell<u64>,
    /// The protocol it speaks.
    pub protocol: Cell<Protocol>,
    /// Commands queued by `MULTI`; -1 outside.
    pub queued: Cell<i64>,
    /// A key it watches has changed.
    pub dirty: Cell<bool>,
    /// It is to be disconnected.
    pub killed: Cell<bool>,
    /// `CLIENT NO-EVICT`.
    pub no_evict: Cell<bool>,
    /// Bytes of its unfinished request and of replies not yet sent.
    pub held: Cell<(usize, usize)>,
}

/// What the connection's own coroutine knows of its client.
pub struct Session {
    /// The public part.
    pub peer: Rc<Peer>,
    /// Whether it may run commands.
    pub authenticated: bool,
    /// Commands queued since `MULTI`.
    pub queue: Option<Vec<Command>>,
    /// A queued command was wrong: `EXEC` will refuse.
    pub queue_failed: bool,
    /// `EXEC` is running the queue.
    pub executing: bool,
    /// Keys it watches.
    pub watched: Vec<(usize, Key)>,
    /// `CLIENT REPLY`.
    pub replies: Replies,
    /// Close after the replies so far.
    pub closing: bool,
}

/// Which replies a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replies {
    /// All.
    On,
    /// None.
    Off,
    /// None to the next command.
    SkipNext,
    /// None to this command.
    Skip,
}

impl Session {
    /// A fresh session.
    pub fn new(peer: Rc<Peer>, authenticated: bool) -> Session {
        Session {
            peer,
            authenticated,
            queue: None,
            queue_failed: false,
            executing: false,
            watched: Vec::new(),
            replies: Replies::On,
            closing: false,
        }
    }

    /// The selected database.
    pub fn db(&self) -> usize {
        self.peer.db.get()
    }
}

/// Counters since start.
#[derive(Clone, Copy, Default, Debug)]
pub struct Totals {
    /// Commands run or refused.
    pub commands: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections refused because there were too many.
    pub rejected: u64,
    /// Bytes received.
    pub read_bytes: u64,
    /// Bytes sent.
    pub written_bytes: u64,
    /// Replies that were errors.
    pub errors: u64,
    /// Batches of replies, each one push.
    pub batches: u64,
}

/// How a server was asked to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Finish what was begun, flush the log.
    Gracefully,
}

/// What all connections of a server share.
pub struct State {
    /// The data.
    pub store: Store,
    /// What the server was told.
    pub config: Config,
    /// The append-only log, if one is kept.
    pub log: Option<Log>,
    /// Where buffers come from.
    pub memory: Memory,
    /// Connected clients by id.
    pub peers: BTreeMap<u64, Rc<Peer>>,
    /// Who watches what.
    pub watchers: HashMap<(usize, Vec<u8>), Vec<Rc<Peer>>>,
    /// Counters.
    pub totals: Totals,
    /// Counters per command, by place in the table: calls.
    pub calls: Vec<u64>,
    /// When the server started, in milliseconds of Unix time.
    pub started: u64,
    /// Identifies this run of the server.
    pub run_id: String,
    /// Set once it is to stop.
    pub stop: Option<Stop>,
    /// The log is to be finished: nothing more will be added.
    pub stopping_log: bool,
    /// Commands wait until then (Unix milliseconds); the flag: only those that write.
    pub pause: Option<(u64, bool)>,
    /// When the last `BGREWRITEAOF` or start completed, in seconds of Unix time.
    pub last_save: u64,
    next_id: u64,
}

impl State {
    /// A server's state before the first client.
    pub fn new(config: Config, memory: Memory, seed: u64, now: u64) -> State {
        let mut store = Store::new(seed);
        store.now = now;
        State {
            store,
            config,
            log: None,
            memory,
            peers: BTreeMap::new(),
            watchers: HashMap::new(),
            totals: Totals::default(),
            calls: vec![0; crate::commands::TABLE.len()],
            started: now,
            run_id: format!("{seed:016x}{:016x}{now:08x}", seed.rotate_left(29) ^ now)[..40].to_string(),
            stop: None,
            stopping_log: false,
            pause: None,
            last_save: now / 1000,
            next_id: 1,
        }
    }

    /// Registers a client.
    pub fn connect(&mut self, addr: String, laddr: String) -> Session {
        let peer = Rc::new(Peer {
            id: self.next_id,
            addr,
            laddr,
            name: RefCell::default(),
            client_library: RefCell::default(),
            db: Cell::new(0),
            command: Cell::new("NULL"),
            since: self.store.now,
            active: Cell::new(self.store.now),
            protocol: Cell::default(),
            queued: Cell::new(-1),
            dirty: Cell::new(false),
            killed: Cell::new(false),
            no_evict: Cell::new(false),
            held: Cell::new((0, 0)),
        });
        self.next_id += 1;
        self.totals.connections += 1;
        self.peers.insert(peer.id, peer.clone());
        Session::new(peer, self.config.requirepass.is_empty())
    }

    /// Forgets a client.
    pub fn disconnect(&mut self, session: &mut Session) {
        self.unwatch(session);
        self.peers.remove(&session.peer.id);
    }

    /// `WATCH` one key.
    pub fn watch(&mut self, session: &mut Session, key: &[u8]) {
        let db = session.db();
        if session.watched.iter().any(|(d, k)| *d == db && k.as_bytes() == key) {
            return;
        }
        session.watched.push((db, Key::new(key)));
        self.watchers.entry((db, key.to_vec())).or_default().push(session.peer.clone());
        self.store.watched = true;
    }

    /// Forgets every key the session watches.
    pub fn unwatch(&mut self, session: &mut Session) {
        for (db, key) in session.watched.drain(..) {
            let key = (db, key.as_bytes().to_vec());
            if let Some(peers) = self.watchers.get_mut(&key) {
                peers.retain(|p| p.id != session.peer.id);
                if peers.is_empty() {
                    self.watchers.remove(&key);
                }
            }
        }
        session.peer.dirty.set(false);
        self.store.watched = !self.watchers.is_empty();
    }

    /// Tells those who watch the keys that the last command changed.
    pub fn tell_watchers(&mut self) {
        for (db, key) in self.store.touched.drain(..) {
            match key {
                Some(key) => {
                    for peer in self.watchers.get(&(db, key.as_bytes().to_vec())).into_iter().flatten() {
                        peer.dirty.set(true);
                    }
                }
                None => {
                    for peer in self.watchers.iter().filter(|(k, _)| k.0 == db).flat_map(|(_, peers)| peers) {
                        peer.dirty.set(true);
                    }
                }
            }
        }
    }

    /// Logs the removal of keys that expired or were evicted.
    pub fn log_gone(&mut self) {
        if self.store.gone.is_empty() {
            return;
        }
        for (db, key) in std::mem::take(&mut self.store.gone) {
            if let Some(log) = &mut self.log {
                log.record(db, &[crate::log::Part::Bytes(b"DEL"), crate::log::Part::Bytes(key.as_bytes())]);
            }
        }
    }
}
