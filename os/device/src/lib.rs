//! Packet devices behind one trait.
//!
//! | device | what it needs | copies |
//! | --- | --- | --- |
//! | [`shm`] | another Towpath process | none: frames are read where the sender has them |
//! | [`xdp`] | an interface with AF_XDP | none of ours; the kernel's own without driver support |
//! | [`packet`] | any interface | one in each direction, to and from the kernel's rings |
//! | [`tap`] | `/dev/net/tun` | the system call's own |
//! | [`pcap`] | a file, to replay or to record | one
//! | [`fault`] | another device | none; damaged frames are rewritten |
//!
//! All of them give and take [`Sga`](towpath_cbuf::Sga)s. [`AnyDevice`] is one of them, chosen at run time without
//! dynamic dispatch on the path of a packet. What comes from the other side of a device is never trusted.

mod any;
mod error;
pub mod fault;
mod frames;
pub mod link;
pub mod packet;
mod packet_device;
pub mod pcap;
pub mod shm;
mod sys;
pub mod tap;
pub mod trylink;
mod vnet;
pub mod xdp;

pub use any::AnyDevice;
pub use error::Error;
pub use packet_device::{
    Gso, GsoKind, LinkInfo, Offloads, PacketDevice, RxChecksum, RxPacket, Stats, TxChecksum, TxOffload, TxPacket,
};
pub use sys::poll_readable;
