//! The stack: frames, calls and time in; frames and events out.

use crate::chain::Chain;
use crate::config::{Cidr, Config, Received, Route, Sink};
use crate::demux::Flow;
use crate::error::Error;
use crate::event::{Event, Events, ListenerId, Queued, Ready, UdpId};
use crate::ip::{ICMP_OUT, ICMPV6_OUT, Ip, Out, solicited_node};
use crate::reassembly::Whole;
use crate::stats::Stats;
use crate::tcp::{Env, IcmpError, Options, Released, Tcp, TcpId, TcpInfo};
use crate::time::Nanos;
use crate::udp::{Datagram, Udp};
use crate::wire::arp::Arp;
use crate::wire::checksum::Checksum;
use crate::wire::ethernet::{Ethernet, Mac, ethertype};
use crate::wire::icmp::{self, Icmp, Unreachable};
use crate::wire::ipv4::{self, Ipv4, Ipv4View};
use crate::wire::ipv6::Ipv6;
use crate::wire::tcp::{Seq, Tcp as Segment, TcpView};
use crate::wire::udp::{LEN as UDP_LEN, Udp as UdpHeader};
use crate::wire::{Malformed, be16, be32, protocol, pseudo};
use std::net::{IpAddr, SocketAddr};
use towpath_cbuf::{Buf, Memory, Sga};

/// One interface and everything above it. A pure state machine: it reads no clock, and all its randomness grows from
/// the seed in its configuration, so equal inputs give equal outputs.
pub struct Stack {
    ip: Ip,
    tcp: Tcp,
    udp: Udp,
    events: Events,
    router_adverts: bool,
    /// The packet being taken came from this host.
    looping: bool,
}

/// The IP header's facts that transports need.
struct Packet {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    ce: bool,
    hops: u8,
    verify: bool,
}

impl Stack {
    /// A stack whose time starts at `now`. Buffers it needs come from `memory`.
    pub fn new(config: &Config, memory: Memory, now: Nanos) -> Stack {
        Stack {
            ip: Ip::new(config, memory, now),
            tcp: Tcp::new(&config.tcp, config.seed, now),
            udp: Udp::new(config.seed, config.udp_buffer, config.tcp.ports),
            events: Events::new(),
            router_adverts: config.router_adverts,
            looping: false,
        }
    }

    /// Takes a received frame. Slices of it may be held until the program has popped and dropped them.
    #[inline]
    pub fn ingest<S: Sink>(&mut self, frame: Buf, received: Received, now: Nanos, sink: &mut S) {
        self.ingest_chain(Chain::One(frame), received, now, sink);
        if !self.ip.looped.is_empty() {
            self.turn_round(now, sink);
        }
    }

    /// Takes a received frame in pieces; link, network and transport headers lie in the first.
    pub fn ingest_sga<S: Sink>(&mut self, frame: Sga, received: Received, now: Nanos, sink: &mut S) {
        self.ingest_chain(Chain::from_sga(frame), received, now, sink);
        if !self.ip.looped.is_empty() {
            self.turn_round(now, sink);
        }
    }

    #[inline]
    fn ingest_chain<S: Sink>(&mut self, frame: Chain, received: Received, now: Nanos, sink: &mut S) {
        self.ip.stats.frames_in += 1;
        match self.take_frame(frame, received, now, sink) {
            Ok(true) => {}
            Ok(false) => self.ip.stats.ignored += 1,
            Err(_) => self.ip.stats.malformed += 1,
        }
    }

    /// Packets to this host's own addresses come in again; answers to them too, up to a limit per call.
    #[cold]
    fn turn_round<S: Sink>(&mut self, now: Nanos, sink: &mut S) {
        for _ in 0..256 {
            let Some(frame) = self.ip.looped.pop_front() else { break };
            self.looping = true;
            self.ingest_chain(Chain::One(frame), Received { checksum_ok: true }, now, sink);
        }
        self.looping = false;
    }

