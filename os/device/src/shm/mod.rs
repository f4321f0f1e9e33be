//! `shm`: a link between two processes on one machine, made of memory they share and of nothing else; the kernel is
//! called only to meet, to wake a sleeper, and to share a further arena.
//!
//! Each side sends from its own frame arenas, which the other maps read-only, and returns what it has used through a
//! completion ring. Frames of up to 112 bytes travel inside the ring slot; of longer ones a short first segment (the
//! headers) travels so, and the rest is referenced where it lies. A receiver that holds more than its credit copies
//! further frames out, so that it can never pin all of the sender's memory. A peer may die, or lie about every word:
//! this side then reports [`Error::PeerGone`] or [`Error::Protocol`] and is unharmed.

mod descriptor;
mod handshake;
mod receive;
mod region;
mod transmit;

#[cfg(test)]
mod tests;

use crate::{Error, LinkInfo, Offloads, PacketDevice, RxPacket, Stats, TxPacket};
use descriptor::{FRAME_MAX, PIECES_MAX};
use handshake::{Channel, Hello, News};
use receive::{Arenas, Returns};
use region::{Own, Peer, Shape};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{Ordering, compiler_fence, fence};
use std::time::Duration;
use towpath_cbuf::Memory;
use transmit::InFlight;

/// How a side of a link is set up; each side may choose its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Frames that may be under way in our direction: a power of two, 16 to 16384.
    pub slots: u32,
    /// Frames of ours that the peer may hold: a power of two, 16 to 32768.
    pub tokens: u32,
    /// Frames of the peer we hold before we copy further ones out.
    pub credit: u32,
    /// Largest IP packet; the link has the smaller one of both sides, at most 65535.
    pub mtu: u32,
    /// Our address; made up from which side came first if `None`.
    pub mac: Option<[u8; 6]>,
    /// How long to wait for the other side to come.
    pub timeout: Duration,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig { slots: 256, tokens: 1024, credit: 512, mtu: 65_535, mac: None, timeout: Duration::from_secs(30) }
    }
}

/// Empty polls between flushes of returned frames.
const FLUSH_POLLS: u32 = 64;
/// Empty polls between looks at the socket, which tells of the peer's death.
const NEWS_POLLS: u32 = 4096;
/// Returned frames collected before they are told: one cache line of them.
const RETURN_BATCH: usize = 16;

/// One end of the link.
pub struct ShmDevice {
    link: LinkInfo,
    memory: Memory,
    channel: Channel,
    own: Own,
    peer: Peer,
    slots: u32,
    /// The peer's count of consumed slots when last read.
    consumed_seen: u32,
    /// Our count of the peer's slots when last told.
    consumed_told: u32,
    consumed_batch: u32,
    peer_needs_fence: bool,
    /// The peer's sleep that we have already ended.
    woken: u32,
    blocked: bool,
    in_flight: InFlight,
    exported: Vec<towpath_cbuf::ArenaId>,
    arenas: Arenas,
    returns: Rc<Returns>,
    idle_polls: u32,
    /// Why the link ended, if it did.
    gone: Option<Gone>,
    stats: Stats,
}

/// Why a link ended.
#[derive(Clone, Debug)]
enum Gone {
    Died,
    Lied(String),
}

impl Gone {
    fn error(&self) -> Error {
        match self {
            Gone::Died => Error::PeerGone,
            Gone::Lied(what) => Error::Protocol(what.clone()),
        }
    }
}

impl std::fmt::Debug for ShmDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmDevice").field("link", &self.link).field("gone", &self.gone).finish_non_exhaustive()
    }
}

impl ShmDevice {
    /// Meets the other process at the socket `path` (whoever comes first waits there) and joins it.
    ///
    /// # Errors
    /// [`Error::Config`] if nobody comes in time, [`Error::Protocol`] if what comes is not a Towpath `shm` device.
    pub fn open(path: &Path, memory: &Memory, config: ShmConfig) -> Result<ShmDevice, Error> {
        let (socket, first) = handshake::meet(path, config.timeout)?;
        ShmDevice::join(socket, first, memory, config, &format!("shm:{}", path.display()))
    }

