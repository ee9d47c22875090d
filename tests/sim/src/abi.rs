//! What every exported function shares: the way in (counts, traces, injected failures), and the types of its pointer arguments.
//!
//! # Safety
//!
//! [`Out`], [`In`] and [`Text`] are made by C callers only, as arguments of exported functions, whose contract says that such a pointer
//! is null or good for what the function does with it. That makes their methods safe to call here.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use crate::config;
use crate::error::{Code, Outcome, keep_last, number};
use crate::handles::lock;

/// A pointer to where a result goes.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// A pointer to what is read.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

/// A string of C.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}
impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Stores a result; null is an invalid value.
    pub(crate) fn set(self, value: T) -> Outcome {
        self.set_at(0, value)
    }

    /// Stores a result where the caller wants it.
    pub(crate) fn set_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so good for a store (see the head of the file).
            unsafe { self.0.write_unaligned(value) }
        }
    }

    pub(crate) fn set_at(self, index: usize, value: T) -> Outcome {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let place = self.0.wrapping_add(index);
        // SAFETY: the caller gave room for as many as the function stores.
        unsafe { place.write_unaligned(value) };
        Ok(())
    }

    pub(crate) fn get(self) -> Outcome<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> In<T> {
    pub(crate) fn get(self) -> Outcome<T> {
        self.at(0)
    }

    pub(crate) fn at(self, index: usize) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let place = self.0.wrapping_add(index);
        // SAFETY: the caller gave as many as the function reads.
        Ok(unsafe { place.read_unaligned() })
    }

    pub(crate) fn list(self, count: usize) -> Outcome<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }

    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }
}

impl Text {
    pub(crate) fn get(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, so a string with its end (see the head of the file).
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Writes text and its end into room for `length` bytes.
pub(crate) fn put_text(out: Out<c_char>, length: i32, text: &str) -> Outcome {
    if out.is_null() || length <= 0 || text.len() + 1 > length as usize {
        return Err(Code::INVALID_VALUE);
    }
    for (index, byte) in text.bytes().chain(std::iter::once(0)).enumerate() {
        out.set_at(index, byte as c_char)?;
    }
    Ok(())
}

impl<T> std::fmt::Debug for Out<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0 as u64)
    }
}
impl<T> std::fmt::Debug for In<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0 as u64)
    }
}
impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get().unwrap_or_default())
    }
}

thread_local! {
    /// Is a host function of a stream running in this thread?
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// A function of the program that a stream or a graph calls: it must not call the API.
pub(crate) fn call_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

static COUNTS: OnceLock<Mutex<HashMap<&'static str, u64>>> = OnceLock::new();

/// The way in: an error means that the function's body must not run.
fn enter(name: &'static str) -> Outcome {
    if IN_HOST_FUNCTION.get() {
        eprintln!(
            "accl-sim: {name} was called by a host function of a stream, which would hang or fail on a device"
        );
        std::process::abort();
    }
    injected(name)
}

/// Counts what happens under a name: a call, or a `kernel`, `copy` or `fill` that a stream runs. An error is one that was asked for.
pub(crate) fn injected(name: &'static str) -> Outcome {
    let config = config::get();
    if config.counts.is_none() && config.failures.is_empty() {
        return Ok(());
    }
    let counts = COUNTS.get_or_init(|| {
        // SAFETY: registers a function without arguments.
        unsafe { libc::atexit(write_counts) };
        Mutex::default()
    });
    let nth = {
        let mut counts = lock(counts);
        let count = counts.entry(name).or_insert(0);
        *count += 1;
        *count
    };
    let failure = config.failures.iter().find(|f| f.function == name && f.nth.is_none_or(|n| n == nth));
    failure.map_or(Ok(()), |failure| Err(Code(failure.code)))
}

extern "C" fn write_counts() {
    let (Some(path), Some(counts)) = (&config::get().counts, COUNTS.get()) else { return };
    let mut rows: Vec<_> = lock(counts).iter().map(|(name, count)| format!("{name} {count}\n")).collect();
    rows.extend(crate::live().into_iter().map(|(what, count)| format!("live.{what} {count}\n")));
    rows.sort();
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    if let Err(error) = file.and_then(|mut file| file.write_all(rows.concat().as_bytes())) {
        eprintln!("accl-sim: counts can not be written to {path}: {error}");
    }
}

fn trace(name: &str, arguments: impl FnOnce() -> String, code: i32) {
    let Some(path) = &config::get().trace else { return };
    // SAFETY: asks for the thread's number.
    let thread = unsafe { libc::gettid() };
    let line = format!("{} {thread} {name}{} = {code}\n", std::process::id(), arguments());
    if path == "-" {
        eprint!("{line}");
        return;
    }
    if let Ok(mut file) = std::fs::OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(line.as_bytes());
    }
}

