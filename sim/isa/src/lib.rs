//! RV64GC decode and execute, address translation and traps.
//!
//! The crate knows instructions and architectural state, and nothing of time: [`decode`] turns bits into a [`Uop`],
//! [`execute`] computes what a scalar uop computes from its operands, and [`step()`] carries out one uop on a [`Hart`]
//! with memory reached through the caller's [`Memory`]. The functional core and the timing cores share all three, so
//! there is one meaning of each instruction.
#![forbid(unsafe_code)]

mod compressed;
mod control;
mod decode;
mod exec;
pub mod float;
mod hart;
mod mmu;
mod step;
#[cfg(test)]
mod tests;
mod trap;
mod uop;
pub mod vector;

pub use compressed::decode16;
pub use control::{CsrError, Csrs, MSTATUS_FS, MSTATUS_VS, csr};
pub use decode::{decode, decode32};
pub use exec::{
    Operands, Outcome, amo, box32, branch_taken, execute, extend, fp, integer, is_amo, memory_size, unbox32,
};
pub use hart::{Hart, Mode};
pub use mmu::{
    Access, PAGE_SIZE, PTE_A, PTE_D, PTE_G, PTE_R, PTE_U, PTE_V, PTE_W, PTE_X, PhysicalMemory, Translation, data_mode,
    pmp_allows, translate,
};
pub use step::{CacheOp, Memory, step};
pub use trap::{Cause, Interrupt, Trap};
pub use uop::{Class, Op, Reg, Uop};
