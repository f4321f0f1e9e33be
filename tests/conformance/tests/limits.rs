//! What runs out, and signals: one test, because a limit of the process would meet every test beside it.

use std::time::Duration;
use towpath_libos::{Config, Error, Kind, LibOs, Queue, Result, Runtime, Waiting};

const LONG: Duration = Duration::from_secs(60);

fn limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer describes `limit`, which outlives the call.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) }, 0);
    limit
}

fn set_limit(files: u64) {
    let limit = libc::rlimit { rlim_cur: files, rlim_max: limit().rlim_max };
    // SAFETY: the pointer describes `limit`, which outlives the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count() as u64
}

#[test]
fn limits_reached_are_told_and_passed() {
    // The second signal of a kind has its default effect, so each driver gets a kind of its own.
    for (libos, signal) in [("kernel@syscalls", libc::SIGTERM), ("kernel@uring", libc::SIGINT)] {
        let config = Config { libos: libos.parse::<LibOs>().unwrap(), waiting: Waiting::Block, ..Config::default() };
        let rt = match Runtime::start(config) {
            Ok(rt) => rt,
            Err(error) => {
                towpath_testing::skip(&format!("limits_reached_are_told_and_passed {libos}"), &error.to_string());
                continue;
            }
        };
        let before = open_files();
        descriptors_run_out(&rt);
        thousands_of_connections(&rt);
        rt.shutdown();
        // A ring lets go of its sockets when it is next looked at.
        rt.block_on(rt.sleep(Duration::from_millis(20)));
        assert_eq!(open_files(), before, "{libos} left descriptors behind");
        a_signal_ends_what_waits_for_it(&rt, signal);
    }
}

async fn client(rt: &Runtime, listener: &Queue) -> Result<Queue> {
    let address = listener.local_addr()?;
    let client = rt.socket(address.domain(), Kind::Stream)?;
    client.connect(&address).await?;
    Ok(client)
}

/// EMFILE is the error of the accept or of the socket that met it; when there are descriptors again, both work.
fn descriptors_run_out(rt: &Runtime) {
    let full = limit().rlim_cur;
    let listener = rt.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    rt.block_on(async {
        let waiting = client(rt, &listener).await.unwrap();
        set_limit(open_files() + 16);
        let fillers: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        let refused = rt.socket(towpath_libos::Domain::V4, Kind::Stream).err().expect("no descriptor is free");
        assert_eq!(refused.errno(), libc::EMFILE);
        assert!(refused.to_string().contains("ulimit"), "{refused}");
        let refused = rt.timeout(LONG, listener.accept()).await.expect("in time").err().expect("no descriptor is free");
        assert_eq!(refused.errno(), libc::EMFILE);
        drop(fillers);
        set_limit(full);
        let (server, _) = rt.timeout(LONG, listener.accept()).await.expect("in time").expect("descriptors are free");
        waiting.push(rt.memory().copy_from(b"served after all").unwrap()).await.unwrap();
        assert!(!server.pop().await.unwrap().is_empty());
    });
}

/// Ten thousand connections, as far as the limit on descriptors goes, each answered while all are open.
fn thousands_of_connections(rt: &Runtime) {
    let limit = limit();
    set_limit(limit.rlim_max);
    let count = 10_000.min((limit.rlim_max.saturating_sub(200) / 2) as usize);
    let listener = rt.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = rt.clone();
    rt.spawn(async move {
        while let Ok((conn, _)) = listener.accept().await {
            let echo = async move {
                while let Ok(message) = conn.pop().await {
                    if message.is_empty() || conn.push(message).await.is_err() {
                        return;
                    }
                }
            };
            accepting.spawn(echo).unwrap();
        }
    })
    .unwrap();
    rt.block_on(async {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            let client = rt.socket(address.domain(), Kind::Stream).unwrap();
            client.connect(&address).await.unwrap();
            clients.push(client);
        }
        for (i, client) in clients.iter().enumerate() {
            client.push(rt.memory().copy_from(&(i as u64).to_le_bytes()).unwrap()).await.unwrap();
        }
        for (i, client) in clients.iter().enumerate() {
            let answer = rt.timeout(LONG, client.pop()).await.expect("in time").unwrap();
            assert_eq!(answer.segments()[0][..], (i as u64).to_le_bytes());
        }
    });
    assert!(rt.stats().operations.accepted >= count as u64);
    set_limit(limit.rlim_cur);
}

fn a_signal_ends_what_waits_for_it(rt: &Runtime, kind: i32) {
    let signal = rt.shutdown_signal();
    let sender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        // SAFETY: sends a signal to this very process, which handles it.
        unsafe { libc::kill(libc::getpid(), kind) };
    });
    match rt.block_on(rt.timeout(LONG, signal)) {
        Ok(number) => assert_eq!(number, kind),
        Err(error) => panic!("{error}"),
    }
    sender.join().unwrap();
    assert!(matches!(
        rt.block_on(rt.timeout(Duration::from_millis(1), std::future::pending::<()>())),
        Err(Error::TimedOut)
    ));
}
