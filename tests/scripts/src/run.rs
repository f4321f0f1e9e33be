//! Lets a script happen to a stack.

use crate::parse::{Item, Packet, Script, When, Written};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use towpath_cbuf::{Buf, Memory, MemoryConfig, Sga};
use towpath_inet::tcp::congestion::Algorithm;
use towpath_inet::wire::ethernet::{Ethernet, ethertype};
use towpath_inet::wire::ipv4::{Ipv4, Ipv4View};
use towpath_inet::wire::ipv6::Ipv6;
use towpath_inet::wire::tcp::{Options as Wire, Seq, Tcp, TcpView};
use towpath_inet::wire::{icmp, protocol, pseudo};
use towpath_inet::{
    Cidr, Config, Error, Finish, KeepAlive, ListenerId, Mac, Nanos, Options, Received, Sink, Stack, TcpId,
};

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);
/// How far from its time a packet may be sent: timers are rounded up to a microsecond.
const TOLERANCE: u64 = 1_000_000;
const LOCAL_PORT: u16 = 8080;
const REMOTE_PORT: u16 = 34567;

#[derive(Default)]
struct Out {
    frames: VecDeque<Vec<u8>>,
}

impl Sink for Out {
    fn transmit(&mut self, header: &[u8], payload: &[Buf], _finish: Finish) {
        let mut frame = header.to_vec();
        payload.iter().for_each(|piece| frame.extend_from_slice(piece));
        self.frames.push_back(frame);
    }
}

enum Socket {
    Fresh,
    Listening(ListenerId),
    Open(TcpId),
}

struct Keep {
    on: bool,
    idle: u64,
    interval: u64,
    count: u8,
}

struct Run {
    stack: Stack,
    memory: Memory,
    out: Out,
    sent: VecDeque<(Nanos, Vec<u8>)>,
    now: Nanos,
    start: Nanos,
    sockets: BTreeMap<i64, Socket>,
    keep: BTreeMap<i64, Keep>,
    /// Options set before there was a connection.
    later: BTreeMap<i64, Vec<Options>>,
    v6: bool,
    /// The stack's first sequence number, its port, and its timestamp less the script's.
    isn: Option<u32>,
    local_port: u16,
    remote_port: u16,
    clock: Option<u32>,
}

/// Runs a script.
pub fn run(script: &Script) -> Result<(), String> {
    let mut run = Run::new(script)?;
    let mut last = run.start;
    for (line, when, item) in &script.items {
        let (from, to) = match *when {
            When::At { relative, from, to } => {
                let base = if relative { last } else { run.start };
                (base + Nanos(from), base + Nanos(to))
            }
            When::Any => (last, last + Nanos::secs(3600)),
        };
        let at = run.one(item, from, to).map_err(|e| format!("line {line}: {e}"))?;
        last = at;
    }
    // What is sent after the last event is nobody's business, but what was sent before it and not asked for is.
    match run.sent.front().filter(|(at, _)| *at < last) {
        Some((at, frame)) => Err(format!("at the end: {} was sent at {:?} unasked", run.show(frame), run.since(*at))),
        None => Ok(()),
    }
}

impl Run {
    fn new(script: &Script) -> Result<Run, String> {
        let start = Nanos::secs(1000);
        let mut config = Config::new(OURS, [11, 22, 33, 44]);
        config.addresses.push(Cidr::new([192, 168, 0, 1], 16));
        config.addresses.push(Cidr::new("fd3d:fa7b::1".parse::<std::net::Ipv6Addr>().map_err(|e| e.to_string())?, 64));
        config.tcp.pacing = false;
        config.tcp.receive_buffer = (1 << 20, 1 << 20);
        let mut v6 = false;
        for (name, value) in &script.settings {
            setting(&mut config, &mut v6, name, value)?;
        }
        let memory = Memory::new(MemoryConfig::default()).map_err(|e| e.to_string())?;
        let mut run = Run {
            stack: Stack::new(&config, memory.clone(), start),
            memory,
            out: Out::default(),
            sent: VecDeque::new(),
            now: start,
            start,
            sockets: BTreeMap::new(),
            keep: BTreeMap::new(),
            later: BTreeMap::new(),
            v6,
            isn: None,
            local_port: LOCAL_PORT,
            remote_port: REMOTE_PORT,
            clock: None,
        };
        let remote = run.remote();
        run.stack.set_neighbour(remote, THEIRS, start, &mut run.out);
        Ok(run)
    }

