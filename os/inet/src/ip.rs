//! The way out: addresses, routes, neighbours, path MTUs, and putting link and IP headers before what the transports
//! hand down. What is sent to one of this host's own addresses turns round here.

use crate::config::{Cidr, Config, Finish, Offload, Route, Sink};
use crate::demux::wide;
use crate::neighbour::{Neighbours, Waiting};
use crate::random::Rng;
use crate::reassembly::Reassembly;
use crate::stats::Stats;
use crate::time::Nanos;
use crate::wire::arp::Arp;
use crate::wire::ethernet::{self, Ethernet, Mac, ethertype};
use crate::wire::ipv4::{self, Ipv4};
use crate::wire::ipv6::{self, Fragment, Ipv6};
use crate::wire::{icmp, protocol};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_cbuf::{Buf, Memory};

/// Bytes of the longest header: tagged Ethernet, IPv6 with a fragment header, TCP with every option; rounded up.
pub(crate) const HEADER_MAX: usize = 128;
/// Path MTUs remembered; hosts behind narrow links are few.
const PATHS_MAX: usize = 1024;
/// RFC 1191 section 6.3: forget a path's MTU after ten minutes, it may have grown.
const PATH_LIFETIME: Nanos = Nanos::secs(600);
/// Errors and resets sent a second at most (RFC 4443 section 2.4 f), and at once.
const ERRORS_PER_SECOND: u64 = 1000;
const ERRORS_BURST: u64 = 100;
/// Packets on their way round to this host: beyond that they are lost like on any link.
const LOOPED_MAX: usize = 4096;

/// Where a packet leaves to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hop {
    Own,
    Direct(Mac),
    Neighbour(IpAddr),
}

/// What an IP header will say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) df: bool,
}

pub(crate) struct Ip {
    pub(crate) mac: Mac,
    pub(crate) vlan: Option<u16>,
    pub(crate) mtu: u16,
    pub(crate) addresses: Vec<Cidr>,
    pub(crate) routes: Vec<Route>,
    pub(crate) offload: Offload,
    pub(crate) neighbours: Neighbours,
    pub(crate) reassembly: Reassembly,
    paths: BTreeMap<IpAddr, (u16, Nanos)>,
    pub(crate) rng: Rng,
    ident: u16,
    pub(crate) looped: VecDeque<Buf>,
    pub(crate) memory: Memory,
    pub(crate) stats: Stats,
    /// Tokens for errors, in nanoseconds' worth, and when they were counted.
    tokens: (u64, Nanos),
    /// The device runs out of frames: copy what would hold one.
    pub(crate) pressed: bool,
    link_len: usize,
}

