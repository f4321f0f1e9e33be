//! A network stack without I/O: Ethernet (with one VLAN tag), ARP, IPv4, IPv6 with neighbour discovery, ICMP, UDP and
//! TCP as a pure state machine. Frames, calls and the time go in; frames (header bytes beside references to the
//! program's own buffers) and events come out. There is no socket, clock, thread or source of randomness inside: a
//! recorded run replays to the byte.
//!
//! ```
//! use towpath_cbuf::{Buf, Memory, MemoryConfig, Sga};
//! use towpath_inet::{Cidr, Config, Finish, Mac, Nanos, Sink, Stack};
//!
//! struct Wire(Vec<Vec<u8>>);
//! impl Sink for Wire {
//!     fn transmit(&mut self, header: &[u8], payload: &[Buf], _finish: Finish) {
//!         let mut frame = header.to_vec();
//!         payload.iter().for_each(|piece| frame.extend_from_slice(piece));
//!         self.0.push(frame);
//!     }
//! }
//!
//! let mut config = Config::new(Mac([2, 0, 0, 0, 0, 1]), [1, 2, 3, 4]);
//! config.addresses.push(Cidr::new([10, 0, 0, 1], 24));
//! let memory = Memory::new(MemoryConfig::default()).unwrap();
//! let mut stack = Stack::new(&config, memory, Nanos::ZERO);
//! let mut wire = Wire(Vec::new());
//! stack.tcp_connect("10.0.0.2:80".parse().unwrap(), None, Nanos::ZERO, &mut wire).unwrap();
//! assert_eq!(wire.0[0][12..14], [0x08, 0x06], "first the stack asks who has 10.0.0.2");
//! ```
#![forbid(unsafe_code)]

mod chain;
mod config;
mod demux;
mod error;
mod event;
mod ip;
mod neighbour;
pub mod random;
mod reassembly;
mod stack;
mod stats;
pub mod tcp;
mod time;
mod udp;
pub mod wheel;
pub mod wire;

pub use config::{Cidr, Config, Finish, Offload, Received, Route, Sink, TcpConfig};
pub use demux::Flow;
pub use error::Error;
pub use event::{Event, ListenerId, Ready, UdpId};
pub use stack::Stack;
pub use stats::Stats;
pub use tcp::{KeepAlive, Options, Released, State, TcpId, TcpInfo};
pub use time::Nanos;
pub use udp::Datagram;
pub use wire::ethernet::Mac;
