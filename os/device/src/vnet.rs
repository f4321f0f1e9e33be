//! The virtio-net header (virtio 1.2 section 5.1.6) that `tap` and `packet` put before each frame: it carries
//! unfinished checksums and segment sizes across the kernel's border.

use crate::{Gso, GsoKind, RxChecksum, TxOffload};

/// Bytes of the header without the count of merged buffers.
pub(crate) const LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_ECN: u8 = 0x80;

/// The header asking for `offload`.
pub(crate) fn encode(offload: &TxOffload) -> [u8; LEN] {
    let mut out = [0; LEN];
    if let Some(checksum) = offload.checksum {
        out[0] = NEEDS_CSUM;
        out[6..8].copy_from_slice(&checksum.start.to_ne_bytes());
        out[8..10].copy_from_slice(&checksum.offset.to_ne_bytes());
    }
    if let Some(Gso { kind, header_len, size }) = offload.gso {
        out[1] = kind as u8;
        out[2..4].copy_from_slice(&header_len.to_ne_bytes());
        out[4..6].copy_from_slice(&size.to_ne_bytes());
    }
    out
}

/// What the header of a received frame of `frame_len` bytes says: checksum state and segment size. A header that
/// points outside the frame says nothing.
pub(crate) fn decode(header: &[u8; LEN], frame_len: usize) -> (RxChecksum, u16) {
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let (start, offset) = (word(6), word(8));
    let inside = usize::from(start) + usize::from(offset) + 2 <= frame_len;
    let checksum = match header[0] {
        flags if flags & NEEDS_CSUM != 0 && inside => RxChecksum::Partial { start, offset },
        flags if flags & DATA_VALID != 0 => RxChecksum::Valid,
        _ => RxChecksum::Unknown,
    };
    let merged = header[1] & !GSO_ECN != 0;
    (checksum, if merged { word(4) } else { 0 })
}

/// Whether a large packet of this kind can be described at all: the header must cover what it says.
pub(crate) fn sound(offload: &TxOffload, frame_len: usize) -> bool {
    let checksum = offload.checksum.is_none_or(|c| usize::from(c.start) + usize::from(c.offset) + 2 <= frame_len);
    let gso = offload.gso.is_none_or(|g| {
        offload.checksum.is_some()
            && g.size > 0
            && usize::from(g.header_len) < frame_len
            && matches!(g.kind, GsoKind::Tcp4 | GsoKind::Tcp6)
    });
    checksum && gso
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TxChecksum;

    #[test]
    fn offload_written_as_header_reads_back_as_partial_checksum() {
        let offload = TxOffload {
            checksum: Some(TxChecksum { start: 34, offset: 16 }),
            gso: Some(Gso { kind: GsoKind::Tcp4, header_len: 54, size: 1460 }),
        };
        assert!(sound(&offload, 4000));
        let header = encode(&offload);
        assert_eq!(decode(&header, 4000), (RxChecksum::Partial { start: 34, offset: 16 }, 1460));
        assert_eq!(decode(&header, 40), (RxChecksum::Unknown, 1460), "a field beyond the frame is not believed");
    }

    #[test]
    fn offload_beyond_the_frame_is_unsound() {
        let checksum = Some(TxChecksum { start: 60, offset: 6 });
        assert!(!sound(&TxOffload { checksum, gso: None }, 60));
        let gso = Some(Gso { kind: GsoKind::Tcp6, header_len: 74, size: 0 });
        assert!(!sound(&TxOffload { checksum, gso }, 2000), "segments of no bytes never end");
    }
}
