//! The baselines: echo servers and clients on plain sockets, without Towpath. *Spin* reads every socket in turn until
//! one has something; *epoll* sleeps in `epoll_wait` and then reads once and writes once an event; *epoll0* is the
//! epoll loop that never sleeps. Each is written as one would who cares for speed: no allocation, one buffer.

use super::{Cell, Transport};
use hdrhistogram::Histogram;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How a loop on plain sockets waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    Spin,
    Epoll,
    EpollSpin,
}

/// Room for the largest message.
const BUFFER: usize = 64 << 10;
/// Longest an epoll server sleeps before it looks whether it should stop; the client's messages wake it long before.
const STOP_MS: i32 = 20;

/// A socket of either transport.
enum Peer {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Peer {
    fn fd(&self) -> RawFd {
        match self {
            Peer::Tcp(s) => s.as_raw_fd(),
            Peer::Udp(s) => s.as_raw_fd(),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Peer::Tcp(s) => s.read(into),
            Peer::Udp(s) => s.recv(into),
        }
    }

    /// Writes everything, trying again while the socket is full.
    fn write(&mut self, mut bytes: &[u8], stop: &AtomicBool) -> std::io::Result<()> {
        while !bytes.is_empty() && !stop.load(Ordering::Relaxed) {
            let result = match self {
                Peer::Tcp(s) => s.write(bytes),
                Peer::Udp(s) => s.send(bytes),
            };
            match result {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Level-triggered epoll.
struct Epoll {
    fd: RawFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    fn new() -> std::io::Result<Epoll> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Epoll { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; 256] })
    }

    fn add(&self, fd: RawFd, data: usize) -> std::io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: data as u64 };
        // SAFETY: the event outlives the call.
        let rc = unsafe { libc::epoll_ctl(self.fd, libc::EPOLL_CTL_ADD, fd, &mut event) };
        if rc < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }

    fn wait(&mut self, how: Loop) -> usize {
        let timeout = if how == Loop::Epoll { STOP_MS } else { 0 };
        // SAFETY: the pointer and length describe `events`.
        let n = unsafe { libc::epoll_wait(self.fd, self.events.as_mut_ptr(), self.events.len() as i32, timeout) };
        n.max(0) as usize
    }

    fn data(&self, at: usize) -> usize {
        self.events[at].u64 as usize
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and closed once.
        unsafe { libc::close(self.fd) };
    }
}

/// The sockets of a server before it serves.
pub enum Server {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Server {
    /// Binds to a free port of the loopback interface.
    pub fn bind(transport: Transport) -> std::io::Result<(Server, SocketAddr)> {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        match transport {
            Transport::Tcp => {
                let listener = TcpListener::bind(local)?;
                let address = listener.local_addr()?;
                Ok((Server::Tcp(listener), address))
            }
            Transport::Udp => {
                let socket = UdpSocket::bind(local)?;
                let address = socket.local_addr()?;
                Ok((Server::Udp(socket), address))
            }
        }
    }

    /// Accepts the cell's connections and echoes until told to stop.
    pub fn serve(self, cell: &Cell, how: Loop, stop: &AtomicBool) -> std::io::Result<()> {
        match self {
            Server::Udp(socket) => serve_datagrams(&socket, how, stop),
            Server::Tcp(listener) => {
                let mut peers = Vec::new();
                for _ in 0..cell.connections {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    peers.push(Peer::Tcp(stream));
                }
                serve_streams(&mut peers, how, stop)
            }
        }
    }
}

fn serve_streams(peers: &mut [Peer], how: Loop, stop: &AtomicBool) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut epoll = Epoll::new()?;
    if how != Loop::Spin {
        for (i, peer) in peers.iter().enumerate() {
            epoll.add(peer.fd(), i)?;
        }
    }
    let mut echo = |peer: &mut Peer| match peer.read(&mut buffer) {
        Ok(n) => peer.write(&buffer[..n], stop),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(e) => Err(e),
    };
    while !stop.load(Ordering::Relaxed) {
        if how == Loop::Spin {
            for peer in &mut *peers {
                echo(peer)?;
            }
        } else {
            for at in 0..epoll.wait(how) {
                echo(&mut peers[epoll.data(at)])?;
            }
        }
    }
    Ok(())
}

fn serve_datagrams(socket: &UdpSocket, how: Loop, stop: &AtomicBool) -> std::io::Result<()> {
    socket.set_nonblocking(true)?;
    let mut buffer = vec![0; BUFFER];
    let mut epoll = Epoll::new()?;
    if how != Loop::Spin {
        epoll.add(socket.as_raw_fd(), 0)?;
    }
    while !stop.load(Ordering::Relaxed) {
        if how != Loop::Spin && epoll.wait(how) == 0 {
            continue;
        }
        match socket.recv_from(&mut buffer) {
            Ok((n, from)) => {
                socket.send_to(&buffer[..n], from)?;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// One connection of the client.
struct Asker {
    peer: Peer,
    got: usize,
    asked: Instant,
}

/// Runs the cell's closed loop against a server; returns the round trips in nanoseconds and the answers a second.
pub fn ask(server: SocketAddr, cell: &Cell, how: Loop, stop: &AtomicBool) -> std::io::Result<(Histogram<u64>, f64)> {
    let mut askers = Vec::new();
    for _ in 0..cell.connections {
        let peer = match cell.transport {
            Transport::Tcp => {
                let stream = TcpStream::connect(server)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Peer::Tcp(stream)
            }
            Transport::Udp => {
                let socket = UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
                socket.connect(server)?;
                socket.set_nonblocking(true)?;
                Peer::Udp(socket)
            }
        };
        askers.push(Asker { peer, got: 0, asked: Instant::now() });
    }
    let message = vec![b'x'; cell.size];
    let mut buffer = vec![0; BUFFER];
    let mut epoll = Epoll::new()?;
    for (i, asker) in askers.iter().enumerate() {
        if how != Loop::Spin {
            epoll.add(asker.peer.fd(), i)?;
        }
    }
    let start = Instant::now();
    for asker in &mut askers {
        asker.asked = Instant::now();
        asker.peer.write(&message, stop)?;
    }
    let mut round_trips = Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(std::io::Error::other)?;
    let mut answer = |asker: &mut Asker| -> std::io::Result<Instant> {
        match asker.peer.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => asker.got += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if asker.got < message.len() {
            return Ok(asker.asked);
        }
        let now = Instant::now();
        if now - start >= cell.warm_up {
            round_trips.saturating_record((now - asker.asked).as_nanos() as u64);
        }
        (asker.got, asker.asked) = (0, now);
        asker.peer.write(&message, stop)?;
        Ok(now)
    };
    let end = start + cell.warm_up + cell.time;
    let mut now = start;
    while now < end {
        if how == Loop::Spin {
            for asker in &mut askers {
                now = answer(asker)?.max(now);
            }
        } else {
            let ready = epoll.wait(how);
            for at in 0..ready {
                now = answer(&mut askers[epoll.data(at)])?.max(now);
            }
            if ready == 0 {
                now = Instant::now();
            }
        }
    }
    let rate = round_trips.len() as f64 / (now - start - cell.warm_up).as_secs_f64();
    Ok((round_trips, rate))
}
