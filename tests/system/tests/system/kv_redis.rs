//! Real Redis beside us: its clients against our server, its server's replies beside ours, its tools on our log.

use crate::client::Client;
use crate::server::{Server, redis, towpath};
use std::io::Write;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use towpath_testing::{Child, TempDir};

#[test]
fn redis_cli_session_reads_as_with_redis() {
    let Some(bin) = redis("redis_cli_session_reads_as_with_redis") else { return };
    let server = Server::start(&[]);
    let mut cli = Command::new(bin.join("redis-cli"))
        .args(["-p", &server.port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli starts");
    let lines = "set greeting \"hello world\"\nget greeting\nincr greeting\nexpire greeting 100\nttl greeting\n\
                 multi\nincr n\nincr n\nexec\nnonsense\nget\nselect 99\nmget greeting none\n";
    cli.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("redis-cli reads");
    let out = cli.wait_with_output().expect("redis-cli ends");
    let text = String::from_utf8_lossy(&out.stdout);
    let wanted = "OK\nhello world\nERR value is not an integer or out of range\n\n1\n100\nOK\nQUEUED\nQUEUED\n1\n2\n\
                  ERR unknown command 'nonsense', with args beginning with: \n\n\
                  ERR wrong number of arguments for 'get' command\n\nERR DB index is out of range\n\nhello world\n\n";
    assert_eq!(text, wanted);
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn redis_benchmark_runs_every_string_test() {
    let Some(bin) = redis("redis_benchmark_runs_every_string_test") else { return };
    let server = Server::start(&[]);
    let out = Command::new(bin.join("redis-benchmark"))
        .args(["-p", &server.port.to_string(), "-q", "-n", "2000", "-c", "20", "-P", "4", "-r", "100"])
        .args(["-t", "ping,set,get,incr,mset"])
        .output()
        .expect("redis-benchmark runs");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.matches("requests per second").count() >= 6, "{text}");
    assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Requests whose replies depend neither on time nor on the server.
const SAME: &[&str] = &[
    "PING",
    "PING hello",
    "PING a b",
    "ECHO x",
    "ECHO",
    "SET k v",
    "SET k v XX",
    "SET k v NX",
    "SET k v GET",
    "SET k v NX XX",
    "SET k v EX",
    "SET k v EX 0",
    "SET k v EX -1",
    "SET k v PX abc",
    "SET k v EX 10 KEEPTTL",
    "SET k v BAD",
    "SET new v XX GET",
    "GET k",
    "GET",
    "GET a b",
    "GETSET k w",
    "GETSET",
    "GETDEL k",
    "GETDEL k",
    "SETNX k 1",
    "SETNX k 2",
    "SETEX k 0 v",
    "SETEX k abc v",
    "PSETEX k -5 v",
    "GETEX k EX 0",
    "GETEX k PERSIST EX 1",
    "GETEX k BAD",
    "APPEND k abc",
    "STRLEN k",
    "STRLEN none",
    "GETRANGE k 0 -1",
    "GETRANGE k -3 -2",
    "GETRANGE k 5 1",
    "GETRANGE k x 1",
    "SUBSTR k 0 1",
    "SETRANGE k 1 zz",
    "SETRANGE k -1 z",
    "SETRANGE none 0 \"\"",
    "MSET a 1 b 2",
    "MSET a 1 b",
    "MGET a b c",
    "MSETNX a 1 q 2",
    "INCR a",
    "INCR k",
    "INCRBY a 5",
    "INCRBY a x",
    "DECRBY a 3",
    "DECR a",
    "INCRBY a 9223372036854775807",
    "DECRBY a -9223372036854775808",
    "INCRBYFLOAT a 1.5",
    "INCRBYFLOAT a x",
    "INCRBYFLOAT f 0.1",
    "INCRBYFLOAT f 0.2",
    "EXISTS a b a none",
    "EXISTS",
    "TYPE a",
    "TYPE none",
    "EXPIRE none 10",
    "EXPIRE a x",
    "EXPIRE a 10 BAD",
    "EXPIRE a 10 NX XX",
    "EXPIRE a 10 GT LT",
    "EXPIRE a 9223372036854775807",
    "EXPIRE b 100 XX",
    "EXPIRE b 100 GT",
    "EXPIRE b 100 NX",
    "TTL b",
    "EXPIRE b 50 GT",
    "EXPIRE b 50 LT",
    "TTL b",
    "PERSIST b",
    "PERSIST b",
    "TTL b",
    "TTL none",
    "PTTL none",
    "EXPIRETIME b",
    "EXPIREAT b 1",
    "EXISTS b",
    "RENAME none x",
    "RENAME a z",
    "RENAMENX z k",
    "RENAMENX z y",
    "COPY y y",
    "COPY y x",
    "COPY y x",
    "COPY y x REPLACE",
    "COPY y x DB 99",
    "COPY y x BAD",
    "MOVE y 99",
    "MOVE y 0",
    "MOVE y 3",
    "SELECT 3",
    "EXISTS y",
    "SELECT 16",
    "SELECT abc",
    "SELECT 0",
    "TOUCH k x none",
    "DBSIZE",
    "KEYS nothing*",
    "SCAN abc",
    "SCAN 0 COUNT 0",
    "SCAN 0 COUNT x",
    "SCAN 0 BAD 1",
    "SCAN 0 MATCH",
    "OBJECT ENCODING none",
    "OBJECT ENCODING k",
    "OBJECT REFCOUNT k",
    "OBJECT BAD k",
    "OBJECT ENCODING",
    "SWAPDB 0 99",
    "SWAPDB a 1",
    "SWAPDB 0 b",
    "EXEC",
    "DISCARD",
    "MULTI",
    "MULTI",
    "WATCH k",
    "SET t 1",
    "GET t",
    "EXEC",
    "MULTI",
    "SET",
    "EXEC",
    "MULTI",
    "BADCMD",
    "EXEC",
    "WATCH k",
    "SET k changed",
    "MULTI",
    "PING",
    "EXEC",
    "UNWATCH",
    "nonsense",
    "nonsense a b",
    "AUTH x",
    "AUTH a b c d",
    "CLIENT BAD",
    "CLIENT SETNAME \"a b\"",
    "CLIENT SETNAME ok",
    "CLIENT GETNAME",
    "CLIENT KILL 1.2.3.4:5",
    "CLIENT KILL BAD x y",
    "CLIENT NO-EVICT maybe",
    "CLIENT NO-EVICT on",
    "CLIENT PAUSE x",
    "CLIENT REPLY BAD",
    "CONFIG BAD",
    "CONFIG SET nonsense 1",
    "CONFIG SET maxmemory abc",
    "CONFIG GET maxmemory",
    "CONFIG GET",
    "CONFIG GET nonsense",
    "COMMAND GETKEYS GET a",
    "COMMAND GETKEYS MSET a 1 b 2",
    "COMMAND GETKEYS PING",
    "COMMAND GETKEYS NONSENSE",
    "HELLO 9",
    "HELLO x",
    "HELLO 3 BAD",
    "WAIT 0 0",
    "WAIT x 0",
    "FLUSHDB BAD",
    "FLUSHDB",
    "FLUSHALL ASYNC",
    "DBSIZE",
    "RANDOMKEY",
    "RESET",
];

#[test]
fn replies_are_those_of_redis_byte_for_byte() {
    let Some(bin) = redis("replies_are_those_of_redis_byte_for_byte") else { return };
    let folder = TempDir::new();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let _redis = Child(
        Command::new(bin.join("redis-server"))
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts"),
    );
    let start = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "redis-server does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let server = Server::start(&[]);
    let (mut ours, mut theirs) = (server.client(), Client::connect(port));
    let mut different = Vec::new();
    for line in SAME {
        let (a, b) = (ours.run(line), theirs.run(line));
        if a != b {
            different.push(format!("{line}\n  ours:  {a:?}\n  redis: {b:?}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn log_is_read_by_redis_tools() {
    let Some(bin) = redis("log_is_read_by_redis_tools") else { return };
    let folder = TempDir::new();
    let mut server = Server::logging(&folder, "always");
    let mut client = server.client();
    for line in ["SET a 1 EX 1000", "INCR a", "SELECT 2", "MSET x 1 y 2", "MULTI", "INCR x", "EXEC", "DEL y"] {
        client.run(line);
    }
    client.call(&[b"SET", b"large", &[b'L'; 100_000]]);
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());
    let out = Command::new(bin.join("redis-check-aof")).arg(folder.join("appendonly.aof")).output();
    let out = out.expect("redis-check-aof runs");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("is valid"), "{text}");
}

#[test]
fn stats_of_a_running_server_are_json_and_its_socket_goes_with_it() {
    let run = TempDir::new();
    let mut command = Command::new(towpath());
    command.env("XDG_RUNTIME_DIR", run.path());
    let mut server = Server::start_as(command, &[]);
    server.client().run("SET k v");
    let stats = |args: &[&str]| {
        Command::new(towpath()).arg("stats").args(args).env("XDG_RUNTIME_DIR", run.path()).output().expect("it runs")
    };
    let out = stats(&["--json", &server.pid().to_string()]);
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("well-formed JSON");
    assert_eq!(json[0]["kind"], "kv");
    assert_eq!(json[0]["server"]["stats"]["total_commands_processed"], 1);
    assert!(json[0]["runtime"]["queues"].as_u64().is_some_and(|n| n >= 2), "{json}");
    assert!(String::from_utf8_lossy(&stats(&[]).stdout).contains("keyspace"));
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(std::fs::read_dir(run.join("towpath")).expect("the folder stays").count(), 0);
    assert!(!stats(&[]).status.success());
}

#[test]
fn options_come_from_flag_environment_and_file_in_this_order() {
    let folder = TempDir::new();
    let file = folder.join("towpath.toml");
    std::fs::write(&file, "[serve.kv]\nmaxmemory = '1mb'\nmaxclients = 11\ntimeout = 7\n").expect("a file");
    let mut command = Command::new(towpath());
    command.env("TOWPATH_CONFIG", &file).env("TOWPATH_MAXCLIENTS", "22").env("TOWPATH_TIMEOUT", "8");
    let server = Server::start_as(command, &["--timeout", "9"]);
    let mut client = server.client();
    for (name, value) in [("maxmemory", "1048576"), ("maxclients", "22"), ("timeout", "9")] {
        let reply = client.run(&format!("CONFIG GET {name}"));
        assert!(reply.ends_with(&format!("\r\n{value}\r\n")), "{name}: {reply}");
    }
    std::fs::write(&file, "[serve.kv]\nmaxmemroy = '1mb'\n").expect("a file");
    let out = Command::new(towpath()).args(["serve", "kv"]).env("TOWPATH_CONFIG", &file).output().expect("it runs");
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("`serve.kv.maxmemroy`"));
}
