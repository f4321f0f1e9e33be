//! Commands with their replies as bytes, and what the log makes of them.

use super::*;
use crate::config::Config;
use crate::log::Log;
use crate::log::load::{Loaded, Loader};
use crate::resp::{Arg, split_inline};
use towpath_cbuf::{Memory, MemoryConfig, Sga};

struct Client {
    session: Session,
    out: Gather,
}

struct Server {
    state: State,
}

fn text(sga: &Sga) -> Vec<u8> {
    let mut bytes = vec![0; sga.len()];
    sga.copy_to_slice(&mut bytes);
    bytes
}

impl Server {
    fn new() -> Server {
        Server::with(Config::default())
    }

    fn with(config: Config) -> Server {
        let memory = Memory::new(MemoryConfig::default()).expect("memory for a test");
        Server { state: State::new(config, memory, 42, 1_700_000_000_000) }
    }

    fn logging() -> Server {
        let mut server = Server::new();
        server.state.log = Some(Log::new(server.state.memory.clone(), 0));
        server
    }

    fn client(&mut self) -> Client {
        let session = self.state.connect("127.0.0.1:1".into(), "127.0.0.1:2".into());
        Client { session, out: Gather::new(self.state.memory.clone()) }
    }

    fn words(&mut self, client: &mut Client, words: &[&[u8]]) -> String {
        let args: Vec<Arg> = words.iter().map(|w| Arg::Bytes(w.to_vec())).collect();
        execute(&mut self.state, &mut client.session, &Args::owned(&args), &mut client.out);
        let reply = client.out.take().expect("memory for a test");
        String::from_utf8_lossy(&text(&reply)).into_owned()
    }

    fn run(&mut self, client: &mut Client, line: &str) -> String {
        let words = split_inline(line.as_bytes()).expect("a test's line is well-formed");
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.words(client, &words)
    }

    fn log(&mut self) -> Vec<u8> {
        text(&self.state.log.as_mut().expect("this server logs").take().expect("memory for a test"))
    }

    fn load(bytes: &[u8], piece: usize) -> (Server, Loaded) {
        let mut server = Server::new();
        let mut loader = Loader::new(&mut server.state);
        for chunk in bytes.chunks(piece) {
            let buf = server.state.memory.copy_from(chunk).expect("memory for a test");
            if !loader.feed(&mut server.state, &Sga::from(buf)) {
                break;
            }
        }
        let loaded = loader.finish(&mut server.state, bytes.len() as u64);
        (server, loaded)
    }

    /// Every key with its value and end, as text.
    fn dump(&self) -> Vec<String> {
        let mut all = Vec::new();
        for db in 0..DATABASES {
            let mut slot = 0;
            while let Some((at, entry)) = self.state.store.next_from(db, slot) {
                let key = String::from_utf8_lossy(entry.key.as_bytes()).into_owned();
                all.push(format!(
                    "{db} {key} {:?} {:?}",
                    String::from_utf8_lossy(&entry.value.bytes()),
                    entry.expires()
                ));
                slot = at + 1;
            }
        }
        all.sort();
        all
    }
}

/// Runs lines and compares the replies.
fn check(lines: &[(&str, &str)]) {
    let mut server = Server::new();
    let mut client = server.client();
    for (line, reply) in lines {
        assert_eq!(server.run(&mut client, line), *reply, "{line}");
    }
}

