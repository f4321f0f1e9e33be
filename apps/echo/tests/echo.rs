//! Server and client on two threads, over every kind of address.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use towpath_echo::{Load, Measured, Options, Server, run};
use towpath_libos::{Address, Config, Kind, Runtime, Waiting};
use towpath_testing::TempDir;

fn runtime() -> Runtime {
    Runtime::start(Config { waiting: Waiting::Block, ..Config::default() }).expect("a runtime starts")
}

/// Runs a load against a server on another thread; returns what the client measured and the server counted.
fn measure(options: Options, kind: Kind, size: usize, connections: usize, messages: u64) -> (Measured, u64) {
    let (tell, told) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let rt = runtime();
        let server = Server::start(&rt, &options).expect("the server starts");
        tell.send(server.addresses()[0].clone()).expect("the test listens");
        rt.block_on(async {
            while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
                rt.sleep(Duration::from_millis(2)).await;
            }
        });
        assert_eq!(server.take_trouble(), None);
        let messages = server.messages();
        rt.shutdown();
        messages
    });
    let address = told.recv().expect("the server tells where it is");
    let rt = runtime();
    let load = Load {
        address,
        kind,
        connections,
        size,
        warm_up: Duration::ZERO,
        time: Duration::from_secs(60),
        messages,
        verify: true,
    };
    let measured = rt.block_on(run(&rt, &load)).expect("the load runs");
    rt.shutdown();
    stop.send(()).expect("the server waits");
    (measured, server.join().expect("the server ends well"))
}

fn streams(address: &str) -> Options {
    Options { streams: vec![address.parse().unwrap()], ..Options::default() }
}

fn datagrams(address: &str) -> Options {
    Options { datagrams: vec![address.parse().unwrap()], ..Options::default() }
}

#[test]
fn echo_over_tcp_returns_every_message() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let (measured, _) = measure(streams(address), Kind::Stream, 64, 8, 50);
        assert_eq!(measured.round_trips.len(), 400);
        assert!(measured.rate() > 0.0);
    }
}

#[test]
fn echo_of_messages_larger_than_a_socket_buffer_returns_them_whole() {
    let (measured, _) = measure(streams("127.0.0.1:0"), Kind::Stream, 8 << 20, 2, 3);
    assert_eq!(measured.round_trips.len(), 6);
}

#[test]
fn echo_over_udp_returns_every_message() {
    for (address, size) in [("127.0.0.1:0", 64), ("[::1]:0", 1400), ("127.0.0.1:0", 60_000)] {
        let (measured, _) = measure(datagrams(address), Kind::Datagram, size, 4, 50);
        assert_eq!(measured.round_trips.len(), 200);
    }
}

#[test]
fn echo_over_unix_sockets_returns_every_message_and_leaves_no_file() {
    let dir = TempDir::new();
    let path: PathBuf = dir.join("socket");
    let options = Options { streams: vec![Address::unix(&path)], ..Options::default() };
    let (measured, messages) = measure(options, Kind::Stream, 1000, 4, 50);
    assert_eq!((measured.round_trips.len(), messages), (200, 200));
    assert!(!path.exists(), "the socket's file was left behind");
}

#[test]
fn echo_with_a_log_has_every_message_in_the_file() {
    let dir = TempDir::new();
    let log = dir.join("log");
    let options = Options { log: Some(log.clone()), ..streams("127.0.0.1:0") };
    let (measured, _) = measure(options, Kind::Stream, 100, 3, 10);
    assert_eq!(measured.round_trips.len(), 30);
    assert_eq!(std::fs::metadata(&log).expect("the log exists").len(), 3000);
}
