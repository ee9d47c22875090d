//! The core of ACCL-P: collective communication between ranks over host memory, without C types and without
//! panics. Read `ARCHITECTURE.md` first; modules are listed bottom up, and a lower one never imports a higher.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod bootstrap;
pub mod comm;
pub mod engine;
pub mod error;
pub mod memory;
pub mod types;

pub use error::{Error, ErrorKind, Result};

/// The level of NCCL that this library stands for, as `ncclGetVersion` tells it.
pub const VERSION_CODE: i32 = 23007;
