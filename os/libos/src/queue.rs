//! A queue as a handle: PDPIX' calls as methods, those that may wait as futures. An operation that can finish at once
//! does so at its first poll, without a token.

use crate::core::{Body, Qd, Request, Started};
use crate::error::{Error, Result};
use crate::inet::Inet;
use crate::inet::socket::NetSocket;
use crate::kernel::file::{File, Whence};
use crate::kernel::socket::{Opt, Socket};
use crate::runtime::Runtime;
use crate::tokens::{Completion, Outcome, Token};
use crate::{Address, sys};
use std::pin::Pin;
use std::task::{Context, Poll};
use towpath_cbuf::Sga;

pub use std::net::Shutdown as How;

/// What `Queue::pop_from` brings.
#[derive(Debug)]
pub struct Datagram {
    /// The data.
    pub sga: Sga,
    /// Who sent it; none on queues that do not say.
    pub from: Option<Address>,
}

/// An open queue. Dropping it closes it.
pub struct Queue {
    runtime: Runtime,
    qd: Qd,
}

impl Queue {
    pub(crate) fn new(runtime: &Runtime, qd: Qd) -> Queue {
        Queue { runtime: runtime.clone(), qd }
    }

    /// Its descriptor, for the calls in token style.
    pub fn qd(&self) -> Qd {
        self.qd
    }

    /// Gives up the handle and leaves the queue open under its descriptor.
    pub fn into_qd(self) -> Qd {
        let qd = self.qd;
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never used again and never dropped, so the runtime handle is dropped exactly once.
        unsafe { std::ptr::drop_in_place(&raw mut this.runtime) };
        qd
    }

    /// The runtime it belongs to.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Starts an operation and, if it cannot finish at once, awaits it.
    #[inline]
    async fn run(&self, request: Request<'_>) -> Result<Outcome> {
        let started = self.runtime.core().start(self.qd, request);
        self.runtime.flush_wakes();
        match started? {
            Started::Done(outcome) => Ok(outcome),
            Started::Pending(index) => {
                let token = self.runtime.core().ops.token(index);
                Waiting::new(&self.runtime, token, true).await?.outcome
            }
        }
    }

    /// Takes the next data: what has arrived on a stream (empty at its end), one datagram, one message, or what follows
    /// the cursor of a file (empty at its end).
    pub async fn pop(&self) -> Result<Sga> {
        match self.run(Request::Pop).await? {
            Outcome::Popped { sga, .. } => Ok(sga),
            _ => Ok(Sga::new()),
        }
    }

    /// [`Queue::pop`] that says who sent a datagram.
    pub async fn pop_from(&self) -> Result<Datagram> {
        match self.run(Request::Pop).await? {
            Outcome::Popped { sga, from } => Ok(Datagram { sga, from }),
            _ => Ok(Datagram { sga: Sga::new(), from: None }),
        }
    }

    /// Gives data to the queue: all of it to a stream, one datagram, one message, or bytes at the cursor of a file. When
    /// it completes the data may be freed or pushed again.
    pub async fn push(&self, sga: impl Into<Sga>) -> Result<()> {
        self.run(Request::Push { sga: sga.into(), to: None, durable: false }).await.map(drop)
    }

    /// Sends one datagram to `to`.
    pub async fn push_to(&self, sga: impl Into<Sga>, to: &Address) -> Result<()> {
        self.run(Request::Push { sga: sga.into(), to: Some(to), durable: false }).await.map(drop)
    }

    /// Appends to a file and completes when the data is on the disk (one linked write and fsync where io_uring serves).
    pub async fn push_sync(&self, sga: impl Into<Sga>) -> Result<()> {
        self.run(Request::Push { sga: sga.into(), to: None, durable: true }).await.map(drop)
    }

    /// Completes when everything pushed to this file before is on the disk.
    pub async fn sync(&self) -> Result<()> {
        self.run(Request::Sync).await.map(drop)
    }

    /// Takes the next connection of a listener, with its peer's address.
    pub async fn accept(&self) -> Result<(Queue, Address)> {
        match self.run(Request::Accept).await? {
            Outcome::Accepted { qd, peer } => Ok((Queue::new(&self.runtime, qd), peer)),
            _ => Err(Error::BadQueue(self.qd)),
        }
    }

    /// Connects a stream, or sets where a datagram socket's pushes go.
    pub async fn connect(&self, to: &Address) -> Result<()> {
        self.run(Request::Connect(to)).await.map(drop)
    }

    /// Closes the queue; what is pending on it completes with [`Error::Canceled`].
    pub async fn close(self) -> Result<()> {
        let runtime = self.runtime.clone();
        runtime.close(self.into_qd())
    }

