//! Memory and events of other processes.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use crate::abi::{Out, runtime};
use crate::ipc::{self, Handle};
use crate::{capture, device, event};

runtime! {
    fn cudaIpcGetMemHandle(out: Out<Handle>, address: u64) {
        device::runtime_context()?;
        out.set(ipc::memory_handle(address)?)
    }

    fn cudaIpcOpenMemHandle(out: Out<u64>, handle: Handle, _flags: u32) {
        let context = device::runtime_context()?;
        capture::forbid_unsafe()?;
        out.set(ipc::open_memory(&handle, &context)?)
    }

    fn cudaIpcCloseMemHandle(address: u64) {
        device::runtime_context()?.drain()?;
        ipc::close_memory(address)
    }

    fn cudaIpcGetEventHandle(out: Out<Handle>, handle: u64) {
        out.set(ipc::event_handle(&*event::find(handle)?)?)
    }

    fn cudaIpcOpenEventHandle(out: Out<u64>, handle: Handle) {
        out.set(ipc::open_event(&handle, &device::runtime_context()?)?.handle)
    }
}