    #[inline]
    fn take_frame<S: Sink>(
        &mut self,
        frame: Chain,
        received: Received,
        now: Nanos,
        sink: &mut S,
    ) -> Result<bool, Malformed> {
        let Some(head) = frame.as_slice().first() else { return Err(Malformed::Truncated) };
        let (link, at) = Ethernet::parse(head)?;
        if link.vlan != self.ip.vlan || (link.dst != self.ip.mac && !link.dst.is_group()) {
            return Ok(false);
        }
        match link.ethertype {
            ethertype::IPV4 => self.take_ipv4(frame, at, received, now, sink),
            ethertype::IPV6 => self.take_ipv6(frame, at, received, now, sink),
            ethertype::ARP => self.take_arp(&Arp::parse(&head[at..])?, now, sink),
            _ => Ok(false),
        }
    }

    fn take_arp<S: Sink>(&mut self, arp: &Arp, now: Nanos, sink: &mut S) -> Result<bool, Malformed> {
        let (sender, target) = (IpAddr::V4(arp.sender_ip), IpAddr::V4(arp.target_ip));
        if self.ip.is_own(sender) || arp.sender_mac.is_group() {
            return Ok(false);
        }
        let for_us = self.ip.is_own(target);
        if !arp.sender_ip.is_unspecified() {
            // RFC 826: what is known is updated; who asks for us is learnt.
            let how = (for_us, for_us && !arp.request, true);
            let waiting = self.ip.neighbours.learn(sender, arp.sender_mac, now, how, &mut self.ip.rng);
            self.ip.flush(sink, arp.sender_mac, waiting);
        }
        if arp.request && for_us {
            let reply = Arp {
                request: false,
                sender_mac: self.ip.mac,
                sender_ip: arp.target_ip,
                target_mac: arp.sender_mac,
                target_ip: arp.sender_ip,
            };
            self.ip.send_arp(sink, arp.sender_mac, &reply);
        }
        Ok(for_us)
    }

    #[inline]
    fn take_ipv4<S: Sink>(
        &mut self,
        mut frame: Chain,
        at: usize,
        received: Received,
        now: Nanos,
        sink: &mut S,
    ) -> Result<bool, Malformed> {
        let whole = frame.len() - at;
        let head = &frame.as_slice()[0][at..];
        // A frame in pieces has its IP header whole in the first; lengths are those of all pieces.
        let (ip, header, total) = if head.len() == whole {
            let view = Ipv4View::checked(head)?;
            (Ipv4::parse(&view, !received.checksum_ok)?, view.header_len(), view.total_len())
        } else {
            split_ipv4(head, whole, received)?
        };
        let (src, dst) = (IpAddr::V4(ip.src), IpAddr::V4(ip.dst));
        if !self.ip.is_for_us(dst) || ip.src.is_broadcast() || ip.src.is_multicast() {
            return Ok(false);
        }
        if !self.looping && is_martian(src, dst) {
            return Ok(false);
        }
        frame.truncate(at + total);
        let packet = Packet {
            src,
            dst,
            protocol: ip.protocol,
            ce: ip.tos & 3 == 3,
            hops: ip.ttl,
            verify: !received.checksum_ok,
        };
        if ip.more || ip.offset > 0 {
            let key = Whole { src, dst, id: u32::from(ip.id), protocol: ip.protocol };
            frame.trim_front(at + header);
            return self.take_fragment(frame, key, (u32::from(ip.offset), ip.more), packet, now, sink);
        }
        self.take_transport(frame, at, header, packet, now, sink)
    }

