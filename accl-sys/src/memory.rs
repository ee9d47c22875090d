//! Memory that peers can reach, and buffers announced in advance.

use std::ffi::c_void;

use crate::abi::*;
use crate::handle::{self, Out};
use accl_core::config;
use accl_core::config::Settings;
use accl_core::{Error, ErrorKind, Result, memory};

face! {
    /// Memory that peers on this host can read in place: of the device that the thread uses, or of the host.
    fn allocate[ncclMemAlloc, pncclMemAlloc](ptr: *mut *mut c_void, size: usize) {
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(ptr, "ptr") };
        // NVIDIA's allocator hands NULL on to the driver, and clients know the driver's code.
        let out = out.map_err(|error| Error::new(ErrorKind::Device, error.text()))?;
        // Nothing is NULL, as from a device's allocator.
        out.set(if size == 0 { std::ptr::null_mut() } else { memory_of(size)? });
        Ok(())
    }

    /// Gives memory of `ncclMemAlloc` back.
    fn free[ncclMemFree, pncclMemFree](ptr: *mut c_void) {
        if ptr.is_null() || memory::free_on_device(ptr.addr())? { Ok(()) } else { memory::free(ptr.cast()) }
    }

    /// Announces a buffer.
    fn register[ncclCommRegister, pncclCommRegister](
        comm: ncclComm_t, buff: *mut c_void, size: usize, handle: *mut *mut c_void,
    ) {
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(handle, "handle") };
        if !Settings::load()?.local_register {
            // Turned off: success with no handle, before any other check.
            out?.set(std::ptr::null_mut());
            return Ok(());
        }
        let comm = handle::communicator(comm)?;
        let (out, registered) = (out?, comm.register(handle::buffer(buff), size)?);
        out.set(std::ptr::without_provenance_mut(registered));
        Ok(())
    }

    /// Takes the announcement back.
    fn deregister[ncclCommDeregister, pncclCommDeregister](comm: ncclComm_t, handle: *mut c_void) {
        if handle.is_null() {
            return Ok(());
        }
        handle::communicator(comm)?.deregister(handle.addr())
    }
}

/// So many bytes, and at least one.
fn memory_of(bytes: usize) -> Result<*mut c_void> {
    let wanted = config::Driver::load()?;
    let on_device = if wanted.on { memory::allocate_on_device(bytes, &wanted)? } else { None };
    match on_device {
        Some(address) => Ok(std::ptr::with_exposed_provenance_mut(address)),
        None => memory::allocate(bytes).map(|start| start.cast()),
    }
}
