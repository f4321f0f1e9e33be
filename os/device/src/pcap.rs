//! `pcap`: frames from and to files that Wireshark reads. [`PcapDevice`] replays a recorded file as if it were a link,
//! and writes what is sent; [`CaptureDevice`] stands before any device and writes both directions.

use crate::{Error, LinkInfo, Offloads, PacketDevice, RxPacket, Stats, TxPacket, packet_device};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, SystemTime};
use towpath_cbuf::{Memory, Sga};

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Config(format!("{}: {error}", path.display()))
}

/// Writes frames to a pcapng file.
struct Recorder {
    out: PcapNgWriter<BufWriter<File>>,
    scratch: Vec<u8>,
    /// A full disk ends the recording, not the link.
    failed: bool,
}

impl Recorder {
    fn create(path: &Path) -> Result<Recorder, Error> {
        let file = File::create(path).map_err(|e| failed(path, &e))?;
        let mut out = PcapNgWriter::new(BufWriter::new(file)).map_err(|e| failed(path, &e))?;
        let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options: Vec::new() };
        out.write_pcapng_block(interface).map_err(|e| failed(path, &e))?;
        Ok(Recorder { out, scratch: Vec::new(), failed: false })
    }

    fn write(&mut self, frame: &Sga, at: Duration) {
        if self.failed {
            return;
        }
        self.scratch.resize(frame.len(), 0);
        let mut end = 0;
        for segment in frame.segments() {
            self.scratch[end..end + segment.len()].copy_from_slice(segment);
            end += segment.len();
        }
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: at,
            original_len: self.scratch.len() as u32,
            data: self.scratch.as_slice().into(),
            options: Vec::new(),
        };
        self.failed = self.out.write_pcapng_block(block).is_err();
    }
}

fn wall_clock() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Every frame of a pcap or pcapng file, with its time.
///
/// # Errors
/// [`Error::Config`] if the file cannot be read or is of another kind.
pub fn read_frames(path: &Path) -> Result<Vec<(Duration, Vec<u8>)>, Error> {
    let mut file = BufReader::new(File::open(path).map_err(|e| failed(path, &e))?);
    let mut magic = [0; 4];
    file.read_exact(&mut magic).and_then(|()| file.rewind()).map_err(|e| failed(path, &e))?;
    let mut frames = Vec::new();
    // A pcapng file starts with a section header block.
    if magic == [0x0a, 0x0d, 0x0d, 0x0a] {
        let mut reader = PcapNgReader::new(file).map_err(|e| failed(path, &e))?;
        while let Some(block) = reader.next_block() {
            match block.map_err(|e| failed(path, &e))? {
                Block::EnhancedPacket(packet) => frames.push((packet.timestamp, packet.data.into_owned())),
                Block::SimplePacket(packet) => frames.push((Duration::ZERO, packet.data.into_owned())),
                _ => {}
            }
        }
    } else {
        let mut reader = PcapReader::new(file).map_err(|e| failed(path, &e))?;
        while let Some(packet) = reader.next_packet() {
            let packet = packet.map_err(|e| failed(path, &e))?;
            frames.push((packet.timestamp, packet.data.into_owned()));
        }
    }
    Ok(frames)
}

/// A link that exists in files only: what is received was recorded, what is sent is recorded.
pub struct PcapDevice {
    link: LinkInfo,
    memory: Memory,
    frames: VecDeque<(Duration, Vec<u8>)>,
    recorder: Option<Recorder>,
    /// Replays by the recorded times instead of at once.
    paced: bool,
    first: Duration,
    started: Option<u64>,
    now: u64,
    wait: OwnedFd,
    stats: Stats,
}

packet_device::debug_as_link!(PcapDevice);