    #[inline]
    fn take_ipv6<S: Sink>(
        &mut self,
        mut frame: Chain,
        at: usize,
        received: Received,
        now: Nanos,
        sink: &mut S,
    ) -> Result<bool, Malformed> {
        if frame.as_slice().len() > 1 {
            // Headers only are in the first piece; few devices split, so the few bytes are put together.
            let Some(flat) = frame.gather(&self.ip.memory) else { return Ok(false) };
            frame = Chain::One(flat);
        }
        let (ip, body) = Ipv6::parse(&frame.as_slice()[0][at..])?;
        let (src, dst) = (IpAddr::V6(ip.src), IpAddr::V6(ip.dst));
        if !self.ip.is_for_us(dst) || ip.src.is_multicast() || (!self.looping && is_martian(src, dst)) {
            return Ok(false);
        }
        frame.truncate(at + body.end);
        let packet = Packet {
            src,
            dst,
            protocol: ip.protocol,
            ce: ip.tos & 3 == 3,
            hops: ip.hops,
            verify: !received.checksum_ok,
        };
        if let Some(fragment) = ip.fragment
            && (fragment.more || fragment.offset > 0)
        {
            let key = Whole { src, dst, id: fragment.id, protocol: ip.protocol };
            frame.trim_front(at + body.start);
            return self.take_fragment(frame, key, (u32::from(fragment.offset), fragment.more), packet, now, sink);
        }
        self.take_transport(frame, at, body.start, packet, now, sink)
    }

    #[cold]
    fn take_fragment<S: Sink>(
        &mut self,
        bytes: Chain,
        key: Whole,
        (offset, more): (u32, bool),
        mut packet: Packet,
        now: Nanos,
        sink: &mut S,
    ) -> Result<bool, Malformed> {
        let Some(bytes) = bytes.gather(&self.ip.memory) else { return Ok(false) };
        let Some((parts, ce)) = self.ip.reassembly.insert(key, (offset, more, packet.ce), bytes, now) else {
            return Ok(true);
        };
        // The transport header has to lie in one piece, so the packet is put together; fragments are rare.
        let mut whole = Chain::Empty;
        for part in parts {
            whole.push(part);
        }
        let Some(whole) = whole.gather(&self.ip.memory) else { return Ok(false) };
        packet.ce = ce;
        packet.verify = true;
        self.take_transport(Chain::One(whole), 0, 0, packet, now, sink)
    }

    /// Takes a whole packet whose IP header starts at `at` and is `header` bytes long.
    #[inline]
    fn take_transport<S: Sink>(
        &mut self,
        mut frame: Chain,
        at: usize,
        header: usize,
        packet: Packet,
        now: Nanos,
        sink: &mut S,
    ) -> Result<bool, Malformed> {
        let start = at + header;
        match packet.protocol {
            protocol::TCP => {
                let (seg, offset) = {
                    let body = &frame.as_slice()[0][start..];
                    let view = TcpView::checked(body)?;
                    if packet.verify {
                        verify(&frame, start, &packet)?;
                    }
                    (Segment::parse(&view)?, start + view.header_len())
                };
                if !self.ip.is_own(packet.dst) {
                    return Ok(false);
                }
                let payload = if frame.len() == offset {
                    Chain::Empty
                } else {
                    frame.trim_front(offset);
                    frame
                };
                let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
                self.tcp.ingest(&mut env, (packet.dst, packet.src), &seg, payload, packet.ce);
                Ok(true)
            }
            protocol::UDP => self.take_udp(frame, at, start, &packet, now, sink),
            protocol::ICMP if packet.dst.is_ipv4() => self.take_icmp4(&frame, start, &packet, now, sink),
            protocol::ICMPV6 if packet.dst.is_ipv6() => self.take_icmp6(&frame, start, &packet, now, sink),
            _ => {
                if header > 0 {
                    self.ip.send_error((now, sink), &frame.as_slice()[0][at..], false);
                }
                Ok(false)
            }
        }
    }

