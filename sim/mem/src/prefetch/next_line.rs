//! The line after a missed one, within its page.

use super::{Prefetcher, Proposals, Seen};

/// Stateless.
pub struct NextLine;

impl Prefetcher for NextLine {
    fn observe(&mut self, seen: Seen, out: &mut Proposals) {
        let next = (seen.addr & !63) + 64;
        if seen.miss && next >> 12 == seen.addr >> 12 {
            out.push(next);
        }
    }
}
