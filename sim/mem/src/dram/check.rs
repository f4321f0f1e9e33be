//! An independent reading of the DDR4 rules: it compares every command of a trace with every earlier one in reach and
//! keeps no "next allowed" registers, so it shares no reasoning with the controller.

use super::controller::{Command, CommandKind};
use crate::config::DramConfig;

/// A rule that a command broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Index of the command in its trace.
    pub index: usize,
    /// The rule's name.
    pub rule: &'static str,
}

/// All faults of a channel's trace, in order.
pub fn check(c: &DramConfig, trace: &[Command]) -> Vec<Fault> {
    let mut faults = Vec::new();
    let t = &c.timing;
    let reach = u64::from(t.rfc.max(t.rc()).max(t.cwl + t.burst + t.wr) + 1);
    let mut first = 0;
    for (j, b) in trace.iter().enumerate() {
        while trace[first].clock + reach < b.clock {
            first += 1;
        }
        let mut acts = 0;
        for a in &trace[first..j] {
            pair(c, a, b, &mut |rule| faults.push(Fault { index: j, rule }));
            let activates = a.kind == CommandKind::Activate && b.kind == CommandKind::Activate && a.rank == b.rank;
            acts += u32::from(activates && a.clock + u64::from(t.faw) > b.clock);
        }
        if acts >= 4 {
            faults.push(Fault { index: j, rule: "tFAW" });
        }
    }
    rows(c, trace, &mut faults);
    refreshes(c, trace, &mut faults);
    faults.sort_by_key(|f| f.index);
    faults
}

/// Clocks from command to first datum.
fn latency(c: &DramConfig, k: CommandKind) -> u64 {
    u64::from(if k == CommandKind::Read { c.timing.cl } else { c.timing.cwl })
}

fn pair(c: &DramConfig, a: &Command, b: &Command, fault: &mut impl FnMut(&'static str)) {
    use CommandKind::{Activate, Precharge, Read, Refresh, Write};
    let t = &c.timing;
    let gap = b.clock.wrapping_sub(a.clock);
    let mut need = |rule: &'static str, clocks: u32| {
        if gap < u64::from(clocks) {
            fault(rule);
        }
    };
    need("command bus", 1);
    let group = a.rank == b.rank && a.bank % c.bank_groups == b.bank % c.bank_groups;
    if a.rank == b.rank && a.bank == b.bank {
        match (a.kind, b.kind) {
            (Activate, Read | Write) => need("tRCD", t.rcd),
            (Activate, Precharge) => need("tRAS", t.ras),
            (Activate, Activate) => need("tRC", t.ras + t.rp),
            (Precharge, Activate) => need("tRP", t.rp),
            (Read, Precharge) => need("tRTP", t.rtp),
            (Write, Precharge) => need("tWR", t.cwl + t.burst + t.wr),
            _ => {}
        }
    }
    if a.rank == b.rank {
        match (a.kind, b.kind) {
            (Activate, Activate) => need("tRRD", if group { t.rrd_l } else { t.rrd_s }),
            (Read, Read) | (Write, Write) => need("tCCD", if group { t.ccd_l } else { t.ccd_s }),
            (Write, Read) => need("tWTR", t.cwl + t.burst + if group { t.wtr_l } else { t.wtr_s }),
            (Precharge, Refresh) => need("tRP before refresh", t.rp),
            (Refresh, Activate | Refresh | Read | Write | Precharge) => need("tRFC", t.rfc),
            _ => {}
        }
    }
    if matches!(a.kind, Read | Write) && matches!(b.kind, Read | Write) {
        let end = a.clock + latency(c, a.kind) + u64::from(t.burst);
        let start = b.clock + latency(c, b.kind);
        let space = match (a.kind, b.kind) {
            (Read, Write) => t.read_to_write,
            _ if a.rank != b.rank => t.rank_switch,
            _ => 0,
        };
        if start < end + u64::from(space) {
            fault("data bus");
        }
    }
}