    fn local(&self) -> IpAddr {
        if self.v6 { IpAddr::V6("fd3d:fa7b::1".parse().expect("an address")) } else { [192, 168, 0, 1].into() }
    }

    fn remote(&self) -> IpAddr {
        if self.v6 { IpAddr::V6("fd3d:fa7b::2".parse().expect("an address")) } else { [192, 168, 0, 2].into() }
    }

    fn since(&self, at: Nanos) -> f64 {
        at.since(self.start).as_secs_f64()
    }

    /// Takes what the stack sent just now.
    fn collect(&mut self) {
        while let Some(frame) = self.out.frames.pop_front() {
            // The neighbour cache's own traffic is answered, not scripted.
            if self.segment(&frame).is_some() {
                self.sent.push_back((self.now, frame));
            } else {
                let remote = self.remote();
                self.stack.set_neighbour(remote, THEIRS, self.now, &mut self.out);
            }
        }
    }

    /// Moves time to `to`, or to the first packet sent if `stop`.
    fn advance(&mut self, to: Nanos, stop: bool) {
        self.collect();
        while !stop || self.sent.is_empty() {
            let next = self.stack.poll_at().filter(|t| *t <= to);
            let Some(next) = next else {
                self.now = self.now.max(to);
                return;
            };
            self.now = self.now.max(next);
            self.stack.poll(self.now, &mut self.out);
            self.collect();
        }
    }

    /// One event; returns when it happened.
    fn one(&mut self, item: &Item, from: Nanos, to: Nanos) -> Result<Nanos, String> {
        if let Item::Out(packet) = item {
            return self.expect(packet, from, to);
        }
        self.advance(from, false);
        match item {
            Item::Out(_) => {}
            Item::In(packet) => self.arrive(packet)?,
            Item::IcmpIn { kind, mtu, seq } => self.arrive_icmp(kind, *mtu, *seq)?,
            Item::Call { name, args, result, errno } => {
                let got = self.call(name, args, *result)?;
                let want = match errno {
                    Some(errno) => Err(errno.clone()),
                    None => Ok(*result),
                };
                if got != want {
                    return Err(format!("{name} returned {got:?}, not {want:?}"));
                }
            }
            Item::Assert { field, relation, value } => self.assert(field, relation, *value)?,
        }
        self.collect();
        Ok(from)
    }

    fn assert(&self, field: &str, relation: &str, value: i64) -> Result<(), String> {
        let id = self.sockets.values().rev().find_map(|s| match s {
            Socket::Open(id) => Some(*id),
            _ => None,
        });
        let info = id.and_then(|id| self.stack.tcp_info(id).ok()).ok_or("no connection to look at")?;
        let mss = i64::from(info.mss.max(1));
        let got = match field {
            "tcpi_snd_cwnd" => i64::from(info.congestion_window) / mss,
            "tcpi_snd_ssthresh" => i64::from(info.threshold) / mss,
            "tcpi_unacked" => (i64::from(info.in_flight) + mss - 1) / mss,
            "tcpi_snd_mss" => mss,
            "tcpi_rto" => info.rto.as_micros() as i64,
            "tcpi_rtt" => info.srtt.as_micros() as i64,
            "tcpi_notsent_bytes" => info.unsent as i64,
            "tcpi_ca_state" => i64::from(info.recovering),
            // As in Linux: 1 established, 4 and 5 the two waits for a FIN, 6 TIME-WAIT, 8 CLOSE-WAIT, 9 LAST-ACK.
            "tcpi_state" => match info.state {
                towpath_inet::State::Established => 1,
                towpath_inet::State::SynSent => 2,
                towpath_inet::State::SynReceived => 3,
                towpath_inet::State::FinWait1 => 4,
                towpath_inet::State::FinWait2 => 5,
                towpath_inet::State::TimeWait => 6,
                towpath_inet::State::Closed => 7,
                towpath_inet::State::CloseWait => 8,
                towpath_inet::State::LastAck => 9,
                towpath_inet::State::Closing => 11,
            },
            other => return Err(format!("{other} is not known")),
        };
        let holds = match relation {
            "==" => got == value,
            "!=" => got != value,
            "<" => got < value,
            "<=" => got <= value,
            ">" => got > value,
            ">=" => got >= value,
            other => return Err(format!("not a relation: {other}")),
        };
        if holds { Ok(()) } else { Err(format!("{field} is {got}, expected {relation} {value}")) }
    }