#[test]
fn strings_answer_as_redis() {
    check(&[
        ("GET k", "$-1\r\n"),
        ("SET k hello", "+OK\r\n"),
        ("GET k", "$5\r\nhello\r\n"),
        ("SET k x NX", "$-1\r\n"),
        ("SET n x NX", "+OK\r\n"),
        ("SET none x XX", "$-1\r\n"),
        ("SET k new GET", "$5\r\nhello\r\n"),
        ("SET fresh v GET", "$-1\r\n"),
        ("SET k v EX 0", "-ERR invalid expire time in 'set' command\r\n"),
        ("SET k v EX x", "-ERR value is not an integer or out of range\r\n"),
        ("SET k v EX 10 PX 10", "-ERR syntax error\r\n"),
        ("SET k v NX XX", "-ERR syntax error\r\n"),
        ("SET k", "-ERR wrong number of arguments for 'set' command\r\n"),
        ("APPEND k er", ":5\r\n"),
        ("STRLEN k", ":5\r\n"),
        ("GETRANGE k 0 2", "$3\r\nnew\r\n"),
        ("GETRANGE k -2 -1", "$2\r\ner\r\n"),
        ("GETRANGE k 3 1", "$0\r\n\r\n"),
        ("GETRANGE k -100 100", "$5\r\nnewer\r\n"),
        ("SETRANGE k 7 x", ":8\r\n"),
        ("GET k", "$8\r\nnewer\0\0x\r\n"),
        ("SETRANGE k -1 x", "-ERR offset is out of range\r\n"),
        ("SETRANGE k 536870912 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"),
        ("MSET a 1 b 2", "+OK\r\n"),
        ("MSET a", "-ERR wrong number of arguments for 'mset' command\r\n"),
        ("MGET a b c", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n"),
        ("MSETNX a 5 z 6", ":0\r\n"),
        ("MSETNX y 5 z 6", ":1\r\n"),
        ("GETDEL z", "$1\r\n6\r\n"),
        ("EXISTS z y y", ":2\r\n"),
        ("GETSET y w", "$1\r\n5\r\n"),
        ("SETEX y 100 v", "+OK\r\n"),
        ("TTL y", ":100\r\n"),
        ("SET y v KEEPTTL", "+OK\r\n"),
        ("PTTL y", ":100000\r\n"),
        ("GETEX y PERSIST", "$1\r\nv\r\n"),
        ("TTL y", ":-1\r\n"),
        ("OBJECT ENCODING a", "$3\r\nint\r\n"),
        ("OBJECT ENCODING y", "$6\r\nembstr\r\n"),
    ]);
}

#[test]
fn counters_answer_as_redis() {
    check(&[
        ("INCR c", ":1\r\n"),
        ("INCRBY c 41", ":42\r\n"),
        ("DECR c", ":41\r\n"),
        ("DECRBY c 1", ":40\r\n"),
        ("SET c 9223372036854775807", "+OK\r\n"),
        ("INCR c", "-ERR increment or decrement would overflow\r\n"),
        ("DECRBY c -9223372036854775808", "-ERR decrement would overflow\r\n"),
        ("SET s text", "+OK\r\n"),
        ("INCR s", "-ERR value is not an integer or out of range\r\n"),
        ("INCRBYFLOAT s 1", "-ERR value is not a valid float\r\n"),
        ("INCRBYFLOAT f 10.5", "$4\r\n10.5\r\n"),
        ("INCRBYFLOAT f 0.1", "$4\r\n10.6\r\n"),
    ]);
}

#[test]
fn keys_answer_as_redis() {
    check(&[
        ("MSET one 1 two 2 three 3", "+OK\r\n"),
        ("DBSIZE", ":3\r\n"),
        ("TYPE one", "+string\r\n"),
        ("TYPE none", "+none\r\n"),
        ("KEYS t*e", "*1\r\n$5\r\nthree\r\n"),
        ("SCAN 0 COUNT 2", "*2\r\n$1\r\n2\r\n*2\r\n$3\r\none\r\n$3\r\ntwo\r\n"),
        ("SCAN 2", "*2\r\n$1\r\n0\r\n*1\r\n$5\r\nthree\r\n"),
        ("SCAN x", "-ERR invalid cursor\r\n"),
        ("RENAME none x", "-ERR no such key\r\n"),
        ("RENAME one uno", "+OK\r\n"),
        ("RENAMENX uno two", ":0\r\n"),
        ("COPY uno one", ":1\r\n"),
        ("COPY uno one", ":0\r\n"),
        ("COPY uno one REPLACE", ":1\r\n"),
        ("EXPIRE one 100", ":1\r\n"),
        ("EXPIRE one 50 GT", ":0\r\n"),
        ("EXPIRE one 50 LT", ":1\r\n"),
        ("EXPIRE one 50 NX GT", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"),
        ("EXPIRETIME one", ":1700000050\r\n"),
        ("PEXPIRETIME one", ":1700000050000\r\n"),
        ("PERSIST one", ":1\r\n"),
        ("TTL none", ":-2\r\n"),
        ("EXPIRE one -1", ":1\r\n"),
        ("EXISTS one", ":0\r\n"),
        ("SELECT 16", "-ERR DB index is out of range\r\n"),
        ("SELECT 1", "+OK\r\n"),
        ("DBSIZE", ":0\r\n"),
        ("SWAPDB 0 1", "+OK\r\n"),
        ("DBSIZE", ":3\r\n"),
        ("DEL uno two x", ":2\r\n"),
        ("FLUSHALL", "+OK\r\n"),
        ("DBSIZE", ":0\r\n"),
        ("RANDOMKEY", "$-1\r\n"),
        ("nonsense a b", "-ERR unknown command 'nonsense', with args beginning with: 'a' 'b' \r\n"),
        ("OBJECT wrong k", "-ERR unknown subcommand 'wrong'. Try OBJECT HELP.\r\n"),
        ("COMMAND GETKEYS MSET a 1 b 2", "*2\r\n$1\r\na\r\n$1\r\nb\r\n"),
        ("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
        ("CONFIG SET maxmemory 1kb", "+OK\r\n"),
        ("CONFIG GET maxmemor?", "*2\r\n$9\r\nmaxmemory\r\n$4\r\n1024\r\n"),
    ]);
}

#[test]
fn client_speaking_resp3_gets_maps_and_nulls() {
    let mut server = Server::new();
    let mut client = server.client();
    let hello = server.run(&mut client, "HELLO 3 SETNAME me");
    assert!(hello.starts_with("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n"), "{hello}");
    assert_eq!(server.run(&mut client, "GET none"), "_\r\n");
    assert_eq!(server.run(&mut client, "CONFIG GET port"), "%1\r\n$4\r\nport\r\n$4\r\n6379\r\n");
    assert_eq!(server.run(&mut client, "CLIENT GETNAME"), "$2\r\nme\r\n");
    assert_eq!(server.run(&mut client, "HELLO 4"), "-NOPROTO unsupported protocol version\r\n");
    assert_eq!(server.run(&mut client, "RESET"), "+RESET\r\n");
    assert_eq!(server.run(&mut client, "GET none"), "$-1\r\n");
}

#[test]
fn client_without_password_may_only_log_in() {
    let mut server = Server::with(Config { requirepass: "secret".into(), ..Config::default() });
    let mut client = server.client();
    assert_eq!(server.run(&mut client, "GET k"), "-NOAUTH Authentication required.\r\n");
    assert_eq!(
        server.run(&mut client, "AUTH wrong"),
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
    );
    assert!(server.run(&mut client, "HELLO 3").starts_with("-NOAUTH HELLO must be called"));
    assert_eq!(server.run(&mut client, "AUTH default secret"), "+OK\r\n");
    assert_eq!(server.run(&mut client, "GET k"), "$-1\r\n");
}

#[test]
fn transaction_runs_whole_or_not_at_all() {
    let mut server = Server::new();
    let (mut a, mut b) = (server.client(), server.client());
    for (line, reply) in [
        ("EXEC", "-ERR EXEC without MULTI\r\n"),
        ("MULTI", "+OK\r\n"),
        ("MULTI", "-ERR MULTI calls can not be nested\r\n"),
        ("DISCARD", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("SET k 1", "+QUEUED\r\n"),
        ("INCR k", "+QUEUED\r\n"),
        ("EXEC", "*2\r\n+OK\r\n:2\r\n"),
        ("MULTI", "+OK\r\n"),
        ("NONSENSE", "-ERR unknown command 'NONSENSE', with args beginning with: \r\n"),
        ("SET k 9", "+QUEUED\r\n"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"),
        ("GET k", "$1\r\n2\r\n"),
        ("WATCH k", "+OK\r\n"),
        ("MULTI", "+OK\r\n"),
        ("WATCH k", "-ERR WATCH inside MULTI is not allowed\r\n"),
        ("DISCARD", "+OK\r\n"),
    ] {
        assert_eq!(server.run(&mut a, line), reply, "{line}");
    }
    for (change, fails) in [("SET k 5", true), ("DEL k", true), ("SET other 1", false), ("FLUSHALL", true)] {
        server.run(&mut a, "SET k 1");
        server.run(&mut a, "WATCH k");
        server.run(&mut b, change);
        server.run(&mut a, "MULTI");
        server.run(&mut a, "PING");
        let reply = server.run(&mut a, "EXEC");
        assert_eq!(reply, if fails { "*-1\r\n" } else { "*1\r\n+PONG\r\n" }, "{change}");
    }
}

#[test]
fn keys_end_when_their_time_comes() {
    let mut server = Server::logging();
    let mut client = server.client();
    server.run(&mut client, "SET short v PX 10");
    server.run(&mut client, "SET long v PX 1000");
    server.state.store.now += 10;
    assert_eq!(server.run(&mut client, "GET short"), "$-1\r\n");
    server.state.store.now += 1000;
    assert_eq!(server.state.store.expire_due(100), 1);
    server.state.log_gone();
    let log = String::from_utf8(server.log()).expect("this log is text");
    assert!(log.contains("PXAT\r\n$13\r\n1700000000010\r\n"), "{log}");
    assert!(log.ends_with("*2\r\n$3\r\nDEL\r\n$5\r\nshort\r\n*2\r\n$3\r\nDEL\r\n$4\r\nlong\r\n"), "{log}");
}

#[test]
fn memory_limit_refuses_or_evicts() {
    let mut server = Server::with(Config { maxmemory: 4000, ..Config::default() });
    let mut client = server.client();
    let value = "v".repeat(500);
    let mut refused = 0;
    for i in 0..20 {
        let reply = server.run(&mut client, &format!("SET k{i} {value}"));
        refused += usize::from(reply == "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    }
    assert!(refused > 5);
    assert_eq!(server.run(&mut client, "DEL k0"), ":1\r\n");
    server.run(&mut client, "CONFIG SET maxmemory-policy allkeys-lru");
    for i in 0..20 {
        assert_eq!(server.run(&mut client, &format!("SET k{i} {value}")), "+OK\r\n");
    }
    assert!(server.state.store.counts.evicted > 0);
    assert!(server.state.store.used() < 4000 + 700);
}

#[test]
fn client_that_wants_no_replies_gets_none() {
    check(&[
        ("CLIENT REPLY SKIP", ""),
        ("SET k v", ""),
        ("GET k", "$1\r\nv\r\n"),
        ("CLIENT REPLY OFF", ""),
        ("GET k", ""),
        ("PING", ""),
        ("CLIENT REPLY ON", "+OK\r\n"),
        ("PING", "+PONG\r\n"),
    ]);
}

/// Everything that changes data, in one session.
const CHANGES: &[&str] = &[
    "SET a 1 EX 100",
    "SET b text",
    "APPEND b more",
    "INCR a",
    "INCRBYFLOAT f 0.1",
    "INCRBYFLOAT f 0.2",
    "MSET c 1 d 2",
    "MSETNX c 5 e 5",
    "MSETNX g 5 e 5",
    "SETRANGE b 2 XX",
    "SELECT 3",
    "SET three 3",
    "GETSET three drei",
    "EXPIRE three 50",
    "COPY three there DB 5",
    "SELECT 0",
    "GETEX d EX 30",
    "GETDEL c",
    "RENAME e moved",
    "MOVE moved 7",
    "MULTI",
    "INCR n",
    "INCR n",
    "GET n",
    "EXEC",
    "SETEX s 10 v",
    "PERSIST s",
    "PEXPIRE b 5000",
    "SET a 9 KEEPTTL",
    "SWAPDB 0 2",
    "SET after 1",
    "EXPIRE after -5",
];

#[test]
fn log_read_back_gives_the_same_data() {
    let mut server = Server::logging();
    let mut client = server.client();
    for line in CHANGES {
        let reply = server.run(&mut client, line);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    server.words(&mut client, &[b"SET", b"large", &[b'L'; 10_000]]);
    let log = server.log();
    for piece in [1, 7, 4096, log.len()] {
        let (again, loaded) = Server::load(&log, piece);
        assert_eq!((loaded.torn, loaded.failed, loaded.good), (None, 0, log.len() as u64));
        assert_eq!(again.dump(), server.dump(), "in pieces of {piece}");
    }
}

#[test]
fn log_cut_anywhere_loads_what_was_complete() {
    let mut server = Server::logging();
    let mut client = server.client();
    // Length of the log after each change, and the data then.
    let mut states = vec![(0u64, server.dump())];
    let mut log = Vec::new();
    for line in CHANGES {
        server.run(&mut client, line);
        log.extend_from_slice(&server.log());
        if client.session.queue.is_none() {
            states.push((log.len() as u64, server.dump()));
        }
    }
    for cut in 0..=log.len() {
        let (again, loaded) = Server::load(&log[..cut], 64);
        let (whole, wanted) = states.iter().rev().find(|(len, _)| *len <= loaded.good).expect("the empty log");
        assert_eq!(loaded.torn.is_none(), loaded.good == cut as u64, "cut at {cut}: {loaded:?}");
        // A `SELECT` or `MULTI` of its own may be complete beyond the last change.
        assert!(loaded.good - whole < 40, "cut at {cut}: {loaded:?}");
        assert_eq!(&again.dump(), wanted, "cut at {cut}");
    }
}

#[test]
fn log_with_damage_is_used_up_to_it() {
    let mut server = Server::logging();
    let mut client = server.client();
    server.run(&mut client, "SET a 1");
    let mut log = server.log();
    let good = log.len() as u64;
    log.extend_from_slice(b"*1\r\n!garbage\r\n");
    let (again, loaded) = Server::load(&log, 16);
    assert_eq!(loaded.good, good);
    assert!(loaded.torn.is_some_and(|why| why.contains("expected '$'")));
    assert_eq!(again.dump(), server.dump());
}

#[test]
fn changes_are_refused_while_the_log_fails() {
    let mut server = Server::logging();
    let mut client = server.client();
    server.run(&mut client, "SET k v");
    if let Some(log) = &mut server.state.log {
        log.failure = Some("No space left on device".into());
    }
    let refusal = "-MISCONF Errors writing to the AOF file: No space left on device\r\n";
    assert_eq!(server.run(&mut client, "SET k w"), refusal);
    assert_eq!(server.run(&mut client, "GET k"), "$1\r\nv\r\n");
}

#[test]
fn counters_as_json_are_well_formed() {
    let mut server = Server::logging();
    let mut client = server.client();
    server.run(&mut client, "SET k v");
    let info = server.run(&mut client, "INFO everything");
    assert!(info.contains("cmdstat_set:calls=1\r\n") && info.contains("db0:keys=1,expires=0"), "{info}");
    let json: serde_json::Value = serde_json::from_str(&stats_json(&server.state)).expect("well-formed JSON");
    assert_eq!(json["stats"]["total_commands_processed"], 2);
    assert_eq!(json["server"]["redis_mode"], "standalone");
}
