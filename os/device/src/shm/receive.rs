//! The receiving half: from slots to frames that refer to the peer's memory, within a credit.

use super::ShmDevice;
use super::descriptor::{Descriptor, Piece, WORDS};
use crate::RxPacket;
use crate::sys::{self, Mapping};
use std::cell::{Cell, RefCell, RefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::rc::Rc;
use towpath_cbuf::{Buf, ForeignOwner, Sga};

/// Arenas a peer may share: more would only exhaust our address space.
const ARENAS_MAX: usize = 64;

/// Which of the peer's frames we hold, and which we are done with but have not told yet.
#[derive(Debug)]
pub(super) struct Returns {
    pending: RefCell<Vec<u16>>,
    /// Pieces still referenced, by token.
    pieces: Vec<Cell<u8>>,
    held: Cell<u32>,
    credit: u32,
}

impl Returns {
    pub(super) fn new(tokens: u32, credit: u32) -> Rc<Returns> {
        Rc::new(Returns {
            pending: RefCell::new(Vec::with_capacity(tokens as usize)),
            pieces: (0..tokens).map(|_| Cell::new(0)).collect(),
            held: Cell::new(0),
            credit,
        })
    }

    pub(super) fn pending(&self) -> RefMut<'_, Vec<u16>> {
        self.pending.borrow_mut()
    }

    fn is_held(&self, token: u16) -> Option<bool> {
        self.pieces.get(usize::from(token)).map(|pieces| pieces.get() > 0)
    }

    fn hold(&self, token: u16, pieces: usize) {
        self.pieces[usize::from(token)].set(pieces as u8);
        self.held.set(self.held.get() + 1);
    }

    fn drop_piece(&self, token: u16) {
        let pieces = &self.pieces[usize::from(token)];
        pieces.set(pieces.get() - 1);
        if pieces.get() == 0 {
            self.held.set(self.held.get() - 1);
            self.pending().push(token);
        }
    }
}

/// One of the peer's frame arenas, mapped read-only for as long as a buffer refers to it.
#[derive(Debug)]
struct PeerArena {
    map: Mapping,
    returns: Rc<Returns>,
}

impl ForeignOwner for PeerArena {
    fn release(&self, token: u64) {
        self.returns.drop_piece(token as u16);
    }
}

/// All arenas the peer has shared, in its order.
#[derive(Debug)]
pub(super) struct Arenas(Vec<Rc<PeerArena>>);

impl Arenas {
    pub(super) fn new() -> Arenas {
        Arenas(Vec::new())
    }

    /// Maps one more.
    pub(super) fn add(&mut self, file: OwnedFd, returns: &Rc<Returns>) -> Result<(), String> {
        if self.0.len() >= ARENAS_MAX {
            return Err(format!("it shared more than {ARENAS_MAX} arenas"));
        }
        let len = sys::sealed_len(file.as_raw_fd()).map_err(|e| e.to_string())?;
        let len = usize::try_from(len).map_err(|_| "it shared an arena beyond the address space".to_string())?;
        let map = Mapping::lazy(file.as_raw_fd(), len, "mapping an arena of the peer").map_err(|e| e.to_string())?;
        self.0.push(Rc::new(PeerArena { map, returns: returns.clone() }));
        Ok(())
    }

    /// Turns a claim into memory, if it lies inside an arena.
    fn find(&self, piece: &Piece) -> Option<(&Rc<PeerArena>, NonNull<u8>)> {
        let arena = self.0.get(piece.arena as usize)?;
        let end = piece.offset.checked_add(u64::from(piece.len))?;
        if end > arena.map.len() as u64 {
            return None;
        }
        // SAFETY: the piece was just bounded by the mapping.
        Some((arena, unsafe { arena.map.base().add(piece.offset as usize) }))
    }
}

