//! Redis's own server, unmodified, on the malloc replacement.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use towpath_testing::{Child, TempDir, root, skip};

/// The library under test, built beside this test.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let deps = exe.parent().expect("a folder");
    let name = "libtowpath_malloc.so";
    let found = [deps.join(name), deps.parent().expect("a folder").join(name)].into_iter().find(|p| p.is_file());
    found.expect("cargo builds the library before its tests")
}

/// The folder of private copies of redis's programs, or why there is none.
fn redis() -> Result<PathBuf, String> {
    let output = Command::new(root().join("scripts/private-redis.sh")).output().map_err(|e| e.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    if output.status.success() { Ok(PathBuf::from(text(&output.stdout))) } else { Err(text(&output.stderr)) }
}

/// Runs one of redis's clients against the server behind `socket`; what it printed.
fn ask(bin: &Path, program: &str, socket: &Path, args: &[&str]) -> String {
    let output = Command::new(bin.join(program)).arg("-s").arg(socket).args(args).output().expect("the client starts");
    let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
    assert!(output.status.success(), "{program} {args:?}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn redis_server_on_towpath_answers_its_own_benchmark() {
    let bin = match redis() {
        Ok(bin) => bin,
        Err(why) => return skip("redis_server_on_towpath_answers_its_own_benchmark", &why),
    };
    let dir = TempDir::new();
    let (socket, errors) = (dir.join("redis.sock"), dir.join("stderr"));
    let mut command = Command::new(bin.join("redis-server"));
    command.env("LD_PRELOAD", library()).env_remove("TOWPATH_MALLOC_ABORT");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--dir"]).arg(dir.path());
    command.arg("--unixsocket").arg(&socket).stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(std::fs::File::create(&errors).expect("a file"));
    let mut server = Child(command.spawn().expect("the server starts"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !socket.exists() {
        assert!(server.0.try_wait().expect("a child").is_none(), "{}", std::fs::read_to_string(&errors).unwrap());
        assert!(Instant::now() < deadline, "the server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.0.id())).expect("its mappings");
    assert!(maps.contains("libtowpath_malloc.so"), "the server does not run on the library:\n{maps}");

    let cli = |args: &[&str]| ask(&bin, "redis-cli", &socket, args);
    assert_eq!(cli(&["SET", "boat", "narrow"]), "OK");
    assert_eq!(cli(&["GET", "boat"]), "narrow");
    let load = ["-t", "set,get,lpush,lpop,sadd,hset", "-n", "4000", "-c", "8", "-r", "1000", "-d", "700", "-q"];
    let report = ask(&bin, "redis-benchmark", &socket, &load);
    assert!(report.contains("GET") && report.contains("requests per second"), "{report}");
    let keys: u64 = cli(&["DBSIZE"]).parse().expect("a number of keys");
    assert!(keys > 100, "the benchmark wrote {keys} keys");
    assert!(cli(&["INFO", "memory"]).contains("used_memory:"));
    assert_eq!(cli(&["GET", "boat"]), "narrow");
    assert_eq!(cli(&["FLUSHALL"]), "OK");
    assert_eq!(cli(&["DBSIZE"]), "0");
    // The server leaves without an answer.
    let _ = Command::new(bin.join("redis-cli")).arg("-s").arg(&socket).args(["SHUTDOWN", "NOSAVE"]).output();
    let status = server.0.wait().expect("a child");
    let said = std::fs::read_to_string(&errors).expect("its standard error");
    assert!(status.success(), "{status}: {said}");
    assert!(!said.contains("towpath malloc:"), "{said}");
}
