//! Memory and events of other processes, and virtual memory management.

use crate::abi::{In, Out, driver};
use crate::error::{Code, Outcome};
use crate::ipc::{self, Handle};
use crate::memory::{self, Access};
use crate::vmm::{self, Properties};
use crate::{capture, device, event};

fn open_memory(out: Out<u64>, handle: &Handle) -> Outcome {
    let context = device::current()?;
    capture::forbid_unsafe()?;
    out.set(ipc::open_memory(handle, &context)?)
}

/// `CUmemAccessDesc`: kind of location, device, what it may do.
fn set_access(base: u64, bytes: usize, descriptions: In<[u32; 3]>, count: usize) -> Outcome {
    for [kind, number, flags] in descriptions.list(count)? {
        let access = match flags {
            0 => Access::None,
            1 => Access::Read,
            3 => Access::ReadWrite,
            _ => return Err(Code::INVALID_VALUE),
        };
        match kind {
            1 => memory::set_access(base, bytes as u64, access, device::check(number as i32)?)?,
            2..=4 => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    Ok(())
}

driver! {
    fn IpcGetMemHandle(out: Out<Handle>, address: u64) {
        device::current()?;
        out.set(ipc::memory_handle(address)?)
    }

    fn IpcOpenMemHandle(out: Out<u64>, handle: Handle, _flags: u32) {
        open_memory(out, &handle)
    }

    fn IpcOpenMemHandle_v2(out: Out<u64>, handle: Handle, _flags: u32) {
        open_memory(out, &handle)
    }

    fn IpcCloseMemHandle(address: u64) {
        device::current()?.drain()?;
        ipc::close_memory(address)
    }

    fn IpcGetEventHandle(out: Out<Handle>, handle: u64) {
        out.set(ipc::event_handle(&*event::find(handle)?)?)
    }

    fn IpcOpenEventHandle(out: Out<u64>, handle: Handle) {
        out.set(ipc::open_event(&handle, &device::current()?)?.handle)
    }

    fn MemAddressReserve(out: Out<u64>, bytes: usize, align: usize, _at: u64, flags: u64) {
        device::initialized()?;
        if flags != 0 || out.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        out.set(vmm::reserve(bytes as u64, align as u64)?)
    }

    fn MemAddressFree(base: u64, bytes: usize) {
        vmm::unreserve(base, bytes as u64)
    }

    fn MemCreate(out: Out<u64>, bytes: usize, properties: In<Properties>, flags: u64) {
        device::initialized()?;
        capture::forbid_unsafe()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        out.set(vmm::create(bytes as u64, properties.get()?)?.handle)
    }

    fn MemRelease(handle: u64) {
        vmm::release(handle)
    }

    fn MemMap(base: u64, bytes: usize, offset: usize, handle: u64, flags: u64) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let context = device::top().map_or(0, |context| context.handle);
        vmm::map(base, bytes as u64, offset as u64, &*vmm::find(handle)?, context)
    }

    fn MemUnmap(base: u64, bytes: usize) {
        memory::unmap(base, bytes as u64)
    }

    fn MemSetAccess(base: u64, bytes: usize, descriptions: In<[u32; 3]>, count: usize) {
        set_access(base, bytes, descriptions, count)
    }

    fn MemGetAccess(flags: Out<u64>, location: In<[u32; 2]>, address: u64) {
        let range = memory::find(address).ok_or(Code::INVALID_VALUE)?;
        let device = location.get()?[1];
        let has = range.devices >> device & 1 == 1;
        flags.set(if has { range.access as u64 } else { 0 })
    }

    fn MemExportToShareableHandle(out: Out<i32>, handle: u64, kind: u32, flags: u64) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        out.set(vmm::export(&*vmm::find(handle)?, kind)?)
    }

    fn MemImportFromShareableHandle(out: Out<u64>, descriptor: u64, kind: u32) {
        device::initialized()?;
        out.set(vmm::import(descriptor as i32, kind)?.handle)
    }

    fn MemGetAllocationGranularity(out: Out<usize>, properties: In<Properties>, _option: i32) {
        properties.get()?.check()?;
        out.set(vmm::GRANULARITY as usize)
    }

    fn MemGetAllocationPropertiesFromHandle(out: Out<Properties>, handle: u64) {
        out.set(vmm::find(handle)?.properties)
    }

    fn MemRetainAllocationHandle(out: Out<u64>, address: u64) {
        out.set(vmm::retain(address)?.handle)
    }
}
