//! The neighbour cache: ARP (RFC 826) and the reachability states of RFC 4861 section 7.3 for both families. Packets
//! for a neighbour not yet known wait, a few each.

use crate::config::Finish;
use crate::random::Rng;
use crate::time::Nanos;
use crate::wire::ethernet::Mac;
use std::collections::BTreeMap;
use std::net::IpAddr;
use towpath_cbuf::Buf;

/// Neighbours remembered: a /22 of hosts.
const ENTRIES_MAX: usize = 1024;
/// Packets that wait for one neighbour (RFC 4861 section 7.2.2 asks for one or more): the fragments of the largest
/// datagram on Ethernet.
const WAITING_MAX: usize = 48;
/// RFC 4861 section 10.
const RETRANS: Nanos = Nanos::secs(1);
const REACHABLE: Nanos = Nanos::secs(30);
const DELAY: Nanos = Nanos::secs(5);
const SOLICITS_MAX: u8 = 3;
/// How long an unused entry is kept.
const STALE: Nanos = Nanos::secs(600);

/// A packet that waits: its header with room for the link header in front, and its payload.
pub(crate) struct Waiting {
    pub(crate) header: Vec<u8>,
    pub(crate) payload: Vec<Buf>,
    pub(crate) finish: Finish,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Incomplete(u8),
    Reachable,
    Stale,
    Delay,
    Probe(u8),
}

struct Entry {
    mac: Mac,
    state: State,
    until: Nanos,
    waiting: Vec<Waiting>,
}

/// What to ask on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Solicit {
    pub(crate) ip: IpAddr,
    /// Asked directly when the address was known before.
    pub(crate) mac: Option<Mac>,
}

/// What became of packets whose neighbour did not answer.
pub(crate) struct Failed {
    pub(crate) ip: IpAddr,
    pub(crate) waiting: Vec<Waiting>,
}

#[derive(Default)]
pub(crate) struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    /// Changes whenever an address learnt before may not be used blindly any more.
    pub(crate) epoch: u32,
    next: Option<Nanos>,
}

impl Neighbours {
    /// The hardware address of `ip`, if it is known; a stale one starts to be checked by its use.
    pub(crate) fn lookup(&mut self, ip: IpAddr, now: Nanos) -> Option<Mac> {
        let entry = self.entries.get_mut(&ip)?;
        if let State::Incomplete(_) = entry.state {
            return None;
        }
        if entry.state == State::Stale {
            entry.state = State::Delay;
            entry.until = now + DELAY;
            let until = entry.until;
            self.note(until);
        }
        self.entries.get(&ip).map(|e| e.mac)
    }

    /// Lets a packet wait for `ip`; says whether to ask for it now.
    pub(crate) fn wait(&mut self, ip: IpAddr, packet: Waiting, now: Nanos) -> bool {
        self.make_room(&ip);
        let mut fresh = false;
        let entry = self.entries.entry(ip).or_insert_with(|| {
            fresh = true;
            Entry { mac: Mac::default(), state: State::Incomplete(1), until: now + RETRANS, waiting: Vec::new() }
        });
        if entry.waiting.len() == WAITING_MAX {
            entry.waiting.remove(0);
        }
        entry.waiting.push(packet);
        let until = entry.until;
        self.note(until);
        fresh
    }

    /// Learns an address. `create` makes an entry if there is none, `solicited` confirms that it answers,
    /// `override_` replaces a different address. Returns the packets that waited.
    pub(crate) fn learn(
        &mut self,
        ip: IpAddr,
        mac: Mac,
        now: Nanos,
        (create, solicited, override_): (bool, bool, bool),
        rng: &mut Rng,
    ) -> Vec<Waiting> {
        if mac.is_group() || (!create && !self.entries.contains_key(&ip)) {
            return Vec::new();
        }
        self.make_room(&ip);
        // RFC 4861 section 6.3.4: between 0.5 and 1.5 times the base, so that hosts do not ask in step.
        let reachable = Nanos(REACHABLE.0 / 2 + rng.below(REACHABLE.0));
        let entry = self.entries.entry(ip).or_insert_with(|| Entry {
            mac,
            state: State::Stale,
            until: now + STALE,
            waiting: Vec::new(),
        });
        let unknown = matches!(entry.state, State::Incomplete(_));
        let differs = entry.mac != mac;
        if unknown || override_ || !differs {
            if !unknown && differs {
                self.epoch = self.epoch.wrapping_add(1);
            }
            entry.mac = mac;
            if solicited {
                entry.state = State::Reachable;
                entry.until = now + reachable;
            } else if unknown || differs {
                entry.state = State::Stale;
                entry.until = now + STALE;
            }
        } else if entry.state == State::Reachable {
            entry.state = State::Stale;
            entry.until = now + STALE;
            self.epoch = self.epoch.wrapping_add(1);
        }
        let waiting = std::mem::take(&mut entry.waiting);
        let until = entry.until;
        self.note(until);
        waiting
    }