impl Ip {
    pub(crate) fn new(config: &Config, memory: Memory, now: Nanos) -> Ip {
        let mut addresses = config.addresses.clone();
        if config.router_adverts || addresses.iter().any(|a| a.address.is_ipv6()) {
            addresses.push(Cidr::new(interface_address(0xfe80 << 112, config.mac), 64));
        }
        let mut rng = Rng::new(config.seed[2] ^ config.seed[3].rotate_left(32));
        Ip {
            mac: config.mac,
            vlan: config.vlan,
            mtu: config.mtu,
            addresses,
            routes: config.routes.clone(),
            offload: config.offload,
            neighbours: Neighbours::default(),
            reassembly: Reassembly::default(),
            paths: BTreeMap::new(),
            ident: rng.next_u64() as u16,
            rng,
            looped: VecDeque::new(),
            memory,
            stats: Stats::default(),
            tokens: (ERRORS_BURST * 1_000_000_000, now),
            pressed: false,
            link_len: ethernet::LEN + if config.vlan.is_some() { ethernet::TAG_LEN } else { 0 },
        }
    }

    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.address == ip) || ip.is_loopback()
    }

    /// Whether a packet to `ip` is for this host: its own addresses, broadcasts, and groups every host is in.
    pub(crate) fn is_for_us(&self, ip: IpAddr) -> bool {
        self.is_own(ip)
            || match ip {
                IpAddr::V4(v4) => self.is_broadcast(v4) || v4 == Ipv4Addr::new(224, 0, 0, 1),
                IpAddr::V6(v6) => {
                    v6 == ALL_NODES
                        || self.addresses.iter().any(|a| match a.address {
                            IpAddr::V6(own) => solicited_node(own) == v6,
                            IpAddr::V4(_) => false,
                        })
                }
            }
    }

    pub(crate) fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip.is_broadcast()
            || self.addresses.iter().any(|a| match a.address {
                IpAddr::V4(own) if a.prefix < 31 => {
                    let host = u32::MAX.checked_shr(u32::from(a.prefix)).unwrap_or(0);
                    u32::from(ip) == u32::from(own) | host
                }
                _ => false,
            })
    }

    /// The address to speak to `dst` from: one in its network, else one of its family and scope.
    pub(crate) fn source_for(&self, dst: IpAddr) -> Option<IpAddr> {
        if self.is_own(dst) {
            return Some(dst);
        }
        let family = || self.addresses.iter().filter(|a| a.address.is_ipv4() == dst.is_ipv4());
        let hop = match self.route(dst) {
            Some(gateway) => gateway,
            None => dst,
        };
        family()
            .find(|a| a.contains(hop) && (is_link_local(dst) || !is_link_local(a.address)))
            .or_else(|| family().find(|a| is_link_local(a.address) == is_link_local(dst)))
            .or_else(|| family().next())
            .map(|a| a.address)
    }

    fn route(&self, dst: IpAddr) -> Option<IpAddr> {
        if self.addresses.iter().any(|a| a.contains(dst)) {
            return None;
        }
        self.routes.iter().filter(|r| r.network.contains(dst)).max_by_key(|r| r.network.prefix).map(|r| r.gateway)
    }

    pub(crate) fn hop(&self, dst: IpAddr) -> Option<Hop> {
        if self.is_own(dst) {
            return Some(Hop::Own);
        }
        if dst.is_multicast() {
            return Some(Hop::Direct(Mac::multicast(dst)));
        }
        if let IpAddr::V4(v4) = dst
            && self.is_broadcast(v4)
        {
            return Some(Hop::Direct(Mac::BROADCAST));
        }
        if let Some(gateway) = self.route(dst) {
            return Some(Hop::Neighbour(gateway));
        }
        self.addresses.iter().any(|a| a.contains(dst)).then_some(Hop::Neighbour(dst))
    }

    /// The hardware address to cache for a connection's peer, if it is known now.
    pub(crate) fn resolve(&mut self, dst: IpAddr, now: Nanos) -> Option<Mac> {
        match self.hop(dst)? {
            Hop::Own => None,
            Hop::Direct(mac) => Some(mac),
            Hop::Neighbour(ip) => self.neighbours.lookup(ip, now),
        }
    }

    /// Bytes of link and IP header before a transport header.
    #[inline]
    pub(crate) fn headroom(&self, dst: IpAddr) -> usize {
        self.link_len + if dst.is_ipv4() { ipv4::LEN } else { ipv6::LEN }
    }

    /// Sends a packet whose transport header lies in `header` from [`Ip::headroom`] to its end. `known` is the
    /// neighbour's address if the caller has it.
    #[inline]
    pub(crate) fn send<S: Sink>(
        &mut self,
        (now, sink): (Nanos, &mut S),
        out: &Out,
        header: &mut [u8],
        (payload, payload_len): (&[Buf], usize),
        mut finish: Finish,
        known: Option<Mac>,
    ) {
        let link = self.link_len;
        let room = self.headroom(out.dst);
        let body = header.len() - room + payload_len;
        let ethertype = match (out.src, out.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                self.ident = self.ident.wrapping_add(1);
                let ip = Ipv4 {
                    src,
                    dst,
                    protocol: out.protocol,
                    tos: out.tos,
                    ttl: out.ttl,
                    id: self.ident,
                    df: out.df,
                    more: false,
                    offset: 0,
                };
                ip.write(body, &mut header[link..]);
                ethertype::IPV4
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6 { src, dst, protocol: out.protocol, tos: out.tos, hops: out.ttl, fragment: None };
                ip.write(body, &mut header[link..]);
                ethertype::IPV6
            }
            _ => return,
        };
        if let Some((start, field)) = &mut finish.checksum {
            *start += room as u16;
            *field += room as u16;
        }
        match known {
            Some(mac) => {
                Ethernet { dst: mac, src: self.mac, vlan: self.vlan, ethertype }.write(header);
                self.stats.frames_out += 1;
                sink.transmit(header, payload, finish);
            }
            None => self.forward((now, sink), out.dst, ethertype, header, payload, finish),
        }
    }

    /// Finds the next hop of a packet complete but for its link header, and sends it or lets it wait.
    #[cold]
    pub(crate) fn forward<S: Sink>(
        &mut self,
        (now, sink): (Nanos, &mut S),
        dst: IpAddr,
        ethertype: u16,
        header: &mut [u8],
        payload: &[Buf],
        finish: Finish,
    ) {
        let link = |dst| Ethernet { dst, src: self.mac, vlan: self.vlan, ethertype };
        match self.hop(dst) {
            None => self.stats.no_route += 1,
            Some(Hop::Own) => {
                link(self.mac).write(header);
                self.turn_round(header, payload);
            }
            Some(Hop::Direct(mac)) => {
                link(mac).write(header);
                self.stats.frames_out += 1;
                sink.transmit(header, payload, finish);
            }
            Some(Hop::Neighbour(ip)) => match self.neighbours.lookup(ip, now) {
                Some(mac) => {
                    link(mac).write(header);
                    self.stats.frames_out += 1;
                    sink.transmit(header, payload, finish);
                }
                None => {
                    link(Mac::default()).write(header);
                    let packet = Waiting { header: header.to_vec(), payload: payload.to_vec(), finish };
                    if self.neighbours.wait(ip, packet, now) {
                        self.solicit((now, sink), ip, None);
                    }
                }
            },
        }
    }

    /// Sends packets that waited for `mac`.
    pub(crate) fn flush<S: Sink>(&mut self, sink: &mut S, mac: Mac, waiting: Vec<Waiting>) {
        for mut packet in waiting {
            packet.header[..6].copy_from_slice(&mac.0);
            self.stats.frames_out += 1;
            sink.transmit(&packet.header, &packet.payload, packet.finish);
        }
    }

    fn turn_round(&mut self, header: &[u8], payload: &[Buf]) {
        let len = header.len() + payload.iter().map(|b| b.len()).sum::<usize>();
        if self.looped.len() == LOOPED_MAX {
            self.stats.dropped += 1;
            return;
        }
        let Ok(mut frame) = self.memory.alloc(len) else {
            self.stats.dropped += 1;
            return;
        };
        frame[..header.len()].copy_from_slice(header);
        let mut at = header.len();
        for piece in payload {
            frame[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        self.looped.push_back(frame.freeze());
    }

    /// Asks the link who has `ip`.
    pub(crate) fn solicit<S: Sink>(&mut self, (now, sink): (Nanos, &mut S), ip: IpAddr, known: Option<Mac>) {
        let Some(own) = self.source_for(ip) else { return };
        match (own, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let arp = Arp {
                    request: true,
                    sender_mac: self.mac,
                    sender_ip: own,
                    target_mac: known.unwrap_or_default(),
                    target_ip: ip,
                };
                self.send_arp(sink, known.unwrap_or(Mac::BROADCAST), &arp);
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let dst = if known.is_some() { ip } else { solicited_node(ip) };
                let body = icmp::neighbour_body(ip, 1, self.mac);
                let bytes = icmp::message(135, 0, 0, &body, Some((own, dst)));
                let out = Out { src: own.into(), dst: dst.into(), ttl: 255, ..ICMPV6_OUT };
                let mac = known.unwrap_or(Mac::multicast(dst.into()));
                self.send_bytes((now, sink), &out, &bytes, Some(mac));
            }
            _ => {}
        }
    }

    pub(crate) fn send_arp<S: Sink>(&mut self, sink: &mut S, dst: Mac, arp: &Arp) {
        let mut frame = [0; 64];
        let n = Ethernet { dst, src: self.mac, vlan: self.vlan, ethertype: ethertype::ARP }.write(&mut frame);
        frame[n..n + crate::wire::arp::LEN].copy_from_slice(&arp.bytes());
        self.stats.frames_out += 1;
        sink.transmit(&frame[..n + crate::wire::arp::LEN], &[], Finish::default());
    }

    /// Sends transport bytes that were built whole, such as ICMP, in fragments if they must be.
    pub(crate) fn send_bytes<S: Sink>(
        &mut self,
        (now, sink): (Nanos, &mut S),
        out: &Out,
        bytes: &[u8],
        known: Option<Mac>,
    ) {
        let room = self.headroom(out.dst);
        if room - self.link_len + bytes.len() > usize::from(self.path_mtu(out.dst, now)) {
            let Ok(body) = self.memory.copy_from(bytes) else { return };
            return self.send_fragments((now, sink), out, &[], &[body]);
        }
        let mut header = vec![0; room + bytes.len()];
        header[room..].copy_from_slice(bytes);
        self.send((now, sink), out, &mut header, (&[], 0), Finish::default(), known);
    }

    /// Sends a packet too big for its path in fragments: `start` is the transport header, `payload` follows.
    pub(crate) fn send_fragments<S: Sink>(
        &mut self,
        (now, sink): (Nanos, &mut S),
        out: &Out,
        start: &[u8],
        payload: &[Buf],
    ) {
        let Ok(head) = self.memory.copy_from(start) else { return };
        let mut rest: Vec<Buf> =
            std::iter::once(head).chain(payload.iter().cloned()).filter(|b| !b.is_empty()).collect();
        rest.reverse();
        let total: usize = rest.iter().map(|b| b.len()).sum();
        let mtu = usize::from(self.path_mtu(out.dst, now));
        let v4 = out.dst.is_ipv4();
        let ip_len = if v4 { ipv4::LEN } else { ipv6::LEN + ipv6::FRAGMENT_LEN };
        let each = (mtu.max(ip_len + 8) - ip_len) & !7;
        let id = self.rng.next_u64();
        let mut offset = 0;
        while offset < total {
            let n = each.min(total - offset);
            let more = offset + n < total;
            let mut part = Vec::new();
            let mut need = n;
            while need > 0 {
                let Some(mut piece) = rest.pop() else { return };
                if piece.len() > need {
                    let front = piece.split_to(need);
                    rest.push(piece);
                    piece = front;
                }
                need -= piece.len();
                part.push(piece);
            }
            let mut header = vec![0; self.link_len + ip_len];
            let ethertype = match (out.src, out.dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    let (protocol, tos, ttl) = (out.protocol, out.tos, out.ttl);
                    let ip =
                        Ipv4 { src, dst, protocol, tos, ttl, id: id as u16, df: false, more, offset: offset as u16 };
                    ip.write(n, &mut header[self.link_len..]);
                    ethertype::IPV4
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    let fragment = Some(Fragment { id: id as u32, offset: offset as u16, more });
                    let ip = Ipv6 { src, dst, protocol: out.protocol, tos: out.tos, hops: out.ttl, fragment };
                    ip.write(n, &mut header[self.link_len..]);
                    ethertype::IPV6
                }
                _ => return,
            };
            self.forward((now, sink), out.dst, ethertype, &mut header, &part, Finish::default());
            offset += n;
        }
    }

    /// Bytes of the largest packet the path to `dst` takes, as far as is known.
    pub(crate) fn path_mtu(&mut self, dst: IpAddr, now: Nanos) -> u16 {
        match self.paths.get(&dst) {
            None => self.mtu,
            Some(&(mtu, until)) if until > now => mtu.min(self.mtu),
            Some(_) => {
                self.paths.remove(&dst);
                self.mtu
            }
        }
    }

    /// Remembers that the path to `dst` takes no more than `mtu` bytes.
    pub(crate) fn narrow_path(&mut self, dst: IpAddr, mtu: u16, now: Nanos) {
        if self.paths.len() >= PATHS_MAX && !self.paths.contains_key(&dst) {
            self.paths.pop_first();
        }
        self.paths.insert(dst, (mtu, now + PATH_LIFETIME));
    }

    /// Whether another error or reset may be sent now.
    pub(crate) fn may_send_error(&mut self, now: Nanos) -> bool {
        let (tokens, then) = self.tokens;
        let tokens = (tokens + now.since(then).0.saturating_mul(ERRORS_PER_SECOND)).min(ERRORS_BURST * 1_000_000_000);
        let ok = tokens >= 1_000_000_000;
        self.tokens = (if ok { tokens - 1_000_000_000 } else { tokens }, now);
        ok
    }

    /// Tells the sender of `packet` (an IP packet from its first byte) why it was not delivered.
    pub(crate) fn send_error<S: Sink>(&mut self, (now, sink): (Nanos, &mut S), packet: &[u8], port: bool) {
        let quoted = &packet[..packet.len().min(if packet[0] >> 4 == 4 { 548 } else { 1232 })];
        let Some((src, dst)) = addresses(packet) else { return };
        // RFC 1122 section 3.2.2, RFC 4443 section 2.4 e: never about groups, never to nobody.
        if !self.is_own(dst) || src.is_multicast() || src.is_unspecified() || !self.may_send_error(now) {
            return;
        }
        match (src, dst) {
            (IpAddr::V4(src4), IpAddr::V4(_)) => {
                if self.is_broadcast(src4) {
                    return;
                }
                let bytes = icmp::message(3, if port { 3 } else { 2 }, 0, quoted, None);
                self.send_bytes((now, sink), &Out { src: dst, dst: src, ..ICMP_OUT }, &bytes, None);
            }
            (IpAddr::V6(src6), IpAddr::V6(dst6)) => {
                let (kind, code) = if port { (1, 4) } else { (4, 1) };
                let bytes = icmp::message(kind, code, 0, quoted, Some((dst6, src6)));
                self.send_bytes((now, sink), &Out { src: dst, dst: src, ..ICMPV6_OUT }, &bytes, None);
            }
            _ => return,
        }
        self.stats.errors_out += 1;
    }

    /// A router advertised itself or a prefix (RFC 4861 section 6.3.4, RFC 4862 section 5.5.3).
    pub(crate) fn learn_router(&mut self, router: IpAddr, lifetime: u16, prefix: Option<Ipv6Addr>) {
        let default = Cidr::new(Ipv6Addr::UNSPECIFIED, 0);
        self.routes.retain(|r| r.gateway != router);
        if lifetime > 0 && self.routes.len() < 16 {
            self.routes.push(Route { network: default, gateway: router });
        }
        let Some(prefix) = prefix.filter(|p| !is_link_local((*p).into()) && !p.is_multicast()) else { return };
        let high = u128::from(prefix) & (u128::MAX << 64);
        let own = interface_address(high, self.mac);
        if !self.is_own(own.into()) && self.addresses.len() < 16 {
            self.addresses.push(Cidr::new(own, 64));
        }
    }
}