fn rows(c: &DramConfig, trace: &[Command], faults: &mut Vec<Fault>) {
    let per_rank = (c.bank_groups * c.banks) as usize;
    let mut open = vec![None; c.ranks as usize * per_rank];
    for (index, command) in trace.iter().enumerate() {
        let bank = command.rank as usize * per_rank + command.bank as usize;
        let rank = command.rank as usize * per_rank..(command.rank as usize + 1) * per_rank;
        match command.kind {
            CommandKind::Activate => {
                if open[bank].replace(command.row).is_some() {
                    faults.push(Fault { index, rule: "activate of an open bank" });
                }
            }
            CommandKind::Precharge => open[bank] = None,
            CommandKind::Read | CommandKind::Write => {
                if open[bank] != Some(command.row) {
                    faults.push(Fault { index, rule: "column access to a closed row" });
                }
            }
            CommandKind::Refresh => {
                if open[rank].iter().any(Option::is_some) {
                    faults.push(Fault { index, rule: "refresh with an open bank" });
                }
            }
        }
    }
}

/// A rank may wait two intervals at most (the controller never postpones; JEDEC would allow nine).
fn refreshes(c: &DramConfig, trace: &[Command], faults: &mut Vec<Fault>) {
    let most = 2 * u64::from(c.timing.refi);
    for rank in 0..c.ranks {
        let mut last = 0;
        for (index, command) in trace.iter().enumerate() {
            if command.clock > last + most {
                faults.push(Fault { index, rule: "tREFI" });
                break;
            }
            if command.kind == CommandKind::Refresh && command.rank == rank {
                last = command.clock;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn command(clock: u64, kind: CommandKind, bank: u32) -> Command {
        Command { clock, kind, rank: 0, bank, row: 7 }
    }

    /// Each rule fires one clock early and is silent on time.
    #[test]
    fn checker_each_gap_one_clock_short_is_named() {
        use CommandKind::{Activate, Precharge, Read, Refresh, Write};
        let c = Config::table1().dram;
        let t = c.timing;
        let cases: &[(&str, u32, CommandKind, u32, CommandKind, u32)] = &[
            ("tRCD", t.rcd, Activate, 0, Read, 0),
            ("tRAS", t.ras, Activate, 0, Precharge, 0),
            ("tRC", t.rc(), Activate, 0, Activate, 0),
            ("tRP", t.rp, Precharge, 0, Activate, 0),
            ("tRTP", t.rtp, Read, 0, Precharge, 0),
            ("tWR", t.cwl + t.burst + t.wr, Write, 0, Precharge, 0),
            ("tRRD", t.rrd_s, Activate, 0, Activate, 1),
            ("tRRD", t.rrd_l, Activate, 0, Activate, 4),
            ("tCCD", t.ccd_l, Read, 0, Read, 4),
            ("tCCD", t.ccd_l, Write, 0, Write, 4),
            ("tWTR", t.cwl + t.burst + t.wtr_l, Write, 0, Read, 4),
            ("tWTR", t.cwl + t.burst + t.wtr_s, Write, 0, Read, 1),
            ("tRFC", t.rfc, Refresh, 0, Activate, 0),
            ("tRP before refresh", t.rp, Precharge, 0, Refresh, 0),
            ("data bus", t.cl + t.burst + t.read_to_write - t.cwl, Read, 0, Write, 1),
        ];
        for &(rule, gap, a, bank_a, b, bank_b) in cases {
            let rules = |gap: u32| {
                let mut found = Vec::new();
                let (a, b) = (command(1000, a, bank_a), command(1000 + u64::from(gap), b, bank_b));
                pair(&c, &a, &b, &mut |r| found.push(r));
                found
            };
            assert!(rules(gap - 1).contains(&rule), "{rule} missed a gap one clock short");
            assert!(!rules(gap).contains(&rule), "{rule} fired on time");
        }
    }

    #[test]
    fn checker_fifth_activate_in_the_window_is_named() {
        let mut c = Config::table1().dram;
        c.timing.faw = 40;
        let acts: Vec<Command> = (0..5).map(|k| command(100 + 8 * u64::from(k), CommandKind::Activate, k)).collect();
        assert_eq!(check(&c, &acts), vec![Fault { index: 4, rule: "tFAW" }]);
    }
}