    fn take_udp<S: Sink>(
        &mut self,
        mut frame: Chain,
        at: usize,
        start: usize,
        packet: &Packet,
        now: Nanos,
        sink: &mut S,
    ) -> Result<bool, Malformed> {
        let rest = frame.len() - start;
        let first = &frame.as_slice()[0][start..];
        let udp = if first.len() == rest { UdpHeader::parse(first)? } else { split_udp(first, rest)? };
        if packet.verify && (udp.checksum != 0 || packet.src.is_ipv6()) {
            let mut sum = pseudo(packet.src, packet.dst, protocol::UDP, udp.len as u32);
            add_range(&mut sum, &frame, start, udp.len);
            if !sum.is_valid() || udp.checksum == 0 {
                return Err(Malformed::Checksum);
            }
        }
        let from = SocketAddr::new(packet.src, udp.src_port);
        let to = SocketAddr::new(packet.dst, udp.dst_port);
        let quote = frame.as_slice()[0].clone();
        frame.truncate(start + udp.len);
        let payload = if udp.len == UDP_LEN {
            Chain::Empty
        } else {
            frame.trim_front(start + UDP_LEN);
            frame
        };
        if !self.udp.deliver(&mut self.ip, &mut self.events, (from, to), payload) && start > at {
            self.ip.send_error((now, sink), &quote[at..], true);
        }
        Ok(true)
    }

    #[cold]
    fn take_icmp4<S: Sink>(
        &mut self,
        frame: &Chain,
        start: usize,
        packet: &Packet,
        now: Nanos,
        sink: &mut S,
    ) -> Result<bool, Malformed> {
        let Some(flat) = flat(frame, start, &self.ip.memory) else { return Ok(false) };
        let message = Icmp::parse_v4(&flat, packet.verify)?;
        if let Icmp::Echo { request: true, word } = message {
            if self.ip.is_own(packet.dst) && self.ip.may_send_error(now) {
                let reply = icmp::message(0, 0, word, &flat[icmp::LEN..], None);
                let out = Out { src: packet.dst, dst: packet.src, ..ICMP_OUT };
                self.ip.send_bytes((now, sink), &out, &reply, None);
            }
            return Ok(true);
        }
        self.take_icmp_error(message, &flat[icmp::LEN..], now, sink);
        Ok(true)
    }

    #[cold]
    fn take_icmp6<S: Sink>(
        &mut self,
        frame: &Chain,
        start: usize,
        packet: &Packet,
        now: Nanos,
        sink: &mut S,
    ) -> Result<bool, Malformed> {
        let Some(flat) = flat(frame, start, &self.ip.memory) else { return Ok(false) };
        let sum = pseudo(packet.src, packet.dst, protocol::ICMPV6, flat.len() as u32);
        let message = Icmp::parse_v6(&flat, sum, packet.verify, packet.hops)?;
        let (IpAddr::V6(src), IpAddr::V6(_)) = (packet.src, packet.dst) else { return Ok(false) };
        match message {
            Icmp::Echo { request: true, word } => {
                let Some(own) = self.ip.source_for(packet.src).filter(|_| self.ip.may_send_error(now)) else {
                    return Ok(false);
                };
                let own = if self.ip.is_own(packet.dst) { packet.dst } else { own };
                let IpAddr::V6(own6) = own else { return Ok(false) };
                let reply = icmp::message(129, 0, word, &flat[icmp::LEN..], Some((own6, src)));
                let out = Out { src: own, dst: packet.src, ..ICMPV6_OUT };
                self.ip.send_bytes((now, sink), &out, &reply, None);
            }
            Icmp::NeighbourSolicit { target, source } => self.take_solicit(packet.src, target, source, now, sink),
            Icmp::NeighbourAdvert { target, mac, solicited, override_ } => {
                let Some(mac) = mac.filter(|_| !self.ip.is_own(target.into())) else { return Ok(false) };
                let how = (false, solicited, override_);
                let waiting = self.ip.neighbours.learn(target.into(), mac, now, how, &mut self.ip.rng);
                self.ip.flush(sink, mac, waiting);
            }
            Icmp::RouterAdvert { lifetime, mac, mtu, prefix } => {
                // RFC 4861 section 6.1.2: only from a link-local address.
                if !self.router_adverts || src.segments()[0] & 0xffc0 != 0xfe80 {
                    return Ok(false);
                }
                self.ip.learn_router(packet.src, lifetime, prefix.map(|(prefix, _)| prefix));
                if let Some(mac) = mac {
                    let how = (true, false, true);
                    let waiting = self.ip.neighbours.learn(packet.src, mac, now, how, &mut self.ip.rng);
                    self.ip.flush(sink, mac, waiting);
                }
                if let Some(mtu) = mtu.filter(|m| (1280..u32::from(self.ip.mtu)).contains(m)) {
                    self.ip.mtu = mtu as u16;
                }
            }
            other => self.take_icmp_error(other, &flat[icmp::LEN..], now, sink),
        }
        Ok(true)
    }

