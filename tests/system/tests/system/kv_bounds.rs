//! Clients that are wrong, slow, many or gone: clear errors, bounded memory, and service for everyone else.

use crate::client::{Client, request};
use crate::server::{PATIENCE, Server};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::Read;
use std::time::{Duration, Instant};

#[test]
fn malformed_requests_get_an_error_and_the_connection_ends() {
    let server = Server::start(&[]);
    let cases: [(&[u8], &str); 7] = [
        (b"*1\r\n$1073741824\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1073741824\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n$99999999999999999999\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*-9223372036854775809\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\nPING\r\n", "-ERR Protocol error: expected '$', got 'P'\r\n"),
        (b"SET \"k\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        (&[b'x'; 70_000], "-ERR Protocol error: too big inline request\r\n"),
    ];
    for (bytes, error) in cases {
        let mut client = server.client();
        client.send(bytes);
        assert_eq!(client.try_read().as_deref().map(String::from_utf8_lossy).as_deref(), Some(error));
        assert!(client.ended());
    }
    assert_eq!(server.client().run("PING"), "+PONG\r\n");
}

#[test]
fn requests_before_a_malformed_one_are_answered() {
    let server = Server::start(&[]);
    let mut client = server.client();
    client.send(b"SET k v\r\nGET k\r\n*1\r\n!\r\nGET k\r\n");
    assert_eq!(client.read(), b"+OK\r\n");
    assert_eq!(client.read(), b"$1\r\nv\r\n");
    assert!(client.read().starts_with(b"-ERR Protocol error"));
    assert!(client.ended());
}

#[test]
fn client_that_reads_after_the_overwrite_gets_the_old_value_whole() {
    let server = Server::start(&[]);
    let (mut slow, mut fast) = (server.client(), server.client());
    // Longer than the sockets' buffers together: most of the reply waits in the server, by reference.
    let old: Vec<u8> = (0..24 << 20).map(|i| (i % 251) as u8).collect();
    assert_eq!(fast.call(&[b"SET", b"k", &old]), b"+OK\r\n");
    slow.send(&request(&[b"GET", b"k"]));
    let mut first = [0; 1];
    slow.stream.read_exact(&mut first).expect("the reply has begun");
    assert_eq!(fast.call(&[b"SET", b"k", &vec![0xee; old.len()]]), b"+OK\r\n");
    for i in 0..8 {
        assert_eq!(fast.call(&[b"SET", format!("other{i}").as_bytes(), &vec![0xdd; 4 << 20]]), b"+OK\r\n");
    }
    assert_eq!(fast.run("DEL k"), ":1\r\n");
    assert_eq!(fast.run("FLUSHALL"), "+OK\r\n");
    for i in 0..8 {
        assert_eq!(fast.call(&[b"SET", format!("again{i}").as_bytes(), &vec![0xcc; 4 << 20]]), b"+OK\r\n");
    }
    let mut rest = vec![0; format!("{}\r\n", old.len()).len() + old.len() + 2];
    slow.stream.read_exact(&mut rest).expect("the whole reply");
    let header = format!("{}\r\n", old.len());
    assert_eq!(&rest[..header.len()], header.as_bytes());
    assert!(rest[header.len()..rest.len() - 2] == old[..], "the old value changed on the wire");
    assert_eq!(slow.run("PING"), "+PONG\r\n");
}

#[test]
fn clients_that_never_read_cost_one_batch_each() {
    let server = Server::start(&[]);
    let mut client = server.client();
    client.call(&[b"SET", b"k", &vec![b'v'; 1 << 20]]);
    client.call(&[b"SET", b"small", &vec![b's'; 1000]]);
    let before = server.resident();
    let mut silent: Vec<Client> = (0..50).map(|_| server.client()).collect();
    for (i, one) in silent.iter_mut().enumerate() {
        // 400 MB of replies to each, were they all made.
        let ask: &[u8] = if i % 2 == 0 { b"GET k\r\n" } else { b"GET small\r\n" };
        one.stream.set_nonblocking(true).expect("a socket");
        let _ = std::io::Write::write(&mut one.stream, &ask.repeat(400));
    }
    for _ in 0..200 {
        assert_eq!(client.run("GET none"), "$-1\r\n");
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 100 << 20, "50 clients that never read cost {} MB", grown >> 20);
}

#[test]
fn half_sent_requests_hold_what_was_sent_and_no_more() {
    let server = Server::start(&[]);
    let before = server.resident();
    let mut waiting: Vec<Client> = (0..400).map(|_| server.client()).collect();
    for client in &mut waiting {
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nfirst bytes of many");
    }
    let mut other = server.client();
    assert_eq!(other.run("PING"), "+PONG\r\n");
    std::thread::sleep(Duration::from_millis(200));
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 20 << 20, "400 unfinished requests of 30 bytes cost {} KB", grown >> 10);
    drop(waiting);
    let start = Instant::now();
    while !other.run("INFO clients").contains("connected_clients:1\r\n") {
        assert!(start.elapsed() < PATIENCE, "connections of clients that went away stay");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ten_thousand_connections_are_served() {
    let wanted = 10_000;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < wanted + 500) {
        towpath_testing::skip("ten_thousand_connections_are_served", "the limit of open files is too low here");
        return;
    }
    limit.current = limit.maximum.map(|most| most.min(1 << 20)).or(Some(wanted + 500));
    setrlimit(Resource::Nofile, limit).expect("the soft limit may reach the hard one");
    let server = Server::start(&[]);
    let mut clients: Vec<Client> = (0..wanted).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(b"INCR n\r\n");
    }
    let mut seen: Vec<u64> = clients
        .iter_mut()
        .map(|c| String::from_utf8_lossy(&c.read()).trim_start_matches(':').trim().parse().expect("a number"))
        .collect();
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(1..=wanted));
    // The next one is one too many.
    let mut late = server.client();
    assert_eq!(late.try_read().as_deref(), Some(&b"-ERR max number of clients reached\r\n"[..]));
    assert!(server.resident() < 400 << 20, "{} MB for ten thousand idle clients", server.resident() >> 20);
}