    /// Does something to a socket of our own stack; `None` if the queue is not one.
    fn net<T>(&self, act: impl FnOnce(&mut Inet, &mut NetSocket) -> T) -> Option<T> {
        self.runtime.core().net(self.qd, act)
    }

    fn with_socket<T>(&self, operation: &'static str, act: impl FnOnce(&mut Socket) -> Result<T>) -> Result<T> {
        match self.runtime.core().queues.get(self.qd)? {
            Body::Socket(socket) => act(socket),
            _ => Err(Error::Unsupported { operation, why: "only a socket can do that" }),
        }
    }

    /// Gives a socket its own address.
    pub fn bind(&self, address: &Address) -> Result<()> {
        if let Some(result) = self.net(|inet, socket| inet.bind(self.qd, socket, address)) {
            return result;
        }
        self.with_socket("bind", |socket| socket.bind(address))
    }

    /// Makes a bound stream socket accept connections; `backlog` of them may wait.
    pub fn listen(&self, backlog: u32) -> Result<()> {
        if let Some(result) = self.net(|inet, socket| inet.listen(self.qd, socket, backlog)) {
            return result;
        }
        self.with_socket("listen", |socket| socket.listen(backlog))
    }

    /// Ends one direction of a connection, or both: the peer reads the end of the stream after what was sent.
    pub fn shutdown(&self, how: How) -> Result<()> {
        if let Some(result) = self.net(|inet, socket| inet.shutdown(socket, how)) {
            return result;
        }
        self.with_socket("shutdown", |socket| {
            if !socket.pushes.is_empty() && how != How::Read {
                return Err(Error::Unsupported { operation: "shutdown", why: "pushes are pending; await them first" });
            }
            sys::shutdown(socket.raw(), how).map_err(|errno| Error::os("shutdown", errno))
        })
    }

    /// The address of this end.
    pub fn local_addr(&self) -> Result<Address> {
        if let Some(result) = self.net(|inet, socket| inet.local_address(socket)) {
            return result;
        }
        self.with_socket("local_addr", |socket| socket.local_address())
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> Result<Address> {
        if let Some(result) = self.net(|inet, socket| inet.peer_address(socket)) {
            return result;
        }
        self.with_socket("peer_addr", |socket| socket.peer_address())
    }

    fn with_file<T>(&self, operation: &'static str, act: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
        match self.runtime.core().queues.get(self.qd)? {
            Body::File(file) => act(file),
            _ => Err(Error::Unsupported { operation, why: "only a file can do that" }),
        }
    }

    /// Moves a file's cursor and returns where it stands, in bytes from the start.
    pub fn lseek(&self, offset: i64, whence: Whence) -> Result<u64> {
        self.with_file("lseek", |file| file.seek(offset, whence))
    }

    /// Cuts a file to `len` bytes, or fills it with zeroes up to there. The cursor stays.
    pub fn truncate(&self, len: u64) -> Result<()> {
        self.with_file("truncate", |file| file.truncate(len))
    }

    /// A file's length in bytes.
    pub fn size(&self) -> Result<u64> {
        self.with_file("size", |file| file.size())
    }

    /// Sets an option.
    pub fn set_option(&self, option: Opt) -> Result<()> {
        if let Some(result) = self.net(|inet, socket| inet.set_option(socket, option)) {
            return result;
        }
        self.with_socket("set_option", |socket| socket.set_option(option))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(mut core) = self.runtime.try_core() {
            // Closed already through its descriptor: then there is nothing to close.
            let _ = core.close(self.qd);
            drop(core);
            self.runtime.flush_wakes();
        }
    }
}

/// Awaits the completion of a token; `owned` tokens go with it when it is dropped.
pub(crate) struct Waiting<'a> {
    runtime: &'a Runtime,
    token: Token,
    owned: bool,
    registered: bool,
    taken: bool,
}

impl<'a> Waiting<'a> {
    pub fn new(runtime: &'a Runtime, token: Token, owned: bool) -> Waiting<'a> {
        Waiting { runtime, token, owned, registered: false, taken: false }
    }
}

impl Future for Waiting<'_> {
    type Output = Result<Completion>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Completion>> {
        let polled = self.runtime.core().ops.take_or_wait(self.token, cx.waker(), self.registered);
        match polled {
            Ok(None) => {
                self.registered = true;
                Poll::Pending
            }
            Ok(Some(completion)) => {
                self.taken = true;
                Poll::Ready(Ok(completion))
            }
            Err(error) => {
                self.taken = true;
                Poll::Ready(Err(error))
            }
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.taken {
            return;
        }
        let Some(mut core) = self.runtime.try_core() else { return };
        if self.owned {
            core.abandon(self.token);
            drop(core);
            self.runtime.flush_wakes();
        } else if self.registered {
            core.ops.unwait(self.token);
        }
    }
}
