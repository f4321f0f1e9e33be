//! Facts about a kernel interface and the few settings a device changes: MAC, MTU, index, offloads by the ethtool
//! ioctl, and the namespace of the calling thread.

use crate::{Error, sys};
use std::ffi::CStr;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The name of an interface in the kernel's fixed-size form.
///
/// # Errors
/// [`Error::Config`] for an empty name, one of more than 15 bytes, or one with a slash, blank or NUL.
pub fn interface_name(name: &str) -> Result<[libc::c_char; libc::IFNAMSIZ], Error> {
    let bad =
        name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(|b| b <= b' ' || b == b'/' || b > 126);
    if bad {
        return Err(Error::Config(format!(
            "`{name}` is not the name of a network interface (1 to 15 printable bytes)"
        )));
    }
    let mut out = [0; libc::IFNAMSIZ];
    for (to, from) in out.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(out)
}

fn control_socket() -> Result<OwnedFd, Error> {
    // SAFETY: a system call without pointers.
    sys::own_fd(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }.into(), "socket")
}

fn request(name: &str) -> Result<libc::ifreq, Error> {
    // SAFETY: ifreq is plain data for which zero is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    request.ifr_name = interface_name(name)?;
    Ok(request)
}

fn ioctl(fd: RawFd, code: u64, request: &mut libc::ifreq, what: &str) -> Result<(), Error> {
    // SAFETY: every code used here takes a pointer to an ifreq, which outlives the call.
    sys::check(unsafe { libc::ioctl(fd, code as _, request as *mut libc::ifreq) }.into(), what)?;
    Ok(())
}

/// Index of the interface `name` in this thread's network namespace.
///
/// # Errors
/// [`Error::System`] if there is none.
pub fn index(name: &str) -> Result<u32, Error> {
    let mut request = request(name)?;
    ioctl(control_socket()?.as_raw_fd(), libc::SIOCGIFINDEX, &mut request, &format!("finding interface {name}"))?;
    // SAFETY: SIOCGIFINDEX filled this member.
    Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
}

/// Station address.
///
/// # Errors
/// [`Error::System`] if there is no such interface.
pub fn mac(name: &str) -> Result<[u8; 6], Error> {
    let mut request = request(name)?;
    ioctl(control_socket()?.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request, &format!("reading the address of {name}"))?;
    // SAFETY: SIOCGIFHWADDR filled this member.
    let data = unsafe { request.ifr_ifru.ifru_hwaddr.sa_data };
    Ok(std::array::from_fn(|i| data[i] as u8))
}

/// Largest IP packet in bytes.
///
/// # Errors
/// [`Error::System`] if there is no such interface.
pub fn mtu(name: &str) -> Result<u32, Error> {
    let mut request = request(name)?;
    ioctl(control_socket()?.as_raw_fd(), libc::SIOCGIFMTU, &mut request, &format!("reading the MTU of {name}"))?;
    // SAFETY: SIOCGIFMTU filled this member.
    Ok(unsafe { request.ifr_ifru.ifru_mtu } as u32)
}

/// Sets the largest IP packet.
///
/// # Errors
/// [`Error::System`] if the kernel refuses.
pub fn set_mtu(name: &str, mtu: u32) -> Result<(), Error> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = mtu as i32;
    ioctl(control_socket()?.as_raw_fd(), libc::SIOCSIFMTU, &mut request, &format!("setting the MTU of {name}"))
}

/// Brings the interface up.
///
/// # Errors
/// [`Error::System`] if the kernel refuses.
pub fn set_up(name: &str) -> Result<(), Error> {
    let socket = control_socket()?;
    let mut request = request(name)?;
    ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &mut request, &format!("reading the flags of {name}"))?;
    // SAFETY: SIOCGIFFLAGS filled this member, and SIOCSIFFLAGS reads it.
    unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_UP as i16 };
    ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &mut request, &format!("bringing {name} up"))
}

const SIOCETHTOOL: u64 = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

fn ethtool<T>(name: &str, value: &mut T, what: &str) -> Result<(), Error> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = (value as *mut T).cast();
    ioctl(control_socket()?.as_raw_fd(), SIOCETHTOOL, &mut request, what)
}

#[repr(C)]
struct EthtoolValue {
    cmd: u32,
    data: u32,
}

/// Whether the interface leaves transmit checksums unfinished for hardware.
///
/// # Errors
/// [`Error::System`] if the driver does not say.
pub fn tx_checksum_offload(name: &str) -> Result<bool, Error> {
    let mut value = EthtoolValue { cmd: ETHTOOL_GTXCSUM, data: 0 };
    ethtool(name, &mut value, &format!("reading the checksum offload of {name}"))?;
    Ok(value.data != 0)
}

/// Switches transmit checksum offload, and with it everything that depends on it, such as segmentation offload.
///
/// # Errors
/// [`Error::System`] if the driver refuses.
pub fn set_tx_checksum_offload(name: &str, on: bool) -> Result<(), Error> {
    let mut value = EthtoolValue { cmd: ETHTOOL_STXCSUM, data: u32::from(on) };
    ethtool(name, &mut value, &format!("switching the checksum offload of {name}"))
}

