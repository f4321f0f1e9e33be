//! The rest of the network: datagrams, errors, paths, neighbours, floods, deaths.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use towpath_cbuf::{Memory, MemoryConfig, Sga};
use towpath_inet::{Config, Error, Event, Mac, Nanos, Options, Received, Stack, UdpId};
use towpath_world::programs::{Receiver, Sender, piece};
use towpath_world::{Host, HostApi, Link, Program, Wire, World};

/// Sends datagrams of growing sizes to a peer that returns them.
struct Datagrams {
    local: u16,
    peer: Option<SocketAddr>,
    sizes: Vec<usize>,
    id: Option<UdpId>,
    got: Rc<RefCell<Vec<usize>>>,
    errors: Rc<RefCell<Vec<Error>>>,
}

impl Datagrams {
    fn next(&mut self, host: &mut HostApi<'_>) {
        if let (Some(peer), Some(id), Some(n)) = (self.peer, self.id, self.sizes.pop()) {
            let sent = host.stack.udp_send(id, &Sga::from(piece(n as u64, n)), Some(peer), host.now, host.wire);
            self.errors.borrow_mut().extend(sent.err());
        }
    }
}

impl Program for Datagrams {
    fn start(&mut self, host: &mut HostApi<'_>) {
        let any: IpAddr = if self.peer.is_some_and(|p| p.is_ipv6()) { "::".parse().unwrap() } else { [0; 4].into() };
        let id = host.stack.udp_bind(SocketAddr::new(any, self.local)).expect("the port is free");
        host.stack.udp_connect(id, self.peer).expect("it exists");
        self.id = Some(id);
        self.next(host);
    }

