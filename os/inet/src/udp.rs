//! UDP sockets (RFC 768, RFC 8085): whole datagrams in and out, nothing in between.

use crate::chain::Chain;
use crate::config::{Finish, Sink};
use crate::error::Error;
use crate::event::{Events, Queued, UdpId};
use crate::ip::{HEADER_MAX, Ip, Out, pair_words};
use crate::random::Key;
use crate::time::Nanos;
use crate::wire::udp::{LEN, Udp as Header};
use crate::wire::{protocol, pseudo};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use towpath_cbuf::{Buf, Sga};

/// What a datagram held for the program is charged beyond its frames.
const OVERHEAD: u32 = 128;

/// A datagram received.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Its payload: slices of the frames it came in.
    pub payload: Sga,
    /// Who sent it.
    pub from: SocketAddr,
    /// The address of ours it was sent to.
    pub to: IpAddr,
}

struct Socket {
    /// `None` takes datagrams to every address.
    address: Option<IpAddr>,
    port: u16,
    peer: Option<SocketAddr>,
    queue: VecDeque<(Datagram, u32)>,
    charged: u32,
    error: Option<Error>,
    queued: bool,
}

struct Slot {
    generation: u32,
    socket: Option<Socket>,
}

pub(crate) struct Udp {
    slots: Vec<Slot>,
    ports: BTreeMap<u16, Vec<u32>>,
    key: Key,
    limit: u32,
    range: (u16, u16),
    step: u32,
}

impl Udp {
    pub(crate) fn new(seed: [u64; 4], limit: u32, range: (u16, u16)) -> Udp {
        let step = seed[3] as u32;
        Udp { slots: Vec::new(), ports: BTreeMap::new(), key: Key(seed[1], seed[0]), limit, range, step }
    }

