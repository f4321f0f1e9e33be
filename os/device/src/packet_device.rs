//! What every packet device promises, and the frames it takes and gives.

use crate::Error;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use towpath_cbuf::Sga;

/// What the device knows of a received frame's transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxChecksum {
    /// Nothing: the stack verifies it.
    #[default]
    Unknown,
    /// The device verified it, or the frame never left shared memory.
    Valid,
    /// The bytes are right but the sender left the checksum to its device, which then had no wire to cross: the field
    /// holds the pseudo-header's sum only. `start` and `offset` are those of [`TxChecksum`].
    Partial {
        /// Where the checksummed bytes start, from the first byte of the frame.
        start: u16,
        /// Where the checksum field is, from `start`.
        offset: u16,
    },
}

/// A received frame.
///
/// The Ethernet, IP and transport headers are contiguous in the first segment unless the sender split them; payload
/// may continue in further segments.
#[derive(Debug)]
pub struct RxPacket {
    /// The frame from the first byte of the destination address, without frame check sequence.
    pub frame: Sga,
    /// What is known of the transport checksum.
    pub checksum: RxChecksum,
    /// Payload bytes of each original segment if the device merged several, else 0.
    pub gso_size: u16,
}

impl RxPacket {
    /// A frame of which nothing more is known.
    pub fn plain(frame: impl Into<Sga>) -> RxPacket {
        RxPacket { frame: frame.into(), checksum: RxChecksum::Unknown, gso_size: 0 }
    }
}

/// The transport checksum the device shall complete: the ones' complement sum of the bytes from `start` to the end
/// goes to `start + offset`, where the pseudo-header's sum (not complemented) already stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxChecksum {
    /// Where the checksummed bytes start, from the first byte of the frame.
    pub start: u16,
    /// Where the checksum field is, from `start`.
    pub offset: u16,
}

/// Which header a device rewrites when it cuts a large packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GsoKind {
    /// TCP over IPv4.
    Tcp4 = 1,
    /// TCP over IPv6.
    Tcp6 = 4,
}

/// The device shall cut this packet into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gso {
    /// Protocol.
    pub kind: GsoKind,
    /// Bytes of Ethernet, IP and transport header, repeated before each segment.
    pub header_len: u16,
    /// Payload bytes of each segment.
    pub size: u16,
}

/// What is left to the device. Only what [`Offloads`] of the link lists may be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    /// Checksum to complete.
    pub checksum: Option<TxChecksum>,
    /// Segmentation; needs `checksum` too.
    pub gso: Option<Gso>,
}

/// A frame to send. Its segments are referenced, never changed, until the device is done with them.
#[derive(Debug)]
pub struct TxPacket {
    /// Headers in the first segment, payload wherever the program has it.
    pub frame: Sga,
    /// What is left to the device.
    pub offload: TxOffload,
}

impl TxPacket {
    /// A finished frame.
    pub fn plain(frame: impl Into<Sga>) -> TxPacket {
        TxPacket { frame: frame.into(), offload: TxOffload::default() }
    }
}

/// What a device does for its stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Completes TCP and UDP checksums on transmission.
    pub tx_checksum: bool,
    /// Cuts large TCP packets over IPv4.
    pub tso4: bool,
    /// Cuts large TCP packets over IPv6.
    pub tso6: bool,
    /// May deliver frames marked [`RxChecksum::Valid`] or [`RxChecksum::Partial`].
    pub rx_checksum: bool,
    /// No bit of a frame can change on the way (both ends share memory on one machine).
    pub lossless_memory: bool,
}

/// Facts of the link, fixed while the device is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Device name as the user gave it, for messages.
    pub name: String,
    /// Our station address.
    pub mac: [u8; 6],
    /// Largest IP packet in bytes; a frame is 14 bytes longer (18 with a VLAN tag).
    pub mtu: u32,
    /// Work the device takes over.
    pub offloads: Offloads,
    /// Segments one frame may have without being copied together.
    pub segments_max: usize,
}

/// Counters since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames the device or its kernel dropped before we saw them, as far as it says.
    pub rx_dropped: u64,
    /// Frames, descriptors or words from the other side that were malformed and ignored.
    pub rx_invalid: u64,
    /// Frames handed to the device.
    pub tx_packets: u64,
    /// Bytes handed to the device.
    pub tx_bytes: u64,
    /// Frames refused for good: too long, or gone with the peer.
    pub tx_dropped: u64,
    /// Times `transmit` had to leave frames behind because the device was full.
    pub tx_full: u64,
    /// Payload bytes copied by this device in either direction.
    pub copied_bytes: u64,
    /// System calls made to kick or wake the other side.
    pub kicks: u64,
}

/// A device that moves Ethernet frames. One thread uses it; calls never block.
///
/// The order of calls in a loop: [`tick`](Self::tick), [`receive`](Self::receive), the stack's work,
/// [`transmit`](Self::transmit). Before sleeping: [`prepare_sleep`](Self::prepare_sleep); if it returns true wait for
/// [`wait_fd`](Self::wait_fd) to become readable, then [`wake`](Self::wake).
pub trait PacketDevice {
    /// Facts of the link.
    fn link(&self) -> &LinkInfo;

    /// Appends up to `max` received frames to `out` and returns how many; 0 means none is there.
    ///
    /// # Errors
    /// The device is gone or broken for good. Malformed input is counted, not an error.
    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error>;

    /// Takes frames from the front of `packets` as long as there is room, starts their transmission, and returns how
    /// many it took. What it leaves shall be offered again after the next [`receive`](Self::receive).
    ///
    /// # Errors
    /// The device is gone or broken for good. A frame that can never be sent is dropped and counted, not an error.
    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error>;

    /// Releases references to frames that have been sent. `receive` and `transmit` do so too; call it when idle.
    fn reclaim(&mut self);

    /// Frames whose references the device still holds.
    fn in_flight(&self) -> usize;

    /// Tells the device the time in nanoseconds; only devices that delay or pace use it.
    fn tick(&mut self, _now_ns: u64) {}

    /// When `tick` should be called next although nothing arrived, if ever.
    fn next_deadline_ns(&self) -> Option<u64> {
        None
    }

    /// The descriptor that becomes readable when a frame or a completion arrives while asleep.
    fn wait_fd(&self) -> RawFd;

    /// Announces sleep. False if there is work already: do not sleep, call `wake` and go on.
    fn prepare_sleep(&mut self) -> bool;

    /// Ends the sleep announced by `prepare_sleep`.
    fn wake(&mut self);

    /// Counters.
    fn stats(&self) -> Stats;
}

/// Debug output of a device: its link.
macro_rules! debug_as_link {
    ($device:ident) => {
        impl std::fmt::Debug for $device {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($device)).field("link", &self.link).finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug_as_link;