    fn event(&mut self, host: &mut HostApi<'_>, event: Event) {
        let Event::Udp(id) = event else { return };
        loop {
            match host.stack.udp_receive(id) {
                Ok(Some(datagram)) => {
                    let n = datagram.payload.len();
                    let mut bytes = vec![0; n];
                    datagram.payload.copy_to_slice(&mut bytes);
                    assert_eq!(&bytes[..], &piece(n as u64, n)[..], "wrong bytes");
                    self.got.borrow_mut().push(n);
                    if self.peer.is_none() {
                        let back = host.stack.udp_send(id, &datagram.payload, Some(datagram.from), host.now, host.wire);
                        self.errors.borrow_mut().extend(back.err());
                    } else {
                        self.next(host);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.errors.borrow_mut().push(error);
                    return;
                }
            }
        }
    }
}

type Log<T> = Rc<RefCell<Vec<T>>>;

fn datagrams(local: u16, peer: Option<&str>, sizes: Vec<usize>) -> (Box<Datagrams>, Log<usize>, Log<Error>) {
    let (got, errors) = (Log::default(), Log::default());
    let peer = peer.map(|p| p.parse().unwrap());
    (Box::new(Datagrams { local, peer, sizes, id: None, got: got.clone(), errors: errors.clone() }), got, errors)
}

#[test]
fn datagrams_of_every_size_go_there_and_back_in_fragments_where_needed() {
    for peer in ["10.0.0.2:53", "[fd00::2]:53"] {
        let sizes = vec![0, 1, 1472, 1473, 5000, 65_000];
        let (client, got, errors) = datagrams(1000, Some(peer), sizes);
        let (server, served, _) = datagrams(53, None, vec![]);
        let mut world = World::new(1);
        let link = Link::delay(Nanos::millis(1));
        world.join(Rc::new(RefCell::new(Host::new(&Host::config(1), vec![client]))), link, link);
        world.join(Rc::new(RefCell::new(Host::new(&Host::config(2), vec![server]))), link, link);
        let all = got.clone();
        assert!(world.run(Nanos::secs(5), move || all.borrow().len() == 6), "{:?}", got.borrow());
        assert_eq!(*got.borrow(), [65_000, 5000, 1473, 1472, 1, 0]);
        assert_eq!(*served.borrow(), *got.borrow());
        assert!(errors.borrow().is_empty());
    }
}

#[test]
fn datagram_to_a_port_without_socket_reports_refusal_to_who_named_its_peer() {
    for peer in ["10.0.0.2:99", "[fd00::2]:99"] {
        let (client, _, errors) = datagrams(1000, Some(peer), vec![5]);
        let mut world = World::new(1);
        let link = Link::delay(Nanos::millis(1));
        world.join(Rc::new(RefCell::new(Host::new(&Host::config(1), vec![client]))), link, link);
        world.join(Rc::new(RefCell::new(Host::new(&Host::config(2), vec![]))), link, link);
        let seen = errors.clone();
        assert!(world.run(Nanos::secs(5), move || !seen.borrow().is_empty()));
        assert_eq!(*errors.borrow(), [Error::Refused]);
    }
}

fn pair(
    seed: u64,
    sender: Sender,
    receiver: Receiver,
    tune: fn(&mut Config),
) -> (World, Rc<RefCell<Host>>, Rc<RefCell<Host>>) {
    let mut world = World::new(seed);
    let (mut a, mut b) = (Host::config(1), Host::config(2));
    tune(&mut a);
    tune(&mut b);
    let a = Rc::new(RefCell::new(Host::new(&a, vec![Box::new(sender)])));
    let b = Rc::new(RefCell::new(Host::new(&b, vec![Box::new(receiver)])));
    let link = Link::delay(Nanos::millis(5));
    world.join(a.clone(), link, link);
    world.join(b.clone(), link, link);
    (world, a, b)
}

#[test]
fn stream_over_a_path_that_swallows_big_packets_finds_a_size_that_passes() {
    let (sender, sent) = Sender::new("10.0.0.2:7", 200_000, 50_000);
    let (receiver, got) = Receiver::new(7);
    let (mut world, a, _) = pair(1, sender, receiver, |_| {});
    world.set_up(0, Link { mtu: 1300, ..Link::delay(Nanos::millis(5)) });
    let done = got.clone();
    assert!(world.run(Nanos::secs(60), move || done.borrow().ended == 1), "{:?} {:?}", sent.borrow(), got.borrow());
    assert!(!got.borrow().wrong && got.borrow().received == 200_000);
    assert!(a.borrow().stack.stats().timeouts > 0, "the hole was found by timeouts");
}

#[test]
fn stream_to_the_own_host_turns_round_inside_the_stack() {
    for to in ["127.0.0.1:7", "10.0.0.1:7", "[::1]:7", "[fd00::1]:7"] {
        let (sender, sent) = Sender::new(to, 300_000, 10_000);
        let (receiver, got) = Receiver::new(7);
        let mut world = World::new(1);
        let host = Host::new(&Host::config(1), vec![Box::new(receiver), Box::new(sender)]);
        let host = Rc::new(RefCell::new(host));
        world.join(host.clone(), Link::delay(Nanos::ZERO), Link::delay(Nanos::ZERO));
        let done = got.clone();
        assert!(world.run(Nanos::secs(5), move || done.borrow().ended == 1), "{to}: {:?}", sent.borrow());
        assert!(!got.borrow().wrong && got.borrow().received == 300_000);
        assert_eq!(host.borrow().stack.stats().frames_out, 0, "nothing leaves the host");
    }
}

#[test]
fn connect_to_nobody_fails_in_time() {
    let (sender, sent) = Sender::new("10.0.0.9:7", 10, 10);
    let (receiver, _) = Receiver::new(7);
    let (mut world, a, _) = pair(1, sender, receiver, |_| {});
    let done = sent.clone();
    assert!(world.run(Nanos::secs(300), move || !done.borrow().errors.is_empty()));
    assert_eq!(sent.borrow().errors, [Error::TimedOut]);
    assert_eq!(a.borrow().stack.tcp_census().0, 0);
}

#[test]
fn connect_to_a_closed_port_is_refused_at_once() {
    let (sender, sent) = Sender::new("10.0.0.2:8", 10, 10);
    let (receiver, _) = Receiver::new(7);
    let (mut world, ..) = pair(1, sender, receiver, |_| {});
    let done = sent.clone();
    assert!(world.run(Nanos::millis(50), move || !done.borrow().errors.is_empty()));
    assert_eq!(sent.borrow().errors, [Error::Refused]);
}

#[test]
fn peer_that_dies_in_the_middle_is_noticed_and_everything_given_back() {
    for reborn in [false, true] {
        let (sender, sent) = Sender::new("10.0.0.2:7", 1 << 30, 1 << 20);
        let (receiver, got) = Receiver::new(7);
        let (mut world, a, _) = pair(1, sender, receiver, |_| {});
        let some = got.clone();
        assert!(world.run(Nanos::secs(20), move || some.borrow().received > 1_000_000));
        world.kill(1);
        if reborn {
            let fresh = Rc::new(RefCell::new(Host::new(&Host::config(2), vec![])));
            world.replace(1, fresh);
        }
        let done = sent.clone();
        assert!(world.run(Nanos::secs(3000), move || !done.borrow().errors.is_empty()), "{:?}", sent.borrow());
        let want = if reborn { Error::Reset } else { Error::TimedOut };
        assert_eq!(sent.borrow().errors[0], want);
        world.run(Nanos::secs(130), || false);
        assert_eq!(a.borrow().stack.tcp_census().0, 0);
        assert_eq!(a.borrow().memory.stats().buffers_in_use, 0);
    }
}

#[test]
fn many_connections_at_once_all_deliver() {
    let mut world = World::new(3);
    let (mut receiver, got) = Receiver::new(7);
    receiver.backlog = 4;
    let server = Rc::new(RefCell::new(Host::new(&Host::config(100), vec![Box::new(receiver)])));
    let link = Link { loss: 0.01, ..Link::delay(Nanos::millis(3)) };
    world.join(server.clone(), link, link);
    for n in 1..=40 {
        let (sender, _) = Sender::new("10.0.0.100:7", 30_000, 3000);
        world.join(Rc::new(RefCell::new(Host::new(&Host::config(n), vec![Box::new(sender)]))), link, link);
    }
    let done = got.clone();
    assert!(world.run(Nanos::secs(400), move || done.borrow().ended == 40), "{:?}", got.borrow());
    assert!(!got.borrow().wrong && got.borrow().received == 40 * 30_000);
    let stats = server.borrow().stack.stats();
    assert!(stats.cookies_sent > 0 && stats.cookies_taken > 0, "a backlog of 4 makes cookies necessary: {stats:?}");
}

#[test]
fn idle_connections_by_the_hundred_thousand_fit_in_a_hundred_megabytes() {
    const N: u32 = 100_000;
    let memory = Memory::new(MemoryConfig::default()).unwrap();
    let now = Nanos::secs(1);
    let mut config = Host::config(1);
    config.addresses.clear();
    config.addresses.push(towpath_inet::Cidr::new([10, 0, 0, 1], 8));
    let mut wire = Wire::default();
    let mut stack = Stack::new(&config, memory.clone(), now);
    let listener = stack.tcp_listen("10.0.0.1:7".parse().unwrap(), 16).unwrap();
    let peer_mac = Mac([2, 0, 0, 0, 0, 9]);
    for n in 0..N {
        let ip = std::net::Ipv4Addr::from(0x0a01_0000 + n / 50_000);
        if n % 50_000 == 0 {
            stack.set_neighbour(ip.into(), peer_mac, now, &mut wire);
        }
        let port = 1024 + (n % 50_000) as u16;
        let syn = common::segment(peer_mac, config.mac, (ip, [10, 0, 0, 1].into()), (port, 7), (2, 100, 0));
        stack.ingest(memory.copy_from(&syn).unwrap(), Received::default(), now, &mut wire);
        let answer = wire.frames.pop().expect("a SYN-ACK");
        let seq = u32::from_be_bytes([answer[38], answer[39], answer[40], answer[41]]);
        let ack = common::segment(peer_mac, config.mac, (ip, [10, 0, 0, 1].into()), (port, 7), (16, 101, seq + 1));
        stack.ingest(memory.copy_from(&ack).unwrap(), Received::default(), now, &mut wire);
        stack.tcp_accept(listener).unwrap().expect("a connection");
    }
    let (count, bytes) = stack.tcp_census();
    assert_eq!(count, N as usize);
    println!("{} bytes a connection", bytes / N as usize);
    assert!(bytes < 100_000_000, "{} bytes a connection", bytes / N as usize);
    for at in [3, 5, 7] {
        stack.poll(Nanos::secs(at), &mut wire);
    }
    assert!(wire.frames.is_empty(), "nothing is sent again");
    assert!(stack.poll_at() > Some(Nanos::secs(10)), "idle connections need no timer: {:?}", stack.poll_at());
}

#[test]
fn slices_kept_from_full_frames_are_bounded_by_copying_them_out() {
    // A program that never pops, and a peer that sends one byte a segment: the frames must not all be held.
    let (mut sender, sent) = Sender::new("10.0.0.2:7", 20_000, 1);
    sender.options.push(Options::NoDelay(true));
    sender.all_at_once = true;
    struct Deaf;
    impl Program for Deaf {
        fn start(&mut self, host: &mut HostApi<'_>) {
            host.stack.tcp_listen("0.0.0.0:7".parse().unwrap(), 5).unwrap();
        }
        fn event(&mut self, host: &mut HostApi<'_>, event: Event) {
            if let Event::Accept(id) = event {
                let _ = host.stack.tcp_accept(id);
            }
        }
    }
    let mut world = World::new(1);
    let a = Rc::new(RefCell::new(Host::new(&Host::config(1), vec![Box::new(sender)])));
    let b = Rc::new(RefCell::new(Host::new(&Host::config(2), vec![Box::new(Deaf)])));
    let link = Link::delay(Nanos::millis(1));
    world.join(a, link, link);
    world.join(b.clone(), link, link);
    world.run(Nanos::secs(30), || false);
    assert_eq!(sent.borrow().pushed, 20_000);
    let host = b.borrow();
    let stats = host.memory.stats();
    assert!(stats.frames_in_use < 64, "{} frames held for 20,000 bytes of payload", stats.frames_in_use);
    assert!(host.stack.stats().copied_out > 0);
}

mod common {
    use std::net::Ipv4Addr;
    use towpath_inet::Mac;
    use towpath_inet::wire::ethernet::{Ethernet, ethertype};
    use towpath_inet::wire::ipv4::Ipv4;
    use towpath_inet::wire::tcp::{Options, Seq, Tcp};
    use towpath_inet::wire::{protocol, pseudo};

    /// A TCP segment without payload, on Ethernet.
    pub fn segment(
        from: Mac,
        to: Mac,
        (src, dst): (Ipv4Addr, Ipv4Addr),
        (src_port, dst_port): (u16, u16),
        (flags, seq, ack): (u8, u32, u32),
    ) -> Vec<u8> {
        let mut out = vec![0; 54];
        Ethernet { dst: to, src: from, vlan: None, ethertype: ethertype::IPV4 }.write(&mut out);
        let ip = Ipv4 { src, dst, protocol: 6, tos: 0, ttl: 64, id: 0, df: true, more: false, offset: 0 };
        ip.write(20, &mut out[14..]);
        let (seq, ack) = (Seq(seq), Seq(ack));
        let header = Tcp { src_port, dst_port, seq, ack, flags, window: 1000, options: Options::default() };
        let mut body = [0; 60];
        header.write(&mut body);
        let mut sum = pseudo(src.into(), dst.into(), protocol::TCP, 20);
        sum.add(&body[..20]);
        body[16..18].copy_from_slice(&sum.finish().to_be_bytes());
        out[34..].copy_from_slice(&body[..20]);
        out
    }
}