/// Runs the body of a function of the runtime's face.
pub(crate) fn runtime_call(
    name: &'static str,
    arguments: impl FnOnce() -> String,
    body: impl FnOnce() -> Outcome,
) -> i32 {
    let code = keep_last(enter(name).and_then(|()| body()));
    trace(name, arguments, code);
    code
}

/// Runs the body of a function of the driver's face.
pub(crate) fn driver_call(
    name: &'static str,
    arguments: impl FnOnce() -> String,
    body: impl FnOnce() -> Outcome,
) -> i32 {
    let code = number(enter(name).and_then(|()| body()));
    trace(name, arguments, code);
    code
}

/// Exports functions of the runtime: the body's outcome becomes the code.
macro_rules! runtime {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> i32 {
            let body = || -> crate::error::Outcome { $body };
            crate::abi::runtime_call(stringify!($name), || format!("{:?}", ($(&$arg,)*)), body)
        }
    )*};
}

/// Exports functions of the driver, under the prefixes `cu` and `hg`; names are given without one.
macro_rules! driver {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "CUDA's functions have as many")]
            fn body($($arg: $type),*) -> crate::error::Outcome $body

            $(#[$meta])*
            #[unsafe(export_name = concat!("cu", stringify!($name)))]
            extern "C" fn cuda($($arg: $type),*) -> i32 {
                let name = concat!("cu", stringify!($name));
                crate::abi::driver_call(name, || format!("{:?}", ($(&$arg,)*)), || body($($arg),*))
            }

            $(#[$meta])*
            #[unsafe(export_name = concat!("hg", stringify!($name)))]
            extern "C" fn hggc($($arg: $type),*) -> i32 {
                let name = concat!("hg", stringify!($name));
                crate::abi::driver_call(name, || format!("{:?}", ($(&$arg,)*)), || body($($arg),*))
            }
        };
    )*};
}
pub(crate) use {driver, runtime};

/// The file that this library was loaded from.
pub fn library_path() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of this library, and room for the answer.
    let found = unsafe { libc::dladdr(library_path as *const c_void, info.as_mut_ptr()) };
    // SAFETY: zeroed, or filled in by dladdr; all bit patterns of pointers are valid.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gives a string with its end that lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(name.to_string_lossy().into_owned()))
}

/// Keeps the library loaded, whatever the program closes: threads run its code. Returns its handle.
pub(crate) fn stay() -> u64 {
    static LIBRARY: OnceLock<u64> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let path = library_path()
            .and_then(|path| std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).ok());
        // SAFETY: a string with its end; the library is loaded already.
        path.map_or(0, |path| unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
            as u64)
    })
}

/// The address of an exported function of this library.
pub(crate) fn symbol(name: &str) -> Option<u64> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a handle of dlopen (or null, which means the whole program), and a string with its end.
    let address = unsafe { libc::dlsym(stay() as *mut c_void, name.as_ptr()) };
    (!address.is_null()).then_some(address as u64)
}
