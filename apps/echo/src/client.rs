//! The closed-loop client: each of N connections sends its next message when the answer to the last one is whole.

use hdrhistogram::Histogram;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use towpath_cbuf::Buf;
use towpath_libos::{Address, Error, Kind, Queue, Result, Runtime};

/// What a client asks of a server.
#[derive(Clone, Debug)]
pub struct Load {
    /// The server.
    pub address: Address,
    /// Streams or datagrams.
    pub kind: Kind,
    /// Connections at once.
    pub connections: usize,
    /// Bytes a message.
    pub size: usize,
    /// How long messages are sent and measured.
    pub time: Duration,
    /// Messages after which each connection stops, whatever the time.
    pub messages: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Round trips, in nanoseconds.
    pub round_trips: Histogram<u64>,
    /// From the first message to the last answer.
    pub elapsed: Duration,
    /// Datagrams that were lost and sent again.
    pub lost: u64,
}

impl Measured {
    /// Answers a second.
    pub fn rate(&self) -> f64 {
        self.round_trips.len() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// A datagram not answered after this long is counted as lost.
const LOST: Duration = Duration::from_millis(200);

/// State shared by the connections of one run.
struct Shared {
    result: RefCell<Measured>,
    failed: RefCell<Option<Error>>,
    left: std::cell::Cell<usize>,
}

/// Runs a load on `rt`, which should run nothing else.
///
/// # Errors
/// The first failure of a connection, or an answer that is not the message.
pub async fn run(rt: &Runtime, load: &Load) -> Result<Measured> {
    let text: Vec<u8> = (0..load.size).map(|i| b'a' + (i % 26) as u8).collect();
    let message = rt.memory().copy_from(&text)?;
    let mut queues = Vec::with_capacity(load.connections);
    for _ in 0..load.connections.max(1) {
        let queue = rt.socket(load.address.domain(), load.kind)?;
        queue.connect(&load.address).await?;
        queues.push(queue);
    }
    let round_trips = Histogram::new(3).map_err(|_| Error::OutOfMemory { requested: 0 })?;
    let result = Measured { round_trips, elapsed: Duration::ZERO, lost: 0 };
    let shared = Rc::new(Shared {
        result: RefCell::new(result),
        failed: RefCell::new(None),
        left: std::cell::Cell::new(queues.len()),
    });
    let start = rt.now();
    let done = Rc::new(rt.queue()?);
    for queue in queues {
        let (rt, load, message) = (rt.clone(), load.clone(), message.clone());
        let (shared, done) = (shared.clone(), done.clone());
        rt.clone().spawn(async move {
            if let Err(error) = ask(&rt, &queue, &load, &message, start.0, &shared).await {
                *shared.failed.borrow_mut() = Some(error);
            }
            shared.left.set(shared.left.get() - 1);
            if shared.left.get() == 0 {
                // The queue of our own runtime cannot be full: this is its only message.
                let _ = done.push(message).await;
            }
        })?;
    }
    done.pop().await?;
    if let Some(error) = shared.failed.borrow_mut().take() {
        return Err(error);
    }
    let mut measured = shared.result.borrow().clone();
    measured.elapsed = Duration::from_nanos(rt.now().0 - start.0);
    Ok(measured)
}

async fn ask(rt: &Runtime, queue: &Queue, load: &Load, message: &Buf, start: u64, shared: &Shared) -> Result<()> {
    let end = start + load.time.as_nanos() as u64;
    let mut before = rt.now().0;
    for _ in 0..load.messages {
        if before >= end {
            break;
        }
        queue.push(message.clone()).await?;
        match load.kind {
            Kind::Stream => whole_answer(queue, message).await?,
            Kind::Datagram => {
                while !answered(rt, queue, message).await? {
                    shared.result.borrow_mut().lost += 1;
                    queue.push(message.clone()).await?;
                }
            }
        }
        let now = rt.now().0;
        shared.result.borrow_mut().round_trips.saturating_record(now - before);
        before = now;
    }
    Ok(())
}

/// Takes a stream's answer, in however many parts it comes.
async fn whole_answer(queue: &Queue, message: &Buf) -> Result<()> {
    let mut got = 0;
    while got < message.len() {
        let part = queue.pop().await?;
        if part.is_empty() {
            return Err(mismatch("the server closed the connection before its answer was whole"));
        }
        for segment in part.segments() {
            let end = got + segment.len();
            if end > message.len() || segment[..] != message[got..end] {
                return Err(mismatch("the answer differs from the message"));
            }
            got = end;
        }
    }
    Ok(())
}

/// Takes a datagram's answer; false if it does not come.
async fn answered(rt: &Runtime, queue: &Queue, message: &Buf) -> Result<bool> {
    let answer = match rt.timeout(LOST, queue.pop()).await {
        Ok(answer) => answer?,
        Err(Error::TimedOut) => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut at = 0;
    for segment in answer.segments() {
        let end = at + segment.len();
        if end > message.len() || segment[..] != message[at..end] {
            return Err(mismatch("the answer differs from the message"));
        }
        at = end;
    }
    if at == message.len() { Ok(true) } else { Err(mismatch("the answer was cut")) }
}

fn mismatch(why: &'static str) -> Error {
    Error::Unsupported { operation: "echo", why }
}
