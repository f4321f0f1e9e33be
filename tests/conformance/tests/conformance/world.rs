//! What a promise is tried in: a driver, and addresses of every family.

use std::time::Duration;
use towpath_cbuf::Sga;
use towpath_libos::{Address, Config, Kind, LibOs, Queue, Runtime, Waiting};
use towpath_testing::TempDir;

/// Longer than anything here takes, so that a hang is a failure and not a hang.
pub const LONG: Duration = Duration::from_secs(20);

pub struct World {
    libos: LibOs,
    dir: TempDir,
}

impl World {
    /// The world of a driver; none, and a recorded skip, where the kernel refuses it.
    pub fn new(libos: &str, test: &str) -> Option<World> {
        let libos: LibOs = libos.parse().expect("a library OS");
        if let Err(error) = Runtime::start(Config { libos, waiting: Waiting::Block, ..Config::default() }) {
            towpath_testing::skip(test, &error.to_string());
            return None;
        }
        Some(World { libos, dir: TempDir::new() })
    }

    /// A runtime that waits in `waiting`.
    pub fn runtime_that(&self, waiting: Waiting) -> Runtime {
        Runtime::start(Config { libos: self.libos, waiting, ..Config::default() }).expect("a runtime starts")
    }

    pub fn runtime(&self) -> Runtime {
        self.runtime_that(Waiting::Adaptive)
    }

    pub fn config(&self) -> Config {
        Config { libos: self.libos, waiting: Waiting::Block, ..Config::default() }
    }

    /// A path in a folder of this test.
    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.join(name)
    }

    /// A free address of each family.
    pub fn addresses(&self) -> Vec<Address> {
        let path = self.path(&towpath_testing::unique("socket"));
        vec!["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap(), Address::unix(path)]
    }
}

/// Both ends of a connection of the address' family, and the listener.
pub fn connection(rt: &Runtime, address: &Address) -> (Queue, Queue, Queue) {
    let listener = rt.listen(address).expect("listens");
    let to = listener.local_addr().expect("has an address");
    let client = rt.socket(to.domain(), Kind::Stream).expect("a socket");
    let server = rt.block_on(async {
        client.connect(&to).await.expect("connects");
        listener.accept().await.expect("accepts").0
    });
    (client, server, listener)
}

/// Two datagram sockets of the address' family with addresses of their own.
pub fn datagrams(world: &World, rt: &Runtime, address: &Address) -> (Queue, Queue) {
    let bound = |address: &Address| {
        let queue = rt.socket(address.domain(), Kind::Datagram).expect("a socket");
        queue.bind(address).expect("binds");
        queue
    };
    let other = match address {
        Address::Unix(_) => Address::unix(world.path(&towpath_testing::unique("other"))),
        inet => inet.clone(),
    };
    (bound(address), bound(&other))
}

/// Runs a future to its end, or fails after [`LONG`].
pub fn run<T>(rt: &Runtime, future: impl Future<Output = T>) -> T {
    rt.block_on(rt.timeout(LONG, future)).expect("ends in time")
}

/// Bytes that show where they belong.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

pub fn sga(rt: &Runtime, bytes: &[u8]) -> Sga {
    Sga::from(rt.memory().copy_from(bytes).expect("memory"))
}

pub fn bytes(sga: &Sga) -> Vec<u8> {
    sga.segments().iter().flat_map(|segment| segment.iter().copied()).collect()
}

/// Pops a stream until `len` bytes have come.
pub async fn pop_exactly(queue: &Queue, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < len {
        let part = queue.pop().await.expect("pops");
        assert!(!part.is_empty(), "the stream ended after {} of {len} bytes", all.len());
        all.extend(bytes(&part));
    }
    all
}