    fn take_solicit<S: Sink>(
        &mut self,
        src: IpAddr,
        target: std::net::Ipv6Addr,
        source: Option<Mac>,
        now: Nanos,
        sink: &mut S,
    ) {
        if !self.ip.is_own(target.into()) {
            return;
        }
        if let Some(mac) = source.filter(|_| !src.is_unspecified()) {
            let waiting = self.ip.neighbours.learn(src, mac, now, (true, false, true), &mut self.ip.rng);
            self.ip.flush(sink, mac, waiting);
        }
        // RFC 4861 section 7.2.4: who has no address yet is answered to all.
        let unknown = src.is_unspecified();
        let dst = if unknown { IpAddr::V6(crate::ip::ALL_NODES) } else { src };
        let IpAddr::V6(dst6) = dst else { return };
        let word: u32 = if unknown { 0x2000_0000 } else { 0x6000_0000 };
        let body = icmp::neighbour_body(target, 2, self.ip.mac);
        let bytes = icmp::message(136, 0, word, &body, Some((target, dst6)));
        let out = Out { src: target.into(), dst, ttl: 255, ..ICMPV6_OUT };
        self.ip.send_bytes((now, sink), &out, &bytes, if unknown { None } else { source });
    }

    /// An error about a packet of ours, of which `quoted` is the start (RFC 5927: it must be about what is in flight).
    fn take_icmp_error<S: Sink>(&mut self, message: Icmp, quoted: &[u8], now: Nanos, sink: &mut S) {
        let (error, what) = match message {
            Icmp::TooBig { mtu } => (None, IcmpError::TooBig(if mtu == 0 { 1280 } else { mtu })),
            Icmp::Unreachable(Unreachable::Host) => (Some(Error::Unreachable), IcmpError::Soft),
            Icmp::Unreachable(_) => (Some(Error::Refused), IcmpError::Refused),
            Icmp::Soft => (None, IcmpError::Soft),
            _ => return,
        };
        let Some((local, remote)) = crate::ip::addresses(quoted) else { return };
        let (proto, at) = match local {
            IpAddr::V4(_) => (quoted[9], usize::from(quoted[0] & 15) * 4),
            IpAddr::V6(_) => (quoted[6], crate::wire::ipv6::LEN),
        };
        if quoted.len() < at + 8 || !self.ip.is_own(local) {
            return;
        }
        let (local_port, remote_port) = (be16(quoted, at), be16(quoted, at + 2));
        match proto {
            protocol::TCP => {
                let flow = Flow { local, remote, local_port, remote_port };
                let seq = Seq(be32(quoted, at + 4));
                let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
                self.tcp.on_icmp(&mut env, &flow, seq, what);
            }
            protocol::UDP => {
                let peer = SocketAddr::new(remote, remote_port);
                if let IcmpError::TooBig(mtu) = what {
                    let least = if remote.is_ipv4() { 552 } else { 1280 };
                    let known = self.udp.is_bound(local_port);
                    if known && mtu.max(least) < u32::from(self.ip.path_mtu(remote, now)) {
                        self.ip.narrow_path(remote, mtu.max(least) as u16, now);
                    }
                } else if let Some(error) = error {
                    self.udp.on_icmp(&mut self.events, (local, local_port), peer, error);
                }
            }
            _ => {}
        }
    }

    // Time.

    /// When [`Stack::poll`] is next due; never later than anything that has to happen. Zero says "at once".
    pub fn poll_at(&self) -> Option<Nanos> {
        if !self.ip.looped.is_empty() {
            return Some(Nanos::ZERO);
        }
        let times = [self.tcp.poll_at(), self.ip.neighbours.poll_at(), self.ip.reassembly.poll_at()];
        times.into_iter().flatten().min()
    }

