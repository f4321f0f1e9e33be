//! Between the stack and the device: frames the stack has made, until the device takes them.

use std::collections::VecDeque;
use towpath_cbuf::{Buf, Memory, Sga};
use towpath_device::{Gso, GsoKind, TxChecksum, TxOffload, TxPacket};
use towpath_inet::{Finish, Sink};

/// Frames that may wait for the device before the stack holds its data back.
const FRAMES_MAX: usize = 256;

/// See the module.
pub(super) struct Outbox {
    pub frames: VecDeque<TxPacket>,
    memory: Memory,
    /// Headers in frame memory, because the device reads them where they lie.
    in_frames: bool,
    /// Frames lost for want of memory for their headers.
    pub lost: u64,
}

impl Outbox {
    pub fn new(memory: &Memory, in_frames: bool) -> Outbox {
        Outbox { frames: VecDeque::with_capacity(FRAMES_MAX), memory: memory.clone(), in_frames, lost: 0 }
    }
}

impl Sink for Outbox {
    #[inline]
    fn transmit(&mut self, header: &[u8], payload: &[Buf], finish: Finish) {
        let room = match self.in_frames {
            true => self.memory.alloc_frame(header.len()),
            false => self.memory.alloc(header.len()),
        };
        let Ok(mut bytes) = room else {
            // As if the wire had lost it: TCP sends it again when there is memory.
            self.lost += 1;
            return;
        };
        bytes[..header.len()].copy_from_slice(header);
        bytes.truncate(header.len());
        let mut frame = Sga::from(bytes.freeze());
        for piece in payload {
            frame.push_back(piece.clone());
        }
        self.frames.push_back(TxPacket { frame, offload: offload(header, finish) });
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.frames.len() < FRAMES_MAX
    }
}

/// What is left to the device, in its terms.
#[inline]
fn offload(header: &[u8], finish: Finish) -> TxOffload {
    let Some((start, field)) = finish.checksum else { return TxOffload::default() };
    let checksum = Some(TxChecksum { start, offset: field.saturating_sub(start) });
    let gso = finish.segment.and_then(|size| {
        let start = usize::from(start);
        // The transport header ends where its data offset says; a payload may follow in the same bytes.
        let words = header.get(start + 12).map(|byte| byte >> 4)?;
        let v4 = start >= 20 && ethertype(header) == Some(0x0800);
        let kind = if v4 { GsoKind::Tcp4 } else { GsoKind::Tcp6 };
        Some(Gso { kind, header_len: (start + usize::from(words) * 4) as u16, size })
    });
    TxOffload { checksum, gso }
}

fn ethertype(header: &[u8]) -> Option<u16> {
    let at = |i: usize| Some(u16::from_be_bytes([*header.get(i)?, *header.get(i + 1)?]));
    match at(12)? {
        0x8100 => at(16),
        plain => Some(plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segmentation_is_told_with_the_length_of_all_headers() {
        let mut header = vec![0; 14 + 20 + 32];
        header[12] = 8;
        header[34 + 12] = 8 << 4;
        let offload = offload(&header, Finish { checksum: Some((34, 50)), segment: Some(1448) });
        assert_eq!(offload.checksum, Some(TxChecksum { start: 34, offset: 16 }));
        assert_eq!(offload.gso, Some(Gso { kind: GsoKind::Tcp4, header_len: 66, size: 1448 }));
    }

    #[test]
    fn finished_frame_leaves_nothing_to_the_device() {
        assert_eq!(offload(&[0; 60], Finish::default()), TxOffload::default());
    }
}
