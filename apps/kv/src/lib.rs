//! A key-value server that speaks RESP.
#![forbid(unsafe_code)]
