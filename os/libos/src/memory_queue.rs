//! The in-memory queue of PDPIX (`queue()`): passes buffers between coroutines by reference, first in, first out.

use crate::Qd;
use crate::core::{Ops, Pending, Started};
use crate::error::{Error, Result};
use crate::kernel::PushState;
use crate::tokens::{OpList, Outcome};
use std::collections::VecDeque;
use towpath_cbuf::Sga;

/// Messages a queue holds before pushes wait: enough to ride out a burst, little enough to bound memory.
pub(crate) const MESSAGES_MAX: usize = 1024;

/// See the module.
pub(crate) struct MemoryQueue {
    messages: VecDeque<Sga>,
    pub pops: OpList,
    pushes: OpList,
}

fn popped(sga: Sga) -> Outcome {
    Outcome::Popped { sga, from: None }
}

impl MemoryQueue {
    pub fn new() -> MemoryQueue {
        MemoryQueue { messages: VecDeque::new(), pops: OpList::EMPTY, pushes: OpList::EMPTY }
    }

    pub fn pop(&mut self, qd: Qd, ops: &mut Ops) -> Result<Started> {
        let Some(sga) = self.messages.pop_front() else {
            let index = ops.begin(qd, Pending::Pop)?;
            ops.append(&mut self.pops, index);
            return Ok(Started::Pending(index));
        };
        // Room was made: the oldest push that waits goes in.
        if let Some(index) = ops.pop_first(&mut self.pushes)
            && let Some(Pending::Push(push)) = ops.pending(index)
        {
            self.messages.push_back(std::mem::take(&mut push.sga));
            ops.complete(index, Ok(Outcome::Pushed));
        }
        Ok(Started::Done(popped(sga)))
    }

    pub fn push(&mut self, qd: Qd, ops: &mut Ops, sga: Sga) -> Result<Started> {
        if let Some(index) = ops.pop_first(&mut self.pops) {
            ops.complete(index, Ok(popped(sga)));
            return Ok(Started::Done(Outcome::Pushed));
        }
        if self.messages.len() < MESSAGES_MAX {
            self.messages.push_back(sga);
            return Ok(Started::Done(Outcome::Pushed));
        }
        let index = ops.begin(qd, Pending::Push(PushState::new(sga, None)))?;
        ops.append(&mut self.pushes, index);
        Ok(Started::Pending(index))
    }

    /// A message popped by a future that was dropped is the oldest again, or goes to the next that waits.
    pub fn give_back(&mut self, ops: &mut Ops, outcome: Outcome) {
        if let Some(index) = ops.pop_first(&mut self.pops) {
            ops.complete(index, Ok(outcome));
        } else if let Outcome::Popped { sga, .. } = outcome {
            self.messages.push_front(sga);
        }
    }

    pub fn close(&mut self, ops: &mut Ops) {
        ops.complete_all(&mut self.pops, &Error::Canceled);
        ops.complete_all(&mut self.pushes, &Error::Canceled);
    }
}
