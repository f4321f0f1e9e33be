//! `tap`: a virtual interface whose other side is this kernel. The virtio-net header lets the kernel leave checksums
//! unfinished and packets uncut in both directions. One system call a frame, which copies it.

use crate::{Error, LinkInfo, Offloads, PacketDevice, RxPacket, Stats, TxPacket, link, sys, vnet};
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use towpath_cbuf::{BufMut, Memory, Sga};

/// Segments one `writev` takes beside the header; longer frames are copied together.
const SEGMENTS_MAX: usize = 32;
/// Longest frame the kernel gives with segmentation offload on.
const FRAME_MAX: usize = 65_535 + 18;
/// First part of each received frame: one page, all that an ordinary frame needs.
const FIRST: usize = 4096;

const TUN_F_CSUM: u32 = 1;
const TUN_F_TSO4: u32 = 2;
const TUN_F_TSO6: u32 = 4;

/// How a tap is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapConfig {
    /// Lets the kernel hand over unfinished checksums and uncut packets.
    pub offloads: bool,
    /// Station address of our side; made up if `None`. The kernel's side keeps its own.
    pub mac: Option<[u8; 6]>,
    /// Brings the interface up.
    pub up: bool,
}

impl Default for TapConfig {
    fn default() -> TapConfig {
        TapConfig { offloads: true, mac: None, up: true }
    }
}

/// Our side of a tap interface; the interface vanishes with it unless it was made persistent by others.
pub struct TapDevice {
    file: File,
    link: LinkInfo,
    memory: Memory,
    /// The frame the next packet is read into, and what lies beyond its first page.
    first: Option<BufMut>,
    rest: Vec<u8>,
    stats: Stats,
}

crate::packet_device::debug_as_link!(TapDevice);

