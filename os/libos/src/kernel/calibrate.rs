//! Which driver is faster here: a few milliseconds of messages between coroutines over TCP on the loopback interface,
//! through the very drivers, with as many connections as are expected. Measured once a process and number of
//! connections.

use super::uring::Uring;
use crate::config::{Backend, Config, LibOs, Waiting};
use crate::error::Result;
use crate::runtime::Runtime;
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// More connections than this change the answer no more, but would cost time to set up.
const CONNECTIONS_MAX: usize = 64;
/// How long each driver is measured, in each of the rounds.
const TIME: Duration = Duration::from_millis(2);
const ROUNDS: usize = 3;
/// io_uring must be this much faster to be chosen: it takes memory for its buffers.
const MARGIN: f64 = 1.05;

/// The driver to use for `backend`; never [`Backend::Auto`].
pub(super) fn choose(backend: Backend, expected: usize) -> Backend {
    if backend != Backend::Auto {
        return backend;
    }
    if let Some(why) = refused() {
        eprintln!("towpath: io_uring is refused here ({why}): using kernel@syscalls");
        return Backend::Syscalls;
    }
    let connections = expected.clamp(1, CONNECTIONS_MAX).next_power_of_two();
    static CHOSEN: OnceLock<Mutex<HashMap<usize, Backend>>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(Mutex::default);
    let mut chosen = chosen.lock().unwrap_or_else(PoisonError::into_inner);
    *chosen.entry(connections).or_insert_with(|| measure(connections))
}

fn refused() -> Option<String> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    REFUSED.get_or_init(Uring::refusal).clone()
}

fn measure(connections: usize) -> Backend {
    let (mut uring, mut syscalls) = (0.0f64, 0.0f64);
    for _ in 0..ROUNDS {
        syscalls = syscalls.max(rate(Backend::Syscalls, connections).unwrap_or(0.0));
        uring = uring.max(rate(Backend::Uring, connections).unwrap_or(0.0));
    }
    if uring > syscalls * MARGIN { Backend::Uring } else { Backend::Syscalls }
}

/// Messages a second through a driver, both ends in one runtime.
fn rate(backend: Backend, connections: usize) -> Result<f64> {
    let libos = LibOs::Kernel(backend);
    let rt = Runtime::start(Config { libos, waiting: Waiting::Spin, ..Config::default() })?;
    let result = rt.block_on(echo(&rt, connections));
    rt.shutdown();
    result
}

async fn echo(rt: &Runtime, connections: usize) -> Result<f64> {
    let listener = rt.listen(&crate::Address::from((std::net::Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let message = rt.memory().copy_from(&[0; 64])?;
    let count = std::rc::Rc::new(std::cell::Cell::new(0u64));
    for _ in 0..connections {
        let client = rt.socket(crate::Domain::V4, crate::Kind::Stream)?;
        client.connect(&address).await?;
        let (server, _) = listener.accept().await?;
        rt.spawn(async move {
            while let Ok(message) = server.pop().await {
                if message.is_empty() || server.push(message).await.is_err() {
                    return;
                }
            }
        })?;
        let (message, count) = (message.clone(), count.clone());
        rt.spawn(async move {
            while client.push(message.clone()).await.is_ok() && client.pop().await.is_ok() {
                count.set(count.get() + 1);
            }
        })?;
    }
    let start = Instant::now();
    rt.sleep(TIME).await;
    Ok(count.get() as f64 / start.elapsed().as_secs_f64())
}
