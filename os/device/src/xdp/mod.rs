//! `xdp`: an interface's receive queue through an AF_XDP socket whose memory is one of our own frame arenas, whole, in
//! chunks of a page. Received frames are the chunks the device or the kernel filled; frames to send are referenced
//! where they lie, the header in its chunk and the payload in pieces cut at chunk edges (multi-buffer). Only bytes that
//! are not in the arena are copied, once. The XDP program hangs on a descriptor of ours and goes with this process.

mod bpf;
mod rings;

pub use bpf::XdpMode;

use crate::sys;
use crate::{Error, LinkInfo, Offloads, PacketDevice, RxPacket, Stats, TxPacket, frames, link};
use bpf::Program;
use rings::{CONTINUES, Desc, Rings};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};
use towpath_cbuf::{Buf, BufMut, FrameArena, Memory, Sga};

/// Bytes of a chunk: a page, the largest the kernel takes.
const CHUNK: u64 = 4096;
/// Pieces of one frame: what the kernel allows a packet (MAX_SKB_FRAGS and its head).
const PIECES_MAX: usize = 17;
const UMEM_REG: i32 = 4;
const STATISTICS: i32 = 7;
const OPTIONS: i32 = 8;
const BIND_COPY: u16 = 1 << 1;
const BIND_ZEROCOPY: u16 = 1 << 2;
const BIND_NEED_WAKEUP: u16 = 1 << 3;
const BIND_USE_SG: u16 = 1 << 4;
const SO_PREFER_BUSY_POLL: i32 = 69;

/// How the socket is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Where the program runs; `None` tries native, then generic.
    pub mode: Option<XdpMode>,
    /// Receive queue to serve.
    pub queue: u32,
    /// Entries of each ring; a power of two, 64 to 16384.
    pub ring: u32,
    /// Insists on zero copy (`Some(true)`), forbids it, or takes it where the driver has it (`None`).
    pub zero_copy: Option<bool>,
    /// Asks the driver to be polled by us rather than by interrupts where it can.
    pub busy_poll: bool,
}

impl Default for XdpConfig {
    fn default() -> XdpConfig {
        XdpConfig { mode: None, queue: 0, ring: 1024, zero_copy: None, busy_poll: false }
    }
}

/// References held for the device, by chunk: one entry a descriptor under way.
#[derive(Debug, Default)]
struct Sending {
    /// First entry of each chunk, as index + 1.
    heads: Vec<u32>,
    entries: Vec<(Option<Buf>, u32)>,
    free: Vec<u32>,
    count: usize,
}

impl Sending {
    fn new(chunks: usize) -> Sending {
        Sending { heads: vec![0; chunks], ..Sending::default() }
    }

    fn hold(&mut self, chunk: usize, buf: Buf) {
        let entry = (Some(buf), self.heads[chunk]);
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.heads[chunk] = index + 1;
        self.count += 1;
    }

    /// Releases one reference to the chunk: all references to a chunk are to the same buffer, so any will do.
    fn release(&mut self, chunk: usize) -> bool {
        let Some(head) = self.heads.get(chunk).copied().filter(|head| *head > 0) else { return false };
        let entry = &mut self.entries[head as usize - 1];
        entry.0 = None;
        self.heads[chunk] = entry.1;
        self.free.push(head - 1);
        self.count -= 1;
        true
    }
}

/// One queue of an interface.
pub struct XdpDevice {
    // Dropped in this order: first the program, so that no frame is redirected any more, then the socket, which ends
    // the kernel's use of the chunks, then the chunks.
    _program: Program,
    socket: OwnedFd,
    rings: Rings,
    link: LinkInfo,
    mode: XdpMode,
    zero_copy: bool,
    arena: FrameArena,
    memory: Memory,
    /// Buffers the kernel may fill, by chunk.
    filling: Vec<Option<BufMut>>,
    fill_target: u32,
    filled: u32,
    sending: Sending,
    /// Pieces of a received frame whose end has not come yet.
    partial: Sga,
    scratch: Vec<(u64, u32, Buf)>,
    stats: Stats,
}

crate::packet_device::debug_as_link!(XdpDevice);

