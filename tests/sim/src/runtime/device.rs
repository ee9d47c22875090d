//! Devices, errors and versions.
#![allow(non_snake_case, reason = "the names are CUDA's")]

use std::ffi::c_char;

use crate::abi::{Out, Text, put_text, runtime};
use crate::attributes::{self, Value};
use crate::error::{self, Code, Outcome};
use crate::{capture, config, device, raw};

/// Names, which are no calls that could fail.
#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: i32) -> *const c_char {
    error::runtime_name(code).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: i32) -> *const c_char {
    error::text(code).unwrap_or(c"unrecognized error code").as_ptr()
}

/// The context's failure stays; anything else is forgotten.
#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> i32 {
    let failure = device::top().and_then(|context| context.failure());
    let last = error::last(true);
    failure.map_or(last, |code| code.0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> i32 {
    let failure = device::top().and_then(|context| context.failure());
    failure.map_or_else(|| error::last(false), |code| code.0)
}

fn put_properties(out: Out<u8>, number: i32, is_13: bool) -> Outcome {
    let device = device::check(number)?;
    if out.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let pick = |pair: (usize, usize)| if is_13 { pair.1 } else { pair.0 };
    let size = pick(attributes::PROPERTIES_BYTES);
    let mut image = vec![0u8; size];
    for field in attributes::properties(device) {
        let bytes = match field.value {
            Value::Int(value) => value.to_ne_bytes().to_vec(),
            Value::Long(value) => value.to_ne_bytes().to_vec(),
            Value::Bytes(bytes) => bytes,
        };
        let place = pick(field.places);
        image[place..place + bytes.len()].copy_from_slice(&bytes);
    }
    raw::copy(out.address(), image.as_ptr() as u64, size as u64);
    Ok(())
}

runtime! {
    fn cudaGetDeviceCount(count: Out<i32>) {
        count.set(device::count() as i32)?;
        device::initialize()
    }

    fn cudaGetDevice(number: Out<i32>) {
        device::initialize()?;
        number.set(device::runtime_device() as i32)
    }

    fn cudaSetDevice(number: i32) {
        device::initialize()?;
        device::set_runtime_device(device::check(number)?);
        Ok(())
    }

    fn cudaInitDevice(number: i32, _device_flags: u32, _flags: u32) {
        device::initialize()?;
        device::primary(device::check(number)?);
        Ok(())
    }

    fn cudaGetDeviceProperties(out: Out<u8>, number: i32) {
        put_properties(out, number, true)
    }

    fn cudaGetDeviceProperties_v2(out: Out<u8>, number: i32) {
        put_properties(out, number, false)
    }

    fn cudaDeviceGetAttribute(out: Out<i32>, attribute: i32, number: i32) {
        let device = device::check(number)?;
        out.set(attributes::get(attribute, device).ok_or(Code::INVALID_VALUE)?)
    }

    fn cudaDeviceGetPCIBusId(out: Out<c_char>, length: i32, number: i32) {
        put_text(out, length, &device::pci_text(device::check(number)?))
    }

    fn cudaDeviceGetByPCIBusId(out: Out<i32>, text: Text) {
        let text = text.get()?;
        let found = (0..device::count()).find(|&device| device::pci_text(device).eq_ignore_ascii_case(&text));
        out.set(found.ok_or(Code::INVALID_VALUE)? as i32)
    }

    fn cudaDeviceCanAccessPeer(out: Out<i32>, number: i32, peer: i32) {
        out.set(device::can_access(device::check(number)?, device::check(peer)?).into())
    }

    fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let context = device::runtime_context()?;
        device::enable_peer(&context, device::check(peer)?)
    }

    fn cudaDeviceDisablePeerAccess(peer: i32) {
        let context = device::runtime_context()?;
        device::disable_peer(&context, device::check(peer)?)
    }

    fn cudaDeviceGetP2PAttribute(out: Out<i32>, attribute: i32, number: i32, peer: i32) {
        let can = device::can_access(device::check(number)?, device::check(peer)?);
        out.set(crate::driver::peer_attribute(attribute, can)?)
    }

    fn cudaDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        device::runtime_context()?;
        least.set_if(0);
        greatest.set_if(-5);
        Ok(())
    }

    fn cudaDeviceSynchronize() {
        device::runtime_context()?.synchronize()
    }

    fn cudaThreadSynchronize() {
        device::runtime_context()?.synchronize()
    }

    fn cudaDeviceReset() {
        capture::forbid_unsafe()?;
        device::reset_primary(device::runtime_device())
    }

    fn cudaSetDeviceFlags(flags: u32) {
        device::set_primary_flags(device::runtime_device(), flags);
        Ok(())
    }

    fn cudaGetDeviceFlags(flags: Out<u32>) {
        flags.set(device::primary_state(device::runtime_device()).0 | 8)
    }

    fn cudaDeviceSetCacheConfig(_config: i32) {
        Ok(())
    }

    fn cudaDeviceSetLimit(_limit: i32, _value: usize) {
        device::runtime_context().map(drop)
    }

    fn cudaDeviceGetLimit(value: Out<usize>, _limit: i32) {
        value.set(1024)
    }

    fn cudaDriverGetVersion(version: Out<i32>) {
        version.set(config::get().driver_version)
    }

    fn cudaRuntimeGetVersion(version: Out<i32>) {
        version.set(config::get().driver_version)
    }

    fn cudaProfilerStart() {
        Ok(())
    }

    fn cudaProfilerStop() {
        Ok(())
    }

    fn cudaGetDriverEntryPointByVersion(name: Text, out: Out<u64>, version: u32, _flags: u64, found: Out<i32>) {
        entry_point(&name, out, version as i32, found)
    }

    fn cudaGetDriverEntryPoint(name: Text, out: Out<u64>, _flags: u64, found: Out<i32>) {
        entry_point(&name, out, config::get().driver_version, found)
    }
}

fn entry_point(name: &Text, out: Out<u64>, version: i32, found: Out<i32>) -> Outcome {
    let address = crate::driver::entry_point(&name.get()?, version);
    out.set(address.unwrap_or(0))?;
    // 0 is success, 1 is "symbol not found".
    found.set_if(i32::from(address.is_none()));
    Ok(())
}