    pub(crate) fn bind(&mut self, ip: &Ip, address: Option<IpAddr>, port: u16) -> Result<UdpId, Error> {
        if let Some(address) = address
            && !ip.is_own(address)
            && !address.is_multicast()
        {
            return Err(Error::AddressNotAvailable);
        }
        let port = if port == 0 { self.choose_port(address)? } else { port };
        if self.is_taken(address, port) {
            return Err(Error::AddressInUse);
        }
        let socket =
            Socket { address, port, peer: None, queue: VecDeque::new(), charged: 0, error: None, queued: false };
        let index = match self.slots.iter().position(|s| s.socket.is_none()) {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 0, socket: None });
                self.slots.len() - 1
            }
        };
        self.slots[index].socket = Some(socket);
        self.ports.entry(port).or_default().push(index as u32);
        Ok(UdpId { index: index as u32, generation: self.slots[index].generation })
    }

    fn is_taken(&self, address: Option<IpAddr>, port: u16) -> bool {
        self.ports.get(&port).is_some_and(|all| {
            all.iter().any(|i| {
                self.slots[*i as usize]
                    .socket
                    .as_ref()
                    .is_some_and(|s| s.address == address || s.address.is_none() || address.is_none())
            })
        })
    }

    /// RFC 6056: start at a secret place.
    fn choose_port(&mut self, address: Option<IpAddr>) -> Result<u16, Error> {
        let (low, high) = self.range;
        let n = u32::from(high.max(low) - low) + 1;
        let any = IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED);
        for _ in 0..n {
            self.step = self.step.wrapping_add(1);
            let words = pair_words(address.unwrap_or(any), any, 0);
            let port = low + (self.key.hash(&[words[0], words[1], u64::from(self.step)]) as u32 % n) as u16;
            if !self.ports.contains_key(&port) {
                return Ok(port);
            }
        }
        (low..=high).find(|p| !self.ports.contains_key(p)).ok_or(Error::NoPortLeft)
    }

    pub(crate) fn is_bound(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    fn get(&mut self, id: UdpId) -> Result<&mut Socket, Error> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|s| s.generation == id.generation)
            .and_then(|s| s.socket.as_mut())
            .ok_or(Error::NoSuchSocket)
    }

    pub(crate) fn connect(&mut self, id: UdpId, peer: Option<SocketAddr>) -> Result<(), Error> {
        self.get(id)?.peer = peer;
        Ok(())
    }

    pub(crate) fn local(&mut self, id: UdpId) -> Result<(Option<IpAddr>, u16), Error> {
        self.get(id).map(|s| (s.address, s.port))
    }

    pub(crate) fn close(&mut self, id: UdpId) -> Result<(), Error> {
        let port = self.get(id)?.port;
        let slot = &mut self.slots[id.index as usize];
        slot.socket = None;
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(all) = self.ports.get_mut(&port) {
            all.retain(|i| *i != id.index);
            if all.is_empty() {
                self.ports.remove(&port);
            }
        }
        Ok(())
    }

    pub(crate) fn receive(&mut self, id: UdpId) -> Result<Option<Datagram>, Error> {
        let socket = self.get(id)?;
        if let Some((datagram, charge)) = socket.queue.pop_front() {
            socket.charged -= charge;
            return Ok(Some(datagram));
        }
        match socket.error.take() {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }

    pub(crate) fn take_ready(&mut self, id: UdpId) -> bool {
        match self.get(id) {
            Ok(socket) => std::mem::take(&mut socket.queued),
            Err(_) => false,
        }
    }

    /// Hands a datagram to its socket. Says whether there was one; a datagram without room is dropped, counted.
    pub(crate) fn deliver(
        &mut self,
        ip: &mut Ip,
        events: &mut Events,
        (from, to): (SocketAddr, SocketAddr),
        payload: Chain,
    ) -> bool {
        let Some(all) = self.ports.get(&to.port()) else { return false };
        let fits = |i: &&u32, exact: bool| {
            self.slots[**i as usize].socket.as_ref().is_some_and(|s| {
                (if exact { s.address == Some(to.ip()) } else { s.address.is_none() })
                    && s.peer.is_none_or(|peer| peer == from)
            })
        };
        let found = all.iter().find(|i| fits(i, true)).or_else(|| all.iter().find(|i| fits(i, false)));
        let Some(&index) = found else { return false };
        let slot = &mut self.slots[index as usize];
        let Some(socket) = &mut slot.socket else { return false };
        let mut charge = OVERHEAD;
        let mut sga = Sga::new();
        let waits = !socket.queue.is_empty();
        for buf in payload {
            // As in TCP: what would keep a frame for little, or while frames are short, is copied out of it.
            let copy = if ip.pressed || (waits && crate::tcp::is_wasteful(&buf)) {
                ip.memory.copy_from(&buf).ok()
            } else {
                None
            };
            ip.stats.copied_out += copy.as_ref().map_or(0, |c| c.len() as u64);
            let buf = copy.unwrap_or(buf);
            charge += buf.footprint().max(buf.len()) as u32;
            sga.push_back(buf);
        }
        if socket.charged + charge > self.limit {
            ip.stats.dropped += 1;
            return true;
        }
        socket.charged += charge;
        socket.queue.push_back((Datagram { payload: sga, from, to: to.ip() }, charge));
        if !socket.queued {
            socket.queued = true;
            events.push_back(Queued::Udp(UdpId { index, generation: slot.generation }));
        }
        true
    }

    /// An ICMP error about a datagram of ours: only who named one peer is told (RFC 1122 section 4.1.3.3).
    pub(crate) fn on_icmp(&mut self, events: &mut Events, local: (IpAddr, u16), remote: SocketAddr, error: Error) {
        let Some(all) = self.ports.get(&local.1) else { return };
        for &index in all {
            let slot = &mut self.slots[index as usize];
            let Some(socket) = &mut slot.socket else { continue };
            if socket.peer == Some(remote) && socket.address.is_none_or(|a| a == local.0) {
                socket.error = Some(error);
                if !socket.queued {
                    socket.queued = true;
                    events.push_back(Queued::Udp(UdpId { index, generation: slot.generation }));
                }
            }
        }
    }

    pub(crate) fn send<S: Sink>(
        &mut self,
        ip: &mut Ip,
        (now, sink): (Nanos, &mut S),
        id: UdpId,
        payload: &Sga,
        to: Option<SocketAddr>,
    ) -> Result<(), Error> {
        let socket = self.get(id)?;
        let to = to.or(socket.peer).ok_or(Error::NotConnected)?;
        let len = payload.len();
        let limit = 65_535 - LEN - if to.is_ipv4() { 20 } else { 0 };
        if len > limit {
            return Err(Error::MessageTooLong { limit });
        }
        if ip.hop(to.ip()).is_none() || to.port() == 0 {
            return Err(Error::NoRoute);
        }
        let src = match socket.address.filter(|a| !a.is_multicast()) {
            Some(address) => address,
            None => ip.source_for(to.ip()).ok_or(Error::NoRoute)?,
        };
        if src.is_ipv4() != to.is_ipv4() {
            return Err(Error::NoRoute);
        }
        if !sink.has_room() {
            return Err(Error::QueueFull);
        }
        let header = Header { src_port: socket.port, dst_port: to.port(), len: LEN + len, checksum: 0 };
        let out = Out { src, dst: to.ip(), protocol: protocol::UDP, tos: 0, ttl: 64, df: false };
        emit(ip, (now, sink), &out, header, payload.segments(), len);
        Ok(())
    }
}

fn emit<S: Sink>(
    ip: &mut Ip,
    (now, sink): (Nanos, &mut S),
    out: &Out,
    mut header: Header,
    payload: &[Buf],
    len: usize,
) {
    let room = ip.headroom(out.dst);
    let mut bytes = [0u8; HEADER_MAX];
    let ip_len = if out.dst.is_ipv4() { 20 } else { 40 };
    let whole = ip_len + LEN + len <= usize::from(ip.path_mtu(out.dst, now));
    let known = ip.resolve(out.dst, now);
    let mut finish = Finish::default();
    let mut sum = pseudo(out.src, out.dst, protocol::UDP, (LEN + len) as u32);
    if ip.offload.checksum && whole && known.is_some() {
        finish.checksum = Some((0, 6));
        header.checksum = sum.partial();
    } else {
        header.write(&mut bytes[room..]);
        sum.add(&bytes[room..room + LEN]);
        for piece in payload {
            sum.add(piece);
        }
        // RFC 768: a sum of zero is sent as all ones; zero means none.
        header.checksum = match sum.finish() {
            0 => 0xffff,
            sum => sum,
        };
    }
    header.write(&mut bytes[room..]);
    if whole {
        ip.send((now, sink), out, &mut bytes[..room + LEN], (payload, len), finish, known);
    } else {
        ip.send_fragments((now, sink), out, &bytes[room..room + LEN], payload);
    }
}
