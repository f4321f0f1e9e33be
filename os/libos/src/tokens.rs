//! Tokens: generation-tagged completion slots. A slot is taken only by an operation that could not finish at once (or
//! by one started in token style), lives until its completion is taken, and wakes exactly one waiter.
//!
//! No allocation per operation: slots come from a free list, and the operations of a queue are linked through them.

use crate::error::{Error, Result};
use crate::{Address, Qd};
use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;
use towpath_cbuf::Sga;

/// Names one operation until its completion is taken (`qtoken` of PDPIX, Demikernel section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

const INDEX_BITS: u32 = 24;
/// Slots a runtime may have: what the index of a token can name.
pub(crate) const SLOTS_MAX: usize = 1 << INDEX_BITS;
/// Generations fit in what io_uring's user data leaves beside the index and a four-bit kind.
const GENERATION_MASK: u64 = (1 << 36) - 1;
const NONE: u32 = u32::MAX;

impl Token {
    /// The token as a number, as the C interface hands it out.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// A token from its number; one that was never issued is found out when it is used.
    pub fn from_raw(raw: u64) -> Token {
        Token(raw)
    }

    fn index(self) -> usize {
        (self.0 & (SLOTS_MAX as u64 - 1)) as usize
    }

    fn generation(self) -> u64 {
        self.0 >> INDEX_BITS
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// What an operation did.
#[derive(Debug)]
pub enum Outcome {
    /// The push is done: its data may be freed or pushed again.
    Pushed,
    /// Data arrived. Empty on a stream: its end.
    Popped {
        /// The data.
        sga: Sga,
        /// Who sent it, on a datagram socket.
        from: Option<Address>,
    },
    /// A connection was taken.
    Accepted {
        /// Its queue, open until closed.
        qd: Qd,
        /// Who connected.
        peer: Address,
    },
    /// The connection stands.
    Connected,
    /// What was pushed before is on the disk.
    Synced,
}

/// The result of an operation, taken once by whoever waited for its token.
#[derive(Debug)]
pub struct Completion {
    /// The token that was waited for.
    pub token: Token,
    /// The queue it was issued on.
    pub qd: Qd,
    /// What was done, or why not; [`Error::Canceled`] if the queue was closed.
    pub outcome: Result<Outcome>,
}

/// Who is told of a completion.
enum Waiter {
    None,
    /// A blocking `wait`, which looks for itself.
    Blocked,
    Coroutine(Waker),
    Set {
        index: u32,
        generation: u32,
    },
}

enum State<P> {
    Free,
    Pending(P),
    Done(Result<Outcome>),
}

struct Slot<P> {
    generation: u64,
    /// The next operation of the same queue, or the next free slot.
    next: u32,
    qd: Qd,
    /// Nobody will take the completion: free the slot when it is there.
    abandoned: bool,
    state: State<P>,
    waiter: Waiter,
}

/// The operations of a queue in the order they were issued, linked through their slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpList {
    head: u32,
    tail: u32,
}

impl OpList {
    pub const EMPTY: OpList = OpList { head: NONE, tail: NONE };

    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The slot of the oldest operation.
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

/// A wait set's inner half.
struct Set {
    generation: u32,
    members: usize,
    ready: VecDeque<Token>,
    waiter: Option<Waker>,
}

/// Names a wait set inside [`Slots`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SetId {
    index: u32,
    generation: u32,
}

/// Every completion slot of a runtime. `P` is what the library OS keeps for a pending operation.
pub(crate) struct Slots<P> {
    slots: Vec<Slot<P>>,
    free: u32,
    live: usize,
    limit: usize,
    sets: Vec<Set>,
    free_sets: Vec<u32>,
    /// Wakers to call once no part of the runtime is borrowed.
    pub wakes: Vec<Waker>,
}

impl<P> Slots<P> {
    pub fn new(limit: usize) -> Slots<P> {
        Slots {
            slots: Vec::new(),
            free: NONE,
            live: 0,
            limit: limit.min(SLOTS_MAX),
            sets: Vec::new(),
            free_sets: Vec::new(),
            wakes: Vec::new(),
        }
    }

    /// Slots in use: operations pending, and completions not yet taken.
    pub fn live(&self) -> usize {
        self.live
    }

    fn insert(&mut self, qd: Qd, state: State<P>) -> Result<u32> {
        if self.live == self.limit {
            return Err(Error::Exhausted { what: "operations", limit: self.limit });
        }
        let index = if self.free == NONE {
            self.slots.push(Slot {
                generation: 1,
                next: NONE,
                qd,
                abandoned: false,
                state: State::Free,
                waiter: Waiter::None,
            });
            (self.slots.len() - 1) as u32
        } else {
            self.free
        };
        let slot = &mut self.slots[index as usize];
        if self.free == index {
            self.free = slot.next;
        }
        slot.next = NONE;
        slot.qd = qd;
        slot.state = state;
        self.live += 1;
        Ok(index)
    }

    /// A slot for an operation that is under way.
    pub fn begin(&mut self, qd: Qd, pending: P) -> Result<u32> {
        self.insert(qd, State::Pending(pending))
    }

