//! Fetch along the predicted path, and renaming.

use super::{Entry, Fetch, NONE, OutOfOrder, State, class_is_barrier, class_is_slow};
use crate::timing::unit::Fetched;
use towpath_isa::{Class, Op, Reg, Uop};
use towpath_mem::{System, Tick};

fn arch(reg: Reg) -> u8 {
    match reg {
        Reg::X(n) => n,
        Reg::F(n) => 32 + n,
    }
}

impl OutOfOrder {
    pub(super) fn fetch(&mut self, memory: &mut System) {
        let now = memory.now();
        if self.fetch_stopped {
            return;
        }
        if self.fetch_at > now {
            self.later(self.fetch_at);
            return;
        }
        let config = self.unit.config;
        let depth = (config.width * (config.front_cycles + 2)) as usize;
        for _ in 0..config.width {
            if self.front.len() >= depth {
                return;
            }
            let pc = self.fetch_pc;
            let at = now + Tick::from(config.front_cycles) * self.unit.period;
            let mut fetch = Fetch {
                uop: Uop::new(Op::Nop, 0, 4),
                pc,
                predicted: pc,
                repair: Default::default(),
                fault: None,
                at,
                fetched: now,
            };
            match self.unit.fetch(pc, memory) {
                Fetched::Bits(bits) => {
                    fetch.uop = self.unit.decode(bits);
                    let guess = self.unit.predictor.predict(pc, &fetch.uop);
                    (fetch.predicted, fetch.repair) = (guess.next, guess.repair);
                    self.front.push_back(fetch);
                    self.moved = true;
                    self.fetch_pc = guess.next;
                    if guess.next != pc.wrapping_add(u64::from(fetch.uop.len)) {
                        let lost = if guess.bubble { 2 } else { 1 };
                        self.fetch_at = now + lost * self.unit.period;
                        self.unit.fetch_ahead(guess.next, memory);
                        return;
                    }
                }
                Fetched::Wait(at) => {
                    self.later(at);
                    return;
                }
                Fetched::Fault(trap) => {
                    fetch.fault = Some(trap);
                    self.front.push_back(fetch);
                    self.moved = true;
                    self.fetch_stopped = true;
                    return;
                }
            }
            self.unit.fetch_ahead(self.fetch_pc.wrapping_add(16), memory);
            self.unit.fetch_ahead(self.fetch_pc.wrapping_add(32), memory);
        }
    }

    pub(super) fn rename(&mut self, now: Tick) {
        for _ in 0..self.unit.config.width {
            let Some(&fetch) = self.front.front() else { return };
            if fetch.at > now {
                self.later(fetch.at);
                return;
            }
            let class = fetch.uop.class();
            let config = &self.unit.config;
            let load = matches!(class, Class::Load | Class::FpLoad);
            let store = matches!(class, Class::Store | Class::FpStore);
            let full = self.tail - self.head >= u64::from(config.rob)
                || self.queue.len() >= config.issue_queue as usize
                || (load && self.loads.len() >= config.load_queue as usize)
                || (store && self.stores.len() + self.unit.stores.len() >= config.store_queue as usize);
            if full {
                return;
            }
            self.front.pop_front();
            self.moved = true;
            self.dispatch(&fetch, class, now);
        }
    }

    fn dispatch(&mut self, fetch: &Fetch, class: Class, now: Tick) {
        let seq = self.tail;
        self.tail += 1;
        self.uid += 1;
        let mut sources = [NONE; 3];
        for (k, reg) in fetch.uop.sources().into_iter().enumerate() {
            if let Some(reg) = reg {
                sources[k] = self.map[arch(reg) as usize];
            }
        }
        let mut e = Entry {
            uop: fetch.uop,
            pc: fetch.pc,
            predicted: fetch.predicted,
            next: fetch.predicted,
            repair: fetch.repair,
            uid: self.uid,
            state: State::Waiting,
            ready: 0,
            dest: NONE,
            old: NONE,
            arch: 0,
            sources,
            fflags: 0,
            replay: false,
            fault: fetch.fault,
            pa: 0,
            size: 0,
            data: 0,
            fetched: fetch.fetched,
            renamed: now,
            issued: 0,
        };
        if fetch.fault.is_some() {
            e.state = State::Done;
            *self.at_mut(seq) = e;
            return;
        }
        if let Some(reg) = fetch.uop.dest() {
            e.arch = arch(reg);
            e.old = self.map[e.arch as usize];
            e.dest = self.free.pop().expect("there is a register for every entry");
            self.map[e.arch as usize] = e.dest;
            self.ready[e.dest as usize] = Tick::MAX;
        }
        let floats = matches!(class, Class::FpLoad | Class::FpStore | Class::FpAlu | Class::FpMul | Class::FpDiv);
        if class_is_slow(class) || (floats && !self.unit.hart.csrs.fp_enabled()) {
            e.state = State::Oldest;
            if class_is_barrier(class) {
                self.barriers.push_back(seq);
            }
            if matches!(class, Class::VectorLoad | Class::VectorStore) {
                self.queue.push(seq); // to send for its lines
            }
        } else {
            self.queue.push(seq);
            match class {
                Class::Load | Class::FpLoad => self.loads.push_back(seq),
                Class::Store | Class::FpStore => self.stores.push_back(seq),
                _ => {}
            }
        }
        *self.at_mut(seq) = e;
    }
}
