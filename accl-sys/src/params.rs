//! Parameters by key. None is offered here yet, so every key and every handle is unknown.

use std::ffi::{CStr, c_char, c_int, c_void};

use accl_core::{Error, Result};

use crate::abi::*;
use crate::handle::{self, Out};

/// The table of keys: its end only.
struct Keys([*const c_char; 1]);

// SAFETY: a NULL is the same for all threads.
unsafe impl Sync for Keys {}

static KEYS: Keys = Keys([std::ptr::null()]);

face! {
    /// A handle to a parameter.
    fn bind[ncclParamBind, pncclParamBind](out: *mut ncclParamHandle_t, key: *const c_char) {
        handle::required(out, "out")?;
        // SAFETY: the header asks for a string.
        unsafe { unknown_key(key) }
    }

    /// The value as an integer of 8 bits.
    fn get_i8[ncclParamGetI8, pncclParamGetI8](
        handle: ncclParamHandle_t, out: *mut i8,
    ) { unknown(handle, out) }

    /// The value as an integer of 16 bits.
    fn get_i16[ncclParamGetI16, pncclParamGetI16](
        handle: ncclParamHandle_t, out: *mut i16,
    ) { unknown(handle, out) }

    /// The value as an integer of 32 bits.
    fn get_i32[ncclParamGetI32, pncclParamGetI32](
        handle: ncclParamHandle_t, out: *mut i32,
    ) { unknown(handle, out) }

    /// The value as an integer of 64 bits.
    fn get_i64[ncclParamGetI64, pncclParamGetI64](
        handle: ncclParamHandle_t, out: *mut i64,
    ) { unknown(handle, out) }

    /// The value as an unsigned integer of 8 bits.
    fn get_u8[ncclParamGetU8, pncclParamGetU8](
        handle: ncclParamHandle_t, out: *mut u8,
    ) { unknown(handle, out) }

    /// The value as an unsigned integer of 16 bits.
    fn get_u16[ncclParamGetU16, pncclParamGetU16](
        handle: ncclParamHandle_t, out: *mut u16,
    ) { unknown(handle, out) }

    /// The value as an unsigned integer of 32 bits.
    fn get_u32[ncclParamGetU32, pncclParamGetU32](
        handle: ncclParamHandle_t, out: *mut u32,
    ) { unknown(handle, out) }

    /// The value as an unsigned integer of 64 bits.
    fn get_u64[ncclParamGetU64, pncclParamGetU64](
        handle: ncclParamHandle_t, out: *mut u64,
    ) { unknown(handle, out) }

    /// The value as a string.
    fn get_str[ncclParamGetStr, pncclParamGetStr](
        handle: ncclParamHandle_t, out: *mut *const c_char,
    ) { unknown(handle, out) }

    /// The value as it is.
    fn get[ncclParamGet, pncclParamGet](
        handle: ncclParamHandle_t, out: *mut c_void, _maxLen: c_int, len: *mut c_int,
    ) {
        handle::required(len, "len")?;
        unknown(handle, out)
    }

    /// The value of a key as a string.
    fn get_parameter[ncclParamGetParameter, pncclParamGetParameter](
        key: *const c_char, value: *mut *const c_char, len: *mut c_int,
    ) {
        handle::required(value, "value")?;
        handle::required(len, "len")?;
        // SAFETY: the header asks for a string.
        unsafe { unknown_key(key) }
    }

    /// All keys: none.
    fn get_keys[ncclParamGetAllParameterKeys, pncclParamGetAllParameterKeys](
        table: *mut *mut *const c_char, len: *mut c_int,
    ) {
        // SAFETY: the header asks for valid pointers.
        let (table, len) = unsafe { (Out::new(table, "table")?, Out::new(len, "len")?) };
        table.set(KEYS.0.as_ptr().cast_mut());
        len.set(0);
        Ok(())
    }

    /// Would write all parameters to the log.
    fn dump[ncclParamDumpAll, pncclParamDumpAll]() -> (), or (); {
        Ok(())
    }
}

fn unknown<T>(handle: ncclParamHandle_t, out: *mut T) -> Result<()> {
    handle::required(handle, "handle")?;
    handle::required(out, "out")?;
    Err(Error::argument(format!("{handle:p} is not a parameter's handle; pass what ncclParamBind returned")))
}

/// # Safety
/// `key` is NULL or a string.
unsafe fn unknown_key(key: *const c_char) -> Result<()> {
    handle::required(key, "key")?;
    // SAFETY: not NULL, so a string.
    let key = unsafe { CStr::from_ptr(key) }.to_string_lossy();
    Err(Error::argument(format!(
        "there is no parameter \"{key}\"; ncclParamGetAllParameterKeys lists those there are"
    )))
}
