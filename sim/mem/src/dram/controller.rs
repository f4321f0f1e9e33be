//! One channel: read and write queues, FR-FCFS over commands, write drain, open-adaptive rows with an access limit,
//! strict refresh. Time here is in clocks of the DRAM; one step issues at most one command, and says when the next
//! could issue, so nothing is done for clocks in which nothing can happen.

use super::map::{Location, Map};
use crate::config::{DramConfig, DramTiming};
use crate::mutation::Mutation;

/// A DRAM command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandKind {
    /// Opens a row.
    Activate,
    /// Closes a bank.
    Precharge,
    /// Reads a burst.
    Read,
    /// Writes a burst.
    Write,
    /// Refreshes a rank.
    Refresh,
}

/// A command as it was put on the bus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// Clock of issue.
    pub clock: u64,
    /// What.
    pub kind: CommandKind,
    /// Rank.
    pub rank: u32,
    /// Bank of the rank (0 for a refresh).
    pub bank: u32,
    /// Row that an activate opens, or that a column command means.
    pub row: u32,
}

/// Counters of a channel.
#[derive(Clone, Copy, Default, Debug)]
pub struct DramStats {
    /// Reads issued.
    pub reads: u64,
    /// Writes issued.
    pub writes: u64,
    /// Rows opened.
    pub activates: u64,
    /// Reads answered from the write queue.
    pub forwarded: u64,
    /// Writes merged into a queued one.
    pub coalesced: u64,
    /// Refreshes.
    pub refreshes: u64,
    /// Turns from reads to writes.
    pub drains: u64,
    /// Clocks the data bus was busy.
    pub bus_clocks: u64,
}

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) line: u64,
    pub(crate) slot: u32,
    not_before: u64,
    at: Location,
}

#[derive(Clone, Copy)]
struct Bank {
    row: Option<u32>,
    accesses: u32,
    next_act: u64,
    next_pre: u64,
    next_column: u64,
}

#[derive(Clone, Copy)]
struct Rank {
    next_act: u64,
    next_act_group: [u64; 4],
    next_read: [u64; 4],
    next_write: [u64; 4],
    acts: [u64; 4],
    oldest_act: usize,
    refresh_at: u64,
}

/// What a step did.
pub(crate) enum Issued {
    Nothing,
    Row,
    /// The column access of this packet; for a read, its last datum arrives at the clock.
    Read(u32, u64),
    Write(u32),
}

pub(crate) struct Channel {
    c: DramConfig,
    t: DramTiming,
    map: Map,
    pub(crate) reads: Vec<Entry>,
    pub(crate) writes: Vec<Entry>,
    banks: Vec<Bank>,
    ranks: Vec<Rank>,
    draining: bool,
    drained: u32,
    /// Drain to the last write, for a machine that stops.
    pub(crate) flush: bool,
    free_at: u64,
    pub(crate) trace: Option<Vec<Command>>,
    pub(crate) stats: DramStats,
}

const FAR: u64 = u64::MAX / 2;

fn mutate(t: DramTiming, m: Mutation) -> DramTiming {
    let mut t = t;
    match m {
        Mutation::DramIgnoresRcd => t.rcd -= 1,
        Mutation::DramIgnoresRp => t.rp -= 1,
        Mutation::DramIgnoresRas => t.ras -= 1,
        Mutation::DramIgnoresFaw => t.faw = 0,
        Mutation::DramIgnoresRrdL => t.rrd_l = t.rrd_s,
        Mutation::DramIgnoresCcdL => t.ccd_l = t.ccd_s,
        Mutation::DramIgnoresWtrL => (t.wtr_l, t.wtr_s) = (t.wtr_l - 2, t.wtr_s - 2),
        Mutation::DramIgnoresRtp => t.rtp -= 1,
        Mutation::DramIgnoresWr => t.wr -= 1,
        Mutation::DramIgnoresRfc => t.rfc -= 1,
        Mutation::DramIgnoresTurnaround => t.read_to_write = 0,
        Mutation::DramIgnoresRankSwitch => t.rank_switch = 0,
        Mutation::DramNeverRefreshes => t.refi = u32::MAX,
        _ => {}
    }
    t
}

impl Channel {
    pub(crate) fn new(c: &DramConfig, map: Map, mutation: Mutation) -> Channel {
        let t = mutate(c.timing, mutation);
        let bank = Bank { row: None, accesses: 0, next_act: 0, next_pre: 0, next_column: 0 };
        let ranks = (0..c.ranks)
            .map(|r| Rank {
                next_act: 0,
                next_act_group: [0; 4],
                next_read: [0; 4],
                next_write: [0; 4],
                acts: [0; 4],
                oldest_act: 0,
                // Ranks refresh in turn, not together.
                refresh_at: u64::from(t.refi) * u64::from(r + 1) / u64::from(c.ranks),
            })
            .collect();
        Channel {
            c: *c,
            t,
            map,
            reads: Vec::with_capacity(c.read_queue as usize),
            writes: Vec::with_capacity(c.write_queue as usize),
            banks: vec![bank; (c.ranks * c.bank_groups * c.banks) as usize],
            ranks,
            draining: false,
            drained: 0,
            flush: false,
            free_at: 0,
            trace: None,
            stats: DramStats::default(),
        }
    }

