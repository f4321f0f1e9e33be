//! The coroutine scheduler: waker blocks, three classes, a timer wheel.