impl XdpDevice {
    /// Opens queue `config.queue` of the interface `name` in this thread's network namespace. The first frame arena
    /// of `memory` becomes the socket's memory; it must not serve another AF_XDP socket.
    ///
    /// # Errors
    /// [`Error::System`] without CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, or when another program holds the interface.
    pub fn open(name: &str, memory: &Memory, config: XdpConfig) -> Result<XdpDevice, Error> {
        if !config.ring.is_power_of_two() || !(64..=16_384).contains(&config.ring) {
            return Err(Error::Config(format!("{} ring entries: use a power of two, 64 to 16384", config.ring)));
        }
        let modes: &[XdpMode] = match config.mode {
            Some(XdpMode::Native) => &[XdpMode::Native],
            Some(XdpMode::Generic) => &[XdpMode::Generic],
            None => &[XdpMode::Native, XdpMode::Generic],
        };
        let mut last = None;
        for &mode in modes {
            match XdpDevice::open_in(name, memory, &config, mode) {
                Ok(device) => return Ok(device),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::Config("no XDP mode to try".into())))
    }

    fn open_in(name: &str, memory: &Memory, config: &XdpConfig, mode: XdpMode) -> Result<XdpDevice, Error> {
        let (ifindex, mtu) = (link::index(name)?, link::mtu(name)?);
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let socket = sys::own_fd(fd.into(), "opening an AF_XDP socket")?;
        let fd = socket.as_raw_fd();
        let arena = frames::first_arena(memory)?;
        register(fd, &arena)?;
        let rings = Rings::new(fd, config.ring)?;
        if config.busy_poll {
            // Drivers without busy polling ignore it.
            let _ = link::set_option(fd, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1i32, "busy polling");
        }
        // A frame longer than a chunk with its headroom arrives in pieces, which the program must be ready for.
        let fragments = mtu > 3498;
        let queues = link::queues(name).map_or(64, |(rx, _)| rx).max(config.queue + 1);
        let program = Program::attach(ifindex, mode, queues, fragments || mode == XdpMode::Native)
            .or_else(|_| Program::attach(ifindex, mode, queues, fragments))?;
        bind(fd, ifindex, config)?;
        program.serve(config.queue, fd)?;
        let chunks = (arena.len as u64 / CHUNK) as usize;
        let mut device = XdpDevice {
            link: LinkInfo {
                name: format!("xdp:{name}"),
                mac: link::mac(name)?,
                mtu,
                offloads: Offloads::default(),
                segments_max: PIECES_MAX,
            },
            mode,
            zero_copy: is_zero_copy(fd),
            arena,
            memory: memory.clone(),
            filling: (0..chunks).map(|_| None).collect(),
            fill_target: config.ring.min(chunks as u32 / 4),
            filled: 0,
            sending: Sending::new(chunks),
            partial: Sga::new(),
            scratch: Vec::with_capacity(PIECES_MAX),
            stats: Stats::default(),
            _program: program,
            socket,
            rings,
        };
        device.refill();
        if device.filled == 0 {
            return Err(Error::Config("the frame arena has no free page for the receive ring".into()));
        }
        device.wake_receive();
        Ok(device)
    }

    /// Where the program runs.
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Whether the device itself reads and writes our chunks.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Gives the kernel chunks to fill, up to the target, as long as memory lasts.
    fn refill(&mut self) {
        let wanted = self.fill_target.saturating_sub(self.filled);
        let room = self.rings.fill.free(wanted).min(wanted);
        let mut pushed = 0;
        for _ in 0..room {
            let Some((buf, offset)) = frames::page_of(&self.memory, &self.arena) else { break };
            self.filling[(offset / CHUNK) as usize] = Some(buf);
            self.rings.fill.push(offset);
            pushed += 1;
        }
        if pushed > 0 {
            self.filled += pushed;
            self.rings.fill.publish();
        }
    }

