//! Starts `towpath serve kv` and finds private copies of redis.

use crate::client::Client;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use towpath_testing::{Child, TempDir};

/// How long anything may take before the test fails rather than hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The `towpath` command, built if it is older than its sources.
pub fn towpath() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let me = std::env::current_exe().expect("a test knows its own path");
        let debug = me.ancestors().nth(2).expect("tests lie two folders below the build's").to_path_buf();
        let release = debug.ends_with("release");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--locked", "-p", "towpath"]).current_dir(towpath_testing::root());
        let built = build.args(release.then_some("--release")).status().expect("cargo runs");
        assert!(built.success(), "the command does not build");
        debug.join("towpath")
    })
}

/// The folder of private copies of redis's programs, or none with the reason printed as a skip of `test`.
pub fn redis(test: &str) -> Option<PathBuf> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let out = Command::new(towpath_testing::root().join("scripts/private-redis.sh")).output();
        let out = out.map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        if out.status.success() { Ok(PathBuf::from(text(&out.stdout))) } else { Err(text(&out.stderr)) }
    });
    match folder {
        Ok(folder) => Some(folder.clone()),
        Err(why) => {
            towpath_testing::skip(test, why);
            None
        }
    }
}

/// A running `towpath serve kv`.
pub struct Server {
    child: Child,
    pub port: u16,
    lines: mpsc::Receiver<String>,
    /// What it has printed so far.
    pub printed: Vec<String>,
}

impl Server {
    /// Starts one on a free port.
    pub fn start(args: &[&str]) -> Server {
        Server::start_as(Command::new(towpath()), args)
    }

    /// Starts one that logs to `dir`.
    pub fn logging(dir: &TempDir, fsync: &str) -> Server {
        Server::start(&["--appendonly", "--appendfsync", fsync, "--dir", &dir.path().display().to_string()])
    }

    /// Starts one by a command to which the arguments are added.
    pub fn start_as(mut command: Command, args: &[&str]) -> Server {
        command.args(["serve", "kv", "--port", "0"]).args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = Child(command.spawn().expect("the server starts"));
        let out = child.0.stdout.take().expect("its output is a pipe");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut server = Server { child, port: 0, lines, printed: Vec::new() };
        let line = server.line_with("listening on ");
        let address = line.split("listening on ").nth(1).and_then(|rest| rest.split(' ').next());
        server.port = address.and_then(|a| a.rsplit(':').next()).and_then(|p| p.parse().ok()).expect("a port");
        server
    }

    /// Waits for a line that contains `text`.
    pub fn line_with(&mut self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("the server never printed {text:?}: {:?}", self.printed));
            self.printed.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.port)
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child.0);
        rustix::process::kill_process(pid, signal).expect("the server is there to be signalled");
    }

    /// Waits for it to end.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.0.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGKILL, and gone.
    pub fn crash(mut self) {
        self.signal(rustix::process::Signal::KILL);
        self.wait();
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> usize {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid())).expect("the server runs");
        let pages: usize = statm.split(' ').nth(1).and_then(|f| f.parse().ok()).expect("statm has numbers");
        pages * rustix::param::page_size()
    }

    /// Processor time of all its threads.
    pub fn cpu(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the server runs");
        let nanos = |task: std::fs::DirEntry| -> Option<u64> {
            std::fs::read_to_string(task.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
        };
        Duration::from_nanos(tasks.flatten().filter_map(nanos).sum())
    }
}