    /// Joins over an already connected `SOCK_SEQPACKET` socket; `first` tells the two sides apart.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn over(socket: OwnedFd, first: bool, memory: &Memory, config: ShmConfig) -> Result<ShmDevice, Error> {
        ShmDevice::join(socket, first, memory, config, "shm")
    }

    /// Two connected sockets for [`over`](Self::over).
    ///
    /// # Errors
    /// [`Error::System`] when the process is out of descriptors.
    pub fn sockets() -> Result<(OwnedFd, OwnedFd), Error> {
        handshake::pair()
    }

    /// Both ends of a link within one thread, for tests and for programs that talk to themselves.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn pair(memories: [&Memory; 2], config: ShmConfig) -> Result<(ShmDevice, ShmDevice), Error> {
        let (one, two) = handshake::pair()?;
        let one = Joining::begin(one, true, memories[0], config, "shm")?;
        let two = Joining::begin(two, false, memories[1], config, "shm")?;
        Ok((one.finish()?, two.finish()?))
    }

    fn join(socket: OwnedFd, first: bool, memory: &Memory, config: ShmConfig, name: &str) -> Result<ShmDevice, Error> {
        Joining::begin(socket, first, memory, config, name)?.finish()
    }

    /// Ends the link for a reason; what we lent to the peer is ours again.
    fn end(&mut self, gone: Gone) {
        if self.gone.is_none() {
            // The peer can still read the memory it has mapped, but nobody uses what it reads.
            self.in_flight.release_all();
            self.gone = Some(gone);
        }
    }

    fn lied(&mut self, what: impl Into<String>) {
        self.stats.rx_invalid += 1;
        self.end(Gone::Lied(what.into()));
    }

    /// Reads what the socket has.
    fn read_news(&mut self) {
        while self.gone.is_none() {
            match self.channel.next(false) {
                Ok(News::Nothing) => break,
                Ok(News::Wake) => {}
                Ok(News::Arena(fd)) => {
                    if let Err(what) = self.arenas.add(fd, &self.returns) {
                        self.lied(what);
                    }
                }
                Ok(News::Gone) => self.end(Gone::Died),
                Ok(News::Hello(..)) => self.lied("a second hello"),
                Err(Error::Protocol(what)) => self.lied(what),
                Err(_) => self.end(Gone::Died),
            }
        }
    }

    /// Wakes the peer if it sleeps; `frames` says that frames were sent, else only completions were.
    fn wake_peer(&mut self, frames: bool) {
        if self.peer_needs_fence {
            fence(Ordering::SeqCst);
        } else {
            // The sleeper's barrier makes this side's loads and stores ordered; only the compiler must be kept from
            // swapping them.
            compiler_fence(Ordering::SeqCst);
        }
        let word = self.peer.sleeping();
        let wants = word & 1 != 0 && (frames || word & 2 != 0);
        if wants && word != self.woken {
            self.woken = word;
            self.channel.send_wake();
            self.stats.kicks += 1;
        }
    }

    /// Tells the peer which of its frames are no longer used, if there are at least `batch` of them.
    fn flush_returns(&mut self, batch: usize) {
        let mut pending = self.returns.pending();
        if pending.is_empty() || pending.len() < batch {
            return;
        }
        for token in pending.drain(..) {
            self.own.complete(token);
        }
        drop(pending);
        self.wake_peer(false);
    }

    fn publish_consumed(&mut self) {
        self.consumed_told = self.peer.received();
        self.own.publish_consumed(self.consumed_told);
    }

    fn idle(&mut self) {
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if self.idle_polls.is_multiple_of(FLUSH_POLLS) {
            self.flush_returns(1);
            self.reclaim();
        }
        if self.idle_polls.is_multiple_of(NEWS_POLLS) {
            self.read_news();
        }
    }
}

/// A side that has said hello and waits for the other's.
struct Joining {
    channel: Channel,
    own: Own,
    hello: Hello,
    memory: Memory,
    config: ShmConfig,
    name: String,
}

impl Joining {
    fn begin(socket: OwnedFd, first: bool, memory: &Memory, config: ShmConfig, name: &str) -> Result<Joining, Error> {
        let shape = Shape { slots: config.slots, tokens: config.tokens };
        if !shape.sound() || !(68..=65_535).contains(&config.mtu) {
            return Err(Error::Config(format!("senseless settings for {name}: {config:?}")));
        }
        let channel = Channel::new(socket);
        let own = Own::create(shape)?;
        let mac = config.mac.unwrap_or([0x02, 0x54, 0x50, 0, 0, if first { 1 } else { 2 }]);
        let hello = Hello { shape, mac, mtu: config.mtu, needs_fence: !crate::sys::register_for_barriers() };
        channel.send_hello(&hello, own.file())?;
        Ok(Joining { channel, own, hello, memory: memory.clone(), config, name: name.to_string() })
    }

