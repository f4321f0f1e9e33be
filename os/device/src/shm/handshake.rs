//! How two processes meet: a UNIX socket of whole messages, over which each side sends its shape, its address, its
//! region and its frame arenas, later more arenas, and a byte to wake the other when it sleeps.
//!
//! The wake-up is a message and not an eventfd, because a descriptor shared with another process can be made to block
//! by that process; `MSG_DONTWAIT` cannot. The same socket tells of the peer's death.

use super::region::Shape;
use crate::{Error, sys};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

const MAGIC: u64 = u64::from_le_bytes(*b"TOWSHM01");
const HELLO: u8 = 1;
const ARENA: u8 = 2;
const WAKE: u8 = 3;

/// What each side says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) shape: Shape,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    /// The sender could not register for memory barriers: who writes to it must fence.
    pub(crate) needs_fence: bool,
}

impl Hello {
    fn encode(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out[0] = HELLO;
        out[1] = u8::from(self.needs_fence);
        out[2..8].copy_from_slice(&self.mac);
        out[8..16].copy_from_slice(&MAGIC.to_le_bytes());
        out[16..20].copy_from_slice(&self.shape.slots.to_le_bytes());
        out[20..24].copy_from_slice(&self.shape.tokens.to_le_bytes());
        out[24..28].copy_from_slice(&self.mtu.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Hello> {
        let bytes: &[u8; 32] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        (bytes[0] == HELLO && bytes[8..16] == MAGIC.to_le_bytes()).then(|| Hello {
            shape: Shape { slots: word(16), tokens: word(20) },
            mac: std::array::from_fn(|i| bytes[2 + i]),
            mtu: word(24),
            needs_fence: bytes[1] != 0,
        })
    }
}

/// What arrived on the socket.
#[derive(Debug)]
pub(crate) enum News {
    /// The peer says hello; its region.
    Hello(Hello, OwnedFd),
    /// Another frame arena of the peer.
    Arena(OwnedFd),
    /// The peer wants us awake.
    Wake,
    /// Nothing is waiting.
    Nothing,
    /// The peer is gone.
    Gone,
}

/// The socket between the two processes.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Takes a connected `SOCK_SEQPACKET` socket.
    pub(crate) fn new(socket: OwnedFd) -> Channel {
        Channel(socket)
    }

    /// The descriptor to sleep on.
    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn send(&self, bytes: &[u8], fds: &[RawFd], what: &str) -> Result<(), Error> {
        sys::send_message(self.fd(), bytes, fds).map_err(|e| match e.kind() {
            std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => Error::PeerGone,
            _ => Error::io(what, e),
        })
    }

    /// Says hello.
    pub(crate) fn send_hello(&self, hello: &Hello, region: RawFd) -> Result<(), Error> {
        self.send(&hello.encode(), &[region], "greeting the peer")
    }

    /// Offers an arena; the peer numbers them in the order they come.
    pub(crate) fn send_arena(&self, arena: RawFd) -> Result<(), Error> {
        self.send(&[ARENA], &[arena], "sharing a frame arena")
    }

    /// Wakes the peer. A full socket means that wake-ups are waiting for it already.
    pub(crate) fn send_wake(&self) {
        let _ = sys::send_message(self.fd(), &[WAKE], &[]);
    }

    /// The next message; `wait` blocks until there is one.
    pub(crate) fn next(&self, wait: bool) -> Result<News, Error> {
        let mut bytes = [0; 64];
        let (len, mut fds) = match sys::receive_message(self.fd(), &mut bytes, wait) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(News::Nothing),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return Ok(News::Gone),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Ok(News::Nothing),
            Err(e) => return Err(Error::io("reading from the peer", e)),
        };
        let news = match (len, bytes[0], fds.pop()) {
            (0, ..) => Some(News::Gone),
            (1, WAKE, None) => Some(News::Wake),
            (1, ARENA, Some(fd)) => Some(News::Arena(fd)),
            (_, HELLO, Some(fd)) => Hello::decode(&bytes[..len]).map(|hello| News::Hello(hello, fd)),
            _ => None,
        };
        news.ok_or_else(|| Error::Protocol("a message that is none of this protocol's".into()))
    }
}

fn socket() -> Result<OwnedFd, Error> {
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    sys::own_fd(fd.into(), "socket")
}

fn address(path: &Path) -> Result<libc::sockaddr_un, Error> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: plain data for which zero is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(Error::Config(format!("{} cannot be the path of a socket (1 to 107 bytes)", path.display())));
    }
    address.sun_family = libc::AF_UNIX as u16;
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    Ok(address)
}

/// A pair of connected sockets within one process.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut fds = [0; 2];
    // SAFETY: the array has room for the two descriptors the call returns.
    let rc = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()) };
    sys::check(rc.into(), "socketpair")?;
    Ok((sys::own_fd(fds[0].into(), "socketpair")?, sys::own_fd(fds[1].into(), "socketpair")?))
}