    // Packets.

    fn segment(&self, frame: &[u8]) -> Option<(Tcp, u8, u32)> {
        let (link, at) = Ethernet::parse(frame).ok()?;
        let (src, dst, tos, body) = match link.ethertype {
            ethertype::IPV4 => {
                let view = Ipv4View::checked(&frame[at..]).ok()?;
                let ip = Ipv4::parse(&view, true).ok().filter(|ip| ip.protocol == protocol::TCP)?;
                (ip.src.into(), ip.dst.into(), ip.tos, at + view.header_len()..at + view.total_len())
            }
            ethertype::IPV6 => {
                let (ip, body) = Ipv6::parse(&frame[at..]).ok().filter(|(ip, _)| ip.protocol == protocol::TCP)?;
                (IpAddr::V6(ip.src), IpAddr::V6(ip.dst), ip.tos, at + body.start..at + body.end)
            }
            _ => return None,
        };
        let body = &frame[body];
        let mut sum = pseudo(src, dst, protocol::TCP, body.len() as u32);
        sum.add(body);
        assert!(sum.is_valid(), "the stack sent a wrong checksum");
        let view = TcpView::checked(body).ok()?;
        Some((Tcp::parse(&view).ok()?, tos & 3, (body.len() - view.header_len()) as u32))
    }

    fn show(&self, frame: &[u8]) -> String {
        let Some((seg, ecn, len)) = self.segment(frame) else { return "something that is not TCP".into() };
        let mut flags = String::new();
        for (bit, c) in [(2, 'S'), (1, 'F'), (4, 'R'), (8, 'P'), (64, 'E'), (128, 'W'), (16, '.')] {
            if seg.flags & bit != 0 {
                flags.push(c);
            }
        }
        let seq = seg.seq.0.wrapping_sub(self.isn.unwrap_or(seg.seq.0));
        let sack: Vec<_> = seg.options.sacks().iter().map(|(l, r)| (l.0, r.0)).collect();
        format!(
            "[{ecn}] {flags} {seq}:{}({len}) ack {} win {} mss {:?} wscale {:?} TS {:?} sack {sack:?}",
            seq.wrapping_add(len),
            seg.ack.0,
            seg.window,
            seg.options.mss,
            seg.options.scale,
            seg.options.timestamps
        )
    }

    fn expect(&mut self, want: &Packet, from: Nanos, to: Nanos) -> Result<Nanos, String> {
        self.advance(Nanos(to.0 + TOLERANCE), true);
        let Some((at, frame)) = self.sent.pop_front() else {
            return Err("nothing was sent".into());
        };
        let (seg, ecn, len) = self.segment(&frame).ok_or("not TCP")?;
        if seg.flags & 2 != 0 && self.isn.is_none() {
            self.isn = Some(seg.seq.0);
            self.local_port = seg.src_port;
        }
        if self.clock.is_none()
            && let Some((value, _)) = seg.options.timestamps
        {
            let script = want.options.as_ref().and_then(|o| o.timestamps).map_or(100, |t| t.0);
            self.clock = Some(value.wrapping_sub(script));
        }
        let isn = self.isn.unwrap_or(0);
        // A reset for a connection that never was has no sequence of the stack's.
        let seq = if self.isn.is_some() { seg.seq.0.wrapping_sub(isn) } else { seg.seq.0 };
        let mut wrong = Vec::new();
        let mut differ = |what: &str, got: String, want: String| {
            if got != want {
                wrong.push(format!("{what} {got}, expected {want}"));
            }
        };
        differ("flags", seg.flags.to_string(), want.flags.to_string());
        differ("seq", seq.to_string(), want.seq.to_string());
        differ("len", len.to_string(), want.len.to_string());
        if let Some(ack) = want.ack {
            differ("ack", seg.ack.0.to_string(), ack.to_string());
        }
        if let Some(win) = want.win {
            differ("win", seg.window.to_string(), win.to_string());
        }
        if let Some(mark) = want.ecn {
            differ("ecn", ecn.to_string(), mark.to_string());
        }
        if let Some(options) = &want.options {
            let clock = self.clock.unwrap_or(0);
            let got = Written {
                mss: seg.options.mss,
                scale: seg.options.scale,
                sack_permitted: seg.options.sack_permitted,
                timestamps: seg.options.timestamps.map(|(v, e)| (v.wrapping_sub(clock), e)),
                sack: seg.options.sacks().iter().map(|(l, r)| (l.0, r.0)).collect(),
            };
            differ("options", format!("{got:?}"), format!("{options:?}"));
        }
        if at.0 + TOLERANCE < from.0 || at.0 > to.0 + TOLERANCE {
            wrong.push(format!("sent at {}, expected {} to {}", self.since(at), self.since(from), self.since(to)));
        }
        if wrong.is_empty() { Ok(at) } else { Err(format!("{}; sent was {}", wrong.join("; "), self.show(&frame))) }
    }