    /// The packet of a queued write to the line.
    pub(crate) fn queued_write(&self, line: u64) -> Option<u32> {
        self.writes.iter().find(|e| e.line == line).map(|e| e.slot)
    }

    pub(crate) fn push_read(&mut self, line: u64, slot: u32, not_before: u64) {
        assert!(self.reads.len() < self.c.read_queue as usize, "credits bound the read queue");
        self.reads.push(Entry { line, slot, not_before, at: self.map.locate(line) });
    }

    pub(crate) fn push_write(&mut self, line: u64, slot: u32, not_before: u64) {
        assert!(self.writes.len() < self.c.write_queue as usize, "credits bound the write queue");
        self.writes.push(Entry { line, slot, not_before, at: self.map.locate(line) });
    }

    fn bank_index(&self, at: &Location) -> usize {
        (at.rank * self.c.bank_groups * self.c.banks + at.bank) as usize
    }

    fn group(&self, bank: u32) -> usize {
        (bank % self.c.bank_groups) as usize
    }

    fn choose_direction(&mut self) {
        let full = self.c.write_queue as usize;
        let high = full * self.c.write_high as usize / 100;
        let low = full * self.c.write_low as usize / 100;
        let writes = self.writes.len();
        if !self.draining {
            let idle = self.reads.is_empty() && (writes >= low || self.flush) && writes > 0;
            if writes >= high.max(1) || idle {
                self.draining = true;
                self.drained = 0;
                self.stats.drains += 1;
            }
        } else if writes == 0
            || (!self.reads.is_empty() && self.drained >= self.c.writes_min && writes < high)
            || (self.reads.is_empty() && !self.flush && writes < low)
        {
            self.draining = false;
        }
    }

    /// Issues the best command possible at `clock`, and returns the clock at which to step again.
    pub(crate) fn step(&mut self, clock: u64) -> (Issued, u64) {
        if clock < self.free_at {
            return (Issued::Nothing, self.free_at);
        }
        self.choose_direction();
        let mut next = self.ranks.iter().map(|r| r.refresh_at).filter(|&at| at > clock).min().unwrap_or(FAR);
        for rank in 0..self.c.ranks {
            if self.ranks[rank as usize].refresh_at <= clock {
                match self.refresh(rank, clock) {
                    Ok(()) => return (Issued::Row, clock + 1),
                    Err(at) => next = next.min(at),
                }
            }
        }
        match self.pick(clock) {
            Ok(choice) => (self.issue(choice, clock), clock + 1),
            Err(at) => (Issued::Nothing, next.min(at)),
        }
    }

    /// Moves a due refresh forward: closes a bank or refreshes; else the clock at which it could.
    fn refresh(&mut self, rank: u32, clock: u64) -> Result<(), u64> {
        let per_rank = (self.c.bank_groups * self.c.banks) as usize;
        let first = rank as usize * per_rank;
        let mut at = FAR;
        let mut open = false;
        for b in first..first + per_rank {
            if self.banks[b].row.is_some() {
                open = true;
                if self.banks[b].next_pre <= clock {
                    self.precharge(rank, (b - first) as u32, clock);
                    return Ok(());
                }
                at = at.min(self.banks[b].next_pre);
            }
        }
        if open {
            return Err(at);
        }
        let ready = self.banks[first..first + per_rank].iter().map(|b| b.next_act).max().unwrap_or(0);
        if ready > clock {
            return Err(ready);
        }
        for bank in &mut self.banks[first..first + per_rank] {
            bank.next_act = clock + u64::from(self.t.rfc);
        }
        self.ranks[rank as usize].refresh_at += u64::from(self.t.refi);
        self.stats.refreshes += 1;
        self.record(clock, CommandKind::Refresh, rank, 0, 0);
        Ok(())
    }

    /// FR-FCFS: the oldest ready column access, else the oldest ready row command; else when one becomes ready.
    fn pick(&self, clock: u64) -> Result<(usize, CommandKind), u64> {
        let queue = if self.draining { &self.writes } else { &self.reads };
        let mut wanted_rows = 0u64; // banks whose open row some queued access still wants
        for e in queue {
            let b = self.bank_index(&e.at);
            if self.banks[b].row == Some(e.at.row) && !self.exhausted(b) {
                wanted_rows |= 1 << b;
            }
        }
        let mut row_choice = None;
        let mut next = FAR;
        for (k, e) in queue.iter().enumerate() {
            let rank = &self.ranks[e.at.rank as usize];
            if rank.refresh_at <= clock {
                continue;
            }
            let b = self.bank_index(&e.at);
            let bank = &self.banks[b];
            let group = self.group(e.at.bank);
            let (kind, ready) = match bank.row {
                Some(row) if row == e.at.row && !self.exhausted(b) => {
                    let bus = if self.draining { rank.next_write[group] } else { rank.next_read[group] };
                    let kind = if self.draining { CommandKind::Write } else { CommandKind::Read };
                    (kind, bank.next_column.max(bus))
                }
                Some(_) if wanted_rows >> b & 1 == 1 => continue,
                Some(_) => (CommandKind::Precharge, bank.next_pre),
                None => {
                    let faw = rank.acts[rank.oldest_act];
                    let ready = bank.next_act.max(rank.next_act).max(rank.next_act_group[group]).max(faw);
                    (CommandKind::Activate, ready)
                }
            };
            let ready = ready.max(e.not_before);
            if ready > clock {
                next = next.min(ready);
            } else if matches!(kind, CommandKind::Read | CommandKind::Write) {
                return Ok((k, kind));
            } else if row_choice.is_none() {
                row_choice = Some((k, kind));
            }
        }
        row_choice.ok_or(next)
    }