    /// A slot for an operation that finished at once.
    pub fn finished(&mut self, qd: Qd, outcome: Result<Outcome>) -> Result<Token> {
        self.insert(qd, State::Done(outcome)).map(|index| self.token(index))
    }

    /// The token that names slot `index` now.
    pub fn token(&self, index: u32) -> Token {
        Token(self.slots[index as usize].generation << INDEX_BITS | u64::from(index))
    }

    /// The slot a token names, if it is still in use.
    pub fn lookup(&self, token: Token) -> Result<u32> {
        match self.slots.get(token.index()) {
            Some(slot) if slot.generation == token.generation() && !matches!(slot.state, State::Free) => {
                Ok(token.index() as u32)
            }
            _ => Err(Error::StaleToken(token)),
        }
    }

    /// What the library OS keeps for the pending operation in slot `index`.
    pub fn pending(&mut self, index: u32) -> Option<&mut P> {
        match &mut self.slots[index as usize].state {
            State::Pending(pending) => Some(pending),
            _ => None,
        }
    }

    /// The queue of slot `index`.
    pub fn queue_of(&self, index: u32) -> Qd {
        self.slots[index as usize].qd
    }

    /// Ends the pending operation in slot `index` and tells its one waiter.
    pub fn complete(&mut self, index: u32, outcome: Result<Outcome>) {
        let slot = &mut self.slots[index as usize];
        assert!(matches!(slot.state, State::Pending(_)), "an operation completes once");
        slot.state = State::Done(outcome);
        if slot.abandoned {
            self.release(index);
            return;
        }
        match std::mem::replace(&mut slot.waiter, Waiter::None) {
            Waiter::None | Waiter::Blocked => {}
            Waiter::Coroutine(waker) => self.wakes.push(waker),
            Waiter::Set { index: set, generation } => {
                let token = self.token(index);
                self.offer(SetId { index: set, generation }, token);
            }
        }
    }

    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        slot.state = State::Free;
        slot.waiter = Waiter::None;
        slot.abandoned = false;
        slot.next = self.free;
        self.free = index;
        self.live -= 1;
    }

    /// Whether the operation has completed (and its completion has not been taken).
    pub fn is_done(&self, token: Token) -> Result<bool> {
        let index = self.lookup(token)?;
        Ok(matches!(self.slots[index as usize].state, State::Done(_)))
    }

    /// Takes the completion if it is there.
    pub fn take(&mut self, token: Token) -> Result<Option<Completion>> {
        let index = self.lookup(token)?;
        let slot = &mut self.slots[index as usize];
        if !matches!(slot.state, State::Done(_)) {
            return Ok(None);
        }
        let State::Done(outcome) = std::mem::replace(&mut slot.state, State::Free) else { unreachable!() };
        let qd = slot.qd;
        self.release(index);
        Ok(Some(Completion { token, qd, outcome }))
    }

    /// Makes a blocking call the one waiter of `token`.
    pub fn wait_blocked(&mut self, token: Token) -> Result<()> {
        let index = self.lookup(token)? as usize;
        if self.is_waited(index) {
            return Err(Error::AlreadyWaited(token));
        }
        self.slots[index].waiter = Waiter::Blocked;
        Ok(())
    }

    /// Whether anyone waits for slot `index`; a set that was dropped no longer does.
    fn is_waited(&self, index: usize) -> bool {
        match &self.slots[index].waiter {
            Waiter::None => false,
            Waiter::Set { index, generation } => {
                self.sets.get(*index as usize).is_some_and(|set| set.generation == *generation)
            }
            _ => true,
        }
    }

    /// The waiter of `token` went away without taking its completion.
    pub fn unwait(&mut self, token: Token) {
        if let Ok(index) = self.lookup(token) {
            self.slots[index as usize].waiter = Waiter::None;
        }
    }

    /// Takes the completion, or makes the coroutine behind `waker` the one waiter. `again`: it is that already.
    pub fn take_or_wait(&mut self, token: Token, waker: &Waker, again: bool) -> Result<Option<Completion>> {
        if let Some(completion) = self.take(token)? {
            return Ok(Some(completion));
        }
        if !again && self.is_waited(token.index()) {
            return Err(Error::AlreadyWaited(token));
        }
        match &mut self.slots[token.index()].waiter {
            Waiter::Coroutine(held) => held.clone_from(waker),
            waiter => *waiter = Waiter::Coroutine(waker.clone()),
        }
        Ok(None)
    }

    /// Nobody will take the completion any more. Returns it if it is there already, so that its data can go back to
    /// the queue, and says with `Err(index)` that the operation is still under way.
    pub fn abandon(&mut self, token: Token) -> Option<std::result::Result<Completion, u32>> {
        match self.take(token) {
            Ok(Some(completion)) => Some(Ok(completion)),
            Ok(None) => {
                let index = token.index() as u32;
                self.slots[token.index()].abandoned = true;
                self.slots[token.index()].waiter = Waiter::None;
                Some(Err(index))
            }
            Err(_) => None,
        }
    }

