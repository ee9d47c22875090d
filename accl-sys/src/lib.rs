//! The C faces of ACCL-P: exported functions only. Each one converts, calls `accl_core`, and converts back; what is
//! decided, is decided in the core. The contract is `include/nccl.h` and `include/accl.h`.
//!
//! The line of a call: the `face!` macro ([`mod@guard`]) makes the exported function, its twin with the prefix
//! `pnccl`, and a body between them; a panic becomes `ncclInternalError`, an error its code and its text.
//! Handles ([`mod@handle`]) are checked without a look at the memory they point to.

// Names are those of the C interface, and so is the number of their arguments.
#![allow(non_snake_case, non_upper_case_globals, clippy::too_many_arguments)]

#[rustfmt::skip]
pub mod abi;

#[macro_use]
pub mod guard;

pub mod call_config;
pub mod collectives;
pub mod config;
pub mod device_api;
pub mod encryption;
pub mod error;
pub mod group;
pub mod handle;
pub mod management;
pub mod memory;
pub mod messages;
pub mod one_sided;
pub mod params;
pub mod plugins;
pub mod point_to_point;
pub mod properties;
pub mod reduce_op;
pub mod regroup;
pub mod slab;
pub mod streams;
pub mod suspend;
pub mod tuning;
pub mod windows;
