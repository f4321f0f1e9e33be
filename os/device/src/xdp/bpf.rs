//! The XDP program, assembled by hand, loaded and attached by bare `bpf` calls: no compiler, no libbpf, no bpffs.
//! It hangs on a bpf link held by a descriptor, so that it detaches when this process ends, however it ends.

use crate::{Error, sys};
use std::os::fd::{AsRawFd, OwnedFd};

const BPF_MAP_CREATE: u32 = 0;
const BPF_MAP_UPDATE_ELEM: u32 = 2;
const BPF_PROG_LOAD: u32 = 5;
const BPF_LINK_CREATE: u32 = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
const HAS_FRAGS: u32 = 1 << 5;
const HELPER_REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;
const FLAG_SKB: u32 = 1 << 1;
const FLAG_DRV: u32 = 1 << 2;

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel makes a packet of its own.
    Native,
    /// After it: works on every interface.
    Generic,
}

/// The attribute block of a `bpf` call, as zero-padded bytes.
struct Attr([u8; 128]);

impl Attr {
    fn new() -> Attr {
        Attr([0; 128])
    }

    fn u32(mut self, at: usize, value: u32) -> Attr {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, at: usize, value: u64) -> Attr {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn call(&self, command: u32, what: &str) -> Result<i64, Error> {
        // SAFETY: the block is larger than any field the kernel reads for the commands used here, its unused tail is
        // zero, and pointers in it refer to memory that outlives the call at each call site.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), self.0.len()) };
        sys::check(rc, what)
    }
}

/// One instruction: opcode, destination and source register, offset, immediate.
fn op(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(code)
        | u64::from(dst | src << 4) << 8
        | u64::from(offset as u16) << 16
        | u64::from(immediate as u32) << 32
}

/// `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)`.
fn redirect_all(map: i32) -> Vec<u64> {
    vec![
        op(0x61, 2, 1, 16, 0),                  // r2 = *(u32 *)(r1 + 16): rx_queue_index
        op(0x18, 1, 1, 0, map),                 // r1 = map (two words)
        0,                                      //
        op(0xb7, 3, 0, 0, XDP_PASS),            // r3 = XDP_PASS: what a queue without a socket gets
        op(0x85, 0, 0, 0, HELPER_REDIRECT_MAP), // call
        op(0x95, 0, 0, 0, 0),                   // exit
    ]
}

/// An attached program and its map of sockets by receive queue.
#[derive(Debug)]
pub(crate) struct Program {
    sockets: OwnedFd,
    _program: OwnedFd,
    // Dropping the link detaches the program.
    _link: OwnedFd,
}

impl Program {
    /// Loads the program for `queues` queues and attaches it to an interface; `fragments` allows frames over one page.
    pub(crate) fn attach(ifindex: u32, mode: XdpMode, queues: u32, fragments: bool) -> Result<Program, Error> {
        let map = Attr::new().u32(0, MAP_TYPE_XSKMAP).u32(4, 4).u32(8, 4).u32(12, queues);
        let sockets = sys::own_fd(map.call(BPF_MAP_CREATE, "creating the XDP socket map")?, "bpf")?;
        let code = redirect_all(sockets.as_raw_fd());
        let license = c"Dual MIT/GPL";
        let load = Attr::new()
            .u32(0, PROG_TYPE_XDP)
            .u32(4, code.len() as u32)
            .u64(8, code.as_ptr() as u64)
            .u64(16, license.as_ptr() as u64)
            .u32(44, if fragments { HAS_FRAGS } else { 0 })
            .u32(68, ATTACH_TYPE_XDP);
        let program = sys::own_fd(load.call(BPF_PROG_LOAD, "loading the XDP program")?, "bpf")?;
        let link = Attr::new()
            .u32(0, program.as_raw_fd() as u32)
            .u32(4, ifindex)
            .u32(8, ATTACH_TYPE_XDP)
            .u32(12, if mode == XdpMode::Native { FLAG_DRV } else { FLAG_SKB });
        let link = sys::own_fd(link.call(BPF_LINK_CREATE, "attaching the XDP program")?, "bpf")?;
        Ok(Program { sockets, _program: program, _link: link })
    }

    /// Lets frames of receive queue `queue` go to the AF_XDP socket.
    pub(crate) fn serve(&self, queue: u32, socket: i32) -> Result<(), Error> {
        let (key, value) = (queue, socket as u32);
        let update = Attr::new()
            .u32(0, self.sockets.as_raw_fd() as u32)
            .u64(8, &raw const key as u64)
            .u64(16, &raw const value as u64);
        update.call(BPF_MAP_UPDATE_ELEM, "putting the socket into the XDP map")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_laid_out_as_the_kernel_reads_them() {
        assert_eq!(op(0x61, 2, 1, 16, 0).to_le_bytes(), [0x61, 0x12, 16, 0, 0, 0, 0, 0]);
        assert_eq!(op(0xb7, 3, 0, 0, XDP_PASS).to_le_bytes(), [0xb7, 3, 0, 0, 2, 0, 0, 0]);
        assert_eq!(redirect_all(7).len(), 6);
    }
}