    /// Appends slot `index` to the operations of a queue.
    pub fn append(&mut self, list: &mut OpList, index: u32) {
        self.slots[index as usize].next = NONE;
        if list.tail == NONE {
            list.head = index;
        } else {
            self.slots[list.tail as usize].next = index;
        }
        list.tail = index;
    }

    /// Unlinks and returns the oldest operation.
    pub fn pop_first(&mut self, list: &mut OpList) -> Option<u32> {
        let first = list.first()?;
        list.head = self.slots[first as usize].next;
        if list.head == NONE {
            list.tail = NONE;
        }
        self.slots[first as usize].next = NONE;
        Some(first)
    }

    /// The operations behind slot `index`, which is the first of `list`.
    pub fn after(&self, list: OpList, index: u32) -> OpList {
        let head = self.slots[index as usize].next;
        OpList { head, tail: if head == NONE { NONE } else { list.tail } }
    }

    /// Unlinks slot `index` wherever it stands; whether it stood there.
    pub fn unlink(&mut self, list: &mut OpList, index: u32) -> bool {
        let (mut before, mut at) = (NONE, list.head);
        while at != NONE && at != index {
            (before, at) = (at, self.slots[at as usize].next);
        }
        if at == NONE {
            return false;
        }
        let next = self.slots[at as usize].next;
        if before == NONE {
            list.head = next;
        } else {
            self.slots[before as usize].next = next;
        }
        if list.tail == at {
            list.tail = before;
        }
        self.slots[at as usize].next = NONE;
        true
    }

    /// Completes every operation of a list with `error`.
    pub fn complete_all(&mut self, list: &mut OpList, error: &Error) {
        while let Some(index) = self.pop_first(list) {
            self.complete(index, Err(error.clone()));
        }
    }
}

/// Wait sets: each completion is pushed onto the ready list of the set that waits for it, so waiting costs what is
/// ready, not what is waited for.
impl<P> Slots<P> {
    pub fn new_set(&mut self) -> SetId {
        if let Some(index) = self.free_sets.pop() {
            return SetId { index, generation: self.sets[index as usize].generation };
        }
        self.sets.push(Set { generation: 1, members: 0, ready: VecDeque::new(), waiter: None });
        SetId { index: (self.sets.len() - 1) as u32, generation: 1 }
    }

    /// Ends a set; tokens in it are as if they had never been added.
    pub fn drop_set(&mut self, id: SetId) {
        if let Some(set) = self.set(id) {
            set.generation = set.generation.wrapping_add(1);
            set.members = 0;
            set.ready.clear();
            set.waiter = None;
            self.free_sets.push(id.index);
        }
    }

    fn set(&mut self, id: SetId) -> Option<&mut Set> {
        self.sets.get_mut(id.index as usize).filter(|set| set.generation == id.generation)
    }

    fn offer(&mut self, id: SetId, token: Token) {
        if let Some(set) = self.set(id) {
            set.ready.push_back(token);
            let waiter = set.waiter.take();
            self.wakes.extend(waiter);
        }
    }

    /// Adds a token; one that is complete is ready at once.
    pub fn set_add(&mut self, id: SetId, token: Token) -> Result<()> {
        let index = self.lookup(token)? as usize;
        if self.is_waited(index) {
            return Err(Error::AlreadyWaited(token));
        }
        self.slots[index].waiter = Waiter::Set { index: id.index, generation: id.generation };
        if let Some(set) = self.set(id) {
            set.members += 1;
        }
        if matches!(self.slots[index].state, State::Done(_)) {
            self.offer(id, token);
        }
        Ok(())
    }

    /// Takes a token out again; it can then be waited for elsewhere.
    pub fn set_remove(&mut self, id: SetId, token: Token) -> Result<()> {
        let index = self.lookup(token)? as usize;
        let done = matches!(self.slots[index].state, State::Done(_));
        let member = match self.slots[index].waiter {
            Waiter::Set { index, generation } => SetId { index, generation } == id,
            _ => false,
        };
        let Some(set) = self.set(id) else { return Err(Error::StaleToken(token)) };
        let waiting = done && set.ready.contains(&token);
        if !member && !waiting {
            return Err(Error::StaleToken(token));
        }
        set.members -= 1;
        set.ready.retain(|&ready| ready != token);
        self.slots[index].waiter = Waiter::None;
        Ok(())
    }

    /// Tokens in the set, ready ones included.
    pub fn set_len(&mut self, id: SetId) -> usize {
        self.set(id).map_or(0, |set| set.members)
    }

    /// Takes the oldest ready completion.
    pub fn set_take(&mut self, id: SetId) -> Option<Completion> {
        loop {
            let set = self.set(id)?;
            let token = set.ready.pop_front()?;
            set.members -= 1;
            // A token in the set may have been waited for by its own name meanwhile: then it is gone.
            if let Ok(Some(completion)) = self.take(token) {
                return Some(completion);
            }
        }
    }

    /// Has `waker` called when something becomes ready.
    pub fn set_wait(&mut self, id: SetId, waker: &Waker) {
        if let Some(set) = self.set(id) {
            set.waiter = Some(waker.clone());
        }
    }
}