impl ShmDevice {
    /// Turns a slot's words into a frame; `Ok(None)` drops it for want of memory.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub(super) fn deliver(&mut self, words: &[u64; WORDS]) -> Result<Option<RxPacket>, String> {
        let descriptor = Descriptor::decode(words)?;
        let pieces = &descriptor.pieces[..descriptor.piece_count];
        if pieces.iter().any(|piece| piece.arena as usize >= self.arenas.0.len()) {
            // The sender shares an arena before it names it.
            self.read_news();
        }
        if pieces.is_empty() {
            return Ok(self.deliver_inline(&descriptor).map(|buf| packet(&descriptor, buf.into())));
        }
        match self.returns.is_held(descriptor.token) {
            Some(false) => {}
            Some(true) => return Err(format!("it sent frame {} twice", descriptor.token)),
            None => return Err(format!("it sent frame {}, beyond its own limit", descriptor.token)),
        }
        for piece in pieces {
            let (_, bytes) = self.arenas.find(piece).ok_or("a piece lies outside the arenas it shared")?;
            sys::prefetch(bytes.as_ptr());
        }
        let frame = if self.returns.held.get() >= self.returns.credit {
            self.copy_out(&descriptor)
        } else {
            self.refer(&descriptor)
        };
        if frame.is_none() && self.returns.is_held(descriptor.token) == Some(false) {
            // No memory for our part of it: the frame is lost, the peer's memory is not.
            self.returns.pending().push(descriptor.token);
        }
        Ok(frame.map(|frame| packet(&descriptor, frame)))
    }

    fn deliver_inline(&mut self, descriptor: &Descriptor) -> Option<Buf> {
        let mut buf = self.memory.alloc(descriptor.inline_len).ok()?;
        buf[..descriptor.inline_len].copy_from_slice(descriptor.inline());
        self.stats.copied_bytes += descriptor.inline_len as u64;
        Some(buf.freeze())
    }

    /// The frame as references to the peer's memory.
    fn refer(&mut self, descriptor: &Descriptor) -> Option<Sga> {
        let mut frame = Sga::new();
        if descriptor.inline_len > 0 {
            frame.push_back(self.deliver_inline(descriptor)?);
        }
        self.returns.hold(descriptor.token, descriptor.piece_count);
        for piece in &descriptor.pieces[..descriptor.piece_count] {
            let (arena, bytes) = self.arenas.find(piece)?;
            // SAFETY: `find` bounded the bytes by the arena's mapping, which the owner keeps; the mapping is
            // read-only. The peer can change bytes it has lent: like any bytes from a network they prove nothing
            // before they are copied or checked.
            let buf = unsafe {
                let owner: Rc<dyn ForeignOwner> = arena.clone();
                self.memory.foreign(bytes, piece.len as usize, owner, u64::from(descriptor.token))
            };
            frame.push_back(buf);
        }
        Some(frame)
    }

    /// The frame as a copy of ours; the peer gets its own back at once.
    fn copy_out(&mut self, descriptor: &Descriptor) -> Option<Sga> {
        let len = descriptor.frame_len();
        let mut buf = self.memory.alloc_frame(len).ok()?;
        buf[..descriptor.inline_len].copy_from_slice(descriptor.inline());
        let mut at = descriptor.inline_len;
        for piece in &descriptor.pieces[..descriptor.piece_count] {
            let (_, bytes) = self.arenas.find(piece)?;
            let target = &mut buf[at..at + piece.len as usize];
            // SAFETY: `find` bounded the source by its mapping, the target is a distinct slice of the same length.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target.as_mut_ptr(), target.len()) };
            at += target.len();
        }
        self.stats.copied_bytes += len as u64;
        self.returns.pending().push(descriptor.token);
        Some(Sga::from(buf.freeze()))
    }
}

fn packet(descriptor: &Descriptor, frame: Sga) -> RxPacket {
    RxPacket { frame, checksum: descriptor.checksum, gso_size: descriptor.gso_size }
}
