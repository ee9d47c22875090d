//! The operating system: every system call of the library is made here.
//!
//! Safe wrappers, one file per subject. Nothing above this module names a system call.

pub mod clock;
pub mod cpu;
pub mod files;
pub mod fork;
pub mod futex;
pub mod mapping;
pub mod network;
pub mod process;
pub mod random;
pub mod socket;
pub mod tcp;
