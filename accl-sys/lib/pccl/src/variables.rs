//! Variables in which tools look for C4 statistics. There are none here, so that all say "off".

use accl_core::sync::prim::{AtomicBool, AtomicI32};

/// Whether statistics of transports are kept.
// Writable, as a C variable is: a tool may store what it likes.
#[unsafe(no_mangle)]
pub static nccl_c4_stats_enable: AtomicBool = AtomicBool::new(false);

/// How fine they are; 0 is none.
#[unsafe(no_mangle)]
pub static nccl_c4_stats_mode: AtomicI32 = AtomicI32::new(0);

/// Whether statistics of collective calls are kept.
#[unsafe(no_mangle)]
pub static nccl_coll_stats_enable: AtomicBool = AtomicBool::new(false);
