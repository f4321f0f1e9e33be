//! `packet`: any interface through an AF_PACKET socket with memory-mapped rings (TPACKET_V2: version 3 delivers by
//! blocks, up to a timer tick late). The rings are the kernel's memory, so each frame is copied once in each direction.
//! The virtio-net header carries unfinished checksums and uncut packets.

use crate::sys::{self, Mapping};
use crate::{Error, LinkInfo, Offloads, PacketDevice, RxPacket, Stats, TxPacket, link, vnet};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_cbuf::Memory;

/// How the rings are sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Frames a ring holds; a power of two.
    pub frames: u32,
    /// Takes and gives unfinished checksums and uncut packets; ring slots are then 128 KB instead of a few.
    pub offloads: bool,
}

impl Default for PacketConfig {
    fn default() -> PacketConfig {
        PacketConfig { frames: 256, offloads: true }
    }
}

const PACKET_RX_RING: i32 = 5;
const PACKET_VERSION: i32 = 10;
const PACKET_TX_RING: i32 = 13;
const PACKET_LOSS: i32 = 14;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_QDISC_BYPASS: i32 = 20;
const PACKET_IGNORE_OUTGOING: i32 = 23;
const PACKET_STATISTICS: i32 = 6;
const TPACKET_V2: i32 = 1;

const STATUS_KERNEL: u32 = 0;
const STATUS_USER: u32 = 1;
const STATUS_COPY: u32 = 2;
const STATUS_SEND_REQUEST: u32 = 1;
const STATUS_VLAN_VALID: u32 = 1 << 4;

const HEADER: usize = size_of::<libc::tpacket2_hdr>();
/// Where the kernel looks for a frame to send: behind the header, aligned to 16.
const TX_DATA: usize = HEADER.next_multiple_of(16);

/// One of the two rings.
#[derive(Debug)]
struct Ring {
    base: NonNull<u8>,
    frames: u32,
    frame_size: usize,
    next: u32,
}

impl Ring {
    fn slot(&self) -> NonNull<u8> {
        // SAFETY: `next` is below `frames`, all of which the mapping covers.
        unsafe { self.base.add(self.next as usize * self.frame_size) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: the status word is the first of the slot's header, aligned; kernel and program hand slots over by it.
        unsafe { self.slot().cast::<AtomicU32>().as_ref() }
    }

    fn advance(&mut self) {
        self.next = (self.next + 1) % self.frames;
    }
}

/// An interface through its packet socket.
pub struct PacketSocketDevice {
    socket: OwnedFd,
    rx: Ring,
    tx: Ring,
    link: LinkInfo,
    memory: Memory,
    stats: Stats,
    dropped: std::cell::Cell<u64>,
    // The rings point into it.
    _mapping: Mapping,
}

crate::packet_device::debug_as_link!(PacketSocketDevice);

impl PacketSocketDevice {
    /// Opens the interface `name` of this thread's network namespace.
    ///
    /// # Errors
    /// [`Error::System`] without CAP_NET_RAW or when the kernel refuses the rings.
    pub fn open(name: &str, memory: &Memory, config: PacketConfig) -> Result<PacketSocketDevice, Error> {
        if !config.frames.is_power_of_two() || !(16..=4096).contains(&config.frames) {
            return Err(Error::Config(format!("{} ring frames: use a power of two, 16 to 4096", config.frames)));
        }
        let ifindex = link::index(name)?;
        let mtu = link::mtu(name)?;
        // SAFETY: a system call without pointers. Protocol 0: nothing is received before the rings exist.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let socket = sys::own_fd(fd.into(), "opening a packet socket")?;
        let fd = socket.as_raw_fd();
        let set = |option, value: i32, what| link::set_option(fd, libc::SOL_PACKET, option, &value, what);
        set(PACKET_VERSION, TPACKET_V2, "choosing TPACKET_V2")?;
        set(PACKET_LOSS, 1, "letting the ring skip frames it cannot send")?;
        set(PACKET_VNET_HDR, 1, "asking for virtio-net headers")?;
        set(PACKET_QDISC_BYPASS, 1, "bypassing the queueing discipline")?;
        set(PACKET_IGNORE_OUTGOING, 1, "ignoring our own frames")?;
        let longest = if config.offloads { 65_535 } else { mtu as usize };
        let frame_size = (HEADER + 64 + longest + 18).next_power_of_two().max(2048);
        let frames = if config.offloads { config.frames.min(64) } else { config.frames };
        let block_size = frame_size.max(4096) as u32;
        let total = frame_size * frames as usize;
        let request = libc::tpacket_req {
            tp_block_size: block_size,
            tp_block_nr: (total / block_size as usize) as u32,
            tp_frame_size: frame_size as u32,
            tp_frame_nr: frames,
        };
        link::set_option(fd, libc::SOL_PACKET, PACKET_RX_RING, &request, "sizing the receive ring")?;
        link::set_option(fd, libc::SOL_PACKET, PACKET_TX_RING, &request, "sizing the transmit ring")?;
        let mapping = Mapping::new(fd, 0, 2 * total, true, "mapping the packet rings")?;
        let ring = |at: usize| Ring { base: mapping.at::<[u8; 1]>(at).cast(), frames, frame_size, next: 0 };
        let (rx, tx) = (ring(0), ring(total));
        link::bind(fd, &link::packet_address(libc::ETH_P_ALL as u16, ifindex), &format!("binding to {name}"))?;
        promiscuous(fd, ifindex)?;
        let on = config.offloads;
        Ok(PacketSocketDevice {
            link: LinkInfo {
                name: format!("packet:{name}"),
                mac: link::mac(name)?,
                mtu,
                offloads: Offloads { tx_checksum: true, tso4: on, tso6: on, rx_checksum: true, lossless_memory: false },
                segments_max: usize::MAX,
            },
            socket,
            rx,
            tx,
            memory: memory.clone(),
            stats: Stats::default(),
            dropped: std::cell::Cell::new(0),
            _mapping: mapping,
        })
    }

