//! What a runtime is started with.

use crate::inet::config::{NetConfig, NetDevice};
use std::fmt;
use std::str::FromStr;
use towpath_cbuf::MemoryConfig;

/// Which library operating system serves the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibOs {
    /// The kernel's own sockets and files.
    Kernel(Backend),
    /// Our own network stack on a packet device; files and UNIX sockets stay the kernel's.
    Inet(NetDevice),
}

/// How the `kernel` library OS talks to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A short calibration picks the faster one for [`Config::expected_queues`].
    Auto,
    /// io_uring.
    Uring,
    /// Non-blocking system calls, and epoll to sleep.
    Syscalls,
}

/// What an idle runtime does while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// Polls without end: the lowest latency for a whole core.
    Spin,
    /// Polls for about what a wake-up costs, then sleeps in the kernel.
    Adaptive,
    /// Sleeps at once.
    Block,
}

/// Everything a runtime is started with; `..Config::default()` fills the rest.
#[derive(Debug, Clone)]
pub struct Config {
    /// The library OS.
    pub libos: LibOs,
    /// How an idle runtime waits.
    pub waiting: Waiting,
    /// How many queues are expected to be active at once; a hint for the calibration of [`Backend::Auto`].
    pub expected_queues: usize,
    /// Queues that may be open at once.
    pub queues_max: usize,
    /// Operations that may be pending at once.
    pub operations_max: usize,
    /// Bytes that may wait in one queue for a peer that does not read, beyond what the kernel holds.
    pub push_bytes_max: usize,
    /// Coroutines that may live at once.
    pub coroutines_max: usize,
    /// The heap and frame pool of this runtime.
    pub memory: MemoryConfig,
    /// The network of the library OS `inet`.
    pub net: NetConfig,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            libos: LibOs::Kernel(Backend::Auto),
            waiting: Waiting::Adaptive,
            expected_queues: 16,
            queues_max: 1 << 16,
            operations_max: 1 << 20,
            push_bytes_max: 64 << 20,
            coroutines_max: 1 << 17,
            memory: MemoryConfig::default(),
            net: NetConfig::default(),
        }
    }
}

impl fmt::Display for LibOs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LibOs::Kernel(Backend::Auto) => "kernel",
            LibOs::Kernel(Backend::Uring) => "kernel@uring",
            LibOs::Kernel(Backend::Syscalls) => "kernel@syscalls",
            LibOs::Inet(device) => device.libos(),
        })
    }
}

impl FromStr for LibOs {
    type Err = String;

    fn from_str(text: &str) -> Result<LibOs, String> {
        match text {
            "kernel" => Ok(LibOs::Kernel(Backend::Auto)),
            "kernel@uring" => Ok(LibOs::Kernel(Backend::Uring)),
            "kernel@syscalls" => Ok(LibOs::Kernel(Backend::Syscalls)),
            _ if text.starts_with("inet@") => text.parse().map(LibOs::Inet),
            _ => Err(format!(
                "{text:?} is no library OS; there are kernel, kernel@uring, kernel@syscalls, inet@shm, inet@tap, \
                 inet@packet and inet@xdp"
            )),
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiting::Spin => "spin",
            Waiting::Adaptive => "adaptive",
            Waiting::Block => "block",
        })
    }
}

impl FromStr for Waiting {
    type Err = String;

    fn from_str(text: &str) -> Result<Waiting, String> {
        match text {
            "spin" => Ok(Waiting::Spin),
            "adaptive" => Ok(Waiting::Adaptive),
            "block" => Ok(Waiting::Block),
            _ => Err(format!("{text:?} is no way to wait; there are spin, adaptive and block")),
        }
    }
}
