//! Settings by key. A handle is the place of a parameter in the core's tables, counted from 1: it is checked without a look at
//! what it points to, and stays the same as long as the process lives.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use accl_core::config::{Parameter, Value};
use accl_core::telemetry::log;
use accl_core::{Error, Result};

use crate::abi::*;
use crate::handle::{self, Out};

thread_local! {
    /// What this thread was last given by `ncclParamGetStr`.
    static GIVEN_BY_HANDLE: RefCell<CString> = RefCell::new(CString::default());
    /// The same by `ncclParamGetParameter`.
    static GIVEN_BY_KEY: RefCell<CString> = RefCell::new(CString::default());
}

/// The keys as C strings, and where each of them is: those of settings first, a NULL last.
struct Keys {
    _texts: Vec<CString>,
    places: Vec<*const c_char>,
}

// SAFETY: nothing of it is written after it was made, and the strings stay where they are.
unsafe impl Send for Keys {}
// SAFETY: the same.
unsafe impl Sync for Keys {}

static KEYS: OnceLock<Keys> = OnceLock::new();

impl Keys {
    fn of_all() -> Self {
        let parameters = (0..).map_while(Parameter::at);
        let texts: Vec<_> = parameters.map(|parameter| c_text(&parameter.key())).collect();
        let places = texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Self { _texts: texts, places }
    }
}

/// Makes the functions that read an integer; all differ in its width only.
macro_rules! integers {
    ($($body:ident[$($name:ident),*]: $kind:ty;)*) => { $(
        face! {
            /// The value as an integer of this width.
            fn $body[$($name),*](handle: ncclParamHandle_t, out: *mut $kind) {
                // SAFETY: the header asks for a valid pointer.
                unsafe { integer(handle, out) }
            }
        }
    )* };
}

integers! {
    get_i8[ncclParamGetI8, pncclParamGetI8]: i8;
    get_i16[ncclParamGetI16, pncclParamGetI16]: i16;
    get_i32[ncclParamGetI32, pncclParamGetI32]: i32;
    get_i64[ncclParamGetI64, pncclParamGetI64]: i64;
    get_u8[ncclParamGetU8, pncclParamGetU8]: u8;
    get_u16[ncclParamGetU16, pncclParamGetU16]: u16;
    get_u32[ncclParamGetU32, pncclParamGetU32]: u32;
    get_u64[ncclParamGetU64, pncclParamGetU64]: u64;
}

