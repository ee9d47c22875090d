//! The core of ACCL-P: collective communication between ranks over host memory, without C types and without
//! panics. Read `ARCHITECTURE.md` first; modules are listed bottom up, and a lower one never imports a higher.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod error;
pub mod reduce;
pub mod types;

pub use error::{Error, ErrorKind, Result};