pub(crate) const ICMP_OUT: Out = Out {
    src: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    dst: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    protocol: protocol::ICMP,
    tos: 0,
    ttl: 64,
    df: false,
};
pub(crate) const ICMPV6_OUT: Out = Out { protocol: protocol::ICMPV6, ..ICMP_OUT };

/// All nodes on the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The group a neighbour of this address listens to (RFC 4291 section 2.7.1).
pub(crate) fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let o = ip.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(o[13]), (u16::from(o[14]) << 8) | u16::from(o[15]))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
        IpAddr::V4(_) => false,
    }
}

/// An address from a prefix and a hardware address (RFC 4291 appendix A).
fn interface_address(prefix: u128, mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let low = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from(prefix | u128::from(low))
}

/// Source and destination of an IP packet from its first byte.
pub(crate) fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    use crate::wire::array;
    match packet.first()? >> 4 {
        4 if packet.len() >= ipv4::LEN => Some((
            IpAddr::V4(Ipv4Addr::from(array::<4>(packet, 12))),
            IpAddr::V4(Ipv4Addr::from(array::<4>(packet, 16))),
        )),
        6 if packet.len() >= ipv6::LEN => Some((
            IpAddr::V6(Ipv6Addr::from(array::<16>(packet, 8))),
            IpAddr::V6(Ipv6Addr::from(array::<16>(packet, 24))),
        )),
        _ => None,
    }
}

/// Mixes an address pair into a keyed hash's words.
pub(crate) fn pair_words(a: IpAddr, b: IpAddr, port: u16) -> [u64; 5] {
    let ((x, y), (z, w)) = (wide(a), wide(b));
    [x, y, z, w, u64::from(port)]
}
