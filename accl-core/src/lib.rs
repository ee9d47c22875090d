//! The core of ACCL-P: collective communication between ranks over host memory, without C types and without
//! panics. Read `ARCHITECTURE.md` first; modules are listed bottom up, and a lower one never imports a higher.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod algo;
pub mod bootstrap;
pub mod comm;
pub mod config;
pub mod device;
pub mod engine;
pub mod error;
pub mod memory;
pub mod os;
pub mod reduce;
pub mod sync;
pub mod telemetry;
pub mod topo;
pub mod transport;
pub mod types;

pub use error::{Error, ErrorKind, Result};

/// The level of the NCCL ABI that this library answers for: what `ncclGetVersion` says.
pub const VERSION_CODE: i32 = 23007;