    fn arrive(&mut self, packet: &Packet) -> Result<(), String> {
        let isn = self.isn.unwrap_or(0);
        let mut options = Wire::default();
        if let Some(written) = &packet.options {
            options.mss = written.mss;
            options.scale = written.scale;
            options.sack_permitted = written.sack_permitted;
            options.timestamps = written
                .timestamps
                .map(|(value, echo)| (value, if echo == 0 { 0 } else { echo.wrapping_add(self.clock.unwrap_or(0)) }));
            for (i, (left, right)) in written.sack.iter().take(4).enumerate() {
                options.sack[i] = (Seq(left.wrapping_add(isn)), Seq(right.wrapping_add(isn)));
                options.sack_count = i as u8 + 1;
            }
        }
        let header = Tcp {
            src_port: self.remote_port,
            dst_port: self.local_port,
            seq: Seq(packet.seq),
            ack: Seq(packet.ack.map_or(0, |a| a.wrapping_add(isn))),
            flags: packet.flags,
            window: packet.win.unwrap_or(0),
            options,
        };
        let mut body = vec![0; 60];
        let n = header.write(&mut body);
        body.truncate(n);
        body.resize(n + packet.len as usize, b'x');
        let mut sum = pseudo(self.remote(), self.local(), protocol::TCP, body.len() as u32);
        sum.add(&body);
        let sum = sum.finish().to_be_bytes();
        body[16..18].copy_from_slice(&sum);
        self.deliver(&body, protocol::TCP, packet.ecn.unwrap_or(0))
    }

