//! Real programs against the real command; everything is in the tests.
#![forbid(unsafe_code)]
