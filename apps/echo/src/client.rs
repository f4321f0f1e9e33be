//! The closed-loop client: each of N connections sends its next message when the answer to the last one is whole.

use hdrhistogram::Histogram;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use towpath_cbuf::Buf;
use towpath_libos::{Address, Error, Kind, Nanos, Queue, Result, Runtime};

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
    /// How long messages are sent before any is measured.
    pub warm_up: Duration,
    /// How long messages are sent and measured.
    pub time: Duration,
    /// Messages after which each connection stops, whatever the time.
    pub messages: u64,
    /// Compare every answer with its message, not only its length.
    pub verify: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Round trips, in nanoseconds.
    pub round_trips: Histogram<u64>,
    /// From the first message measured to the last answer.
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

/// A datagram not answered after this long is counted as lost and sent again.
const LOST: Duration = Duration::from_millis(200);
/// A message up to this size fits the sockets between client and server, whoever reads first.
const AT_ONCE: usize = 64 << 10;
/// Longest round trip told apart, in nanoseconds.
const ROUND_TRIP_MAX: u64 = 60_000_000_000;

/// State shared by the connections of one run.
struct Shared {
    result: RefCell<Measured>,
    failed: RefCell<Option<Error>>,
    left: Cell<usize>,
    load: Load,
    message: Buf,
    /// When measuring starts.
    start: Nanos,
}

/// One connection.
struct Asker {
    queue: Queue,
    /// When the message that is not answered yet was sent first.
    asked: Cell<Nanos>,
    /// When it was sent last.
    sent: Cell<Nanos>,
}

/// Runs a load on `rt`, which should run nothing else.
///
/// # Errors
/// The first failure of a connection, or an answer that is not the message.
pub async fn run(rt: &Runtime, load: &Load) -> Result<Measured> {
    let text: Vec<u8> = (0..load.size).map(|i| b'a' + (i % 26) as u8).collect();
    let message = rt.memory().copy_from(&text)?;
    let mut askers = Vec::with_capacity(load.connections);
    for _ in 0..load.connections.max(1) {
        let queue = rt.socket(load.address.domain(), load.kind)?;
        queue.connect(&load.address).await?;
        askers.push(Rc::new(Asker { queue, asked: Cell::new(rt.now()), sent: Cell::new(rt.now()) }));
    }
    let round_trips =
        Histogram::new_with_bounds(1, ROUND_TRIP_MAX, 3).map_err(|_| Error::OutOfMemory { requested: 0 })?;
    let shared = Rc::new(Shared {
        result: RefCell::new(Measured { round_trips, elapsed: Duration::ZERO, lost: 0 }),
        failed: RefCell::new(None),
        left: Cell::new(askers.len()),
        load: load.clone(),
        message,
        start: rt.now().after(load.warm_up),
    });
    let done = Rc::new(rt.queue()?);
    for asker in &askers {
        let (rt, asker, shared, done) = (rt.clone(), asker.clone(), shared.clone(), done.clone());
        rt.clone().spawn(async move {
            if let Err(error) = ask(&rt, &asker, &shared).await {
                *shared.failed.borrow_mut() = Some(error);
            }
            shared.left.set(shared.left.get() - 1);
            if shared.left.get() == 0 {
                // This is the queue's only message, so it takes it.
                let _ = done.push(shared.message.clone()).await;
            }
        })?;
    }
    let watchdog = match load.kind {
        Kind::Stream => None,
        Kind::Datagram => Some(rt.spawn(send_again(rt.clone(), askers, shared.clone()))?),
    };
    done.pop().await?;
    watchdog.map(|task| rt.cancel(task));
    if let Some(error) = shared.failed.borrow_mut().take() {
        return Err(error);
    }
    let mut measured = shared.result.borrow().clone();
    measured.elapsed = rt.now().since(shared.start);
    Ok(measured)
}

async fn ask(rt: &Runtime, asker: &Asker, shared: &Shared) -> Result<()> {
    let end = shared.start.after(shared.load.time);
    for _ in 0..shared.load.messages {
        let asked = asker.asked.get();
        if asked >= end {
            break;
        }
        asker.sent.set(asked);
        if shared.message.len() <= AT_ONCE {
            asker.queue.push(shared.message.clone()).await?;
            answer(&asker.queue, shared).await?;
        } else {
            // The server answers while it still reads: who only wrote would wait for a server that waits for him.
            let push = rt.push(asker.queue.qd(), shared.message.clone())?;
            answer(&asker.queue, shared).await?;
            rt.completion(push).await?.outcome?;
        }
        let now = rt.now();
        if now >= shared.start {
            shared.result.borrow_mut().round_trips.saturating_record(now.0 - asked.0);
        }
        asker.asked.set(now);
    }
    asker.sent.set(Nanos::MAX);
    Ok(())
}

/// Takes an answer: a stream's in however many parts it comes, a datagram's in one.
async fn answer(queue: &Queue, shared: &Shared) -> Result<()> {
    let message = &shared.message;
    let mut got = 0;
    while got < message.len() {
        let part = queue.pop().await?;
        if part.is_empty() {
            return Err(mismatch("the server closed the connection before its answer was whole"));
        }
        for segment in part.segments() {
            let end = got + segment.len();
            if end > message.len() || (shared.load.verify && segment[..] != message[got..end]) {
                return Err(mismatch("the answer differs from the message"));
            }
            got = end;
        }
        if shared.load.kind == Kind::Datagram && got < message.len() {
            return Err(mismatch("the answer was cut"));
        }
    }
    Ok(())
}

/// Sends datagrams again whose answer does not come.
async fn send_again(rt: Runtime, askers: Vec<Rc<Asker>>, shared: Rc<Shared>) {
    loop {
        rt.sleep(LOST / 2).await;
        let now = rt.now();
        for asker in &askers {
            if asker.sent.get() != Nanos::MAX && now.since(asker.sent.get()) >= LOST {
                shared.result.borrow_mut().lost += 1;
                asker.sent.set(now);
                // A failure shows where the answer is awaited.
                let _ = asker.queue.push(shared.message.clone()).await;
            }
        }
    }
}

fn mismatch(why: &'static str) -> Error {
    Error::Unsupported { operation: "echo", why }
}
