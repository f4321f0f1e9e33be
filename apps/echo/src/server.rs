//! The server.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;
use towpath_libos::{Address, Error, Kind, OpenOptions, Queue, Result, Runtime};

/// What a server is started with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Where stream connections are accepted.
    pub streams: Vec<Address>,
    /// Where datagrams are answered.
    pub datagrams: Vec<Address>,
    /// Write every message to this file, and to the disk, before its reply is sent.
    pub log: Option<PathBuf>,
}

/// What all connections share.
struct Shared {
    log: Option<Queue>,
    messages: Cell<u64>,
    bytes: Cell<u64>,
    connections: Cell<u64>,
    open: Cell<u64>,
    /// The last trouble that ended a connection or refused one, to be told once.
    trouble: RefCell<Option<String>>,
}

/// A running server: coroutines of its runtime.
pub struct Server {
    shared: Rc<Shared>,
    addresses: Vec<Address>,
}

/// How long accepting rests after the kernel had no descriptor or memory for a connection.
const REST: Duration = Duration::from_millis(50);

impl Server {
    /// Opens the sockets and starts serving them; [`Runtime::block_on`] something to let it run.
    ///
    /// # Errors
    /// What opening a socket or the log came to; nothing is left running then.
    pub fn start(rt: &Runtime, options: &Options) -> Result<Server> {
        let log = match &options.log {
            Some(path) => Some(rt.open(path, OpenOptions::new().append(true).create(true))?),
            None => None,
        };
        let shared = Rc::new(Shared {
            log,
            messages: Cell::new(0),
            bytes: Cell::new(0),
            connections: Cell::new(0),
            open: Cell::new(0),
            trouble: RefCell::new(None),
        });
        let mut addresses = Vec::new();
        let listeners = options.streams.iter().map(|address| rt.listen(address)).collect::<Result<Vec<_>>>()?;
        let mut sockets = Vec::new();
        for address in &options.datagrams {
            let socket = rt.socket(address.domain(), Kind::Datagram)?;
            socket.bind(address)?;
            sockets.push(socket);
        }
        for queue in listeners.iter().chain(&sockets) {
            addresses.push(queue.local_addr()?);
        }
        for listener in listeners {
            rt.spawn(accept(rt.clone(), listener, shared.clone()))?;
        }
        for socket in sockets {
            rt.spawn(answer(socket, shared.clone()))?;
        }
        Ok(Server { shared, addresses })
    }

    /// Where it serves: streams first, then datagrams, ports filled in.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Messages answered so far.
    pub fn messages(&self) -> u64 {
        self.shared.messages.get()
    }

    /// Bytes answered so far.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.get()
    }

    /// Connections accepted so far, and how many of them are open.
    pub fn connections(&self) -> (u64, u64) {
        (self.shared.connections.get(), self.shared.open.get())
    }

    /// The last trouble with a connection since this was asked last.
    pub fn take_trouble(&self) -> Option<String> {
        self.shared.trouble.borrow_mut().take()
    }
}

async fn accept(rt: Runtime, listener: Queue, shared: Rc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((conn, _)) => {
                shared.connections.set(shared.connections.get() + 1);
                let shared = shared.clone();
                if let Err(error) = rt.spawn(serve(conn, shared.clone())) {
                    shared.note(&error);
                }
            }
            Err(Error::Canceled | Error::BadQueue(_)) => return,
            // No descriptor or memory now: those who are connected will leave some.
            Err(error) => {
                shared.note(&error);
                rt.sleep(REST).await;
            }
        }
    }
}

async fn serve(conn: Queue, shared: Rc<Shared>) {
    shared.open.set(shared.open.get() + 1);
    if let Err(error) = echo(&conn, &shared).await {
        shared.note(&error);
    }
    shared.open.set(shared.open.get() - 1);
}

async fn echo(conn: &Queue, shared: &Shared) -> Result<()> {
    loop {
        let message = conn.pop().await?;
        if message.is_empty() {
            return Ok(());
        }
        if let Some(log) = &shared.log {
            log.push_sync(message.clone()).await?;
        }
        shared.count(message.len());
        conn.push(message).await?;
    }
}

async fn answer(socket: Queue, shared: Rc<Shared>) {
    loop {
        let result = async {
            let datagram = socket.pop_from().await?;
            if let Some(log) = &shared.log {
                log.push_sync(datagram.sga.clone()).await?;
            }
            shared.count(datagram.sga.len());
            match &datagram.from {
                Some(from) => socket.push_to(datagram.sga, from).await,
                None => Ok(()),
            }
        };
        match result.await {
            Ok(()) => {}
            Err(Error::Canceled | Error::BadQueue(_)) => return,
            // One peer's trouble (it is gone: ECONNREFUSED) is not the others'.
            Err(error) => shared.note(&error),
        }
    }
}

impl Shared {
    fn count(&self, bytes: usize) {
        self.messages.set(self.messages.get() + 1);
        self.bytes.set(self.bytes.get() + bytes as u64);
    }

    fn note(&self, error: &Error) {
        *self.trouble.borrow_mut() = Some(error.to_string());
    }
}
