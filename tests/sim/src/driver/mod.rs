//! The driver's face: functions of libcuda under their versioned names, and the same ones under the prefix `hg`.

mod context;
mod event;
mod graph;
mod ipc;
mod memory;
mod module;
mod old;
mod stream;

use std::ffi::c_char;

use crate::abi::{self, Out, Text, driver};
use crate::error::{self, Code, Outcome};
use crate::{config, device};

/// Names whose newest version is not simply `_v2`: least CUDA version and suffix, newest first.
const VERSIONS: &[(&str, &[(i32, &str)])] = &[
    ("StreamGetCaptureInfo", &[(12030, "_v3"), (11030, "_v2"), (0, "")]),
    ("StreamUpdateCaptureDependencies", &[(12030, "_v2"), (0, "")]),
    ("CtxCreate", &[(12050, "_v4"), (11040, "_v3"), (0, "_v2")]),
    ("GetProcAddress", &[(12000, "_v2"), (0, "")]),
    ("GraphInstantiate", &[(12000, "WithFlags"), (0, "")]),
];

/// The address of the driver's function that a program built for that CUDA version means by a name without version.
pub(crate) fn entry_point(name: &str, version: i32) -> Option<u64> {
    let (prefix, base) = name.split_at_checked(2)?;
    if !matches!(prefix, "cu" | "hg") {
        return None;
    }
    if let Some((_, versions)) = VERSIONS.iter().find(|(other, _)| *other == base) {
        let (_, suffix) = versions.iter().find(|(least, _)| version >= *least)?;
        return abi::symbol(&format!("{name}{suffix}"));
    }
    abi::symbol(&format!("{name}_v2")).or_else(|| abi::symbol(name))
}

/// What a pair of devices says of itself.
pub(crate) fn peer_attribute(attribute: i32, can: bool) -> Outcome<i32> {
    match attribute {
        1 => Ok(i32::from(!can)),
        2..=4 => Ok(can.into()),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn find_entry(name: &Text, out: Out<u64>, version: i32, status: Option<Out<i32>>) -> Outcome {
    let address = entry_point(&name.get()?, version);
    out.set(address.unwrap_or(0))?;
    if let Some(status) = status {
        status.set_if(i32::from(address.is_none()));
    }
    address.map(drop).ok_or(Code::NOT_FOUND)
}

fn put_name(out: Out<*const c_char>, name: Option<&'static std::ffi::CStr>) -> Outcome {
    out.set(name.map_or(std::ptr::null(), std::ffi::CStr::as_ptr))?;
    name.map(drop).ok_or(Code::INVALID_VALUE)
}

driver! {
    fn Init(flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        device::initialize()
    }

    fn DriverGetVersion(version: Out<i32>) {
        version.set(config::get().driver_version)
    }

    fn GetErrorName(code: i32, out: Out<*const c_char>) {
        put_name(out, error::driver_name(code))
    }

    fn GetErrorString(code: i32, out: Out<*const c_char>) {
        put_name(out, error::text(code))
    }

    fn GetProcAddress(name: Text, out: Out<u64>, version: i32, _flags: u64) {
        find_entry(&name, out, version, None)
    }

    fn GetProcAddress_v2(name: Text, out: Out<u64>, version: i32, _flags: u64, status: Out<i32>) {
        find_entry(&name, out, version, Some(status))
    }

    /// Private tables of the driver: this one has none.
    fn GetExportTable(out: Out<u64>, _id: u64) {
        out.set(0)?;
        Err(Code::NOT_FOUND)
    }
}
