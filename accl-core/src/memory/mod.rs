//! Memory of ours: what `ncclMemAlloc` hands out, and what users register.

mod allocate;
mod on_device;
mod pages;
pub mod regions;
mod registry;
mod scratch;

pub use crate::device::UserPointer;
pub use allocate::{allocate, allocate_shared, free};
pub use on_device::{allocate_on_device, free_on_device};
pub use pages::Pages;
pub use registry::Registry;
pub use scratch::{Scratch, read_scalar};