#[repr(C)]
struct EthtoolDriver {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    rest: [u8; 32 + 12 + 4 * 5],
}

/// Driver's name.
///
/// # Errors
/// [`Error::System`] if the driver does not say.
pub fn driver(name: &str) -> Result<String, Error> {
    // SAFETY: plain bytes and numbers for which zero is valid.
    let mut value: EthtoolDriver = unsafe { zeroed() };
    value.cmd = ETHTOOL_GDRVINFO;
    ethtool(name, &mut value, &format!("asking {name} for its driver"))?;
    let text = CStr::from_bytes_until_nul(&value.driver).map(|s| s.to_string_lossy().into_owned());
    Ok(text.unwrap_or_else(|_| "unknown".to_string()))
}

/// Receive and transmit queues in use: `(rx, tx)`, counting a combined queue in both.
///
/// # Errors
/// [`Error::System`] if the driver does not say.
pub fn queues(name: &str) -> Result<(u32, u32), Error> {
    #[repr(C)]
    struct Channels {
        cmd: u32,
        // rx, tx, other, combined: first the maxima, then the counts in use.
        max: [u32; 4],
        count: [u32; 4],
    }
    let mut value = Channels { cmd: ETHTOOL_GCHANNELS, max: [0; 4], count: [0; 4] };
    match ethtool(name, &mut value, &format!("asking {name} for its queues")) {
        Ok(()) => Ok((value.count[0] + value.count[3], value.count[1] + value.count[3])),
        // Drivers without the call list their queues in sysfs.
        Err(error) => queues_in_sysfs(name).ok_or(error),
    }
}

fn queues_in_sysfs(name: &str) -> Option<(u32, u32)> {
    let (mut rx, mut tx) = (0, 0);
    for entry in std::fs::read_dir(format!("/sys/class/net/{name}/queues")).ok()?.flatten() {
        let entry = entry.file_name();
        let entry = entry.to_string_lossy();
        rx += u32::from(entry.starts_with("rx-"));
        tx += u32::from(entry.starts_with("tx-"));
    }
    (rx + tx > 0).then_some((rx, tx))
}

/// Moves the calling thread into the network namespace `name` (as `ip netns` names them) and back when dropped.
#[derive(Debug)]
pub struct Namespace {
    home: std::fs::File,
    // The namespace of a thread: the guard must be dropped where it was made.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Namespace {
    /// Enters `/run/netns/NAME`.
    ///
    /// # Errors
    /// [`Error::System`] if it does not exist or this process may not.
    pub fn enter(name: &str) -> Result<Namespace, Error> {
        let home = open_namespace("/proc/thread-self/ns/net")?;
        let target = open_namespace(&format!("/run/netns/{name}"))?;
        set_namespace(&target, name)?;
        Ok(Namespace { home, _thread: std::marker::PhantomData })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = set_namespace(&self.home, "home") {
            eprintln!("towpath: cannot return from a network namespace: {error}");
        }
    }
}

fn open_namespace(path: &str) -> Result<std::fs::File, Error> {
    std::fs::File::open(path).map_err(|e| Error::io(format!("opening the network namespace {path}"), e))
}

fn set_namespace(file: &std::fs::File, name: &str) -> Result<(), Error> {
    // SAFETY: a system call on a descriptor that is open for its duration.
    let rc = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
    sys::check(rc.into(), &format!("entering the network namespace {name}"))?;
    Ok(())
}

/// Binds an AF_PACKET-like address: family, protocol in network order, interface.
pub(crate) fn packet_address(protocol: u16, ifindex: u32) -> libc::sockaddr_ll {
    // SAFETY: plain data for which zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex as i32;
    address
}

/// Binds `socket` to an address of plain data.
pub(crate) fn bind<T>(socket: RawFd, address: &T, what: &str) -> Result<(), Error> {
    // SAFETY: the pointer and length describe `address`, which outlives the call.
    let rc = unsafe { libc::bind(socket, (address as *const T).cast(), size_of::<T>() as u32) };
    sys::check(rc.into(), what)?;
    Ok(())
}

/// Sets a socket option of plain data.
pub(crate) fn set_option<T>(socket: RawFd, level: i32, option: i32, value: &T, what: &str) -> Result<(), Error> {
    let (pointer, len) = ((value as *const T).cast(), size_of::<T>() as u32);
    // SAFETY: the pointer and length describe `value`, which outlives the call.
    let rc = unsafe { libc::setsockopt(socket, level, option, pointer, len) };
    sys::check(rc.into(), what)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_that_the_kernel_would_refuse_are_refused() {
        for bad in ["", "a/b", "sixteen-bytes-xx", "a b", "a\0"] {
            assert!(matches!(interface_name(bad), Err(Error::Config(_))), "{bad:?}");
        }
        assert!(interface_name("fifteen-bytes-x").is_ok());
    }

    #[test]
    fn loopback_tells_its_facts() {
        assert_eq!(mac("lo").unwrap(), [0; 6]);
        assert!(mtu("lo").unwrap() >= 1500);
        assert!(index("lo").unwrap() >= 1);
        assert!(index("no-such-if").is_err());
    }
}
