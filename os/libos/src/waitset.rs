//! Wait sets: waiting for the first of thousands of tokens in the number of ready ones.

use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::tokens::{Completion, SetId, Token};
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

/// Tokens waited for together. Each completion is taken from it once, in the order in which they completed; its token
/// leaves the set with it. Dropping the set leaves the tokens that remain as if they had never been added.
pub struct WaitSet {
    runtime: Runtime,
    id: SetId,
}

impl WaitSet {
    pub(crate) fn new(runtime: &Runtime) -> WaitSet {
        let id = runtime.core().ops.new_set();
        WaitSet { runtime: runtime.clone(), id }
    }

    /// Adds a token.
    ///
    /// # Errors
    /// [`Error::StaleToken`], or [`Error::AlreadyWaited`] if anyone (this set included) waits for it.
    pub fn add(&self, token: Token) -> Result<()> {
        let result = self.runtime.core().ops.set_add(self.id, token);
        self.runtime.flush_wakes();
        result
    }

    /// Takes a token out; its completion can then be waited for elsewhere.
    ///
    /// # Errors
    /// [`Error::StaleToken`] if it is not in the set.
    pub fn remove(&self, token: Token) -> Result<()> {
        self.runtime.core().ops.set_remove(self.id, token)
    }

    /// Tokens in the set.
    pub fn len(&self) -> usize {
        self.runtime.core().ops.set_len(self.id)
    }

    /// Whether it holds no token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a completion that is ready, without waiting.
    pub fn try_next(&self) -> Option<Completion> {
        self.runtime.core().ops.set_take(self.id)
    }

    /// Waits for the next completion, running coroutines meanwhile.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::InsideCoroutine`]; [`Error::Unsupported`] if the set is empty and could wait for
    /// ever.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Completion> {
        if let Some(completion) = self.try_next() {
            return Ok(completion);
        }
        if self.is_empty() {
            return Err(Error::Unsupported { operation: "wait", why: "the wait set is empty" });
        }
        self.runtime.drive(None, timeout, || self.try_next())
    }

    /// The next completion; for coroutines. One coroutine at a time awaits a set.
    pub async fn next(&self) -> Completion {
        poll_fn(|cx| {
            let mut core = self.runtime.core();
            if let Some(completion) = core.ops.set_take(self.id) {
                return Poll::Ready(completion);
            }
            core.ops.set_wait(self.id, cx.waker());
            Poll::Pending
        })
        .await
    }
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        self.runtime.core().ops.drop_set(self.id);
    }
}
