//! An exhaustive model of the collector: the daemon's own [`Scan`] interleaved, word by word, with clients that step
//! through the product's own access tables, die at any step, and, where asked, lie. Every mutation of the algorithm
//! must make it fail.

use stateright::{Checker, Model, Property};
use towpath_service::collect::{Access, FREE, Members, RECEIVE, Rules, SEND, Scan, Step, Word};

/// How the algorithm is damaged, to show that the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mutation {
    None,
    OnePass,
    SumInsteadOfPairs,
    NoRecheck,
    ReceiptBeforeReference,
    PublishBeforeCount,
    CountersWrapAtTwo,
    DeadSendersForgivenAtOnce,
}

#[derive(Clone, Debug)]
struct Collection {
    domains: u16,
    sends_max: u8,
    deaths_max: u8,
    /// The last domain may publish uncounted ids and forge its counters, this many times.
    lies_max: u8,
    mutation: Mutation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Send { to: u16 },
    Receive { from: u16, generation: u8 },
    Free,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Domain {
    alive: bool,
    references: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Buffers the program really holds: what must never be collected under it.
    holds: u8,
    busy: Option<(Kind, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    domains: Vec<Domain>,
    /// `(from, to, generation)` of every id on its way.
    on_the_way: Vec<(u16, u16, u8)>,
    members: Members,
    noticed: Vec<bool>,
    scan: Option<Scan>,
    generation: u8,
    raised: bool,
    held: bool,
    collected: bool,
    lost_honest: bool,
    /// An uncounted id was published: what derives from it may be refused, never read wrongly.
    uncounted: bool,
    sends_left: u8,
    deaths_left: u8,
    lies_left: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Begin(u16, Kind),
    Continue(u16),
    Die(u16),
    NoticeDeath(u16),
    AcknowledgeDrained(u16, u16),
    Scan,
    LieUncounted(u16),
    LieReceived(u16),
    LieNoReference,
}

impl Collection {
    fn table(&self, kind: Kind) -> Vec<Access> {
        let mut table = match kind {
            Kind::Send { .. } => SEND.to_vec(),
            Kind::Receive { .. } => RECEIVE.to_vec(),
            Kind::Free => FREE.to_vec(),
        };
        match (self.mutation, kind) {
            (Mutation::ReceiptBeforeReference, Kind::Receive { .. }) => {
                table = vec![Access::ReceivedUp, Access::RefUp, Access::CheckGeneration];
            }
            (Mutation::PublishBeforeCount, Kind::Send { .. }) => table.reverse(),
            _ => {}
        }
        table
    }

    fn liar(&self) -> Option<u16> {
        (self.lies_max > 0).then_some(self.domains - 1)
    }

    fn read(&self, state: &State, word: Word) -> u64 {
        let value = match word {
            Word::References { domain } => return state.domains[usize::from(domain)].references,
            Word::Sent { from, to } => state.domains[usize::from(from)].sent[usize::from(to)],
            Word::Received { from, to } => state.domains[usize::from(to)].received[usize::from(from)],
        };
        if self.mutation == Mutation::CountersWrapAtTwo { value % 2 } else { value }
    }

    fn rules(&self) -> Rules {
        let mut rules = Rules::default();
        match self.mutation {
            Mutation::OnePass => rules.passes = 1,
            Mutation::SumInsteadOfPairs => rules.by_pair = false,
            Mutation::NoRecheck => rules.recheck = false,
            _ => {}
        }
        rules
    }

    fn advance_scan(&self, state: &mut State) {
        let Some(scan) = &mut state.scan else {
            state.scan = Some(if state.held {
                Scan::after_raise(&state.members)
            } else {
                Scan::with_rules(&state.members, self.rules())
            });
            return;
        };
        match scan.step() {
            Step::Read(word) => {
                let value = self.read(state, word);
                state.scan.as_mut().expect("a scan is under way").feed(value);
            }
            Step::RaiseGeneration => {
                scan.raised();
                state.generation += 1;
                state.raised = true;
                state.lost_honest |= !state.uncounted && self.honest_on_the_way(state);
            }
            Step::Live => state.scan = None,
            Step::Held => (state.held, state.scan) = (true, None),
            Step::Garbage => (state.collected, state.scan) = (true, None),
        }
    }

    /// An id that an honest domain sent to a living, honest one is still on its way.
    fn honest_on_the_way(&self, state: &State) -> bool {
        let liar = self.liar();
        let waiting = state
            .on_the_way
            .iter()
            .any(|&(from, to, _)| Some(from) != liar && Some(to) != liar && state.domains[usize::from(to)].alive);
        let taking = (0u16..).zip(&state.domains).any(|(i, d)| {
            matches!(d.busy, Some((Kind::Receive { from, .. }, at))
                if Some(from) != liar && Some(i) != liar && at < RECEIVE.len() - 1 && d.alive)
        });
        waiting || taking
    }

    fn progress(&self, state: &mut State, domain: u16) {
        let d = usize::from(domain);
        let (kind, at) = state.domains[d].busy.expect("only a busy domain continues");
        let table = self.table(kind);
        let mut next = Some((kind, at + 1));
        match (table[at], kind) {
            (Access::RefUp, _) => state.domains[d].references += 1,
            (Access::RefDown, _) => state.domains[d].references = state.domains[d].references.saturating_sub(1),
            (Access::SentUp, Kind::Send { to }) => state.domains[d].sent[usize::from(to)] += 1,
            (Access::Publish, Kind::Send { to }) => {
                state.on_the_way.push((domain, to, 0));
                state.on_the_way.sort_unstable();
            }
            (Access::CheckGeneration, Kind::Receive { generation, .. }) => {
                if generation < state.generation {
                    // Undo: only the reference was taken.
                    state.domains[d].references = state.domains[d].references.saturating_sub(1);
                    next = None;
                } else {
                    state.domains[d].holds += 1;
                }
            }
            (Access::ReceivedUp, Kind::Receive { from, .. }) => state.domains[d].received[usize::from(from)] += 1,
            (access, kind) => panic!("{access:?} is no part of {kind:?}"),
        }
        if at + 1 == table.len() {
            next = None;
        }
        state.domains[d].busy = next;
    }

    fn client_actions(&self, state: &State, domain: u16, actions: &mut Vec<Action>) {
        let d = &state.domains[usize::from(domain)];
        if !d.alive {
            return;
        }
        if d.busy.is_some() {
            actions.push(Action::Continue(domain));
        } else {
            if d.holds > 0 {
                actions.push(Action::Begin(domain, Kind::Free));
                if state.sends_left > 0 {
                    let peers = (0..self.domains).filter(|&to| to != domain);
                    actions.extend(peers.map(|to| Action::Begin(domain, Kind::Send { to })));
                }
            }
            let mut waiting: Vec<_> = state.on_the_way.iter().filter(|m| m.1 == domain).collect();
            waiting.dedup();
            actions.extend(waiting.iter().map(|m| Action::Begin(domain, Kind::Receive { from: m.0, generation: m.2 })));
        }
        if state.deaths_left > 0 {
            actions.push(Action::Die(domain));
        }
    }
}

impl Model for Collection {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let n = usize::from(self.domains);
        let mut domains =
            vec![
                Domain { alive: true, references: 0, sent: vec![0; n], received: vec![0; n], holds: 0, busy: None };
                n
            ];
        // The first domain has just allocated the buffer.
        domains[0].references = 1;
        domains[0].holds = 1;
        vec![State {
            domains,
            on_the_way: Vec::new(),
            members: Members::new(self.domains),
            noticed: vec![false; n],
            scan: None,
            generation: 0,
            raised: false,
            held: false,
            collected: false,
            lost_honest: false,
            uncounted: false,
            sends_left: self.sends_max,
            deaths_left: self.deaths_max,
            lies_left: self.lies_max,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.collected {
            return;
        }
        actions.push(Action::Scan);
        for domain in 0..self.domains {
            self.client_actions(state, domain, actions);
            let d = usize::from(domain);
            if !state.domains[d].alive && !state.noticed[d] {
                actions.push(Action::NoticeDeath(domain));
            }
            if state.noticed[d] {
                let receivers = (0..self.domains).filter(|&to| self.has_drained(state, domain, to));
                actions.extend(receivers.map(|to| Action::AcknowledgeDrained(domain, to)));
            }
        }
        if let (Some(liar), true) = (self.liar(), state.lies_left > 0)
            && state.domains[usize::from(liar)].alive
        {
            for other in (0..self.domains).filter(|&o| o != liar) {
                actions.push(Action::LieUncounted(other));
                actions.push(Action::LieReceived(other));
            }
            actions.push(Action::LieNoReference);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Begin(domain, kind) => self.begin(&mut state, domain, kind),
            Action::Continue(domain) => self.progress(&mut state, domain),
            Action::Die(domain) => {
                let dead = &mut state.domains[usize::from(domain)];
                (dead.alive, dead.holds, dead.busy) = (false, 0, None);
                state.deaths_left -= 1;
            }
            Action::NoticeDeath(domain) => {
                state.noticed[usize::from(domain)] = true;
                state.members.died(domain);
                if self.mutation == Mutation::DeadSendersForgivenAtOnce {
                    (0..self.domains).for_each(|to| state.members.drained(domain, to));
                }
                state.scan = None;
            }
            Action::AcknowledgeDrained(from, to) => {
                state.members.drained(from, to);
                state.scan = None;
            }
            Action::Scan => self.advance_scan(&mut state),
            Action::LieUncounted(to) => {
                state.on_the_way.push((self.domains - 1, to, 0));
                state.on_the_way.sort_unstable();
                state.uncounted = true;
                state.lies_left -= 1;
            }
            Action::LieReceived(from) => {
                state.domains[usize::from(self.domains - 1)].received[usize::from(from)] += 1;
                state.lies_left -= 1;
            }
            Action::LieNoReference => {
                state.domains[usize::from(self.domains - 1)].references = 0;
                state.lies_left -= 1;
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no buffer is collected while an honest domain holds it",
                |model: &Self, state: &State| {
                    let liar = model.liar().map(usize::from);
                    !state.collected || state.domains.iter().enumerate().all(|(i, d)| Some(i) == liar || d.holds == 0)
                },
            ),
            Property::always(
                "no id sent by an honest domain to an honest one is refused",
                |_: &Self, state: &State| !state.lost_honest,
            ),
            Property::sometimes("the buffer is collected", |_, state: &State| state.collected),
            Property::sometimes("the buffer is collected after the most sends", |_, state: &State| {
                state.collected && state.sends_left == 0
            }),
        ]
    }
}

impl Collection {
    fn begin(&self, state: &mut State, domain: u16, kind: Kind) {
        let d = usize::from(domain);
        match kind {
            Kind::Send { .. } => state.sends_left -= 1,
            Kind::Free => state.domains[d].holds -= 1,
            Kind::Receive { from, generation } => {
                let at = state.on_the_way.iter().position(|m| *m == (from, domain, generation));
                state.on_the_way.remove(at.expect("the id was on its way"));
            }
        }
        state.domains[d].busy = Some((kind, 0));
    }

    /// The receiver has taken everything the dead sender sent it and can say so.
    fn has_drained(&self, state: &State, from: u16, to: u16) -> bool {
        let receiver = &state.domains[usize::from(to)];
        let taking = matches!(receiver.busy, Some((Kind::Receive { from: f, .. }, _)) if f == from);
        let mut after = state.members.clone();
        after.drained(from, to);
        from != to
            && receiver.alive
            && !taking
            && after != state.members
            && !state.on_the_way.iter().any(|m| (m.0, m.1) == (from, to))
    }
}

fn explore(model: Collection) -> (usize, Vec<&'static str>) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    let found: Vec<&'static str> = checker.discoveries().keys().copied().collect();
    (checker.unique_state_count(), found)
}

fn violations(found: &[&str]) -> Vec<String> {
    found.iter().filter(|name| name.starts_with("no ")).map(|s| s.to_string()).collect()
}

fn honest(domains: u16, sends_max: u8, deaths_max: u8) -> Collection {
    Collection { domains, sends_max, deaths_max, lies_max: 0, mutation: Mutation::None }
}

/// The whole exploration under `make soak`, the part that takes seconds otherwise.
fn soak() -> bool {
    std::env::var_os("TOWPATH_SOAK").is_some()
}

#[test]
fn collector_with_honest_domains_never_collects_a_live_buffer() {
    let (states, found) = explore(honest(3, if soak() { 4 } else { 3 }, 0));
    println!("{states} states");
    assert!(violations(&found).is_empty(), "{found:?}");
    assert_eq!(found.len(), 2, "the buffer must be collected somewhere: {found:?}");
    assert!(states > 1_000, "the model has shrunk to {states} states");
}

#[test]
fn collector_with_deaths_at_every_step_never_collects_a_live_buffer() {
    let (states, found) = explore(honest(3, if soak() { 3 } else { 2 }, 1));
    println!("{states} states");
    assert!(violations(&found).is_empty(), "{found:?}");
    assert_eq!(found.len(), 2, "the buffer must be collected somewhere: {found:?}");
}

#[test]
fn collector_with_a_liar_never_collects_what_an_honest_domain_holds() {
    let model = Collection { lies_max: if soak() { 3 } else { 1 }, ..honest(3, 2, 0) };
    let (states, found) = explore(model);
    println!("{states} states");
    assert!(violations(&found).is_empty(), "{found:?}");
}

#[test]
fn every_mutation_of_the_collector_is_caught() {
    let cases = [
        (Mutation::OnePass, honest(3, 3, 0)),
        (Mutation::ReceiptBeforeReference, honest(3, 2, 0)),
        (Mutation::PublishBeforeCount, honest(2, 2, 1)),
        (Mutation::CountersWrapAtTwo, honest(2, 2, 0)),
        (Mutation::DeadSendersForgivenAtOnce, honest(2, 2, 1)),
        (Mutation::SumInsteadOfPairs, Collection { lies_max: 2, ..honest(3, 2, 0) }),
        (Mutation::NoRecheck, Collection { lies_max: 2, ..honest(3, 2, 0) }),
    ];
    for (mutation, model) in cases {
        let (_, found) = explore(Collection { mutation, ..model });
        assert!(!violations(&found).is_empty(), "{mutation:?} was not noticed: {found:?}");
    }
}
