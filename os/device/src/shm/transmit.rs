//! The sending half: from scatter-gather arrays to slots, and what the peer still holds.

use super::ShmDevice;
use super::descriptor::{Descriptor, INLINE_MAX, Piece, WORDS};
use crate::{Error, RxChecksum, TxPacket, frames};
use towpath_cbuf::{ArenaId, Buf, Sga};

/// Longest first segment that is copied into the slot: Ethernet, IPv6 and TCP headers without options.
const HEADER_MAX: usize = 80;

/// Frames in the peer's hands, by token.
#[derive(Debug)]
pub(super) struct InFlight {
    frames: Vec<Option<Sga>>,
    free: Vec<u16>,
}

impl InFlight {
    pub(super) fn new(tokens: u32) -> InFlight {
        InFlight { frames: (0..tokens).map(|_| None).collect(), free: (0..tokens as u16).rev().collect() }
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len() - self.free.len()
    }

    pub(super) fn mostly_used(&self) -> bool {
        self.free.len() < self.frames.len() / 2
    }

    fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    fn hold(&mut self, frame: Sga) -> Option<u16> {
        let token = self.free.pop()?;
        self.frames[usize::from(token)] = Some(frame);
        Some(token)
    }

    /// Drops the references behind `token`; false if the peer has no such frame.
    pub(super) fn release(&mut self, token: u16) -> bool {
        let frame = self.frames.get_mut(usize::from(token)).and_then(Option::take);
        if frame.is_some() {
            self.free.push(token);
        }
        frame.is_some()
    }

    /// Drops all references: nobody reads them any more.
    pub(super) fn release_all(&mut self) {
        for token in 0..self.frames.len() as u16 {
            self.release(token);
        }
    }

    /// Gives up all references without ever freeing what they refer to.
    pub(super) fn abandon(&mut self) {
        for frame in self.frames.drain(..) {
            std::mem::forget(frame);
        }
        self.free.clear();
    }
}

impl ShmDevice {
    /// Whether one more frame can be sent now.
    pub(super) fn room(&mut self) -> bool {
        if self.own.sent().wrapping_sub(self.consumed_seen) >= self.slots {
            let seen = self.peer.consumed();
            // A count that goes back or ahead of us is a lie; it costs the peer its own frames only.
            if self.own.sent().wrapping_sub(seen) <= self.slots {
                self.consumed_seen = seen;
            }
            if self.own.sent().wrapping_sub(self.consumed_seen) >= self.slots {
                return false;
            }
        }
        if self.in_flight.is_full() {
            crate::PacketDevice::reclaim(self);
        }
        !self.in_flight.is_full()
    }

    /// Sends one frame; the caller has seen room.
    pub(super) fn send(&mut self, mut packet: TxPacket) -> Result<(), (TxPacket, Error)> {
        let mut descriptor = match self.describe(&mut packet.frame) {
            Ok(descriptor) => descriptor,
            Err(error) => return Err((packet, error)),
        };
        if let Some(checksum) = packet.offload.checksum {
            descriptor.checksum = RxChecksum::Partial { start: checksum.start, offset: checksum.offset };
        }
        descriptor.gso_size = packet.offload.gso.map_or(0, |gso| gso.size);
        if descriptor.piece_count > 0 {
            match self.in_flight.hold(std::mem::take(&mut packet.frame)) {
                Some(token) => descriptor.token = token,
                None => return Err((packet, Error::Protocol("no token although there was room".into()))),
            }
        }
        let mut words = [0; WORDS];
        let used = descriptor.encode(self.own.lap(), &mut words);
        self.own.push(&words, used);
        Ok(())
    }

    /// Describes `frame`, whose bytes are replaced by copies in our arenas where they must be.
    fn describe(&mut self, frame: &mut Sga) -> Result<Descriptor, Error> {
        let mut descriptor = Descriptor::new();
        if frame.len() <= INLINE_MAX {
            for segment in frame.segments() {
                descriptor.push_inline(segment);
            }
            self.stats.copied_bytes += frame.len() as u64;
            return Ok(descriptor);
        }
        let all_shared = self.reference(frame, &mut descriptor)?;
        if all_shared {
            return Ok(descriptor);
        }
        // Memory of another kind, or too many segments: one copy into a frame of ours.
        let copy = frames::gather(&self.memory, frame)?;
        self.stats.copied_bytes += copy.len() as u64;
        let mut descriptor = Descriptor::new();
        let piece = self.piece(&copy)?;
        descriptor
            .push_piece(piece.ok_or_else(|| Error::Unsupported("frames of this memory cannot be shared".into()))?);
        *frame = Sga::from(copy);
        Ok(descriptor)
    }

    /// Describes the headers inline and the rest by reference; false if that is not possible.
    fn reference(&mut self, frame: &Sga, descriptor: &mut Descriptor) -> Result<bool, Error> {
        for (i, segment) in frame.segments().iter().enumerate() {
            if i == 0 && segment.len() <= HEADER_MAX {
                self.stats.copied_bytes += segment.len() as u64;
                descriptor.push_inline(segment);
                continue;
            }
            if segment.is_empty() {
                continue;
            }
            if !Descriptor::fits(descriptor.inline_len, descriptor.piece_count + 1) {
                return Ok(false);
            }
            match self.piece(segment)? {
                Some(piece) => descriptor.push_piece(piece),
                None => return Ok(false),
            }
        }
        Ok(descriptor.piece_count > 0)
    }

    /// Names the bytes of `buf` to the peer; `None` if they are not in an arena that can be shared.
    fn piece(&mut self, buf: &Buf) -> Result<Option<Piece>, Error> {
        let Some((arena, offset, len)) = buf.frame_location() else { return Ok(None) };
        let index = match self.exported.iter().position(|known| *known == arena) {
            Some(index) => index,
            None => match self.export(arena)? {
                Some(index) => index,
                None => return Ok(None),
            },
        };
        Ok(Some(Piece { arena: index as u32, len, offset }))
    }

    /// Shares an arena with the peer; `None` if it is not one of our memory's.
    fn export(&mut self, arena: ArenaId) -> Result<Option<usize>, Error> {
        let Some(fd) = frames::arena_file(&self.memory, arena) else { return Ok(None) };
        self.channel.send_arena(fd)?;
        self.exported.push(arena);
        Ok(Some(self.exported.len() - 1))
    }
}
