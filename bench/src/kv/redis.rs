//! Starting the servers and redis-benchmark, and reading what they say.

use super::cells::{Cell, Log};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a server may take to answer its first request.
const START_MAX: Duration = Duration::from_secs(10);

/// Where the programs are.
pub struct Programs {
    pub towpath: PathBuf,
    pub redis_server: PathBuf,
    pub redis_benchmark: PathBuf,
    pub redis_cli: PathBuf,
}

impl Programs {
    /// Finds them: `towpath` beside this program; redis in the private copy below the build folder, which is made if
    /// the source tree is there, else on PATH.
    pub fn find() -> Result<Programs, String> {
        let me = std::env::current_exe().and_then(|p| p.canonicalize()).map_err(|e| e.to_string())?;
        let beside = me.parent().ok_or("this program lies in no folder")?;
        let towpath = beside.join("towpath");
        if !towpath.is_file() {
            return Err(format!("{} is missing: build it with `cargo build -p towpath`", towpath.display()));
        }
        let redis = private_redis(beside).or_else(|why| on_path("redis-server").ok_or(why))?;
        Ok(Programs {
            towpath,
            redis_server: redis.join("redis-server"),
            redis_benchmark: redis.join("redis-benchmark"),
            redis_cli: redis.join("redis-cli"),
        })
    }
}

/// The folder of the private copy, made by the script of the source tree if it is missing.
fn private_redis(beside: &Path) -> Result<PathBuf, String> {
    let missing = || "redis-server is neither in a private copy nor on PATH (scripts/private-redis.sh makes one)";
    let target = beside.ancestors().find(|dir| dir.ends_with("target")).ok_or_else(missing)?;
    let bin = target.join("private/redis/bin");
    if bin.join("redis-server").is_file() {
        return Ok(bin);
    }
    let script = target.parent().map(|root| root.join("scripts/private-redis.sh")).filter(|s| s.is_file());
    let out = Command::new(script.ok_or_else(missing)?).output().map_err(|e| e.to_string())?;
    if out.status.success() { Ok(bin) } else { Err(String::from_utf8_lossy(&out.stderr).trim().to_string()) }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).find(|dir| dir.join(program).is_file())
}

/// Which server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    Towpath,
    Redis,
}

/// A running server; killed and its folder removed when dropped.
pub struct Server {
    child: Child,
    port: u16,
    folder: PathBuf,
}

/// What one run of redis-benchmark came to.
#[derive(Clone, Copy)]
pub struct Measured {
    /// Requests a second.
    pub rps: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
    /// Processor time of the server, in microseconds a request.
    pub cpu_us: f64,
}

impl Server {
    /// Starts one on a free port of loopback and waits until it answers.
    pub fn start(programs: &Programs, who: Contender, log: Log, extra: &[String]) -> Result<Server, String> {
        let port = free_port()?;
        let folder = folder(&programs.towpath)?;
        let mut command = match who {
            Contender::Towpath => {
                let mut command = Command::new(&programs.towpath);
                command.args(["serve", "kv", "--port", &port.to_string(), "--dir"]).arg(&folder);
                if log == Log::Always {
                    command.args(["--appendonly", "--appendfsync", "always"]);
                }
                command.args(extra);
                command
            }
            Contender::Redis => {
                let mut command = Command::new(&programs.redis_server);
                command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(&folder);
                command.args(["--daemonize", "no", "--loglevel", "warning"]);
                if log == Log::Always {
                    command.args(["--appendonly", "yes", "--appendfsync", "always"]);
                }
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: prctl with PR_SET_PDEATHSIG touches no memory and may be called between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|e| format!("cannot start {program}: {e}"))?;
        let mut server = Server { child, port, folder };
        let start = Instant::now();
        while !server.answers() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("{program} ended at once: {status}"));
            }
            if start.elapsed() > START_MAX {
                return Err(format!("{program} did not answer within {START_MAX:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        let mut reply = [0; 7];
        stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut reply).is_ok() && &reply == b"+PONG\r\n"
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs redis-benchmark against it.
    pub fn measure(&self, programs: &Programs, cell: &Cell) -> Result<Measured, String> {
        let before = self.cpu_seconds();
        let out = Command::new(&programs.redis_benchmark)
            .args(["-p", &self.port.to_string(), "--csv", "-t", cell.command])
            .args(["-n", &cell.requests.to_string(), "-c", &cell.connections.to_string()])
            .args(["-P", &cell.pipeline.to_string(), "-d", &cell.size.to_string(), "-r", "10000"])
            .output()
            .map_err(|e| format!("cannot start redis-benchmark: {e}"))?;
        let cpu = self.cpu_seconds() - before;
        let text = String::from_utf8_lossy(&out.stdout);
        let figures: Option<Vec<f64>> = text
            .lines()
            .nth(1)
            .and_then(|line| line.split(',').skip(1).map(|f| f.trim_matches('"').parse().ok()).collect());
        match figures.as_deref() {
            Some([rps, _, _, p50, _, p99, _]) if out.status.success() => {
                Ok(Measured { rps: *rps, p50: *p50, p99: *p99, cpu_us: cpu * 1e6 / cell.requests as f64 })
            }
            _ => Err(format!("redis-benchmark printed no figures: {text}{}", String::from_utf8_lossy(&out.stderr))),
        }
    }

    /// Processor time of all its threads so far, to the nanosecond.
    fn cpu_seconds(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let nanos = |task: std::fs::DirEntry| -> Option<f64> {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        tasks.into_iter().flatten().flatten().filter_map(nanos).sum::<f64>() / 1e9
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|e| format!("no free port: {e}"))?;
    listener.local_addr().map(|a| a.port()).map_err(|e| e.to_string())
}

/// A folder of its own on the disk the programs lie on, else among the temporary files.
fn folder(towpath: &Path) -> Result<PathBuf, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("bench-kv-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let candidates = [towpath.parent().map(Path::to_path_buf), Some(std::env::temp_dir())];
    let made = candidates.into_iter().flatten().map(|dir| dir.join(&name)).find(|dir| std::fs::create_dir(dir).is_ok());
    made.ok_or_else(|| "no folder for the servers' files can be created".to_string())
}
