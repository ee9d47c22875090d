//! Devices and contexts.

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::abi::{Out, Text, driver, put_text};
use crate::attributes;
use crate::device::{self, Context};
use crate::error::{Code, Outcome};

fn checked(number: i32) -> Outcome<usize> {
    device::initialized()?;
    device::check(number)
}

fn create(out: Out<u64>, flags: u32, number: i32) -> Outcome {
    let context = device::create(checked(number)?, false, flags);
    out.set(context.handle)?;
    device::push(context);
    Ok(())
}

fn destroy(handle: u64) -> Outcome {
    device::initialized()?;
    let context = device::find(handle)?;
    if context.is_primary { Err(Code::INVALID_CONTEXT) } else { context.destroy() }
}

fn push(handle: u64) -> Outcome {
    device::initialized()?;
    device::push(device::find(handle)?);
    Ok(())
}

fn pop(out: Out<u64>) -> Outcome {
    device::initialized()?;
    out.set_if(device::pop()?.handle);
    Ok(())
}

fn current() -> Outcome<Arc<Context>> {
    device::initialized()?;
    device::top().ok_or(Code::INVALID_CONTEXT)
}

fn put_uuid(out: Out<u8>, number: i32) -> Outcome {
    let uuid = device::uuid(checked(number)?);
    uuid.iter().enumerate().try_for_each(|(index, &byte)| out.set_at(index, byte))
}

driver! {
    fn DeviceGetCount(count: Out<i32>) {
        device::initialized()?;
        count.set(device::count() as i32)
    }

    fn DeviceGet(out: Out<i32>, number: i32) {
        out.set(checked(number)? as i32)
    }

    fn DeviceGetName(out: Out<c_char>, length: i32, number: i32) {
        checked(number)?;
        put_text(out, length, attributes::NAME)
    }

    fn DeviceGetUuid(out: Out<u8>, number: i32) {
        put_uuid(out, number)
    }

    fn DeviceGetUuid_v2(out: Out<u8>, number: i32) {
        put_uuid(out, number)
    }

    fn DeviceTotalMem_v2(out: Out<usize>, number: i32) {
        out.set(crate::memory::info(checked(number)?).1 as usize)
    }

    fn DeviceGetAttribute(out: Out<i32>, attribute: i32, number: i32) {
        let device = checked(number)?;
        out.set(attributes::get(attribute, device).ok_or(Code::INVALID_VALUE)?)
    }

    fn DeviceComputeCapability(major: Out<i32>, minor: Out<i32>, number: i32) {
        checked(number)?;
        let (high, low) = crate::config::get().compute;
        major.set(high)?;
        minor.set(low)
    }

    fn DeviceGetPCIBusId(out: Out<c_char>, length: i32, number: i32) {
        put_text(out, length, &device::pci_text(checked(number)?))
    }

    fn DeviceGetByPCIBusId(out: Out<i32>, text: Text) {
        device::initialized()?;
        let text = text.get()?;
        let found = (0..device::count()).find(|&device| device::pci_text(device).eq_ignore_ascii_case(&text));
        out.set(found.ok_or(Code::INVALID_VALUE)? as i32)
    }

    fn DeviceCanAccessPeer(out: Out<i32>, number: i32, peer: i32) {
        out.set(device::can_access(checked(number)?, checked(peer)?).into())
    }

    fn DeviceGetP2PAttribute(out: Out<i32>, attribute: i32, number: i32, peer: i32) {
        let can = device::can_access(checked(number)?, checked(peer)?);
        out.set(super::peer_attribute(attribute, can)?)
    }

    fn DevicePrimaryCtxRetain(out: Out<u64>, number: i32) {
        out.set(device::retain_primary(checked(number)?).handle)
    }

    fn DevicePrimaryCtxRelease(number: i32) {
        device::release_primary(checked(number)?)
    }

    fn DevicePrimaryCtxRelease_v2(number: i32) {
        device::release_primary(checked(number)?)
    }

    fn DevicePrimaryCtxReset(number: i32) {
        device::reset_primary(checked(number)?)
    }

    fn DevicePrimaryCtxReset_v2(number: i32) {
        device::reset_primary(checked(number)?)
    }

    fn DevicePrimaryCtxSetFlags(number: i32, flags: u32) {
        device::set_primary_flags(checked(number)?, flags);
        Ok(())
    }

    fn DevicePrimaryCtxSetFlags_v2(number: i32, flags: u32) {
        device::set_primary_flags(checked(number)?, flags);
        Ok(())
    }

    fn DevicePrimaryCtxGetState(number: i32, flags: Out<u32>, is_active: Out<i32>) {
        let (now, active) = device::primary_state(checked(number)?);
        flags.set(now)?;
        is_active.set(active.into())
    }

    fn CtxCreate_v2(out: Out<u64>, flags: u32, number: i32) {
        create(out, flags, number)
    }

    fn CtxCreate_v3(out: Out<u64>, _affinity: u64, affinities: i32, flags: u32, number: i32) {
        if affinities != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        create(out, flags, number)
    }

    fn CtxCreate_v4(out: Out<u64>, parameters: u64, flags: u32, number: i32) {
        if parameters != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        create(out, flags, number)
    }

    fn CtxDestroy(handle: u64) {
        destroy(handle)
    }

    fn CtxDestroy_v2(handle: u64) {
        destroy(handle)
    }

    fn CtxPushCurrent(handle: u64) {
        push(handle)
    }

    fn CtxPushCurrent_v2(handle: u64) {
        push(handle)
    }

    fn CtxPopCurrent(out: Out<u64>) {
        pop(out)
    }

    fn CtxPopCurrent_v2(out: Out<u64>) {
        pop(out)
    }

    fn CtxSetCurrent(handle: u64) {
        device::initialized()?;
        let context = if handle == 0 { None } else { Some(device::find(handle)?) };
        device::set_current(context);
        Ok(())
    }

    fn CtxGetCurrent(out: Out<u64>) {
        device::initialized()?;
        out.set(device::top().map_or(0, |context| context.handle))
    }

    fn CtxGetDevice(out: Out<i32>) {
        out.set(current()?.device as i32)
    }

    fn CtxGetFlags(out: Out<u32>) {
        out.set(current()?.flags.load(Ordering::Relaxed))
    }

    fn CtxGetId(handle: u64, out: Out<u64>) {
        let context = if handle == 0 { current()? } else { device::find(handle)? };
        out.set(context.handle)
    }

    fn CtxGetApiVersion(handle: u64, out: Out<u32>) {
        if handle != 0 {
            device::find(handle)?;
        }
        out.set(3020)
    }

    fn CtxSynchronize() {
        device::current()?.synchronize()
    }

    fn CtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        device::current()?;
        least.set_if(0);
        greatest.set_if(-5);
        Ok(())
    }

    fn CtxSetLimit(_limit: i32, _value: usize) {
        device::current().map(drop)
    }

    fn CtxGetLimit(out: Out<usize>, _limit: i32) {
        device::current()?;
        out.set(1024)
    }

    fn CtxSetCacheConfig(_config: i32) {
        device::current().map(drop)
    }

    fn CtxEnablePeerAccess(peer: u64, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        device::enable_peer(&*device::current()?, device::find(peer)?.device)
    }

    fn CtxDisablePeerAccess(peer: u64) {
        device::disable_peer(&*device::current()?, device::find(peer)?.device)
    }
}
