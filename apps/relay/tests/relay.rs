//! The relay with real sockets on loopback.

use std::net::UdpSocket;
use std::sync::mpsc;
use std::time::Duration;
use towpath_libos::{Config, Runtime};
use towpath_relay::{Counts, Options, Server};

/// Runs a relay on a thread of its own; the closure gets its address; what it counted comes back.
fn with_relay(options: Options, parties: impl FnOnce(std::net::SocketAddr)) -> Counts {
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let rt = Runtime::start(Config::default()).expect("a runtime");
        let server = Server::start(&rt, &options).expect("a relay");
        tell.send(server.addresses()[0].inet().expect("an IP address")).expect("the test waits");
        rt.block_on(async {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                rt.sleep(Duration::from_millis(2)).await;
            }
        });
        let counts = server.counts();
        rt.shutdown();
        counts
    });
    parties(told.recv().expect("the relay starts"));
    drop(stop);
    thread.join().expect("the relay ends")
}

fn options() -> Options {
    Options { listen: vec!["127.0.0.1:0".parse().expect("an address")], ..Options::default() }
}

fn party() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    socket
}

fn message(session: u64, text: &[u8]) -> Vec<u8> {
    [&session.to_be_bytes()[..], text].concat()
}

#[test]
fn relay_between_two_parties_forwards_datagrams_unchanged() {
    let counts = with_relay(options(), |relay| {
        let (a, b) = (party(), party());
        let mut buf = [0; 2048];
        // Repeated until the other is known: the first arrives before the second party and is dropped.
        a.send_to(&message(7, b"hello"), relay).expect("sent");
        std::thread::sleep(Duration::from_millis(50));
        b.send_to(&message(7, b"here"), relay).expect("sent");
        let n = a.recv(&mut buf).expect("the second party's datagram");
        assert_eq!(buf[..n], message(7, b"here"));
        for i in 0..200u32 {
            let text: Vec<u8> = (0..i * 7).map(|k| (k ^ i) as u8).collect();
            a.send_to(&message(7, &text), relay).expect("sent");
            let n = b.recv(&mut buf).expect("the first party's datagram");
            assert_eq!(buf[..n], message(7, &text));
        }
    });
    assert_eq!((counts.forwarded, counts.unpaired), (201, 1));
}

#[test]
fn relay_under_rubbish_and_strangers_drops_and_counts_them() {
    let counts = with_relay(Options { sessions_max: 1, ..options() }, |relay| {
        let (a, b, stranger) = (party(), party(), party());
        let mut buf = [0; 64];
        a.send_to(&message(1, b"x"), relay).expect("sent");
        for rubbish in [&b""[..], b"1234567", &[0xff; 7]] {
            stranger.send_to(rubbish, relay).expect("sent");
        }
        std::thread::sleep(Duration::from_millis(50));
        b.send_to(&message(1, b"y"), relay).expect("sent");
        assert_eq!(a.recv(&mut buf).expect("forwarded"), 9);
        stranger.send_to(&message(1, b"z"), relay).expect("sent");
        stranger.send_to(&message(2, b"z"), relay).expect("sent");
        b.send_to(&message(1, b"end"), relay).expect("sent");
        let n = a.recv(&mut buf).expect("forwarded");
        assert_eq!(buf[..n], message(1, b"end"), "what the stranger sent must not arrive");
    });
    let expected = Counts { forwarded: 2, bytes: 20, short: 3, unpaired: 1, strangers: 1, full: 1, unsent: 0 };
    assert_eq!(counts, expected);
}

#[test]
fn relay_whose_party_closed_its_port_goes_on_for_others() {
    let counts = with_relay(options(), |relay| {
        let (a, b) = (party(), party());
        let mut buf = [0; 64];
        a.send_to(&message(1, b"x"), relay).expect("sent");
        std::thread::sleep(Duration::from_millis(50));
        b.send_to(&message(1, b"y"), relay).expect("sent");
        a.recv(&mut buf).expect("forwarded");
        drop(a);
        for _ in 0..5 {
            b.send_to(&message(1, b"gone"), relay).expect("sent");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (c, d) = (party(), party());
        c.send_to(&message(2, b"x"), relay).expect("sent");
        std::thread::sleep(Duration::from_millis(50));
        d.send_to(&message(2, b"y"), relay).expect("sent");
        c.recv(&mut buf).expect("another session still works");
    });
    assert!(counts.forwarded >= 2, "{counts:?}");
}
