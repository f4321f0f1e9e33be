//! The promises of the queue API, one test each, tried on every library OS, driver and address family. The tests stand
//! in `tests/conformance`; a library OS joins by a line in its list.
#![forbid(unsafe_code)]