    fn finish(self) -> Result<ShmDevice, Error> {
        let timeout = self.config.timeout;
        if !crate::sys::poll_readable(self.channel.fd(), timeout.as_millis().min(i32::MAX as u128) as i32) {
            return Err(Error::Config(format!("the peer of {} did not answer within {timeout:?}", self.name)));
        }
        let (theirs, region) = match self.channel.next(false)? {
            News::Hello(hello, region) => (hello, region),
            News::Gone => return Err(Error::PeerGone),
            _ => return Err(Error::Protocol("the peer did not say hello first".into())),
        };
        let peer = Peer::map(region.as_raw_fd(), theirs.shape)?;
        let mtu = self.config.mtu.min(theirs.mtu);
        if mtu < 68 {
            return Err(Error::Protocol(format!("the peer offered an MTU of {mtu}")));
        }
        let shape = self.hello.shape;
        let offloads = Offloads { tx_checksum: true, tso4: true, tso6: true, rx_checksum: true, lossless_memory: true };
        Ok(ShmDevice {
            link: LinkInfo { name: self.name, mac: self.hello.mac, mtu, offloads, segments_max: PIECES_MAX },
            memory: self.memory,
            channel: self.channel,
            own: self.own,
            peer,
            slots: shape.slots,
            consumed_seen: 0,
            consumed_told: 0,
            consumed_batch: theirs.shape.slots / 4,
            peer_needs_fence: theirs.needs_fence,
            woken: 0,
            blocked: false,
            in_flight: InFlight::new(shape.tokens),
            exported: Vec::new(),
            arenas: Arenas::new(),
            returns: Returns::new(theirs.shape.tokens, self.config.credit.min(theirs.shape.tokens)),
            idle_polls: 0,
            gone: None,
            stats: Stats::default(),
        })
    }
}

impl PacketDevice for ShmDevice {
    fn link(&self) -> &LinkInfo {
        &self.link
    }

    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error> {
        let mut count = 0;
        while count < max {
            let Some(words) = self.peer.pop(descriptor::Descriptor::used_words) else { break };
            // What a peer sent before it died is still delivered; after a lie nothing is.
            if let Some(Gone::Lied(_)) = self.gone {
                break;
            }
            match self.deliver(&words) {
                Ok(Some(packet)) => {
                    self.stats.rx_packets += 1;
                    self.stats.rx_bytes += packet.frame.len() as u64;
                    out.push(packet);
                    count += 1;
                }
                Ok(None) => self.stats.rx_dropped += 1,
                Err(what) => {
                    self.lied(what);
                    break;
                }
            }
        }
        if count == 0 {
            if let Some(gone) = &self.gone {
                return Err(gone.error());
            }
            self.idle();
            return Ok(0);
        }
        if self.peer.received().wrapping_sub(self.consumed_told) >= self.consumed_batch {
            self.publish_consumed();
        }
        self.flush_returns(RETURN_BATCH);
        Ok(count)
    }

    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error> {
        if let Some(gone) = &self.gone {
            self.stats.tx_dropped += packets.len() as u64;
            packets.clear();
            return Err(gone.error());
        }
        let mut taken = 0;
        while let Some(packet) = packets.front() {
            let len = packet.frame.len();
            let limit = if packet.offload.gso.is_some() { FRAME_MAX } else { self.link.mtu as usize + 18 };
            if len == 0 || len > limit {
                packets.pop_front();
                self.stats.tx_dropped += 1;
                continue;
            }
            if !self.room() {
                self.stats.tx_full += 1;
                break;
            }
            let Some(packet) = packets.pop_front() else { break };
            match self.send(packet) {
                Ok(()) => {
                    self.stats.tx_packets += 1;
                    self.stats.tx_bytes += len as u64;
                    taken += 1;
                }
                Err((packet, Error::Memory(_))) => {
                    packets.push_front(packet);
                    self.stats.tx_full += 1;
                    break;
                }
                Err((_, error)) => {
                    self.stats.tx_dropped += 1;
                    self.end(Gone::Died);
                    return Err(error);
                }
            }
        }
        self.blocked = !packets.is_empty();
        if taken > 0 {
            self.wake_peer(true);
        }
        Ok(taken)
    }

    fn reclaim(&mut self) {
        while let Some(token) = self.peer.pop_completion() {
            if !self.in_flight.release(token) {
                self.lied(format!("it returned frame {token}, which it does not have"));
                return;
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn wait_fd(&self) -> RawFd {
        self.channel.fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.flush_returns(1);
        self.publish_consumed();
        self.reclaim();
        let wants_completions = self.blocked || self.in_flight.mostly_used();
        self.own.sleep(wants_completions);
        // With the barrier the peer needs no fence of its own: either it sees us asleep, or we see what it sent.
        if !crate::sys::barrier_everywhere() {
            fence(Ordering::SeqCst);
        }
        self.read_news();
        let work = self.peer.has_slot() || wants_completions && self.peer.has_completion();
        !work && self.gone.is_none()
    }

    fn wake(&mut self) {
        self.own.wake();
        self.read_news();
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}

impl Drop for ShmDevice {
    fn drop(&mut self) {
        self.reclaim();
        if self.gone.is_none() {
            // The peer may still read what it has not returned: that memory must never be issued again.
            self.in_flight.abandon();
        }
    }
}
