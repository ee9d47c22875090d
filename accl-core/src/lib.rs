//! The core of ACCL-P: collective communication between ranks over host memory, without C types and without
//! panics. Read `ARCHITECTURE.md` first; modules are listed bottom up, and a lower one never imports a higher.

#![deny(unsafe_code)]
#![warn(missing_docs)]

// Under loom, whose atomics cannot stand in statics or in shared memory, only `sync` and what it needs exist.

pub mod error;
pub mod types;

pub mod os;

#[cfg(not(loom))]
pub mod config;
#[cfg(not(loom))]
pub mod encryption;
pub mod sync;

#[cfg(not(loom))]
pub mod driver;
#[cfg(not(loom))]
pub mod telemetry;

#[cfg(not(loom))]
pub mod reduce;
#[cfg(not(loom))]
pub mod topo;

#[cfg(not(loom))]
pub mod bootstrap;
#[cfg(not(loom))]
pub mod device;

#[cfg(not(loom))]
pub mod memory;

#[cfg(not(loom))]
pub mod algo;
#[cfg(not(loom))]
pub mod transport;

#[cfg(not(loom))]
pub mod engine;
#[cfg(not(loom))]
pub mod tune;

#[cfg(not(loom))]
pub mod comm;

#[cfg(not(loom))]
#[doc(hidden)]
pub mod fuzzing;

pub use error::{Error, ErrorKind, Result};

/// The level of the NCCL ABI that this library answers for: what `ncclGetVersion` says.
pub const VERSION_CODE: i32 = types::Face::Nccl.version_code();
