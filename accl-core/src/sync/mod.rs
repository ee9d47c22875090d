//! Lock-free pieces that live in memory shared between ranks, and the way to wait for them.
//!
//! Atomics come from [`prim`] so that loom can take their place: `ci/loom` compiles this module alone with loom's
//! and runs `models`, which tries every interleaving of each piece in the situation it was made for.

pub mod bell;
pub mod cursor;
pub mod lease;
#[cfg(all(test, loom))]
mod models;
pub mod postings;
pub mod prim;
pub mod progress;
pub mod verdict;
pub mod wait;