    fn make_room(&mut self, ip: &IpAddr) {
        if self.entries.len() < ENTRIES_MAX || self.entries.contains_key(ip) {
            return;
        }
        // The one that would be given up first anyway; those in use go last.
        let victim = self
            .entries
            .iter()
            .min_by_key(|(_, e)| (e.state == State::Reachable, !e.waiting.is_empty(), e.until))
            .map(|(ip, _)| *ip);
        if let Some(victim) = victim {
            self.entries.remove(&victim);
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    fn note(&mut self, at: Nanos) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    pub(crate) fn poll_at(&self) -> Option<Nanos> {
        self.next
    }

    /// Advances states whose time has come: whom to ask, and who did not answer.
    pub(crate) fn poll(&mut self, now: Nanos) -> (Vec<Solicit>, Vec<Failed>) {
        let (mut asks, mut failed) = (Vec::new(), Vec::new());
        if self.next.is_none_or(|next| next > now) {
            return (asks, failed);
        }
        let mut gone = Vec::new();
        let mut epoch = self.epoch;
        for (&ip, entry) in self.entries.iter_mut().filter(|(_, e)| e.until <= now) {
            match entry.state {
                State::Incomplete(n) if n < SOLICITS_MAX => {
                    entry.state = State::Incomplete(n + 1);
                    entry.until = now + RETRANS;
                    asks.push(Solicit { ip, mac: None });
                }
                State::Probe(n) if n < SOLICITS_MAX => {
                    entry.state = State::Probe(n + 1);
                    entry.until = now + RETRANS;
                    asks.push(Solicit { ip, mac: Some(entry.mac) });
                }
                State::Reachable => {
                    entry.state = State::Stale;
                    entry.until = now + STALE;
                    epoch = epoch.wrapping_add(1);
                }
                State::Delay => {
                    entry.state = State::Probe(1);
                    entry.until = now + RETRANS;
                    asks.push(Solicit { ip, mac: Some(entry.mac) });
                }
                State::Incomplete(_) | State::Probe(_) | State::Stale => gone.push(ip),
            }
        }
        self.epoch = epoch;
        for ip in gone {
            self.epoch = self.epoch.wrapping_add(1);
            if let Some(entry) = self.entries.remove(&ip)
                && matches!(entry.state, State::Incomplete(_))
            {
                failed.push(Failed { ip, waiting: entry.waiting });
            }
        }
        self.next = self.entries.values().map(|e| e.until).min();
        (asks, failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn packet() -> Waiting {
        Waiting { header: vec![0; 34], payload: Vec::new(), finish: Finish::default() }
    }

    #[test]
    fn neighbour_that_never_answers_is_asked_three_times_and_given_up() {
        let mut cache = Neighbours::default();
        let mut now = Nanos::ZERO;
        assert!(cache.wait(IP, packet(), now));
        assert!(!cache.wait(IP, packet(), now), "asked once only");
        let mut asked = 1;
        let failed = loop {
            now = cache.poll_at().expect("an entry waits");
            let (asks, failed) = cache.poll(now);
            asked += asks.len();
            if !failed.is_empty() {
                break failed;
            }
        };
        assert_eq!((asked, failed[0].waiting.len(), now), (3, 2, Nanos::secs(3)));
        assert!(cache.lookup(IP, now).is_none());
    }

    #[test]
    fn neighbour_in_use_is_checked_after_it_grows_stale() {
        let mut cache = Neighbours::default();
        let mut rng = Rng::new(1);
        cache.wait(IP, packet(), Nanos::ZERO);
        assert_eq!(cache.learn(IP, Mac([2; 6]), Nanos::ZERO, (false, true, true), &mut rng).len(), 1);
        let epoch = cache.epoch;
        let mut stale = Nanos::ZERO;
        while cache.epoch == epoch {
            // Until who cached the address has to look it up again.
            stale = cache.poll_at().expect("the entry grows stale one day");
            assert!(cache.poll(stale).0.is_empty());
        }
        assert_eq!(cache.lookup(IP, stale), Some(Mac([2; 6])));
        let probe = stale + DELAY;
        assert_eq!(cache.poll(probe).0, [Solicit { ip: IP, mac: Some(Mac([2; 6])) }]);
    }

    #[test]
    fn neighbours_beyond_the_limit_replace_the_least_useful() {
        let mut cache = Neighbours::default();
        let mut rng = Rng::new(1);
        for n in 0..5000u32 {
            let ip = IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 + n));
            cache.learn(ip, Mac([2; 6]), Nanos(u64::from(n)), (true, false, true), &mut rng);
        }
        assert_eq!(cache.entries.len(), ENTRIES_MAX);
    }
}
