//! Pairs of joined devices.

use towpath_cbuf::{Memory, MemoryConfig};
use towpath_device::fault::{FaultConfig, FaultDevice};
use towpath_device::packet::{PacketConfig, PacketSocketDevice};
use towpath_device::shm::{ShmConfig, ShmDevice};
use towpath_device::tap::{TapConfig, TapDevice};
use towpath_device::trylink::{TemporaryLink, TryLinkConfig};
use towpath_device::xdp::{XdpConfig, XdpDevice, XdpMode};
use towpath_device::{AnyDevice, PacketDevice};

/// One end: a device and the memory it works with.
pub struct End {
    pub device: AnyDevice,
    pub memory: Memory,
}

/// Two ends of one link. `near` is the device under test.
pub struct Pair {
    pub near: End,
    pub far: End,
    // Goes down after the devices.
    _link: Option<TemporaryLink>,
}

fn memory() -> Memory {
    Memory::new(MemoryConfig { frame_bytes: 16 << 20, ..MemoryConfig::default() }).expect("memory")
}

/// Whether namespaces can be made here; says so if not.
fn privileged(name: &str) -> bool {
    // SAFETY: a call without arguments.
    let root = unsafe { libc::geteuid() == 0 };
    if !root || towpath_testing::which("ip").is_none() {
        towpath_testing::skip(name, "needs root and iproute2");
        return false;
    }
    true
}

pub fn shm(_name: &str) -> Option<Pair> {
    let (near, far) = (memory(), memory());
    let config = ShmConfig { slots: 64, tokens: 64, credit: 32, mtu: 9000, ..ShmConfig::default() };
    let (a, b) = ShmDevice::pair([&near, &far], config).expect("pair");
    Some(Pair {
        near: End { device: AnyDevice::Shm(Box::new(a)), memory: near },
        far: End { device: AnyDevice::Shm(Box::new(b)), memory: far },
        _link: None,
    })
}

pub fn fault_of_none(name: &str) -> Option<Pair> {
    let mut pair = shm(name)?;
    let memory = pair.near.memory.clone();
    let Pair { near: End { device, .. }, far, _link } = pair;
    let device = AnyDevice::Fault(Box::new(FaultDevice::new(device, &memory, FaultConfig::default())));
    pair = Pair { near: End { device, memory }, far, _link };
    Some(pair)
}

fn veth(name: &str, mtu: u32, near: impl FnOnce(&str, &Memory) -> AnyDevice) -> Option<Pair> {
    if !privileged(name) {
        return None;
    }
    let config = TryLinkConfig { near_namespace: true, mtu, ..TryLinkConfig::new("tpc") };
    let link = TemporaryLink::up(config).expect("a link");
    let (near_memory, far_memory) = (memory(), memory());
    let near = {
        let _there = link.enter_near().expect("near namespace");
        near(&link.near_interface, &near_memory)
    };
    let far = {
        let _there = link.enter_far().expect("far namespace");
        PacketSocketDevice::open(&link.far_interface, &far_memory, PacketConfig::default()).expect("packet")
    };
    Some(Pair {
        near: End { device: near, memory: near_memory },
        far: End { device: AnyDevice::Packet(Box::new(far)), memory: far_memory },
        _link: Some(link),
    })
}

pub fn packet(name: &str) -> Option<Pair> {
    veth(name, 1500, |interface, memory| {
        let config = PacketConfig { offloads: false, ..PacketConfig::default() };
        AnyDevice::Packet(Box::new(PacketSocketDevice::open(interface, memory, config).expect("packet")))
    })
}

fn xdp(name: &str, mtu: u32, mode: XdpMode) -> Option<Pair> {
    veth(name, mtu, |interface, memory| {
        let config = XdpConfig { mode: Some(mode), ring: 256, ..XdpConfig::default() };
        let device = XdpDevice::open(interface, memory, config).expect("xdp");
        assert_eq!(device.mode(), mode);
        AnyDevice::Xdp(Box::new(device))
    })
}

pub fn xdp_native(name: &str) -> Option<Pair> {
    xdp(name, 1500, XdpMode::Native)
}

pub fn xdp_generic(name: &str) -> Option<Pair> {
    xdp(name, 1500, XdpMode::Generic)
}

pub fn xdp_jumbo(name: &str) -> Option<Pair> {
    xdp(name, 9000, XdpMode::Native)
}

/// A tap, and a packet socket on the kernel's side of it.
pub fn tap(name: &str) -> Option<Pair> {
    if !privileged(name) {
        return None;
    }
    let link = TemporaryLink::up(TryLinkConfig { near_namespace: true, ..TryLinkConfig::new("tpt") }).expect("a link");
    let (near_memory, far_memory) = (memory(), memory());
    let _there = link.enter_near().expect("near namespace");
    let near = TapDevice::open("tap0", &near_memory, TapConfig::default()).expect("tap");
    let far = PacketSocketDevice::open("tap0", &far_memory, PacketConfig::default()).expect("packet");
    drop(_there);
    assert_ne!(near.link().mac, far.link().mac);
    Some(Pair {
        near: End { device: AnyDevice::Tap(Box::new(near)), memory: near_memory },
        far: End { device: AnyDevice::Packet(Box::new(far)), memory: far_memory },
        _link: Some(link),
    })
}
