//! A key-value server that speaks RESP.
