//! The same conversation held by smoltcp.

use super::{BATCH, MESSAGE, OUR_IP, OURS, PORT, Peer, THEIR_IP, THEIRS};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as Time;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;
use std::time::Instant;
use towpath_inet::random::Rng;
use towpath_inet::wire::arp::Arp;
use towpath_inet::wire::ethernet::{Ethernet, ethertype};
use towpath_inet::wire::tcp::flag;

/// A device of two queues.
#[derive(Default)]
struct Queues {
    rx: VecDeque<(Vec<u8>, usize)>,
    tx: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

struct Rx((Vec<u8>, usize));

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0.0[..self.0.1])
    }
}

struct Tx<'a>(&'a mut Queues);

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = self.0.spare.pop().unwrap_or_default();
        frame.resize(len, 0);
        let result = f(&mut frame);
        self.0.tx.push_back(frame);
        result
    }
}

impl Device for Queues {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _now: Time) -> Option<(Rx, Tx<'_>)> {
        self.rx.pop_front().map(|frame| (Rx(frame), Tx(self)))
    }

    fn transmit(&mut self, _now: Time) -> Option<Tx<'_>> {
        Some(Tx(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = 1514;
        caps
    }
}

/// smoltcp with its connections.
pub(super) struct Smol {
    iface: Interface,
    sockets: SocketSet<'static>,
    device: Queues,
    handles: Vec<SocketHandle>,
    peers: Vec<Peer>,
    now: i64,
    rng: Rng,
}

impl Smol {
    pub(super) fn new(connections: usize) -> Result<Smol, String> {
        let mut device = Queues::default();
        let mac = HardwareAddress::Ethernet(EthernetAddress(OURS.0));
        let mut iface = Interface::new(Config::new(mac), &mut device, Time::from_millis(0));
        iface.update_ip_addrs(|all| {
            let _ = all.push(IpCidr::new(IpAddress::Ipv4(OUR_IP), 24));
        });
        let mut smol = Smol {
            iface,
            sockets: SocketSet::new(Vec::new()),
            device,
            handles: Vec::new(),
            peers: (0..connections).map(Peer::new).collect(),
            now: 1,
            rng: Rng::new(9),
        };
        smol.introduce();
        for n in 0..connections {
            let buffer = || tcp::SocketBuffer::new(vec![0; 8192]);
            let mut socket = tcp::Socket::new(buffer(), buffer());
            socket.set_nagle_enabled(false);
            socket.set_tsval_generator(Some(|| 1));
            socket.listen(PORT).map_err(|e| e.to_string())?;
            let handle = smol.sockets.add(socket);
            smol.handles.push(handle);
            for flags in [flag::SYN, flag::ACK] {
                smol.feed(n, flags, &[]);
                smol.iface.poll(Time::from_millis(smol.now), &mut smol.device, &mut smol.sockets);
                smol.hear(n);
            }
            if !smol.sockets.get::<tcp::Socket>(handle).may_send() {
                return Err("smoltcp did not establish a connection".into());
            }
        }
        Ok(smol)
    }

    /// Tells it the peer's hardware address.
    fn introduce(&mut self) {
        let mut frame = vec![0; 42];
        let at = Ethernet { dst: OURS, src: THEIRS, vlan: None, ethertype: ethertype::ARP }.write(&mut frame);
        let arp = Arp { request: true, sender_mac: THEIRS, sender_ip: THEIR_IP, target_mac: OURS, target_ip: OUR_IP };
        frame[at..].copy_from_slice(&arp.bytes());
        let len = frame.len();
        self.device.rx.push_back((frame, len));
        self.iface.poll(Time::from_millis(self.now), &mut self.device, &mut self.sockets);
        self.device.tx.clear();
    }

    fn feed(&mut self, n: usize, flags: u8, payload: &[u8]) {
        let mut frame = vec![0; 2048];
        let len = self.peers[n].segment(flags, payload, &mut frame);
        self.device.rx.push_back((frame, len));
    }

    fn hear(&mut self, n: usize) {
        while let Some(frame) = self.device.tx.pop_front() {
            self.peers[n].hear(&frame);
            self.device.spare.push(frame);
        }
    }

    /// As for the stack under test.
    pub(super) fn run(&mut self, batches: usize) -> (f64, f64) {
        let (mut taken, mut pushed) = (0.0, 0.0);
        let mut data = [0; 2 * MESSAGE];
        for _ in 0..batches {
            self.now += 1;
            let now = Time::from_millis(self.now);
            let count = self.handles.len() as u64;
            let picked: Vec<usize> = (0..BATCH).map(|_| self.rng.below(count) as usize).collect();
            for &n in &picked {
                self.peers[n].advance();
                self.feed(n, flag::ACK | flag::PSH, &[5; MESSAGE]);
            }
            let start = Instant::now();
            for &n in &picked {
                self.iface.poll_ingress_single(now, &mut self.device, &mut self.sockets);
                let socket = self.sockets.get_mut::<tcp::Socket>(self.handles[n]);
                let got = socket.recv_slice(&mut data).unwrap_or(0);
                assert_eq!(std::hint::black_box(got), MESSAGE);
            }
            taken += start.elapsed().as_nanos() as f64;
            let start = Instant::now();
            for &n in &picked {
                let socket = self.sockets.get_mut::<tcp::Socket>(self.handles[n]);
                assert_eq!(socket.send_slice(&[7; MESSAGE]), Ok(MESSAGE));
                self.iface.poll_egress(now, &mut self.device, &mut self.sockets);
            }
            pushed += start.elapsed().as_nanos() as f64;
            while let Some(frame) = self.device.tx.pop_front() {
                for &n in &picked {
                    self.peers[n].hear(&frame);
                }
                self.device.spare.push(frame);
            }
        }
        let n = (batches * BATCH) as f64;
        (taken / n, pushed / n)
    }
}