    /// Does what is due at `now`. Call it also when the sink has room again after it had none.
    pub fn poll<S: Sink>(&mut self, now: Nanos, sink: &mut S) {
        self.turn_round(now, sink);
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.poll(&mut env);
        if self.ip.reassembly.poll_at().is_some_and(|at| at <= now) {
            self.ip.reassembly.poll(now);
        }
        if self.ip.neighbours.poll_at().is_some_and(|at| at <= now) {
            self.poll_neighbours(now, sink);
        }
    }

    fn poll_neighbours<S: Sink>(&mut self, now: Nanos, sink: &mut S) {
        let (asks, failed) = self.ip.neighbours.poll(now);
        for ask in asks {
            self.ip.solicit((now, sink), ask.ip, ask.mac);
        }
        for gone in failed {
            self.ip.stats.dropped += gone.waiting.len() as u64;
            let _ = gone.ip;
        }
    }

    /// Whether data waits only for room in the sink.
    pub fn is_blocked(&self) -> bool {
        self.tcp.has_blocked()
    }

    /// The next thing that became possible. A connection's readiness is what it is when asked.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        while let Some(queued) = self.events.pop_front() {
            match queued {
                Queued::Tcp(id) => {
                    if let Some(ready) = self.tcp.take_ready(id).filter(|r| *r != Ready::default()) {
                        return Some(Event::Tcp(id, ready));
                    }
                }
                Queued::Accept(id) => {
                    if self.tcp.has_ready(id) {
                        return Some(Event::Accept(id));
                    }
                }
                Queued::Udp(id) => {
                    if self.udp.take_ready(id) {
                        return Some(Event::Udp(id));
                    }
                }
            }
        }
        None
    }

    // TCP.

    /// Listens on `local`; an unspecified address listens on all of this host's. At most `backlog` connections wait to
    /// be accepted, and as many are half open before SYN cookies take over.
    pub fn tcp_listen(&mut self, local: SocketAddr, backlog: u32) -> Result<ListenerId, Error> {
        let address = self.own_address(local.ip())?;
        self.tcp.listen(address, local.port(), backlog)
    }

    fn own_address(&self, ip: IpAddr) -> Result<Option<IpAddr>, Error> {
        if ip.is_unspecified() {
            return Ok(None);
        }
        if self.ip.is_own(ip) { Ok(Some(ip)) } else { Err(Error::AddressNotAvailable) }
    }

    /// The next connection of a listener and its peer, if one waits.
    pub fn tcp_accept(&mut self, listener: ListenerId) -> Result<Option<(TcpId, SocketAddr)>, Error> {
        self.tcp.accept(&mut self.events, listener)
    }

    /// Stops listening; connections not yet accepted are reset.
    pub fn tcp_close_listener<S: Sink>(&mut self, id: ListenerId, now: Nanos, sink: &mut S) -> Result<(), Error> {
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.close_listener(&mut env, id)
    }

    /// Begins to connect to `remote`, from `local` if given (an unspecified address or port 0 leave the choice). An
    /// event says when it is connected or has failed.
    pub fn tcp_connect<S: Sink>(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        now: Nanos,
        sink: &mut S,
    ) -> Result<TcpId, Error> {
        let from = match local {
            Some(local) => (self.own_address(local.ip())?, local.port()),
            None => (None, 0),
        };
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.connect(&mut env, remote, from)
    }

    /// Takes over the bytes of `sga`, however many; the connection holds references to them until the peer has
    /// acknowledged them. What is returned says whether the push is complete: the connection takes responsibility for
    /// a bounded number of bytes ahead of acknowledgements, and a push is complete when it lies within that. Empty
    /// pushes do nothing.
    #[inline]
    pub fn tcp_push<S: Sink>(&mut self, id: TcpId, sga: Sga, now: Nanos, sink: &mut S) -> Result<Released, Error> {
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.push(&mut env, id, sga)
    }

    /// The offset up to which pushes are complete.
    pub fn tcp_released(&self, id: TcpId) -> Result<u64, Error> {
        self.tcp.released(id)
    }

    /// Takes up to `max` bytes received: `None` if there are none yet, no bytes at the end of the stream.
    #[inline]
    pub fn tcp_pop<S: Sink>(&mut self, id: TcpId, max: usize, now: Nanos, sink: &mut S) -> Result<Option<Sga>, Error> {
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.pop(&mut env, id, max)
    }

    /// Finishes sending; receiving goes on.
    pub fn tcp_shutdown<S: Sink>(&mut self, id: TcpId, now: Nanos, sink: &mut S) -> Result<(), Error> {
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.finish(&mut env, id)
    }

    /// Lets go of a connection: what was pushed is still delivered, then it ends. The handle is gone.
    pub fn tcp_close<S: Sink>(&mut self, id: TcpId, now: Nanos, sink: &mut S) -> Result<(), Error> {
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.close(&mut env, id)
    }

    /// Resets a connection; what was not acknowledged is dropped. The handle is gone.
    pub fn tcp_abort<S: Sink>(&mut self, id: TcpId, now: Nanos, sink: &mut S) -> Result<(), Error> {
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.abort(&mut env, id)
    }

    /// Changes a setting of a connection.
    pub fn tcp_set<S: Sink>(&mut self, id: TcpId, option: Options, now: Nanos, sink: &mut S) -> Result<(), Error> {
        let mut env = Env { now, ip: &mut self.ip, sink, events: &mut self.events };
        self.tcp.set_option(&mut env, id, option)
    }

    /// A look at a connection.
    pub fn tcp_info(&self, id: TcpId) -> Result<TcpInfo, Error> {
        self.tcp.info(id)
    }

    /// Why the connection ended, if it ended with an error.
    pub fn tcp_error(&self, id: TcpId) -> Result<Option<Error>, Error> {
        self.tcp.error(id)
    }

    /// How many connections there are, of every state, and the bytes of their state.
    pub fn tcp_census(&self) -> (usize, usize) {
        self.tcp.census()
    }

    // UDP.

    /// Opens a UDP socket on `local`; an unspecified address takes datagrams to all of this host's, port 0 chooses.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<UdpId, Error> {
        let address = (!local.ip().is_unspecified()).then_some(local.ip());
        self.udp.bind(&self.ip, address, local.port())
    }

    /// Names the one peer to speak with, whose errors are then reported; `None` takes the name back.
    pub fn udp_connect(&mut self, id: UdpId, peer: Option<SocketAddr>) -> Result<(), Error> {
        self.udp.connect(id, peer)
    }

    /// The address and port a socket is bound to.
    pub fn udp_local(&mut self, id: UdpId) -> Result<(Option<IpAddr>, u16), Error> {
        self.udp.local(id)
    }

    /// Sends one datagram to `to`, or to the peer named. The sink has taken it, or it waits for its neighbour.
    pub fn udp_send<S: Sink>(
        &mut self,
        id: UdpId,
        payload: &Sga,
        to: Option<SocketAddr>,
        now: Nanos,
        sink: &mut S,
    ) -> Result<(), Error> {
        self.udp.send(&mut self.ip, (now, sink), id, payload, to)
    }

    /// The next datagram, if one waits.
    pub fn udp_receive(&mut self, id: UdpId) -> Result<Option<Datagram>, Error> {
        self.udp.receive(id)
    }

    /// Closes a UDP socket.
    pub fn udp_close(&mut self, id: UdpId) -> Result<(), Error> {
        self.udp.close(id)
    }

    // The interface.

    /// The device has `free` of `total` receive frames left: below a quarter everything received is copied out.
    pub fn set_free_frames(&mut self, free: usize, total: usize) {
        self.ip.pressed = free < total / 4;
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.ip.stats
    }

    /// The addresses in use, those found by router advertisements included.
    pub fn addresses(&self) -> &[Cidr] {
        &self.ip.addresses
    }

    /// Replaces the routes, for a host whose kernel changes them.
    pub fn set_routes(&mut self, routes: Vec<Route>) {
        self.ip.routes = routes;
        self.ip.neighbours.epoch = self.ip.neighbours.epoch.wrapping_add(1);
    }

    /// Learns a neighbour from outside, such as the kernel's table.
    pub fn set_neighbour<S: Sink>(&mut self, ip: IpAddr, mac: Mac, now: Nanos, sink: &mut S) {
        let waiting = self.ip.neighbours.learn(ip, mac, now, (true, true, true), &mut self.ip.rng);
        self.ip.flush(sink, mac, waiting);
    }

    /// The multicast groups the interface must receive besides its own address.
    pub fn groups(&self) -> Vec<Mac> {
        let mut groups = vec![Mac::multicast(crate::ip::ALL_NODES.into())];
        for cidr in &self.ip.addresses {
            if let IpAddr::V6(own) = cidr.address {
                groups.push(Mac::multicast(solicited_node(own).into()));
            }
        }
        groups
    }
}

