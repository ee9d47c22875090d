//! Lock-free pieces that live in memory shared between ranks, and the way to wait for them.
//!
//! Atomics come from [`prim`] so that loom can take their place: `RUSTFLAGS="--cfg loom" cargo test sync`.

pub mod bell;
pub mod cursor;
pub mod prim;
pub mod wait;
