//! The CUDA runtime's face: functions of libcudart, of CUDA 12 and 13. They turn C into calls of the modules, and hold no state.

mod device;
mod event;
mod graph;
mod ipc;
mod launch;
mod memory;
mod stream;
mod symbol;
mod unsupported;

pub(crate) use graph::put_list;
pub(crate) use launch::occupancy;
