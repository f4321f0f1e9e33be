//! Branch prediction: bimodal and global-history counters with a chooser, a target buffer for indirect jumps (and for
//! the bubble of a direct jump not seen before), and a return-address stack repaired from a copy of its top.

use towpath_isa::{Class, Op, Uop};

const RAS: usize = 16;

/// What must be put back when younger instructions are squashed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Repair {
    history: u64,
    top: usize,
    value: u64,
}

/// A prediction.
#[derive(Clone, Copy)]
pub(crate) struct Guess {
    pub(crate) next: u64,
    /// The jump's target was not in the target buffer: fetch loses a cycle or two.
    pub(crate) bubble: bool,
    pub(crate) repair: Repair,
}

pub(crate) struct Predictor {
    bimodal: Vec<u8>,
    global: Vec<u8>,
    chooser: Vec<u8>,
    btb: Vec<(u64, u64)>,
    ras: [u64; RAS],
    top: usize,
    history: u64,
    mask: u64,
}

fn bump(counter: &mut u8, up: bool) {
    *counter = if up { (*counter + 1).min(3) } else { counter.saturating_sub(1) };
}

fn link(reg: u8) -> bool {
    reg == 1 || reg == 5
}

impl Predictor {
    pub(crate) fn new(entries: u32, btb: u32) -> Predictor {
        let n = entries as usize;
        Predictor {
            bimodal: vec![1; n],
            global: vec![1; n],
            chooser: vec![1; n],
            btb: vec![(u64::MAX, 0); btb as usize],
            ras: [0; RAS],
            top: 0,
            history: 0,
            mask: u64::from(entries) - 1,
        }
    }

    fn repair(&self) -> Repair {
        Repair { history: self.history, top: self.top, value: self.ras[self.top % RAS] }
    }

    fn slots(&self, pc: u64, history: u64) -> (usize, usize) {
        let local = (pc >> 1) & self.mask;
        (local as usize, ((pc >> 1) ^ history) as usize & self.mask as usize)
    }

    fn known(&self, pc: u64) -> Option<u64> {
        let (tag, target) = self.btb[(pc >> 1) as usize & (self.btb.len() - 1)];
        (tag == pc).then_some(target)
    }

    /// The next address after `uop` at `pc`; history and stack move on as predicted.
    #[inline]
    pub(crate) fn predict(&mut self, pc: u64, uop: &Uop) -> Guess {
        let sequential = pc.wrapping_add(u64::from(uop.len));
        match uop.class() {
            Class::Branch => {
                let repair = self.repair();
                let (local, global) = self.slots(pc, self.history);
                let counter = if self.chooser[local] >= 2 { self.global[global] } else { self.bimodal[local] };
                let taken = counter >= 2;
                self.history = self.history << 1 | u64::from(taken);
                let next = if taken { pc.wrapping_add(uop.imm as u64) } else { sequential };
                Guess { next, bubble: taken && self.known(pc).is_none(), repair }
            }
            Class::Jump => {
                let repair = self.repair();
                let known = self.known(pc);
                let next = if uop.op == Op::Jal {
                    pc.wrapping_add(uop.imm as u64)
                } else if link(uop.rs1) && uop.rs1 != uop.rd {
                    let target = self.ras[self.top % RAS];
                    self.top = self.top.wrapping_sub(1);
                    target
                } else {
                    known.unwrap_or(sequential)
                };
                if link(uop.rd) {
                    self.top = self.top.wrapping_add(1);
                    self.ras[self.top % RAS] = sequential;
                }
                Guess { next, bubble: known.is_none(), repair }
            }
            _ => Guess { next: sequential, bubble: false, repair: self.repair() },
        }
    }

    /// Learns the outcome of a branch or jump.
    pub(crate) fn learn(&mut self, pc: u64, uop: &Uop, next: u64, repair: &Repair) {
        let taken = next != pc.wrapping_add(u64::from(uop.len));
        if uop.class() == Class::Branch {
            let (local, global) = self.slots(pc, repair.history);
            let (l, g) = (self.bimodal[local] >= 2, self.global[global] >= 2);
            if l != g {
                bump(&mut self.chooser[local], g == taken);
            }
            bump(&mut self.bimodal[local], taken);
            bump(&mut self.global[global], taken);
        }
        if taken {
            let slot = (pc >> 1) as usize & (self.btb.len() - 1);
            self.btb[slot] = (pc, next);
        }
    }

    /// Goes back to before the instruction whose `repair` this is.
    pub(crate) fn rewind(&mut self, repair: &Repair) {
        self.history = repair.history;
        self.top = repair.top;
        self.ras[self.top % RAS] = repair.value;
    }

    /// Undoes what was predicted after the instruction whose `repair` this is, then applies its true outcome.
    pub(crate) fn restore(&mut self, repair: &Repair, pc: u64, uop: &Uop, next: u64) {
        self.rewind(repair);
        match uop.class() {
            Class::Branch => {
                self.history = self.history << 1 | u64::from(next != pc.wrapping_add(u64::from(uop.len)));
            }
            Class::Jump => {
                if uop.op == Op::Jalr && link(uop.rs1) && uop.rs1 != uop.rd {
                    self.top = self.top.wrapping_sub(1);
                }
                if link(uop.rd) {
                    self.top = self.top.wrapping_add(1);
                    self.ras[self.top % RAS] = pc.wrapping_add(u64::from(uop.len));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_isa::decode;

    fn rate(outcomes: impl Iterator<Item = bool>) -> (u32, u32) {
        let mut p = Predictor::new(1024, 64);
        let uop = decode(0xfe00_0ee3); // beq x0, x0, -4
        let (mut wrong, mut all) = (0, 0);
        for taken in outcomes {
            let guess = p.predict(0x1000, &uop);
            let next = if taken { 0x0ffc } else { 0x1004 };
            p.learn(0x1000, &uop, next, &guess.repair);
            if guess.next != next {
                wrong += 1;
                p.restore(&guess.repair, 0x1000, &uop, next);
            }
            all += 1;
        }
        (wrong, all)
    }

    #[test]
    fn predictor_loop_of_hundred_misses_about_once_a_loop() {
        let (wrong, _) = rate((0..10_000).map(|n| n % 100 != 99));
        assert!((90..=140).contains(&wrong), "{wrong} of 10000");
    }

    #[test]
    fn predictor_short_pattern_is_learnt_from_history() {
        let (wrong, all) = rate((0..4000).map(|n| [true, true, false, true, false][n % 5]));
        assert!(wrong * 50 < all, "{wrong} of {all}");
    }

    #[test]
    fn predictor_random_outcomes_miss_half() {
        let mut x = 9u64;
        let (wrong, all) = rate((0..20_000).map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x & 1 == 1
        }));
        assert!(wrong * 100 > all * 44 && wrong * 100 < all * 56, "{wrong} of {all}");
    }

    #[test]
    fn predictor_returns_go_where_calls_came_from() {
        let mut p = Predictor::new(64, 64);
        let call = decode(0x0080_00ef); // jal ra, 8
        let ret = decode(0x0000_8067); // ret
        for depth in 0..8u64 {
            p.predict(0x1000 + depth * 16, &call);
        }
        for depth in (0..8u64).rev() {
            assert_eq!(p.predict(0x2000, &ret).next, 0x1004 + depth * 16);
        }
    }
}