    /// Tells the kernel of new chunks if it asks to be told.
    fn wake_receive(&mut self) {
        if self.rings.fill.needs_wakeup() {
            self.stats.kicks += 1;
            let fd = self.socket.as_raw_fd();
            // SAFETY: no buffer: the call only makes the kernel look at the rings.
            unsafe {
                libc::recvfrom(
                    fd,
                    std::ptr::null_mut(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                )
            };
        }
    }

    /// Tells the kernel of frames to send.
    fn kick(&mut self) -> Result<(), Error> {
        if !self.rings.tx.needs_wakeup() {
            return Ok(());
        }
        self.stats.kicks += 1;
        let fd = self.socket.as_raw_fd();
        // SAFETY: no buffer: the kernel takes frames from the ring.
        let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if sent >= 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENETDOWN | libc::EINTR) => Ok(()),
            _ => Err(Error::io(format!("sending on {}", self.link.name), error)),
        }
    }

    /// The buffer behind a received descriptor; `None` if the kernel names a chunk we did not give it.
    fn received(&mut self, desc: Desc) -> Option<Buf> {
        let chunk = (desc.addr / CHUNK) as usize;
        let start = (desc.addr % CHUNK) as usize;
        let buf = self.filling.get_mut(chunk)?.take()?;
        self.filled -= 1;
        let end = start + desc.len as usize;
        if desc.len == 0 || end > buf.len() {
            return None;
        }
        Some(buf.freeze().slice(start..end))
    }

    /// Cuts a frame into descriptors; copies what is not in the arena. Fails only for want of memory.
    fn cut(&mut self, frame: &Sga) -> Result<(), Error> {
        self.scratch.clear();
        for segment in frame.segments() {
            if segment.is_empty() {
                continue;
            }
            let Some((_, offset, len)) = segment.frame_location().filter(|place| place.0 == self.arena.id) else {
                self.copy_pieces(segment)?;
                continue;
            };
            let (mut at, end) = (offset, offset + u64::from(len));
            while at < end {
                let next = end.min((at / CHUNK + 1) * CHUNK);
                self.scratch.push((at, (next - at) as u32, segment.clone()));
                at = next;
            }
        }
        if self.scratch.len() > PIECES_MAX {
            self.scratch.clear();
            let whole = frames::gather(&self.memory, frame)?;
            self.stats.copied_bytes += whole.len() as u64;
            return self.cut(&Sga::from(whole));
        }
        Ok(())
    }

    /// Copies bytes of other memory into chunks.
    fn copy_pieces(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for piece in bytes.chunks(CHUNK as usize) {
            let full = towpath_cbuf::Error::OutOfMemory { requested: piece.len(), limit: self.arena.len };
            let (mut buf, offset) = frames::page_of(&self.memory, &self.arena).ok_or(full)?;
            buf[..piece.len()].copy_from_slice(piece);
            self.scratch.push((offset, piece.len() as u32, buf.freeze()));
            self.stats.copied_bytes += piece.len() as u64;
        }
        Ok(())
    }
}

