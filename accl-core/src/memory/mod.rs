//! Memory of ours: what `ncclMemAlloc` hands out, and what users register.

mod allocate;
pub mod regions;
mod registry;
mod scratch;

pub use crate::device::UserPointer;
pub use allocate::{allocate, allocate_shared, free};
pub use registry::Registry;
pub use scratch::{Scratch, read_scalar};