    fn exhausted(&self, bank: usize) -> bool {
        self.c.row_accesses_max != 0 && self.banks[bank].accesses >= self.c.row_accesses_max
    }

    fn issue(&mut self, (k, kind): (usize, CommandKind), clock: u64) -> Issued {
        let e = if self.draining { self.writes[k] } else { self.reads[k] };
        match kind {
            CommandKind::Activate => self.activate(&e.at, clock),
            CommandKind::Precharge => self.precharge(e.at.rank, e.at.bank, clock),
            CommandKind::Read => {
                self.reads.remove(k);
                self.column(&e.at, clock, false);
                return Issued::Read(e.slot, clock + u64::from(self.t.cl + self.t.burst));
            }
            CommandKind::Write => {
                self.writes.remove(k);
                self.drained += 1;
                self.column(&e.at, clock, true);
                return Issued::Write(e.slot);
            }
            CommandKind::Refresh => unreachable!("a refresh is not picked from a queue"),
        }
        Issued::Row
    }

    fn record(&mut self, clock: u64, kind: CommandKind, rank: u32, bank: u32, row: u32) {
        self.free_at = clock + 1;
        if let Some(trace) = &mut self.trace {
            trace.push(Command { clock, kind, rank, bank, row });
        }
    }

    fn activate(&mut self, at: &Location, clock: u64) {
        let t = self.t;
        let group = self.group(at.bank);
        let b = self.bank_index(at);
        let bank = &mut self.banks[b];
        bank.row = Some(at.row);
        bank.accesses = 0;
        bank.next_column = clock + u64::from(t.rcd);
        bank.next_pre = clock + u64::from(t.ras);
        bank.next_act = clock + u64::from(t.ras + t.rp);
        let rank = &mut self.ranks[at.rank as usize];
        rank.next_act = clock + u64::from(t.rrd_s);
        rank.next_act_group[group] = clock + u64::from(t.rrd_l);
        rank.acts[rank.oldest_act] = clock + u64::from(t.faw);
        rank.oldest_act = (rank.oldest_act + 1) % 4;
        self.stats.activates += 1;
        self.record(clock, CommandKind::Activate, at.rank, at.bank, at.row);
    }

    fn precharge(&mut self, rank: u32, bank: u32, clock: u64) {
        let b = (rank * self.c.bank_groups * self.c.banks + bank) as usize;
        let state = &mut self.banks[b];
        state.row = None;
        state.next_act = state.next_act.max(clock + u64::from(self.t.rp));
        self.record(clock, CommandKind::Precharge, rank, bank, 0);
    }

    fn column(&mut self, at: &Location, clock: u64, write: bool) {
        let t = self.t;
        let group = self.group(at.bank);
        let b = self.bank_index(at);
        self.banks[b].accesses += 1;
        let recover = if write { t.cwl + t.burst + t.wr } else { t.rtp };
        let close = clock + u64::from(recover);
        self.banks[b].next_pre = self.banks[b].next_pre.max(close);
        for (r, rank) in self.ranks.iter_mut().enumerate() {
            let same_rank = r == at.rank as usize;
            for g in 0..self.c.bank_groups as usize {
                let same_group = same_rank && g == group;
                let ccd = if same_group { t.ccd_l } else { t.ccd_s };
                let like = if same_rank { ccd } else { t.burst + t.rank_switch };
                let (read, write_) = if write {
                    let wtr = if same_group { t.wtr_l } else { t.wtr_s };
                    let turn = if same_rank {
                        t.cwl + t.burst + wtr
                    } else {
                        (t.cwl + t.burst + t.rank_switch).saturating_sub(t.cl)
                    };
                    (turn, like)
                } else {
                    (like, (t.cl + t.burst + t.read_to_write).saturating_sub(t.cwl))
                };
                rank.next_read[g] = rank.next_read[g].max(clock + u64::from(read));
                rank.next_write[g] = rank.next_write[g].max(clock + u64::from(write_));
            }
        }
        self.stats.bus_clocks += u64::from(t.burst);
        let kind = if write {
            self.stats.writes += 1;
            CommandKind::Write
        } else {
            self.stats.reads += 1;
            CommandKind::Read
        };
        self.record(clock, kind, at.rank, at.bank, at.row);
    }

    pub(crate) fn idle(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }
}