#[test]
fn idle_clients_are_disconnected_when_asked() {
    let server = Server::start(&["--timeout", "1"]);
    let mut idle = server.client();
    assert_eq!(idle.run("PING"), "+PONG\r\n");
    let start = Instant::now();
    assert!(idle.ended());
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn killed_client_is_disconnected_and_paused_ones_wait() {
    let server = Server::start(&[]);
    let (mut a, mut b) = (server.client(), server.client());
    let id = b.run("CLIENT ID");
    let id = id.trim_start_matches(':').trim();
    assert_eq!(a.run(&format!("CLIENT KILL ID {id}")), ":1\r\n");
    assert!(b.ended());
    let mut b = server.client();
    assert_eq!(a.run("CLIENT PAUSE 300 WRITE"), "+OK\r\n");
    let start = Instant::now();
    assert_eq!(b.run("GET k"), "$-1\r\n");
    assert!(start.elapsed() < Duration::from_millis(250), "a read was paused");
    assert_eq!(b.run("SET k v"), "+OK\r\n");
    assert!(start.elapsed() >= Duration::from_millis(250), "a write was not paused");
}

#[test]
fn idle_server_takes_no_processor() {
    let server = Server::start(&[]);
    let mut client = server.client();
    client.run("SET k v EX 1000");
    std::thread::sleep(Duration::from_millis(200));
    let before = server.cpu();
    std::thread::sleep(Duration::from_secs(2));
    let used = server.cpu() - before;
    assert!(used < Duration::from_millis(20), "{used:?} in two idle seconds");
}

#[test]
fn small_values_do_not_pin_the_buffers_they_came_in() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let before = server.resident();
    // Small values between large ones that go again: each came in a buffer of its own kind.
    let mut batch = Vec::new();
    for i in 0..20_000 {
        batch.extend_from_slice(&request(&[b"SET", format!("k{i}").as_bytes(), &[b'v'; 64]]));
        if i % 100 == 0 {
            batch.extend_from_slice(&request(&[b"SET", b"large", &[b'L'; 60_000]]));
        }
    }
    let replies = 20_000 + 200;
    let mut writer = client.stream.try_clone().expect("a second handle");
    let job = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &batch).expect("the server reads"));
    for _ in 0..replies {
        assert_eq!(client.read(), b"+OK\r\n");
    }
    job.join().expect("everything was sent");
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 20 << 20, "20,000 values of 64 bytes cost {} KB", grown >> 10);
}