/// Addresses that no packet from a link may have (RFC 1122 section 3.2.1.3): a host's inner ones, or the same twice.
#[inline]
fn is_martian(src: IpAddr, dst: IpAddr) -> bool {
    src.is_loopback() || dst.is_loopback() || src == dst
}

/// An IPv4 header whose packet continues in other pieces.
fn split_ipv4(head: &[u8], whole: usize, received: Received) -> Result<(Ipv4, usize, usize), Malformed> {
    if head.len() < ipv4::LEN {
        return Err(Malformed::Truncated);
    }
    let (len, total) = (usize::from(head[0] & 15) * 4, usize::from(be16(head, 2)));
    if head[0] >> 4 != 4 || len < ipv4::LEN || len > head.len() || total < len || total > whole {
        return Err(Malformed::Header);
    }
    // The header alone, with its own length as the total, passes the usual checks; its checksum is checked here.
    let mut alone = [0; 60];
    alone[..len].copy_from_slice(&head[..len]);
    if !received.checksum_ok {
        let mut sum = Checksum::new();
        sum.add(&alone[..len]);
        if !sum.is_valid() {
            return Err(Malformed::Checksum);
        }
    }
    alone[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    let view = Ipv4View::checked(&alone[..len])?;
    Ok((Ipv4::parse(&view, false)?, len, total))
}

fn split_udp(first: &[u8], rest: usize) -> Result<UdpHeader, Malformed> {
    if first.len() < UDP_LEN {
        return Err(Malformed::Truncated);
    }
    let header = UdpHeader {
        src_port: be16(first, 0),
        dst_port: be16(first, 2),
        len: usize::from(be16(first, 4)),
        checksum: be16(first, 6),
    };
    let good = header.len >= UDP_LEN && header.len <= rest && header.dst_port != 0;
    if good { Ok(header) } else { Err(Malformed::Header) }
}

/// Checks a transport checksum that covers everything from `start` to the end.
#[inline]
fn verify(frame: &Chain, start: usize, packet: &Packet) -> Result<(), Malformed> {
    let len = frame.len() - start;
    let mut sum = pseudo(packet.src, packet.dst, packet.protocol, len as u32);
    add_range(&mut sum, frame, start, len);
    if sum.is_valid() { Ok(()) } else { Err(Malformed::Checksum) }
}

#[inline]
fn add_range(sum: &mut Checksum, frame: &Chain, start: usize, len: usize) {
    let (mut skip, mut left) = (start, len);
    for piece in frame.as_slice() {
        let from = skip.min(piece.len());
        let to = (from + left).min(piece.len());
        sum.add(&piece[from..to]);
        skip -= from;
        left -= to - from;
    }
}

/// The bytes from `start` in one piece.
fn flat(frame: &Chain, start: usize, memory: &Memory) -> Option<Buf> {
    match frame {
        Chain::One(buf) => Some(buf.slice(start..)),
        many => many.gather(memory).map(|b| b.slice(start..)),
    }
}