impl TapDevice {
    /// Opens or creates the tap `name` in this thread's network namespace.
    ///
    /// # Errors
    /// [`Error::System`] without `/dev/net/tun` or the right to use it.
    pub fn open(name: &str, memory: &Memory, config: TapConfig) -> Result<TapDevice, Error> {
        let path = "/dev/net/tun";
        let file =
            File::options().read(true).write(true).open(path).map_err(|e| Error::io(format!("opening {path}"), e))?;
        let fd = file.as_raw_fd();
        // SAFETY: ifreq is plain data for which zero is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_name = link::interface_name(name)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
        // SAFETY: TUNSETIFF reads and writes the ifreq, which outlives the call.
        let rc = unsafe { libc::ioctl(fd, libc::TUNSETIFF as _, &mut request) };
        sys::check(rc.into(), &format!("opening the tap {name}"))?;
        let header = vnet::LEN as i32;
        // SAFETY: TUNSETVNETHDRSZ reads an int, which outlives the call.
        sys::check(unsafe { libc::ioctl(fd, libc::TUNSETVNETHDRSZ as _, &header) }.into(), "sizing the tap's header")?;
        let offload = if config.offloads { TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 } else { 0 };
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        sys::check(unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD as _, offload) }.into(), "setting the tap's offloads")?;
        // SAFETY: a plain call on a descriptor we own.
        sys::check(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }.into(), "fcntl")?;
        if config.up {
            link::set_up(name)?;
        }
        let mut ours = link::mac(name)?;
        // The kernel's side has the interface's address; ours must differ, and stay locally administered unicast.
        ours[0] = (ours[0] | 0x02) & !0x01;
        ours[5] ^= 0x01;
        let on = config.offloads;
        Ok(TapDevice {
            link: LinkInfo {
                name: format!("tap:{name}"),
                mac: config.mac.unwrap_or(ours),
                mtu: link::mtu(name)?,
                // Transmit offloads need no consent: the kernel takes any valid header.
                offloads: Offloads { tx_checksum: on, tso4: on, tso6: on, rx_checksum: true, lossless_memory: false },
                segments_max: SEGMENTS_MAX,
            },
            file,
            memory: memory.clone(),
            first: None,
            rest: vec![0; FRAME_MAX - FIRST],
            stats: Stats::default(),
        })
    }

    /// Reads one frame; `None` when there is none.
    fn read(&mut self) -> Result<Option<RxPacket>, Error> {
        let mut first = match self.first.take() {
            Some(first) => first,
            None => self.memory.alloc_frame(FIRST)?,
        };
        let mut header = [0u8; vnet::LEN];
        let parts = [
            libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() },
            libc::iovec { iov_base: first.as_mut_ptr().cast(), iov_len: first.len().min(FIRST) },
            libc::iovec { iov_base: self.rest.as_mut_ptr().cast(), iov_len: self.rest.len() },
        ];
        // SAFETY: the parts describe memory we own exclusively and that outlives the call.
        let got = unsafe { libc::readv(self.file.as_raw_fd(), parts.as_ptr(), parts.len() as i32) };
        if got < 0 {
            self.first = Some(first);
            let error = std::io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR | libc::EIO) => Ok(None), // EIO: the interface is down
                _ => Err(Error::io(format!("reading from {}", self.link.name), error)),
            };
        }
        let len = (got as usize).saturating_sub(vnet::LEN);
        if len == 0 {
            self.first = Some(first);
            self.stats.rx_invalid += 1;
            return Ok(None);
        }
        let (checksum, gso_size) = vnet::decode(&header, len);
        let beyond = len.saturating_sub(FIRST);
        first.truncate(len.min(FIRST));
        let mut frame = Sga::from(first.freeze());
        if beyond > 0 {
            let mut rest = self.memory.alloc_frame(beyond)?;
            rest[..beyond].copy_from_slice(&self.rest[..beyond]);
            rest.truncate(beyond);
            frame.push_back(rest.freeze());
            self.stats.copied_bytes += beyond as u64;
        }
        self.stats.rx_packets += 1;
        self.stats.rx_bytes += len as u64;
        Ok(Some(RxPacket { frame, checksum, gso_size }))
    }

    /// Writes one frame; false when the kernel's queue is full.
    fn write(&mut self, packet: &TxPacket) -> Result<bool, Error> {
        let mut header = vnet::encode(&packet.offload);
        let gathered;
        let segments = if packet.frame.segments().len() > SEGMENTS_MAX {
            gathered = Sga::from(crate::frames::gather(&self.memory, &packet.frame)?);
            self.stats.copied_bytes += gathered.len() as u64;
            gathered.segments()
        } else {
            packet.frame.segments()
        };
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SEGMENTS_MAX + 1];
        parts[0] = libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() };
        for (part, segment) in parts[1..].iter_mut().zip(segments) {
            *part = libc::iovec { iov_base: segment.as_ptr() as *mut _, iov_len: segment.len() };
        }
        // SAFETY: the parts describe memory that outlives the call, which only reads it.
        let sent = unsafe { libc::writev(self.file.as_raw_fd(), parts.as_ptr(), segments.len() as i32 + 1) };
        if sent >= 0 {
            return Ok(true);
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(false),
            // The kernel refuses this one frame, or the interface is down: lost, as on a wire.
            Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::ENOMEM) => {
                self.stats.tx_dropped += 1;
                Ok(true)
            }
            _ => Err(Error::io(format!("writing to {}", self.link.name), error)),
        }
    }
}

impl PacketDevice for TapDevice {
    fn link(&self) -> &LinkInfo {
        &self.link
    }

    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error> {
        let mut count = 0;
        while count < max {
            match self.read() {
                Ok(Some(packet)) => out.push(packet),
                Ok(None) => break,
                // No frame to read into: what waits stays in the kernel's queue.
                Err(Error::Memory(_)) => break,
                Err(error) => return Err(error),
            }
            count += 1;
        }
        Ok(count)
    }

    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error> {
        let mut taken = 0;
        while let Some(packet) = packets.front() {
            let len = packet.frame.len();
            let limit = if packet.offload.gso.is_some() { FRAME_MAX } else { self.link.mtu as usize + 18 };
            if len < 14 || len > limit || !vnet::sound(&packet.offload, len) {
                packets.pop_front();
                self.stats.tx_dropped += 1;
                continue;
            }
            let Some(packet) = packets.pop_front() else { break };
            match self.write(&packet) {
                Ok(true) => {}
                Ok(false) | Err(Error::Memory(_)) => {
                    packets.push_front(packet);
                    self.stats.tx_full += 1;
                    break;
                }
                Err(error) => return Err(error),
            }
            self.stats.tx_packets += 1;
            self.stats.tx_bytes += len as u64;
            taken += 1;
        }
        Ok(taken)
    }

    fn reclaim(&mut self) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn wait_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        !sys::poll_readable(self.file.as_raw_fd(), 0)
    }

    fn wake(&mut self) {}

    fn stats(&self) -> Stats {
        self.stats
    }
}
