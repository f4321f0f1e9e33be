//! RV64GC decode and execute, address translation and traps.
#![forbid(unsafe_code)]
