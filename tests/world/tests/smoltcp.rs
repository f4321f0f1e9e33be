//! Interoperation with an independent stack: smoltcp as client and as server, over links that lose and reorder.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use towpath_inet::{Mac, Nanos};
use towpath_world::programs::{Receiver, Sender, matches, piece};
use towpath_world::{Host, Link, Node, World};

#[derive(Default)]
struct Queues {
    rx: VecDeque<Vec<u8>>,
    tx: Vec<Vec<u8>>,
}

struct Rx(Vec<u8>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Tx<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push(frame);
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Rx, Tx<'_>)> {
        self.rx.pop_front().map(|frame| (Rx(frame), Tx(&mut self.tx)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = 1514;
        caps
    }
}

/// Bytes received, whether one was wrong, and whether the peer has finished.
type Got = Rc<RefCell<(u64, bool, bool)>>;

/// A host with smoltcp: it sends `total` bytes and checks what comes, then closes.
struct Smol {
    mac: Mac,
    iface: Interface,
    sockets: SocketSet<'static>,
    device: Queues,
    handle: SocketHandle,
    total: u64,
    sent: u64,
    got: Got,
    connect: bool,
    next: Option<Nanos>,
}

impl Smol {
    fn new(n: u8, total: u64, connect: bool) -> (Smol, Got) {
        let mac = Mac([2, 0, 0, 0, 0, n]);
        let mut device = Queues::default();
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
        config.random_seed = 7;
        let mut iface = Interface::new(config, &mut device, Instant::from_micros(1_000_000));
        iface.update_ip_addrs(|all| {
            let _ = all.push(IpCidr::new(IpAddress::v4(10, 0, 0, n), 24));
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; 65_536]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        if !connect {
            socket.listen(7).expect("a free port");
        }
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        let got = Rc::new(RefCell::new((0, false, false)));
        let next = Some(Nanos::ZERO);
        (Smol { mac, iface, sockets, device, handle, total, sent: 0, got: got.clone(), connect, next }, got)
    }

    fn act(&mut self) {
        if std::mem::take(&mut self.connect) {
            let socket = self.sockets.get_mut::<tcp::Socket>(self.handle);
            let remote = (IpAddress::v4(10, 0, 0, 1), 7);
            socket.connect(self.iface.context(), remote, 50_000).expect("a connection begins");
        }
        let socket = self.sockets.get_mut::<tcp::Socket>(self.handle);
        let mut got = self.got.borrow_mut();
        while socket.can_recv() {
            let n = socket
                .recv(|bytes| {
                    got.1 |= !matches(got.0, bytes);
                    (bytes.len(), bytes.len())
                })
                .expect("it can");
            got.0 += n as u64;
        }
        while socket.can_send() && self.sent < self.total {
            let n = (self.total - self.sent).min(10_000) as usize;
            self.sent += socket.send_slice(&piece(self.sent, n)).expect("it can") as u64;
        }
        if socket.may_send() && self.sent == self.total && (self.total > 0 || !socket.may_recv()) {
            socket.close();
        }
        got.2 |= socket.state() != tcp::State::Listen && !socket.may_recv() && got.0 > 0;
    }
}

impl Node for Smol {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn deliver(&mut self, frame: &[u8], now: Nanos) {
        self.device.rx.push_back(frame.to_vec());
        self.poll(now);
    }

    fn poll_at(&self) -> Option<Nanos> {
        self.next
    }

    fn poll(&mut self, now: Nanos) {
        let time = Instant::from_micros(now.as_micros() as i64);
        for _ in 0..3 {
            self.iface.poll(time, &mut self.device, &mut self.sockets);
            self.act();
        }
        let next = self.iface.poll_at(time, &self.sockets);
        self.next = next.map(|t| Nanos::micros(t.total_micros().max(0) as u64).max(now + Nanos::micros(1)));
    }

    fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.device.tx)
    }

    fn set_room(&mut self, _room: usize) {}
}

fn links() -> [Link; 3] {
    let plain = Link::delay(Nanos::millis(2));
    [
        plain,
        Link { loss: 0.02, ..plain },
        Link { loss: 0.01, reorder: 0.1, reorder_by: Nanos::millis(3), duplicate: 0.02, corrupt: 0.01, ..plain },
    ]
}

#[test]
fn smoltcp_as_server_takes_every_byte() {
    for (i, link) in links().into_iter().enumerate() {
        let mut world = World::new(i as u64);
        let (sender, sent) = Sender::new("10.0.0.2:7", 500_000, 20_000);
        let (smol, got) = Smol::new(2, 0, false);
        world.join(Rc::new(RefCell::new(Host::new(&Host::config(1), vec![Box::new(sender)]))), link, link);
        world.join(Rc::new(RefCell::new(smol)), link, link);
        let all = got.clone();
        assert!(world.run(Nanos::secs(600), move || all.borrow().0 == 500_000), "{:?} {:?}", got, sent.borrow());
        assert!(!got.borrow().1, "wrong bytes");
    }
}

#[test]
fn smoltcp_as_client_sends_every_byte() {
    for (i, link) in links().into_iter().enumerate() {
        let mut world = World::new(i as u64);
        let (receiver, got) = Receiver::new(7);
        let (smol, _) = Smol::new(2, 500_000, true);
        world.join(Rc::new(RefCell::new(Host::new(&Host::config(1), vec![Box::new(receiver)]))), link, link);
        world.join(Rc::new(RefCell::new(smol)), link, link);
        let all = got.clone();
        assert!(world.run(Nanos::secs(600), move || all.borrow().ended == 1), "{:?}", got.borrow());
        assert!(!got.borrow().wrong && got.borrow().received == 500_000);
    }
}

#[test]
fn smoltcp_and_echo_exchange_both_ways() {
    let mut world = World::new(1);
    let link = links()[1];
    let (mut receiver, got) = Receiver::new(7);
    receiver.echo = true;
    let (smol, back) = Smol::new(2, 200_000, true);
    world.join(Rc::new(RefCell::new(Host::new(&Host::config(1), vec![Box::new(receiver)]))), link, link);
    world.join(Rc::new(RefCell::new(smol)), link, link);
    let all = back.clone();
    assert!(world.run(Nanos::secs(600), move || all.borrow().0 == 200_000), "{:?} {:?}", got.borrow(), back);
    assert!(!back.borrow().1 && !got.borrow().wrong);
}