face! {
    /// A handle to a parameter.
    fn bind[ncclParamBind, pncclParamBind](out: *mut ncclParamHandle_t, key: *const c_char) {
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(out, "out") }?;
        // SAFETY: the header asks for a string.
        let parameter = unsafe { of_key(key) }?;
        out.set(std::ptr::without_provenance_mut(parameter.place() + 1));
        Ok(())
    }

    /// The value as a string.
    fn get_str[ncclParamGetStr, pncclParamGetStr](handle: ncclParamHandle_t, out: *mut *const c_char) {
        let parameter = of_handle(handle)?;
        // SAFETY: the header asks for a valid pointer.
        let out = unsafe { Out::new(out, "out") }?;
        out.set(GIVEN_BY_HANDLE.with(|given| keep(given, &parameter.text()?))?);
        Ok(())
    }

    /// The value as it is.
    fn get[ncclParamGet, pncclParamGet](
        handle: ncclParamHandle_t, out: *mut c_void, maxLen: c_int, len: *mut c_int,
    ) {
        let parameter = of_handle(handle)?;
        // SAFETY: the header asks for a valid pointer.
        let len = unsafe { Out::new(len, "len") }?;
        handle::required(out, "out")?;
        let bytes = match parameter.value()? {
            Value::Integer(number) => number.to_ne_bytes().to_vec(),
            Value::Real(number) => number.to_ne_bytes().to_vec(),
            Value::Text(text) => c_text(&text).into_bytes_with_nul(),
        };
        len.set(c_int::try_from(bytes.len()).unwrap_or(c_int::MAX));
        if usize::try_from(maxLen).is_ok_and(|most| bytes.len() <= most) {
            // SAFETY: the header asks for a buffer of maxLen bytes, which are enough.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len()) };
            return Ok(());
        }
        Err(Error::argument(format!(
            "maxLen is {maxLen} and {} has {} bytes; pass a buffer of at least so many",
            parameter.key(),
            bytes.len()
        )))
    }

    /// The value of a key as a string.
    fn get_parameter[ncclParamGetParameter, pncclParamGetParameter](
        key: *const c_char, value: *mut *const c_char, len: *mut c_int,
    ) {
        // SAFETY: the header asks for valid pointers.
        let (value, len) = unsafe { (Out::new(value, "value")?, Out::new(len, "len")?) };
        // SAFETY: the header asks for a string.
        let text = unsafe { of_key(key) }?.text()?;
        let kept = GIVEN_BY_KEY.with(|given| keep(given, &text))?;
        value.set(kept);
        len.set(c_int::try_from(text.len()).unwrap_or(c_int::MAX));
        Ok(())
    }

    /// All keys.
    fn get_keys[ncclParamGetAllParameterKeys, pncclParamGetAllParameterKeys](
        table: *mut *mut *const c_char, len: *mut c_int,
    ) {
        // SAFETY: the header asks for valid pointers.
        let (table, len) = unsafe { (Out::new(table, "table")?, Out::new(len, "len")?) };
        let count = Parameter::all()?.count();
        // The table is read by whoever gets it, though C declares it otherwise.
        table.set(KEYS.get_or_init(Keys::of_all).places.as_ptr().cast_mut());
        len.set(c_int::try_from(count).unwrap_or(c_int::MAX));
        Ok(())
    }

    /// Writes all parameters to the log.
    fn dump[ncclParamDumpAll, pncclParamDumpAll]() -> (), or (); {
        for parameter in Parameter::all()? {
            log::info(accl_core::config::subsystem::ENV, format_args!("{}", parameter.describe()?));
        }
        Ok(())
    }
}

/// # Safety
/// `out` is NULL or writable.
unsafe fn integer<T: TryFrom<i64>>(handle: ncclParamHandle_t, out: *mut T) -> Result<()> {
    let parameter = of_handle(handle)?;
    // SAFETY: promised.
    let out = unsafe { Out::new(out, "out") }?;
    let number = match parameter.value()? {
        Value::Integer(number) => Some(number),
        Value::Real(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(number as i64),
        Value::Real(_) | Value::Text(_) => None,
    };
    let fitting = number.and_then(|number| T::try_from(number).ok());
    out.set(fitting.ok_or_else(|| {
        let text = parameter.text().unwrap_or_default();
        Error::argument(format!(
            "{}={text} is no integer of {} bits; use ncclParamGetStr, or a wider type",
            parameter.key(),
            8 * size_of::<T>()
        ))
    })?);
    Ok(())
}

/// Keeps a text until the thread is given another one, and says where.
fn keep(given: &RefCell<CString>, text: &str) -> Result<*const c_char> {
    let mut given = given.borrow_mut();
    *given = c_text(text);
    Ok(given.as_ptr())
}

/// The text up to a NUL, where it ends for C.
fn c_text(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

fn of_handle(handle: ncclParamHandle_t) -> Result<Parameter> {
    handle::required(handle, "handle")?;
    Parameter::at(handle.addr().wrapping_sub(1)).ok_or_else(|| {
        Error::argument(format!("{handle:p} is not a parameter's handle; pass what ncclParamBind returned"))
    })
}

/// # Safety
/// `key` is NULL or a string.
unsafe fn of_key(key: *const c_char) -> Result<Parameter> {
    handle::required(key, "key")?;
    // SAFETY: not NULL, so a string.
    let key = unsafe { CStr::from_ptr(key) }.to_string_lossy();
    Parameter::of_key(&key).ok_or_else(|| {
        Error::argument(format!(
            "there is no parameter \"{key}\"; ncclParamGetAllParameterKeys lists those there are"
        ))
    })
}