impl PcapDevice {
    /// Replays `replay`, at once or `paced` by its own times, and records to `record`, where given.
    ///
    /// # Errors
    /// [`Error::Config`] for files that cannot be read or written.
    pub fn open(
        replay: Option<&Path>,
        record: Option<&Path>,
        paced: bool,
        mac: [u8; 6],
        memory: &Memory,
    ) -> Result<PcapDevice, Error> {
        let frames: VecDeque<_> = replay.map(read_frames).transpose()?.unwrap_or_default().into();
        // SAFETY: a system call without pointers.
        let wait = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        Ok(PcapDevice {
            link: LinkInfo {
                name: "pcap".to_string(),
                mac,
                mtu: 65_535,
                offloads: Offloads::default(),
                segments_max: usize::MAX,
            },
            memory: memory.clone(),
            first: frames.front().map_or(Duration::ZERO, |(at, _)| *at),
            frames,
            recorder: record.map(Recorder::create).transpose()?,
            paced,
            started: None,
            now: 0,
            wait: crate::sys::own_fd(wait.into(), "eventfd")?,
            stats: Stats::default(),
        })
    }

    /// Frames not yet replayed.
    pub fn left(&self) -> usize {
        self.frames.len()
    }

    fn due(&self) -> Option<u64> {
        let (at, _) = self.frames.front()?;
        let after = if self.paced { at.saturating_sub(self.first).as_nanos() as u64 } else { 0 };
        Some(self.started.unwrap_or(self.now) + after)
    }
}

impl PacketDevice for PcapDevice {
    fn link(&self) -> &LinkInfo {
        &self.link
    }

    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error> {
        self.started.get_or_insert(self.now);
        let mut count = 0;
        while count < max && self.due().is_some_and(|due| due <= self.now) {
            let Some((_, bytes)) = self.frames.front() else { break };
            let Ok(mut frame) = self.memory.alloc_frame(bytes.len().max(1)) else { break };
            frame[..bytes.len()].copy_from_slice(bytes);
            frame.truncate(bytes.len());
            self.stats.rx_packets += 1;
            self.stats.rx_bytes += bytes.len() as u64;
            out.push(RxPacket::plain(frame.freeze()));
            self.frames.pop_front();
            count += 1;
        }
        Ok(count)
    }

    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error> {
        let taken = packets.len();
        for packet in packets.drain(..) {
            self.stats.tx_packets += 1;
            self.stats.tx_bytes += packet.frame.len() as u64;
            if let Some(recorder) = &mut self.recorder {
                recorder.write(&packet.frame, Duration::from_nanos(self.now));
            }
        }
        Ok(taken)
    }

    fn reclaim(&mut self) {}

    fn in_flight(&self) -> usize {
        0
    }

    fn tick(&mut self, now_ns: u64) {
        self.now = self.now.max(now_ns);
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.due()
    }

    fn wait_fd(&self) -> RawFd {
        self.wait.as_raw_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.due().is_none_or(|due| due > self.now)
    }

    fn wake(&mut self) {}

    fn stats(&self) -> Stats {
        self.stats
    }
}

/// A device whose frames are written to a pcapng file as they pass, with the time of the wall clock. It offers no
/// transmit offloads, so that what is written is what is on the wire.
pub struct CaptureDevice<D> {
    inner: D,
    link: LinkInfo,
    recorder: Recorder,
}

impl<D: PacketDevice> CaptureDevice<D> {
    /// Captures what passes `inner` into a new file at `path`.
    ///
    /// # Errors
    /// [`Error::Config`] if the file cannot be made.
    pub fn new(inner: D, path: &Path) -> Result<CaptureDevice<D>, Error> {
        let offloads = Offloads { rx_checksum: inner.link().offloads.rx_checksum, ..Offloads::default() };
        let link = LinkInfo { offloads, ..inner.link().clone() };
        Ok(CaptureDevice { inner, link, recorder: Recorder::create(path)? })
    }
}