    fn deliver(&mut self, body: &[u8], protocol: u8, tos: u8) -> Result<(), String> {
        let mut frame = vec![0; 54];
        let kind = if self.v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let at = Ethernet { dst: OURS, src: THEIRS, vlan: None, ethertype: kind }.write(&mut frame);
        let n = match (self.remote(), self.local()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Ipv4 { src, dst, protocol, tos, ttl: 64, id: 1, df: true, more: false, offset: 0 }
                    .write(body.len(), &mut frame[at..])
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Ipv6 { src, dst, protocol, tos, hops: 64, fragment: None }.write(body.len(), &mut frame[at..])
            }
            _ => return Err("mixed families".into()),
        };
        frame.truncate(at + n);
        frame.extend_from_slice(body);
        let frame = self.memory.copy_from(&frame).map_err(|e| e.to_string())?;
        self.stack.ingest(frame, Received::default(), self.now, &mut self.out);
        Ok(())
    }

    fn arrive_icmp(&mut self, kind: &str, mtu: u32, seq: u32) -> Result<(), String> {
        let isn = self.isn.unwrap_or(0);
        let mut quoted = vec![0; 60];
        let n = match (self.local(), self.remote()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Ipv4 { src, dst, protocol: 6, tos: 0, ttl: 60, id: 1, df: true, more: false, offset: 0 }
                    .write(1000, &mut quoted)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Ipv6 { src, dst, protocol: 6, tos: 0, hops: 60, fragment: None }.write(1000, &mut quoted)
            }
            _ => return Err("mixed families".into()),
        };
        quoted.truncate(n);
        quoted.extend_from_slice(&self.local_port.to_be_bytes());
        quoted.extend_from_slice(&self.remote_port.to_be_bytes());
        quoted.extend_from_slice(&seq.wrapping_add(isn).to_be_bytes());
        let (kind, code, word) = match (kind, self.v6) {
            ("frag_needed", false) => (3, 4, mtu),
            ("port_unreachable", false) => (3, 3, 0),
            ("host_unreachable", false) => (3, 1, 0),
            ("packet_too_big", true) => (2, 0, mtu),
            ("port_unreachable", true) => (1, 4, 0),
            ("address_unreachable", true) => (1, 3, 0),
            other => return Err(format!("no such error: {other:?}")),
        };
        let v6 = match (self.remote(), self.local()) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some((src, dst)),
            _ => None,
        };
        let bytes = icmp::message(kind, code, word, &quoted, v6);
        self.deliver(&bytes, if self.v6 { protocol::ICMPV6 } else { protocol::ICMP }, 0)
    }

    // Calls.

    fn call(&mut self, name: &str, args: &[String], result: i64) -> Result<Result<i64, String>, String> {
        if name == "socket" {
            self.sockets.insert(result, Socket::Fresh);
            return Ok(Ok(result));
        }
        let fd: i64 = args[0].parse().map_err(|_| format!("not a descriptor: {}", args[0]))?;
        let now = self.now;
        let number = |i: usize| args.get(i).and_then(|a| a.trim_matches(['[', ']']).parse::<u64>().ok());
        let id = match self.sockets.get(&fd) {
            Some(Socket::Open(id)) => Some(*id),
            Some(_) => None,
            None => return Err(format!("no such descriptor: {fd}")),
        };
        let done = |r: Result<(), Error>| r.map(|()| 0).map_err(errno);
        Ok(match (name, id) {
            ("bind" | "fcntl", _) => Ok(0),
            ("listen", _) => {
                let local = SocketAddr::new(self.local(), LOCAL_PORT);
                let listened = self.stack.tcp_listen(local, number(1).unwrap_or(1) as u32);
                listened
                    .map(|id| {
                        self.sockets.insert(fd, Socket::Listening(id));
                        0
                    })
                    .map_err(errno)
            }
            ("accept", _) => {
                let Some(Socket::Listening(listener)) = self.sockets.get(&fd) else {
                    return Err("accept needs a listener".into());
                };
                match self.stack.tcp_accept(*listener) {
                    Ok(Some((id, _))) => {
                        self.sockets.insert(result, Socket::Open(id));
                        for option in self.later.get(&fd).cloned().unwrap_or_default() {
                            let _ = self.stack.tcp_set(id, option, now, &mut self.out);
                        }
                        Ok(result)
                    }
                    Ok(None) => Err("EAGAIN".into()),
                    Err(error) => Err(errno(error)),
                }
            }
            ("connect", None) => {
                self.remote_port = LOCAL_PORT;
                let remote = SocketAddr::new(self.remote(), self.remote_port);
                match self.stack.tcp_connect(remote, None, now, &mut self.out) {
                    Ok(id) => {
                        self.sockets.insert(fd, Socket::Open(id));
                        for option in self.later.get(&fd).cloned().unwrap_or_default() {
                            let _ = self.stack.tcp_set(id, option, now, &mut self.out);
                        }
                        Err("EINPROGRESS".into())
                    }
                    Err(error) => Err(errno(error)),
                }
            }
            ("read" | "recv", Some(id)) => {
                let max = number(2).unwrap_or(1 << 20) as usize;
                match self.stack.tcp_pop(id, max, now, &mut self.out) {
                    Ok(Some(sga)) => Ok(sga.len() as i64),
                    Ok(None) => Err("EAGAIN".into()),
                    Err(error) => Err(errno(error)),
                }
            }
            ("write" | "send", Some(id)) => {
                let n = number(2).ok_or("how many bytes?")? as usize;
                let bytes = self.memory.copy_from(&vec![b'x'; n]).map_err(|e| e.to_string())?;
                self.stack.tcp_push(id, Sga::from(bytes), now, &mut self.out).map(|_| n as i64).map_err(errno)
            }
            ("shutdown", Some(id)) => done(self.stack.tcp_shutdown(id, now, &mut self.out)),
            ("abort", Some(id)) => done(self.stack.tcp_abort(id, now, &mut self.out)),
            ("close", Some(id)) => done(self.stack.tcp_close(id, now, &mut self.out)),
            ("close", None) => match self.sockets.remove(&fd) {
                Some(Socket::Listening(id)) => done(self.stack.tcp_close_listener(id, now, &mut self.out)),
                _ => Ok(0),
            },
            ("getsockopt", Some(id)) => {
                // SO_ERROR: the result is 0 and the value in brackets is the error's name.
                let got = match self.stack.tcp_error(id) {
                    Ok(None) => "0".to_string(),
                    Ok(Some(error)) => errno(error),
                    Err(error) => errno(error),
                };
                let want = args.get(3).map(|a| a.trim_matches(['[', ']']).to_string()).unwrap_or_default();
                if got == want { Ok(0) } else { Err(format!("SO_ERROR is {got}")) }
            }
            ("setsockopt", _) => self.set(fd, id, &args[2], number(3).unwrap_or(0)),
            other => return Err(format!("no such call here: {other:?}")),
        })
    }

    fn set(&mut self, fd: i64, id: Option<TcpId>, name: &str, value: u64) -> Result<i64, String> {
        let keep = self.keep.entry(fd).or_insert(Keep { on: false, idle: 7200, interval: 75, count: 9 });
        let option = match name {
            "TCP_NODELAY" => Options::NoDelay(value != 0),
            "TCP_CORK" => Options::Cork(value != 0),
            "TCP_USER_TIMEOUT" => Options::UserTimeout(Some(Nanos::millis(value))),
            "SO_RCVBUF" => Options::ReceiveBuffer(value as u32),
            "SO_SNDBUF" => Options::SendBuffer(value as u32),
            "SO_REUSEADDR" => return Ok(0),
            "SO_KEEPALIVE" | "TCP_KEEPIDLE" | "TCP_KEEPINTVL" | "TCP_KEEPCNT" => {
                match name {
                    "SO_KEEPALIVE" => keep.on = value != 0,
                    "TCP_KEEPIDLE" => keep.idle = value,
                    "TCP_KEEPINTVL" => keep.interval = value,
                    _ => keep.count = value as u8,
                }
                Options::KeepAlive(keep.on.then_some(KeepAlive {
                    idle: Nanos::secs(keep.idle),
                    interval: Nanos::secs(keep.interval),
                    count: keep.count,
                }))
            }
            other => return Err(format!("no such option here: {other}")),
        };
        match id {
            Some(id) => self.stack.tcp_set(id, option, self.now, &mut self.out).map(|()| 0).map_err(errno),
            None => {
                self.later.entry(fd).or_default().push(option);
                Ok(0)
            }
        }
    }
}

