//! Frame arenas in another process: what it can see, and what it cannot do.
#![cfg(not(miri))]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use towpath_cbuf::{Error, ImportedArena, Memory, MemoryConfig};

fn memory() -> Memory {
    Memory::new(MemoryConfig { frame_bytes: 1 << 20, ..MemoryConfig::default() }).expect("memory")
}

#[test]
fn exported_arena_shows_frames_to_another_process_which_cannot_write_them() {
    let memory = memory();
    let mut frame = memory.alloc_frame(5000).expect("frame");
    frame.fill(0x5a);
    let (id, offset, len) = frame.frame_location().expect("a frame has a place");
    let export = memory.export_arena(id).expect("export");
    // The child sees the arena through its descriptor alone: arenas are kept from children.
    // SAFETY: the child makes system calls, reads its own mapping, and leaves without unwinding.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let fd = export.fd.as_raw_fd();
            let at = |prot| libc::mmap(std::ptr::null_mut(), export.len as usize, prot, libc::MAP_SHARED, fd, 0);
            let readable = at(libc::PROT_READ);
            let seen = std::slice::from_raw_parts(readable.cast::<u8>().add(offset as usize), len as usize);
            let right = readable != libc::MAP_FAILED && seen.iter().all(|&b| b == 0x5a);
            let writable = at(libc::PROT_READ | libc::PROT_WRITE) != libc::MAP_FAILED;
            let grown = libc::mprotect(readable, 4096, libc::PROT_READ | libc::PROT_WRITE) == 0;
            let path = format!("/proc/self/fd/{fd}\0");
            let anew = libc::open(path.as_ptr().cast(), libc::O_RDWR);
            let cut = anew >= 0 && libc::ftruncate(anew, 0) == 0;
            let written = anew >= 0 && libc::pwrite(anew, b"x".as_ptr().cast(), 1, 0) == 1;
            libc::_exit(
                i32::from(!right)
                    | i32::from(writable) << 1
                    | i32::from(grown) << 2
                    | i32::from(cut) << 3
                    | i32::from(written) << 4,
            );
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        status
    };
    assert_eq!(status, 0, "bits: unreadable, writable, made writable, cut short, written");
}

#[test]
fn imported_arena_gives_views_and_refuses_ranges_outside() {
    let memory = memory();
    let mut frame = memory.alloc_frame(4096).expect("frame");
    frame.fill(3);
    let (id, offset, _) = frame.frame_location().expect("place");
    let export = memory.export_arena(id).expect("export");
    let len = export.len;
    let arena = ImportedArena::import(export.fd, len).expect("a sealed arena");
    // SAFETY: the frame is not written while the view lives.
    let view = unsafe { arena.view(offset, 4096) }.expect("inside");
    let buf = memory.buf_from_owner(view);
    assert!(buf.iter().all(|&b| b == 3));
    assert!(buf.try_into_mut().is_err(), "another process's bytes are never writable");
    for (offset, wanted) in [(len, 1), (len - 1, 2), (u64::MAX, 1), (0, len + 1), (1, u64::MAX)] {
        // SAFETY: refused.
        let refused = unsafe { arena.view(offset, wanted) };
        assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{offset} + {wanted}");
    }
    let mut copy = [0; 10];
    arena.copy_out(offset, &mut copy).expect("inside");
    assert_eq!(copy, [3; 10]);
}

#[test]
fn import_of_unsealed_or_mislabelled_arena_is_refused() {
    // SAFETY: a fresh memory file, owned once.
    let file = unsafe {
        let fd = libc::memfd_create(c"liar".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(fd, 8192), 0);
        OwnedFd::from_raw_fd(fd)
    };
    let unsealed = ImportedArena::import(file.try_clone().expect("descriptor"), 8192);
    assert!(matches!(unsealed, Err(Error::BadArena(_))));
    let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_FUTURE_WRITE;
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    for len in [0, 4096, 8191, 16384] {
        let wrong = ImportedArena::import(file.try_clone().expect("descriptor"), len);
        assert!(matches!(wrong, Err(Error::BadArena(_))), "{len}");
    }
    assert!(ImportedArena::import(file, 8192).is_ok());
}

#[test]
fn two_cores_of_a_domain_share_its_frames() {
    let first = memory();
    let frame = first.alloc_frame(100).expect("frame");
    let (arena, ..) = frame.frame_location().expect("place");
    let domain = first.domain().clone();
    let there = std::thread::spawn(move || {
        let second = Memory::new(MemoryConfig { domain: Some(domain), ..MemoryConfig::default() }).expect("memory");
        let frames: Vec<_> = (0..100).map(|_| second.alloc_frame(4096).expect("frame")).collect();
        frames.iter().map(|f| f.frame_location().expect("place").0).collect::<Vec<_>>()
    });
    assert!(there.join().expect("the other core").into_iter().all(|id| id == arena));
}