impl<D: std::fmt::Debug> std::fmt::Debug for CaptureDevice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureDevice").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<D: PacketDevice> PacketDevice for CaptureDevice<D> {
    fn link(&self) -> &LinkInfo {
        &self.link
    }

    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error> {
        let before = out.len();
        let result = self.inner.receive(out, max);
        let at = wall_clock();
        for packet in &out[before..] {
            self.recorder.write(&packet.frame, at);
        }
        result
    }

    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error> {
        // What the device takes it takes from the front, in order; what it leaves is offered again.
        let offered: Vec<Sga> = packets.iter().map(|packet| packet.frame.clone()).collect();
        let result = self.inner.transmit(packets);
        let at = wall_clock();
        for frame in &offered[..offered.len() - packets.len()] {
            self.recorder.write(frame, at);
        }
        result
    }

    fn reclaim(&mut self) {
        self.inner.reclaim();
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn tick(&mut self, now_ns: u64) {
        self.inner.tick(now_ns);
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        self.inner.next_deadline_ns()
    }

    fn wait_fd(&self) -> RawFd {
        self.inner.wait_fd()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn wake(&mut self) {
        self.inner.wake();
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_cbuf::MemoryConfig;

    #[test]
    fn recorded_frames_replay_byte_for_byte_and_by_their_times() {
        let dir = towpath_testing::TempDir::new();
        let path = dir.join("x.pcapng");
        let memory = Memory::new(MemoryConfig::default()).unwrap();
        let frames: Vec<Vec<u8>> = (0..20_u8).map(|n| vec![n; 60 + usize::from(n) * 50]).collect();
        {
            let mut device = PcapDevice::open(None, Some(&path), false, [2; 6], &memory).unwrap();
            for (n, bytes) in frames.iter().enumerate() {
                device.tick(n as u64 * 1_000_000);
                let packet = TxPacket::plain(memory.copy_from(bytes).unwrap());
                device.transmit(&mut VecDeque::from([packet])).unwrap();
            }
        }
        let mut device = PcapDevice::open(Some(&path), None, true, [2; 6], &memory).unwrap();
        let mut got = Vec::new();
        device.tick(1000);
        assert_eq!(device.receive(&mut got, 64).unwrap(), 1, "only the first is due");
        assert_eq!(device.next_deadline_ns(), Some(1000 + 1_000_000));
        device.tick(1000 + 9_500_000);
        device.receive(&mut got, 64).unwrap();
        assert_eq!(got.len(), 10);
        device.tick(1_000_000_000);
        device.receive(&mut got, 64).unwrap();
        assert_eq!((got.len(), device.left()), (20, 0));
        for (packet, bytes) in got.iter().zip(&frames) {
            assert_eq!(packet.frame.segments()[0][..], bytes[..]);
        }
    }

    #[test]
    fn capture_holds_what_passed_in_both_directions() {
        let dir = towpath_testing::TempDir::new();
        let (first, second) = (dir.join("in.pcapng"), dir.join("out.pcapng"));
        let memory = Memory::new(MemoryConfig::default()).unwrap();
        {
            let mut device = PcapDevice::open(None, Some(&first), false, [2; 6], &memory).unwrap();
            let packet = TxPacket::plain(memory.copy_from(&[1; 70]).unwrap());
            device.transmit(&mut VecDeque::from([packet])).unwrap();
        }
        {
            let inner = PcapDevice::open(Some(&first), None, false, [2; 6], &memory).unwrap();
            let mut device = CaptureDevice::new(inner, &second).unwrap();
            device.receive(&mut Vec::new(), 8).unwrap();
            let frame: Sga =
                [memory.copy_from(&[2; 30]).unwrap(), memory.copy_from(&[3; 40]).unwrap()].into_iter().collect();
            device.transmit(&mut VecDeque::from([TxPacket::plain(frame)])).unwrap();
        }
        let frames: Vec<Vec<u8>> = read_frames(&second).unwrap().into_iter().map(|(_, bytes)| bytes).collect();
        assert_eq!(frames, [vec![1; 70], [vec![2; 30], vec![3; 40]].concat()]);
    }

    #[test]
    fn file_of_another_kind_or_cut_short_is_an_error() {
        let dir = towpath_testing::TempDir::new();
        for (name, bytes) in [("empty", &b""[..]), ("text", b"GET / HTTP/1.1"), ("short", &[0x0a, 0x0d, 0x0d, 0x0a, 9])]
        {
            let path = dir.join(name);
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(read_frames(&path), Err(Error::Config(_))), "{name}");
        }
        assert!(read_frames(&dir.join("missing")).is_err());
    }
}