/// Connects to a listening process; `None` if nobody listens.
fn try_connect(path: &Path) -> Result<Option<OwnedFd>, Error> {
    let socket = socket()?;
    let address = address(path)?;
    let len = size_of::<libc::sockaddr_un>() as u32;
    // SAFETY: pointer and length describe a local that outlives the call.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if rc == 0 {
        return Ok(Some(socket));
    }
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ECONNREFUSED) => Ok(None),
        _ => Err(Error::io(format!("connecting to {}", path.display()), error)),
    }
}

/// Meets the other process at `path`: whoever comes first listens, whoever comes second connects. Returns the socket
/// and whether this side came first.
pub(crate) fn meet(path: &Path, timeout: Duration) -> Result<(OwnedFd, bool), Error> {
    let deadline = Instant::now() + timeout;
    let listener = match claim(path, deadline)? {
        Claim::Second(socket) => return Ok((socket, false)),
        Claim::First(listener) => listener,
    };
    let left = deadline.saturating_duration_since(Instant::now()).as_millis().min(i32::MAX as u128) as i32;
    let came = sys::poll_readable(listener.as_raw_fd(), left);
    let _ = std::fs::remove_file(path);
    if !came {
        return Err(Error::Config(format!("nobody came to {} within {timeout:?}", path.display())));
    }
    // SAFETY: null address pointers are allowed.
    let fd =
        unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
    Ok((sys::own_fd(fd.into(), "accept")?, true))
}

/// Who came first.
enum Claim {
    /// This side: it listens at the path.
    First(OwnedFd),
    /// The other side: this one is connected to it.
    Second(OwnedFd),
}

/// Connects to whoever listens at `path`, or listens there. The folder is locked meanwhile: looking, clearing away what
/// a dead process left and taking the name are one step, or two that come at once would clear away each other.
fn claim(path: &Path, deadline: Instant) -> Result<Claim, Error> {
    let _locked = lock_folder(path, deadline)?;
    if let Some(socket) = try_connect(path)? {
        return Ok(Claim::Second(socket));
    }
    // What lies there is a socket nobody listens on, left by a process that died.
    use std::os::unix::fs::FileTypeExt;
    if std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
        let _ = std::fs::remove_file(path);
    }
    let listener = socket()?;
    crate::link::bind(listener.as_raw_fd(), &address(path)?, &format!("listening at {}", path.display()))?;
    let _ = std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600));
    // SAFETY: a plain call on a descriptor we own.
    if let Err(error) = sys::check(unsafe { libc::listen(listener.as_raw_fd(), 1) }.into(), "listen") {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(Claim::First(listener))
}

/// Locks the folder of `path` against others that meet in it; the lock goes with the file.
fn lock_folder(path: &Path, deadline: Instant) -> Result<std::fs::File, Error> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |error| Error::io(format!("locking {} to meet at {}", folder.display(), path.display()), error);
    let file = std::fs::File::open(folder).map_err(failed)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(std::fs::TryLockError::Error(error)) => return Err(failed(error)),
            Err(std::fs::TryLockError::WouldBlock) if Instant::now() >= deadline => {
                return Err(Error::Config(format!("another process keeps {} locked", folder.display())));
            }
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_encoded_then_decoded_is_the_same() {
        let shape = Shape { slots: 256, tokens: 1024 };
        let hello = Hello { shape, mac: [2, 1, 2, 3, 4, 5], mtu: 9000, needs_fence: true };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        assert_eq!(Hello::decode(&hello.encode()[..31]), None);
        assert_eq!(Hello::decode(&[HELLO; 32]), None);
    }

    #[test]
    fn message_of_another_protocol_is_an_error_and_silence_is_not() {
        let (a, b) = pair().unwrap();
        let (a, b) = (Channel::new(a), Channel::new(b));
        assert!(matches!(b.next(false), Ok(News::Nothing)));
        a.send(b"GET / HTTP/1.1", &[], "test").unwrap();
        assert!(matches!(b.next(false), Err(Error::Protocol(_))));
        a.send_wake();
        assert!(matches!(b.next(false), Ok(News::Wake)));
        drop(a);
        assert!(matches!(b.next(false), Ok(News::Gone)));
    }

    #[test]
    fn two_that_come_at_once_meet_each_other_every_time() {
        let dir = towpath_testing::TempDir::new();
        let path = dir.join("s");
        for round in 0..200 {
            if round % 3 == 0 {
                // What a process that died leaves: a name nobody listens at.
                drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            }
            let start = std::sync::Barrier::new(2);
            let side = || {
                start.wait();
                meet(&path, Duration::from_secs(20)).map(|(_, first)| first)
            };
            let (a, b) = std::thread::scope(|scope| {
                let other = scope.spawn(side);
                (side(), other.join().unwrap())
            });
            assert_ne!(a.unwrap(), b.unwrap(), "one comes first, one second");
        }
    }

    #[test]
    fn meeting_place_nobody_comes_to_is_an_error_and_is_cleaned_up() {
        let dir = towpath_testing::TempDir::new();
        let path = dir.join("s");
        let outcome = meet(&path, Duration::from_millis(20));
        assert!(matches!(outcome, Err(Error::Config(_))), "{outcome:?}");
        assert!(!path.exists());
    }
}
