//! The few functions of NVML that programs ask who a device is by.
#![allow(non_snake_case, reason = "the names are NVML's")]

use std::ffi::c_char;

use crate::abi::{Out, Text, put_text};
use crate::attributes;
use crate::device;
use crate::error::Outcome;

const SUCCESS: i32 = 0;
const INVALID_ARGUMENT: i32 = 2;
const NOT_SUPPORTED: i32 = 3;
const NOT_FOUND: i32 = 6;

fn number(outcome: Outcome) -> i32 {
    if outcome.is_ok() { SUCCESS } else { INVALID_ARGUMENT }
}

/// Devices are numbered from 1 here, so that none is null.
fn put_device(out: Out<u64>, found: Option<usize>) -> i32 {
    found.map_or(NOT_FOUND, |device| number(out.set(device as u64 + 1)))
}

fn uuid_text(device: usize) -> String {
    let hex: String = device::uuid(device).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

macro_rules! nvml {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> i32 $body
    )*};
}

nvml! {
    fn nvmlInit_v2() { SUCCESS }
    fn nvmlInit() { SUCCESS }
    fn nvmlInitWithFlags(_flags: u32) { SUCCESS }
    fn nvmlShutdown() { SUCCESS }

    fn nvmlDeviceGetCount_v2(count: Out<u32>) {
        number(count.set(device::count() as u32))
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: Out<u64>) {
        put_device(out, Some(index as usize).filter(|&device| device < device::count()))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(text: Text, out: Out<u64>) {
        let text = text.get().unwrap_or_default();
        let same = |device: &usize| {
            let mine = device::pci_text(*device);
            text.eq_ignore_ascii_case(&mine) || text.eq_ignore_ascii_case(&format!("0000{mine}"))
        };
        put_device(out, (0..device::count()).find(same))
    }

    fn nvmlDeviceGetHandleByUUID(text: Text, out: Out<u64>) {
        let text = text.get().unwrap_or_default();
        put_device(out, (0..device::count()).find(|&device| uuid_text(device) == text))
    }

    fn nvmlDeviceGetUUID(handle: u64, out: Out<c_char>, length: u32) {
        number(put_text(out, length as i32, &uuid_text(handle.wrapping_sub(1) as usize)))
    }

    fn nvmlDeviceGetIndex(handle: u64, out: Out<u32>) {
        number(out.set(handle.wrapping_sub(1) as u32))
    }

    fn nvmlDeviceGetName(_handle: u64, out: Out<c_char>, length: u32) {
        number(put_text(out, length as i32, attributes::NAME))
    }

    fn nvmlDeviceGetP2PStatus(_handle: u64, _peer: u64, _what: i32, status: Out<i32>) {
        // 0 is fine, 5 is not supported.
        number(status.set(if crate::config::get().peer { 0 } else { 5 }))
    }

    fn nvmlSystemGetDriverVersion(out: Out<c_char>, length: u32) {
        number(put_text(out, length as i32, "999.00"))
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        number(version.set(crate::config::get().driver_version))
    }

    fn nvmlDeviceGetGpuFabricInfo(_handle: u64, _out: u64) { NOT_SUPPORTED }
    fn nvmlDeviceGetGpuFabricInfoV(_handle: u64, _out: u64) { NOT_SUPPORTED }
    fn nvmlDeviceGetNvLinkState(_handle: u64, _link: u32, _out: u64) { NOT_SUPPORTED }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(_handle: u64, _link: u32, _out: u64) { NOT_SUPPORTED }
    fn nvmlDeviceGetNvLinkCapability(_handle: u64, _link: u32, _what: i32, _out: u64) { NOT_SUPPORTED }
    fn nvmlDeviceGetNvLinkRemoteDeviceType(_handle: u64, _link: u32, _out: u64) { NOT_SUPPORTED }
    fn nvmlDeviceGetComputeRunningProcesses(_handle: u64, count: Out<u32>, _out: u64) { number(count.set(0)) }
    fn nvmlDeviceGetComputeRunningProcesses_v3(_handle: u64, count: Out<u32>, _out: u64) { number(count.set(0)) }
    fn nvmlDeviceGetUtilizationRates(_handle: u64, _out: u64) { NOT_SUPPORTED }
    fn nvmlDeviceGetTemperature(_handle: u64, _what: i32, _out: u64) { NOT_SUPPORTED }
    fn nvmlDeviceGetPowerUsage(_handle: u64, _out: u64) { NOT_SUPPORTED }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: i32) -> *const c_char {
    match code {
        SUCCESS => c"Success",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        NOT_FOUND => c"Not Found",
        _ => c"Unknown Error",
    }
    .as_ptr()
}
