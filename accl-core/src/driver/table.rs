//! The functions of a driver, found by name when the program runs.
//!
//! # Safety
//! Types of functions are those of the drivers' documentation. Where a function has versions (`cuMemAlloc_v2`), the newest
//! one whose type is given here is taken.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// glibc's flag: only libraries that are loaded already.
const RTLD_NOLOAD: c_int = libc::RTLD_NOLOAD;

/// Device memory for other processes; handed over by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// A function that the driver calls.
pub(super) type Callback = extern "C" fn(*mut c_void);

macro_rules! table {
    ($( $(#[$doc:meta])* $field:ident: [$($name:literal),+] ($($argument:ty),*); )*) => {
        /// The functions. All return a code; 0 is success.
        #[derive(Debug)]
        pub(super) struct Table {
            $( $(#[$doc])* pub(super) $field: unsafe extern "C" fn($($argument),*) -> c_int, )*
            /// Kept open as long as the process lives.
            _library: Library,
            /// Before the names of functions.
            pub(super) prefix: String,
        }

        impl Table {
            fn of(library: Library, prefix: &str) -> Result<Self> {
                // SAFETY: the types are those of the functions of these names, and `library` is kept.
                unsafe {
                    Ok(Self {
                        $( $field: *find(&library, prefix, &[$($name),+])?, )*
                        _library: library,
                        prefix: prefix.to_string(),
                    })
                }
            }
        }
    };
}

table! {
    context_current: ["CtxGetCurrent"] (*mut *mut c_void);
    context_push: ["CtxPushCurrent_v2", "CtxPushCurrent"] (*mut c_void);
    context_pop: ["CtxPopCurrent_v2", "CtxPopCurrent"] (*mut *mut c_void);
    context_device: ["CtxGetDevice"] (*mut c_int);
    primary_retain: ["DevicePrimaryCtxRetain"] (*mut *mut c_void, c_int);
    device_count: ["DeviceGetCount"] (*mut c_int);
    host_allocate: ["MemHostAlloc"] (*mut *mut c_void, usize, c_uint);
    host_free: ["MemFreeHost"] (*mut c_void);
    host_device_pointer: ["MemHostGetDevicePointer_v2", "MemHostGetDevicePointer"] (*mut c_ulonglong, *mut c_void, c_uint);
    host_register: ["MemHostRegister_v2", "MemHostRegister"] (*mut c_void, usize, c_uint);
    host_unregister: ["MemHostUnregister"] (*mut c_void);
    allocate: ["MemAlloc_v2", "MemAlloc"] (*mut c_ulonglong, usize);
    free: ["MemFree_v2", "MemFree"] (c_ulonglong);
    ipc_export: ["IpcGetMemHandle"] (*mut IpcHandle, c_ulonglong);
    ipc_open: ["IpcOpenMemHandle_v2", "IpcOpenMemHandle"] (*mut c_ulonglong, IpcHandle, c_uint);
    ipc_close: ["IpcCloseMemHandle"] (c_ulonglong);
    pointer_attributes: ["PointerGetAttributes"] (c_uint, *mut c_int, *mut *mut c_void, c_ulonglong);
    can_access_peer: ["DeviceCanAccessPeer"] (*mut c_int, c_int, c_int);
    enable_peer: ["CtxEnablePeerAccess"] (*mut c_void, c_uint);
    copy: ["MemcpyAsync"] (c_ulonglong, c_ulonglong, usize, *mut c_void);
    stream_create: ["StreamCreate"] (*mut *mut c_void, c_uint);
    stream_destroy: ["StreamDestroy_v2", "StreamDestroy"] (*mut c_void);
    stream_context: ["StreamGetCtx"] (*mut c_void, *mut *mut c_void);
    stream_wait_event: ["StreamWaitEvent"] (*mut c_void, *mut c_void, c_uint);
    stream_write: ["StreamWriteValue32_v2", "StreamWriteValue32"] (*mut c_void, c_ulonglong, c_uint, c_uint);
    stream_wait: ["StreamWaitValue32_v2", "StreamWaitValue32"] (*mut c_void, c_ulonglong, c_uint, c_uint);
    stream_capture: ["StreamGetCaptureInfo_v2"]
        (*mut c_void, *mut c_int, *mut c_ulonglong, *mut *mut c_void, *mut *const *mut c_void, *mut usize);
    thread_capture_mode: ["ThreadExchangeStreamCaptureMode"] (*mut c_int);
    event_create: ["EventCreate"] (*mut *mut c_void, c_uint);
    event_destroy: ["EventDestroy_v2", "EventDestroy"] (*mut c_void);
    event_record: ["EventRecord"] (*mut c_void, *mut c_void);
    event_query: ["EventQuery"] (*mut c_void);
    user_object_create: ["UserObjectCreate"] (*mut *mut c_void, *mut c_void, Callback, c_uint, c_uint);
    graph_retain: ["GraphRetainUserObject"] (*mut c_void, *mut c_void, c_uint, c_uint);
    module_load: ["ModuleLoadData"] (*mut *mut c_void, *const c_void);
    module_function: ["ModuleGetFunction"] (*mut *mut c_void, *mut c_void, *const c_char);
    launch_kernel: ["LaunchKernel"]
        (*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void, *mut *mut c_void, *mut *mut c_void);
    launch_host: ["LaunchHostFunc"] (*mut c_void, Callback, *mut c_void);
    error_name: ["GetErrorName"] (c_int, *mut *const c_char);
    error_text: ["GetErrorString"] (c_int, *mut *const c_char);
}

/// # Safety
/// `T` must be the type of the functions of these names, and live no longer than `library`.
unsafe fn find<T: Copy>(
    library: &Library,
    prefix: &str,
    names: &[&str],
) -> Result<libloading::os::unix::Symbol<T>> {
    for name in names {
        let full = format!("{prefix}{name}\0");
        // SAFETY: promised.
        if let Ok(symbol) = unsafe { library.get::<T>(full.as_bytes()) } {
            return Ok(symbol);
        }
    }
    Err(Error::new(
        crate::ErrorKind::Device,
        format!(
            "the device driver has no function {prefix}{}; need a driver of CUDA 11.3 or later, or one with the same functions",
            names.first().unwrap_or(&"")
        ),
    ))
}

impl Table {
    /// The functions of the library called `name`, if the process has loaded it, or, with `load`, if that can be done now.
    pub(super) fn open(name: &str, prefix: &str, load: bool) -> Result<Option<Self>> {
        let flags = RTLD_LAZY | RTLD_LOCAL | if load { 0 } else { RTLD_NOLOAD };
        // SAFETY: a driver's library may run its initialisation, which is what loading it is for.
        match unsafe { Library::open(Some(name), flags) } {
            Ok(library) => Self::of(library, prefix).map(Some),
            Err(error) if load => Err(Error::new(
                crate::ErrorKind::Device,
                format!(
                    "the device driver {name} (ACCL_DRIVER_LIB) cannot be loaded: {error}; name a library that can, or unset it"
                ),
            )),
            Err(_) => Ok(None),
        }
    }
}
