//! The server: one coroutine a socket.

use crate::{Sessions, Verdict, session_of};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use towpath_libos::{Address, Datagram, Kind, Queue, Result, Runtime};

/// What a relay is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where datagrams are taken; parties of one session use the same address.
    pub listen: Vec<Address>,
    /// Most sessions at once on one address.
    pub sessions_max: usize,
    /// A session idle for this long may be forgotten when another needs its place.
    pub idle_max: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { listen: Vec::new(), sessions_max: 1 << 16, idle_max: Duration::from_secs(300) }
    }
}

/// What a relay has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams forwarded.
    pub forwarded: u64,
    /// Bytes of them, session numbers included.
    pub bytes: u64,
    /// Dropped: too short to name a session.
    pub short: u64,
    /// Dropped: the session has one party so far.
    pub unpaired: u64,
    /// Dropped: from a third address.
    pub strangers: u64,
    /// Dropped: no room for another session.
    pub full: u64,
    /// Dropped: the send failed (the party's port is closed, its route is gone).
    pub unsent: u64,
}

/// A running relay: coroutines of its runtime.
pub struct Server {
    counts: Rc<Cell<Counts>>,
    addresses: Vec<Address>,
}

/// How long receiving rests after an error that may repeat at once.
const REST: Duration = Duration::from_millis(10);

impl Server {
    /// Opens the sockets and starts relaying; [`Runtime::block_on`] something to let it run.
    ///
    /// # Errors
    /// What opening a socket came to; nothing is left running then.
    pub fn start(rt: &Runtime, options: &Options) -> Result<Server> {
        let mut sockets = Vec::new();
        for address in &options.listen {
            let socket = rt.socket(address.domain(), Kind::Datagram)?;
            socket.bind(address)?;
            sockets.push(socket);
        }
        let addresses = sockets.iter().map(|s| s.local_addr()).collect::<Result<Vec<_>>>()?;
        let counts = Rc::new(Cell::new(Counts::default()));
        for socket in sockets {
            let sessions = RefCell::new(Sessions::new(options.sessions_max, options.idle_max));
            rt.spawn(relay(rt.clone(), socket, sessions, counts.clone()))?;
        }
        Ok(Server { counts, addresses })
    }

    /// Where it listens, ports filled in.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }
}

async fn relay(rt: Runtime, socket: Queue, sessions: RefCell<Sessions<Address>>, counts: Rc<Cell<Counts>>) {
    loop {
        match socket.pop_from().await {
            Ok(datagram) => {
                let verdict = judge(&datagram, &sessions, &rt);
                let mut now = counts.get();
                match verdict {
                    None => now.short += 1,
                    Some(Verdict::Unpaired) => now.unpaired += 1,
                    Some(Verdict::Stranger) => now.strangers += 1,
                    Some(Verdict::Full) => now.full += 1,
                    Some(Verdict::Forward(to)) => {
                        let bytes = datagram.sga.len() as u64;
                        match socket.push_to(datagram.sga, &to).await {
                            Ok(()) => (now.forwarded, now.bytes) = (now.forwarded + 1, now.bytes + bytes),
                            Err(_) => now.unsent += 1,
                        }
                    }
                }
                counts.set(now);
            }
            // An earlier send was refused by its receiver: the socket itself is sound.
            Err(error) if error.errno() == ECONNREFUSED => {}
            Err(error) if error.errno() == ECANCELED => return,
            Err(_) => rt.sleep(REST).await,
        }
    }
}

const ECONNREFUSED: i32 = 111;
const ECANCELED: i32 = 125;

/// None if the datagram is too short to name a session. The number may lie across segments.
fn judge(datagram: &Datagram, sessions: &RefCell<Sessions<Address>>, rt: &Runtime) -> Option<Verdict<Address>> {
    let number = match datagram.sga.segments().first() {
        Some(first) if first.len() >= crate::HEADER_LEN => session_of(first)?,
        _ => {
            let mut header = datagram.sga.segments().iter().flat_map(|s| s.iter().copied());
            let bytes: Option<Vec<u8>> = (0..crate::HEADER_LEN).map(|_| header.next()).collect();
            session_of(&bytes?)?
        }
    };
    let from = datagram.from.as_ref()?;
    Some(sessions.borrow_mut().route(number, from, rt.now()))
}