    /// Takes the frame in the current receive slot; `Ok(None)` if it was unusable.
    fn take(&mut self) -> Result<Option<RxPacket>, Error> {
        // SAFETY: the slot is ours until its status is given back; the header is plain data in the mapping.
        let header = unsafe { self.rx.slot().cast::<libc::tpacket2_hdr>().read() };
        let (at, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let whole = header.tp_snaplen == header.tp_len && header.tp_status & STATUS_COPY == 0;
        let fits = at >= vnet::LEN + HEADER && at + len <= self.rx.frame_size && len >= 14;
        if !whole || !fits {
            self.stats.rx_invalid += 1;
            return Ok(None);
        }
        // The kernel takes a VLAN tag out of the frame; it belongs between the addresses and the type.
        let tag = (header.tp_status & STATUS_VLAN_VALID != 0).then_some((header.tp_vlan_tpid, header.tp_vlan_tci));
        let tag_len = if tag.is_some() { 4 } else { 0 };
        let mut buf = self.memory.alloc_frame(len + tag_len)?;
        let mut vnet_header = [0; vnet::LEN];
        // SAFETY: `fits` keeps header and frame inside the slot, which is ours now; the target is our own buffer.
        let bytes = unsafe {
            let start = self.rx.slot().add(at).as_ptr();
            vnet_header.copy_from_slice(std::slice::from_raw_parts(start.sub(vnet::LEN), vnet::LEN));
            std::slice::from_raw_parts(start, len)
        };
        let head = if tag.is_some() { 12 } else { 0 };
        buf[..head].copy_from_slice(&bytes[..head]);
        if let Some((tpid, tci)) = tag {
            let tpid = if tpid == 0 { 0x8100 } else { tpid };
            buf[12..14].copy_from_slice(&tpid.to_be_bytes());
            buf[14..16].copy_from_slice(&tci.to_be_bytes());
        }
        buf[head + tag_len..len + tag_len].copy_from_slice(&bytes[head..]);
        buf.truncate(len + tag_len);
        let (mut checksum, gso_size) = vnet::decode(&vnet_header, len);
        if let crate::RxChecksum::Partial { start, .. } = &mut checksum {
            *start += tag_len as u16;
        }
        self.stats.rx_packets += 1;
        self.stats.rx_bytes += (len + tag_len) as u64;
        self.stats.copied_bytes += (len + tag_len) as u64;
        Ok(Some(RxPacket { frame: buf.freeze().into(), checksum, gso_size }))
    }

    /// Fills the current transmit slot, which is free.
    fn put(&mut self, packet: &TxPacket) {
        let len = packet.frame.len();
        // SAFETY: the caller checked that header, virtio-net header and frame fit the slot, which is ours.
        unsafe {
            let slot = self.tx.slot();
            let header = slot.cast::<libc::tpacket2_hdr>().as_ptr();
            (*header).tp_len = (len + vnet::LEN) as u32;
            let data = std::slice::from_raw_parts_mut(slot.add(TX_DATA).as_ptr(), len + vnet::LEN);
            data[..vnet::LEN].copy_from_slice(&vnet::encode(&packet.offload));
            packet.frame.copy_to_slice(&mut data[vnet::LEN..]);
        }
        self.tx.status().store(STATUS_SEND_REQUEST, Ordering::Release); // SYNC slot-filled -> kernel
        self.tx.advance();
        self.stats.tx_packets += 1;
        self.stats.tx_bytes += len as u64;
        self.stats.copied_bytes += len as u64;
    }

    /// Asks the kernel to send what is in the ring.
    fn kick(&mut self) -> Result<(), Error> {
        self.stats.kicks += 1;
        // SAFETY: no buffer: the kernel takes frames from the ring.
        let sent = unsafe {
            libc::sendto(self.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0)
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            // Sent later by the next kick, or lost with a link that is down.
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN | libc::EINVAL | libc::EMSGSIZE) => Ok(()),
            _ => Err(Error::io(format!("sending on {}", self.link.name), error)),
        }
    }
}

/// Receives frames for any station while the socket is open: the stack's address may differ from the interface's.
fn promiscuous(socket: RawFd, ifindex: u32) -> Result<(), Error> {
    let request = libc::packet_mreq {
        mr_ifindex: ifindex as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    link::set_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request, "receiving for any address")
}

impl PacketDevice for PacketSocketDevice {
    fn link(&self) -> &LinkInfo {
        &self.link
    }

    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error> {
        let mut count = 0;
        while count < max {
            let status = self.rx.status().load(Ordering::Acquire); // SYNC slot-filled <- kernel
            if status & STATUS_USER == 0 {
                break;
            }
            match self.take() {
                Ok(Some(packet)) => {
                    out.push(packet);
                    count += 1;
                }
                Ok(None) => {}
                // No frame to copy into: what waits stays in the ring.
                Err(Error::Memory(_)) => break,
                Err(error) => return Err(error),
            }
            self.rx.status().store(STATUS_KERNEL, Ordering::Release); // SYNC slot-free -> kernel
            self.rx.advance();
        }
        Ok(count)
    }

    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error> {
        let mut taken = 0;
        while let Some(packet) = packets.front() {
            let len = packet.frame.len();
            let longest = if packet.offload.gso.is_some() { usize::MAX } else { self.link.mtu as usize + 18 };
            let fits = len >= 14 && len <= longest && TX_DATA + vnet::LEN + len <= self.tx.frame_size;
            if !fits || !vnet::sound(&packet.offload, len) {
                packets.pop_front();
                self.stats.tx_dropped += 1;
                continue;
            }
            if self.tx.status().load(Ordering::Acquire) != STATUS_KERNEL {
                self.stats.tx_full += 1;
                break;
            }
            let Some(packet) = packets.pop_front() else { break };
            self.put(&packet);
            taken += 1;
        }
        if taken > 0 || !packets.is_empty() {
            self.kick()?;
        }
        Ok(taken)
    }

    fn reclaim(&mut self) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn wait_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.rx.status().load(Ordering::Acquire) & STATUS_USER == 0
    }

    fn wake(&mut self) {}

    fn stats(&self) -> Stats {
        let mut stats = self.stats;
        // The kernel resets its counters at each reading.
        let mut kernel = [0u32; 2];
        let mut len = size_of_val(&kernel) as u32;
        // SAFETY: pointer and length describe a local that outlives the call.
        let rc = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                kernel.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if rc == 0 {
            self.dropped.set(self.dropped.get() + u64::from(kernel[1]));
        }
        stats.rx_dropped += self.dropped.get();
        stats
    }
}