fn setting(config: &mut Config, v6: &mut bool, name: &str, value: &str) -> Result<(), String> {
    let number: u64 = value.parse().unwrap_or(u64::from(value == "true"));
    let on = number != 0;
    match name {
        "ip_version" => *v6 = value == "ipv6",
        "mtu" => config.mtu = number as u16,
        "congestion" => {
            config.tcp.congestion = if value == "reno" { Algorithm::Reno } else { Algorithm::Cubic };
        }
        "initial_window" => config.tcp.initial_window = number as u32,
        "timestamps" => config.tcp.timestamps = on,
        "sack" => config.tcp.sack = on,
        "scaling" => config.tcp.scaling = on,
        "ecn" => config.tcp.ecn = on,
        "pacing" => config.tcp.pacing = on,
        "receive_buffer" => config.tcp.receive_buffer = (number as u32, number as u32),
        "time_wait" => config.tcp.time_wait = Nanos::secs(number),
        "retries" => config.tcp.retries = number as u8,
        "syn_retries" => config.tcp.syn_retries = number as u8,
        other => return Err(format!("no such setting: {other}")),
    }
    Ok(())
}

fn errno(error: Error) -> String {
    match error {
        Error::Refused => "ECONNREFUSED",
        Error::Reset => "ECONNRESET",
        Error::TimedOut => "ETIMEDOUT",
        Error::Aborted => "ECONNABORTED",
        Error::NotConnected => "ENOTCONN",
        Error::Unreachable => "EHOSTUNREACH",
        Error::NoRoute => "ENETUNREACH",
        Error::AddressInUse => "EADDRINUSE",
        Error::NoSuchSocket => "EBADF",
        _ => "EINVAL",
    }
    .to_string()
}
