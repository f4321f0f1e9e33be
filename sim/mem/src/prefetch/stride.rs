//! The stride prefetcher of the modelled machine: 64 entries in 4 ways by program counter, 3 bits of confidence that
//! start at 4 and fire from 4 up, miss-triggered, never across a page of 4 KB.

use super::{Prefetcher, Proposals, Seen};

const SETS: usize = 16;
const WAYS: usize = 4;

#[derive(Clone, Copy, Default)]
struct Entry {
    pc: u64,
    last: u64,
    stride: i64,
    confidence: u8,
    used: u64,
}

/// The table.
pub struct Stride {
    degree: u8,
    clock: u64,
    table: [[Entry; WAYS]; SETS],
}

impl Stride {
    pub(crate) fn new(degree: u8) -> Stride {
        Stride { degree, clock: 0, table: [[Entry::default(); WAYS]; SETS] }
    }
}

impl Prefetcher for Stride {
    fn observe(&mut self, seen: Seen, out: &mut Proposals) {
        if !seen.miss || seen.pc == 0 {
            return;
        }
        self.clock += 1;
        let set = &mut self.table[((seen.pc >> 1) ^ (seen.pc >> 5)) as usize % SETS];
        let Some(entry) = set.iter_mut().find(|e| e.pc == seen.pc) else {
            let victim = set.iter_mut().min_by_key(|e| e.used).expect("ways exist");
            *victim = Entry { pc: seen.pc, last: seen.addr, stride: 0, confidence: 4, used: self.clock };
            return;
        };
        entry.used = self.clock;
        let stride = seen.addr.wrapping_sub(entry.last) as i64;
        if stride == 0 {
            return;
        }
        entry.last = seen.addr;
        if stride == entry.stride {
            entry.confidence = (entry.confidence + 1).min(7);
        } else {
            entry.confidence = entry.confidence.saturating_sub(1);
            if entry.confidence < 4 {
                entry.stride = stride;
                entry.confidence = 4;
                return;
            }
            if entry.stride == 0 {
                entry.stride = stride;
            }
            return;
        }
        // A stride below a line would propose the line at hand again.
        let step = if stride.unsigned_abs() < 64 { 64 * stride.signum() } else { stride };
        for k in 1..=i64::from(self.degree) {
            let target = seen.addr.wrapping_add((step * k) as u64);
            if target >> 12 != seen.addr >> 12 {
                break;
            }
            out.push(target & !63);
        }
    }
}