/// Registers an arena, whole, as the socket's memory.
fn register(fd: RawFd, arena: &FrameArena) -> Result<(), Error> {
    #[repr(C)]
    struct UmemReg {
        addr: u64,
        len: u64,
        chunk_size: u32,
        headroom: u32,
        flags: u32,
        tx_metadata_len: u32,
    }
    let registration = UmemReg {
        addr: arena.base.as_ptr() as u64,
        len: arena.len as u64,
        chunk_size: CHUNK as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    let what = format!("registering {} MB of frames with AF_XDP", arena.len >> 20);
    link::set_option(fd, libc::SOL_XDP, UMEM_REG, &registration, &what)
}

/// Binds to the queue. The kernel frees a queue some time after its last user is gone: busy is tried again.
fn bind(fd: RawFd, ifindex: u32, config: &XdpConfig) -> Result<(), Error> {
    let zero_copy: &[u16] = match config.zero_copy {
        Some(true) => &[BIND_ZEROCOPY],
        Some(false) => &[BIND_COPY],
        None => &[0, BIND_COPY],
    };
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let mut last = None;
        for flags in zero_copy.iter().flat_map(|z| [z | BIND_USE_SG, *z]) {
            let address = libc::sockaddr_xdp {
                sxdp_family: libc::AF_XDP as u16,
                sxdp_flags: flags | BIND_NEED_WAKEUP,
                sxdp_ifindex: ifindex,
                sxdp_queue_id: config.queue,
                sxdp_shared_umem_fd: 0,
            };
            match link::bind(fd, &address, &format!("binding AF_XDP to queue {}", config.queue)) {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
        }
        let Some(error) = last else { return Ok(()) };
        let busy = matches!(&error, Error::System { source, .. } if source.raw_os_error() == Some(libc::EBUSY));
        if !busy || Instant::now() > deadline {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_zero_copy(fd: RawFd) -> bool {
    let (mut flags, mut len) = (0u32, 4u32);
    // SAFETY: pointers to locals of the lengths given.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_XDP, OPTIONS, (&raw mut flags).cast(), &mut len) };
    rc == 0 && flags & 1 != 0
}

/// What became of trying AF_XDP on an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// A socket was bound and a program attached, for a moment.
    Works {
        /// The driver shares its memory with the socket.
        zero_copy: bool,
    },
    /// Another program holds the interface or its queue.
    Busy(String),
    /// It cannot, and why.
    Fails(String),
}

/// Tries AF_XDP on queue 0 of `name` for a moment, without taking any frame: the program passes all to the kernel.
pub fn probe(name: &str, mode: XdpMode) -> ProbeOutcome {
    let attempt = || -> Result<bool, Error> {
        let ifindex = link::index(name)?;
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let socket = sys::own_fd(fd.into(), "opening an AF_XDP socket")?;
        // No socket is put into the map, so every frame goes on to the kernel.
        let _program = Program::attach(ifindex, mode, 1, false)?;
        let config = towpath_cbuf::MemoryConfig { frame_bytes: 1 << 20, ..Default::default() };
        let memory = Memory::new(config)?;
        register(socket.as_raw_fd(), &frames::first_arena(&memory)?)?;
        let _rings = Rings::new(socket.as_raw_fd(), 64)?;
        bind(socket.as_raw_fd(), ifindex, &XdpConfig::default())?;
        Ok(is_zero_copy(socket.as_raw_fd()))
    };
    match attempt() {
        Ok(zero_copy) => ProbeOutcome::Works { zero_copy },
        Err(Error::System { what, source }) if matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
            ProbeOutcome::Busy(format!("{what}: {source}"))
        }
        Err(error) => ProbeOutcome::Fails(error.to_string()),
    }
}

impl PacketDevice for XdpDevice {
    fn link(&self) -> &LinkInfo {
        &self.link
    }

    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error> {
        let (mut count, mut popped) = (0, false);
        while count < max {
            let Some(desc) = self.rings.rx.pop() else { break };
            popped = true;
            let continues = desc.options & CONTINUES != 0;
            match self.received(desc) {
                Some(buf) => self.partial.push_back(buf),
                None => self.stats.rx_invalid += 1,
            }
            if continues || self.partial.is_empty() {
                continue;
            }
            let frame = std::mem::take(&mut self.partial);
            self.stats.rx_packets += 1;
            self.stats.rx_bytes += frame.len() as u64;
            out.push(RxPacket::plain(frame));
            count += 1;
        }
        if popped {
            self.rings.rx.release();
        }
        if self.filled < self.fill_target - self.fill_target / 8 {
            self.refill();
            self.wake_receive();
        }
        Ok(count)
    }

    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error> {
        self.reclaim();
        let mut taken = 0;
        while let Some(packet) = packets.front() {
            let len = packet.frame.len();
            if len < 14 || len > self.link.mtu as usize + 18 || packet.offload != crate::TxOffload::default() {
                packets.pop_front();
                self.stats.tx_dropped += 1;
                continue;
            }
            if self.rings.tx.free(PIECES_MAX as u32) < PIECES_MAX as u32 {
                self.stats.tx_full += 1;
                break;
            }
            let Some(packet) = packets.pop_front() else { break };
            match self.cut(&packet.frame) {
                Ok(()) => {}
                Err(Error::Memory(_)) => {
                    packets.push_front(packet);
                    self.stats.tx_full += 1;
                    break;
                }
                Err(error) => return Err(error),
            }
            let mut scratch = std::mem::take(&mut self.scratch);
            let last = scratch.len().saturating_sub(1);
            for (i, (addr, len, buf)) in scratch.drain(..).enumerate() {
                self.sending.hold((addr / CHUNK) as usize, buf);
                self.rings.tx.push(Desc { addr, len, options: if i < last { CONTINUES } else { 0 } });
            }
            self.scratch = scratch;
            self.stats.tx_packets += 1;
            self.stats.tx_bytes += len as u64;
            taken += 1;
        }
        if taken > 0 {
            self.rings.tx.publish();
        }
        if taken > 0 || self.sending.count > 0 {
            self.kick()?;
        }
        Ok(taken)
    }

    fn reclaim(&mut self) {
        let mut popped = false;
        while let Some(addr) = self.rings.completion.pop() {
            popped = true;
            if !self.sending.release((addr / CHUNK) as usize) {
                self.stats.rx_invalid += 1;
            }
        }
        if popped {
            self.rings.completion.release();
        }
    }

    fn in_flight(&self) -> usize {
        self.sending.count
    }

    fn wait_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.reclaim();
        self.refill();
        self.wake_receive();
        !self.rings.rx.has_entry()
    }

    fn wake(&mut self) {}

    fn stats(&self) -> Stats {
        let mut stats = self.stats;
        let mut kernel = [0u64; 6];
        let mut len = size_of_val(&kernel) as u32;
        // SAFETY: pointer and length describe a local that outlives the call.
        let rc = unsafe {
            let pointer = kernel.as_mut_ptr().cast();
            libc::getsockopt(self.socket.as_raw_fd(), libc::SOL_XDP, STATISTICS, pointer, &mut len)
        };
        if rc == 0 {
            let [dropped, rx_invalid, tx_invalid, ring_full, ..] = kernel;
            stats.rx_dropped += dropped + ring_full;
            stats.rx_invalid += rx_invalid;
            stats.tx_dropped += tx_invalid;
        }
        stats
    }
}
