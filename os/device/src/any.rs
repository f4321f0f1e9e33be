//! One device of any kind, told apart by a match.

use crate::fault::FaultDevice;
use crate::packet::PacketSocketDevice;
use crate::pcap::{CaptureDevice, PcapDevice};
use crate::shm::ShmDevice;
use crate::tap::TapDevice;
use crate::xdp::XdpDevice;
use crate::{Error, LinkInfo, PacketDevice, RxPacket, Stats, TxPacket};
use std::collections::VecDeque;
use std::os::fd::RawFd;

/// A device chosen when the program starts.
#[derive(Debug)]
pub enum AnyDevice {
    /// Shared memory with another process.
    Shm(Box<ShmDevice>),
    /// A tap interface.
    Tap(Box<TapDevice>),
    /// A packet socket.
    Packet(Box<PacketSocketDevice>),
    /// An AF_XDP socket.
    Xdp(Box<XdpDevice>),
    /// Frames from and to files.
    Pcap(Box<PcapDevice>),
    /// Any of them, captured to a file.
    Capture(Box<CaptureDevice<AnyDevice>>),
    /// Any of them behind faults.
    Fault(Box<FaultDevice<AnyDevice>>),
}

/// Calls the same method of whichever device it is.
macro_rules! each {
    ($self:expr, $device:ident => $call:expr) => {
        match $self {
            AnyDevice::Shm($device) => $call,
            AnyDevice::Tap($device) => $call,
            AnyDevice::Packet($device) => $call,
            AnyDevice::Xdp($device) => $call,
            AnyDevice::Pcap($device) => $call,
            AnyDevice::Capture($device) => $call,
            AnyDevice::Fault($device) => $call,
        }
    };
}

impl PacketDevice for AnyDevice {
    fn link(&self) -> &LinkInfo {
        each!(self, device => device.link())
    }

    fn receive(&mut self, out: &mut Vec<RxPacket>, max: usize) -> Result<usize, Error> {
        each!(self, device => device.receive(out, max))
    }

    fn transmit(&mut self, packets: &mut VecDeque<TxPacket>) -> Result<usize, Error> {
        each!(self, device => device.transmit(packets))
    }

    fn reclaim(&mut self) {
        each!(self, device => device.reclaim());
    }

    fn in_flight(&self) -> usize {
        each!(self, device => device.in_flight())
    }

    fn tick(&mut self, now_ns: u64) {
        each!(self, device => device.tick(now_ns));
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        each!(self, device => device.next_deadline_ns())
    }

    fn wait_fd(&self) -> RawFd {
        each!(self, device => device.wait_fd())
    }

    fn prepare_sleep(&mut self) -> bool {
        each!(self, device => device.prepare_sleep())
    }

    fn wake(&mut self) {
        each!(self, device => device.wake());
    }

    fn stats(&self) -> Stats {
        each!(self, device => device.stats())
    }
}
