//! What was acknowledged stays: crashes, signals, full disks, damaged logs.

use crate::client::Client;
use crate::server::{Server, towpath};
use rustix::process::Signal;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use towpath_testing::TempDir;

/// A writer of numbered keys, until its connection ends; returns how many were acknowledged.
fn writer(port: u16, name: usize, acknowledged: &Arc<AtomicU64>) -> std::thread::JoinHandle<u64> {
    let acknowledged = acknowledged.clone();
    std::thread::spawn(move || {
        let mut client = Client::connect(port);
        for i in 0.. {
            let key = format!("w{name}:{i}");
            if client.stream.write_all(format!("SET {key} {i}\r\n").as_bytes()).is_err() {
                return i;
            }
            match client.try_read() {
                Some(reply) if reply == b"+OK\r\n" => acknowledged.fetch_add(1, Ordering::Relaxed),
                _ => return i,
            };
        }
        unreachable!("the loop has no end")
    })
}

/// Runs writers until enough is acknowledged, then `end`; checks that nothing acknowledged is missing after a restart.
fn nothing_is_lost(fsync: &str, end: impl FnOnce(Server)) {
    let folder = TempDir::new();
    let server = Server::logging(&folder, fsync);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..8).map(|name| writer(server.port, name, &acknowledged)).collect();
    while acknowledged.load(Ordering::Relaxed) < 1000 {
        std::thread::sleep(Duration::from_millis(2));
    }
    end(server);
    let counts: Vec<u64> = writers.into_iter().map(|w| w.join().expect("a writer ends")).collect();
    let server = Server::logging(&folder, fsync);
    let mut client = server.client();
    for (name, count) in counts.iter().enumerate() {
        for i in 0..*count {
            let wanted = format!("${}\r\n{i}\r\n", i.to_string().len());
            assert_eq!(client.run(&format!("GET w{name}:{i}")), wanted, "w{name}:{i} of {count} was acknowledged");
        }
    }
}

#[test]
fn crash_with_log_always_loses_nothing_acknowledged() {
    nothing_is_lost("always", Server::crash);
}

#[test]
fn crash_of_the_process_with_log_everysec_loses_nothing_acknowledged() {
    // The system still has what was written to it before each acknowledgement.
    nothing_is_lost("everysec", Server::crash);
}

#[test]
fn termination_under_load_ends_with_success_and_loses_nothing() {
    nothing_is_lost("always", |mut server| {
        server.signal(Signal::TERM);
        assert!(server.wait().success());
    });
}

#[test]
fn full_disk_refuses_changes_and_serves_reads_until_there_is_room() {
    let folder = TempDir::new();
    let mut command = Command::new("sh");
    let shell = "ulimit -S -f 64; trap '' XFSZ; exec \"$0\" \"$@\"";
    command.args(["-c", shell]).arg(towpath());
    let dir = folder.path().display().to_string();
    let server = Server::start_as(command, &["--appendonly", "--appendfsync", "always", "--dir", &dir]);
    let (mut client, mut acknowledged) = (server.client(), 0);
    let refusal = loop {
        let reply = client.run(&format!("SET k{acknowledged} {}", "v".repeat(900)));
        if reply != "+OK\r\n" {
            break reply;
        }
        acknowledged += 1;
        assert!(acknowledged < 10_000, "the limit has no effect");
    };
    assert!(refusal.starts_with("-MISCONF Errors writing to the AOF file: "), "{refusal}");
    assert!(acknowledged > 10);
    // Refused before it changes anything, now that it is known.
    assert!(client.run("SET other v").starts_with("-MISCONF"));
    assert_eq!(client.run("EXISTS other"), ":0\r\n");
    assert!(client.run("GET k0").starts_with("$900\r\n"));
    assert!(client.run("INFO persistence").contains("aof_last_write_status:err\r\n"));
    // Room again: the write is tried once a second.
    let raised = Command::new("prlimit").args(["--fsize=unlimited", "--pid", &server.pid().to_string()]).status();
    assert!(raised.expect("prlimit is part of util-linux").success());
    let start = std::time::Instant::now();
    while client.run("SET after v") != "+OK\r\n" {
        assert!(start.elapsed() < Duration::from_secs(20), "changes are still refused");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.crash();
    let server = Server::logging(&folder, "always");
    let mut client = server.client();
    for i in 0..acknowledged {
        assert!(client.run(&format!("GET k{i}")).starts_with("$900\r\n"), "k{i} was acknowledged");
    }
    assert_eq!(client.run("GET after"), "$1\r\nv\r\n");
}

#[test]
fn torn_log_is_cut_with_a_message_and_its_end_kept() {
    let folder = TempDir::new();
    let mut server = Server::logging(&folder, "always");
    server.client().run("SET a 1");
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    let path = folder.join("appendonly.aof");
    let good = std::fs::metadata(&path).expect("the log").len();
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).expect("the log");
    file.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$100\r\nhalf").expect("a damaged end");
    let server = Server::logging(&folder, "always");
    let told = server.printed.iter().any(|line| line.contains(&format!("damaged after byte {good}")));
    assert!(told, "{:?}", server.printed);
    let mut client = server.client();
    assert_eq!(client.run("GET a"), "$1\r\n1\r\n");
    assert_eq!(client.run("SET c 3"), "+OK\r\n");
    assert!(folder.join(&format!("appendonly.aof.cut-at-{good}")).is_file());
    server.crash();
    let server = Server::logging(&folder, "always");
    assert_eq!(server.client().run("MGET a c"), "*2\r\n$1\r\n1\r\n$1\r\n3\r\n");
}

#[test]
fn log_rewritten_under_load_is_shorter_and_complete() {
    let folder = TempDir::new();
    let server = Server::logging(&folder, "everysec");
    let mut client = server.client();
    for i in 0..3000 {
        client.send(format!("SET k{} {i}\r\n", i % 500).as_bytes());
    }
    for _ in 0..3000 {
        client.read();
    }
    let before = std::fs::metadata(folder.join("appendonly.aof")).expect("the log").len();
    assert!(client.run("BGREWRITEAOF").starts_with("+Background"));
    // Changes that are no good if made twice, while the rewrite runs.
    let mut done = 0;
    while done < 500 || client.run("INFO persistence").contains("aof_rewrite_in_progress:1") {
        client.run(&format!("INCR k{}", done % 500));
        client.run(&format!("APPEND text{} x", done % 7));
        done += 1;
    }
    assert!(client.run("INFO persistence").contains("aof_last_bgrewrite_status:ok"));
    let dump = |client: &mut Client| -> Vec<String> {
        let keys = (0..500).map(|i| format!("k{i}")).chain((0..7).map(|i| format!("text{i}")));
        keys.map(|key| client.run(&format!("GET {key}"))).collect()
    };
    let wanted = dump(&mut client);
    server.crash();
    let after = std::fs::metadata(folder.join("appendonly.aof")).expect("the log").len();
    assert!(after < before, "{after} bytes after the rewrite, {before} before it");
    let server = Server::logging(&folder, "everysec");
    assert_eq!(dump(&mut server.client()), wanted);
}
