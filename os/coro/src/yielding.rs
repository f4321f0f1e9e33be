//! Giving way to others.

use crate::block::{VTABLE, wake_by_data};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Lets every other ready coroutine run once before this one goes on.
#[inline(always)]
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// The future of [`yield_now`].
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        let waker = cx.waker();
        if std::ptr::eq(waker.vtable(), &VTABLE) {
            // SAFETY: the vtable says that this is a live waker of this crate.
            unsafe { wake_by_data(waker.data()) };
        } else {
            waker.wake_by_ref();
        }
        Poll::Pending
    }
}
