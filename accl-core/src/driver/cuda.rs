//! A driver with CUDA's functions, under CUDA's prefix or another one.
//!
//! # Safety
//! Functions are called with handles that the same driver has given out, and with places of our own for results, which
//! outlive the call. What is queued on streams refers to memory whose owner keeps it until the stream is past that.
#![allow(unsafe_code)]

use super::table::{IpcHandle, Table};
use super::{
    Capture, CaptureMode, Context, Driver, Event, Exported, Function, Grid, Module, Pinned, Place, Stream,
    Until, refused,
};
use crate::config;
use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::{null, null_mut};

// Codes and flags, from the driver's documentation.
const NOT_INITIALIZED: c_int = 3;
const DEINITIALIZED: c_int = 4;
const NOT_READY: c_int = 600;
const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;
const IPC_ENABLE_PEER: c_uint = 1;
const HOST_PORTABLE: c_uint = 1;
const HOST_DEVICE_MAPPED: c_uint = 2;
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_WITHOUT_TIME: c_uint = 2;
const WAIT_REACHED: c_uint = 0;
const WAIT_EQUAL: c_uint = 1;
const CAPTURE_ACTIVE: c_int = 1;
const CAPTURE_INVALIDATED: c_int = 2;
const OBJECT_NO_DESTRUCTOR_SYNC: c_uint = 1;
const GRAPH_MOVES_OBJECT: c_uint = 1;
const POINTER_MEMORY_TYPE: c_int = 2;
const POINTER_IS_MANAGED: c_int = 8;
const POINTER_DEVICE: c_int = 9;
/// Names of the current context's default streams: that, the legacy one, and the calling thread's own.
const DEFAULT_STREAMS: [usize; 3] = [0, 1, 2];
const MEMORY_OF_HOST: c_uint = 1;
const MEMORY_OF_DEVICE: c_uint = 2;

/// The names under which drivers are installed, with their prefixes.
const USUAL: [(&str, &str); 3] = [("libcuda.so.1", "cu"), ("libhggc.so.1", "hg"), ("libhggc.so", "hg")];

/// The driver.
#[derive(Debug)]
pub(super) struct Cuda {
    table: Table,
}

impl Cuda {
    /// The driver that the process has loaded, or that the settings name.
    pub(super) fn find(wanted: &config::Driver) -> Result<Option<Self>> {
        if let Some(library) = &wanted.library {
            let prefix = wanted.prefix.as_deref().unwrap_or("cu");
            return Ok(Table::open(library, prefix, true)?.map(|table| Self { table }));
        }
        for (library, prefix) in USUAL {
            let prefix = wanted.prefix.as_deref().unwrap_or(prefix);
            if let Some(table) = Table::open(library, prefix, false)? {
                return Ok(Some(Self { table }));
            }
        }
        Ok(None)
    }

    /// An error unless `code` is success; `name` is the function's without its prefix.
    #[track_caller]
    fn check(&self, name: &str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(name, code)) }
    }

    #[cold]
    #[track_caller]
    fn error(&self, name: &str, code: c_int) -> Error {
        let text = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text: *const c_char = null();
            // SAFETY: see the head of this file; texts are constants of the driver, and end with a zero.
            unsafe {
                if function(code, &raw mut text) != 0 || text.is_null() {
                    return "unknown".to_string();
                }
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        let function = format!("{}{name}", self.table.prefix);
        refused(&function, code, &text(self.table.error_name), &text(self.table.error_text))
    }
}

fn handle(number: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(number)
}

fn number(handle: *mut c_void) -> usize {
    handle.expose_provenance()
}

impl Driver for Cuda {
    fn current(&self) -> Result<Option<Context>> {
        let mut context = null_mut();
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.context_current)(&raw mut context) };
        if code == NOT_INITIALIZED || code == DEINITIALIZED {
            return Ok(None);
        }
        self.check("CtxGetCurrent", code)?;
        let mut ordinal = 0;
        if !context.is_null() {
            // SAFETY: as above.
            self.check("CtxGetDevice", unsafe { (self.table.context_device)(&raw mut ordinal) })?;
            return Ok(Some(Context { handle: number(context), ordinal }));
        }
        if self.devices()? == 0 { Ok(None) } else { self.primary(0).map(Some) }
    }

    fn primary(&self, ordinal: i32) -> Result<Context> {
        let mut context = null_mut();
        // It is the process's own as long as it lives: whoever resets it takes it from every user at once.
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.primary_retain)(&raw mut context, ordinal) };
        self.check("DevicePrimaryCtxRetain", code)?;
        Ok(Context { handle: number(context), ordinal })
    }

    fn devices(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: see the head of this file.
        match unsafe { (self.table.device_count)(&raw mut count) } {
            NOT_INITIALIZED | DEINITIALIZED => Ok(0),
            code => self.check("DeviceGetCount", code).map(|()| count),
        }
    }

    fn push(&self, context: Context) -> Result<()> {
        // SAFETY: see the head of this file.
        self.check("CtxPushCurrent", unsafe { (self.table.context_push)(handle(context.handle)) })
    }

    fn pop(&self) -> Result<()> {
        let mut context = null_mut();
        // SAFETY: see the head of this file.
        self.check("CtxPopCurrent", unsafe { (self.table.context_pop)(&raw mut context) })
    }

    fn exchange_capture_mode(&self, CaptureMode(mut mode): CaptureMode) -> Result<CaptureMode> {
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.thread_capture_mode)(&raw mut mode) };
        self.check("ThreadExchangeStreamCaptureMode", code).map(|()| CaptureMode(mode))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned> {
        let (mut host, mut device) = (null_mut(), 0);
        // SAFETY: see the head of this file; the memory is zeroed before anybody else knows of it.
        unsafe {
            let flags = HOST_PORTABLE | HOST_DEVICE_MAPPED;
            self.check("MemHostAlloc", (self.table.host_allocate)(&raw mut host, bytes, flags))?;
            let code = (self.table.host_device_pointer)(&raw mut device, host, 0);
            if let Err(error) = self.check("MemHostGetDevicePointer", code) {
                (self.table.host_free)(host);
                return Err(error);
            }
            std::ptr::write_bytes(host.cast::<u8>(), 0, bytes);
        }
        Ok(Pinned { host: number(host), device: device as usize })
    }

    fn allocate(&self, bytes: usize) -> Result<usize> {
        let mut address = 0;
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.allocate)(&raw mut address, bytes) };
        self.check("MemAlloc", code).map(|()| address as usize)
    }

    fn free(&self, address: usize) -> Result<()> {
        // SAFETY: see the head of this file.
        self.check("MemFree", unsafe { (self.table.free)(address as c_ulonglong) })
    }

    fn export(&self, address: usize) -> Result<Exported> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.ipc_export)(&raw mut handle, address as c_ulonglong) };
        self.check("IpcGetMemHandle", code).map(|()| handle.0)
    }

    fn open(&self, memory: &Exported) -> Result<usize> {
        let mut address = 0;
        // SAFETY: see the head of this file; a handle that is none is refused.
        let code = unsafe { (self.table.ipc_open)(&raw mut address, IpcHandle(*memory), IPC_ENABLE_PEER) };
        self.check("IpcOpenMemHandle", code).map(|()| address as usize)
    }

    fn close(&self, address: usize) -> Result<()> {
        // SAFETY: see the head of this file.
        self.check("IpcCloseMemHandle", unsafe { (self.table.ipc_close)(address as c_ulonglong) })
    }

    fn reach(&self, own: Context, peer: Context) -> Result<bool> {
        if own.handle == peer.handle {
            return Ok(true);
        }
        let mut can = 0;
        if own.ordinal != peer.ordinal {
            // SAFETY: see the head of this file.
            let code = unsafe { (self.table.can_access_peer)(&raw mut can, own.ordinal, peer.ordinal) };
            self.check("DeviceCanAccessPeer", code)?;
            if can == 0 {
                return Ok(false);
            }
        }
        // SAFETY: as above; `own` is the thread's context.
        match unsafe { (self.table.enable_peer)(handle(peer.handle), 0) } {
            PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            code => self.check("CtxEnablePeerAccess", code).map(|()| true),
        }
    }

    fn locate(&self, address: usize) -> Result<Place> {
        let (mut kind, mut managed, mut ordinal) = (0 as c_uint, 0 as c_uint, -1 as c_int);
        let mut wanted = [POINTER_MEMORY_TYPE, POINTER_IS_MANAGED, POINTER_DEVICE];
        let mut places: [*mut c_void; 3] =
            [(&raw mut kind).cast(), (&raw mut managed).cast(), (&raw mut ordinal).cast()];
        // SAFETY: see the head of this file; each place has room for its attribute, whose size is at most four bytes.
        let code = unsafe {
            let count = wanted.len() as c_uint;
            (self.table.pointer_attributes)(
                count,
                wanted.as_mut_ptr(),
                places.as_mut_ptr(),
                address as c_ulonglong,
            )
        };
        self.check("PointerGetAttributes", code)?;
        Ok(match kind {
            _ if managed != 0 => Place::Managed,
            MEMORY_OF_HOST => Place::Pinned,
            MEMORY_OF_DEVICE => Place::Device(ordinal),
            _ => Place::Unknown,
        })
    }

    fn register(&self, start: usize, bytes: usize) -> Result<()> {
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.host_register)(handle(start), bytes, HOST_PORTABLE) };
        self.check("MemHostRegister", code)
    }

    fn unregister(&self, start: usize) -> Result<()> {
        // SAFETY: see the head of this file.
        self.check("MemHostUnregister", unsafe { (self.table.host_unregister)(handle(start)) })
    }

    fn device_of(&self, stream: Stream, own: Context) -> Result<i32> {
        if DEFAULT_STREAMS.contains(&stream.0) {
            return Ok(own.ordinal);
        }
        let mut context = null_mut();
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.stream_context)(handle(stream.0), &raw mut context) };
        self.check("StreamGetCtx", code)?;
        if number(context) == own.handle {
            return Ok(own.ordinal);
        }
        let other = Context { handle: number(context), ordinal: -1 };
        super::within(self, other, || {
            let mut ordinal = 0;
            // SAFETY: as above.
            let code = unsafe { (self.table.context_device)(&raw mut ordinal) };
            self.check("CtxGetDevice", code).map(|()| ordinal)
        })
    }

    fn create_stream(&self) -> Result<Stream> {
        let mut stream = null_mut();
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
        self.check("StreamCreate", code).map(|()| Stream(number(stream)))
    }

    fn destroy_stream(&self, stream: Stream) -> Result<()> {
        // SAFETY: see the head of this file.
        self.check("StreamDestroy", unsafe { (self.table.stream_destroy)(handle(stream.0)) })
    }

    fn create_event(&self) -> Result<Event> {
        let mut event = null_mut();
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.event_create)(&raw mut event, EVENT_WITHOUT_TIME) };
        self.check("EventCreate", code).map(|()| Event(number(event)))
    }

    fn destroy_event(&self, event: Event) -> Result<()> {
        // SAFETY: see the head of this file.
        self.check("EventDestroy", unsafe { (self.table.event_destroy)(handle(event.0)) })
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.event_record)(handle(event.0), handle(stream.0)) };
        self.check("EventRecord", code)
    }

    fn has_passed(&self, event: Event) -> Result<bool> {
        // SAFETY: see the head of this file.
        match unsafe { (self.table.event_query)(handle(event.0)) } {
            NOT_READY => Ok(false),
            code => self.check("EventQuery", code).map(|()| true),
        }
    }

    fn wait_event(&self, stream: Stream, event: Event) -> Result<()> {
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.stream_wait_event)(handle(stream.0), handle(event.0), 0) };
        self.check("StreamWaitEvent", code)
    }

    fn copy(&self, destination: usize, source: usize, bytes: usize, stream: Stream) -> Result<()> {
        let (to, from) = (destination as c_ulonglong, source as c_ulonglong);
        // SAFETY: see the head of this file.
        self.check("MemcpyAsync", unsafe { (self.table.copy)(to, from, bytes, handle(stream.0)) })
    }

    fn write_word(&self, stream: Stream, word: usize, value: u32) -> Result<()> {
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.stream_write)(handle(stream.0), word as c_ulonglong, value, 0) };
        self.check("StreamWriteValue32", code)
    }

    fn wait_word(&self, stream: Stream, word: usize, until: Until) -> Result<()> {
        let (value, flags) = match until {
            Until::Equal(value) => (value, WAIT_EQUAL),
            Until::Reached(value) => (value, WAIT_REACHED),
        };
        // SAFETY: see the head of this file.
        let code = unsafe { (self.table.stream_wait)(handle(stream.0), word as c_ulonglong, value, flags) };
        self.check("StreamWaitValue32", code)
    }

    fn capture(&self, stream: Stream) -> Result<Capture> {
        let (mut status, mut id, mut graph) = (0, 0, null_mut());
        // SAFETY: see the head of this file; the list of dependencies is not asked for.
        let code = unsafe {
            (self.table.stream_capture)(
                handle(stream.0),
                &raw mut status,
                &raw mut id,
                &raw mut graph,
                null_mut(),
                null_mut(),
            )
        };
        self.check("StreamGetCaptureInfo", code)?;
        Ok(match status {
            CAPTURE_ACTIVE => Capture::Active { id, graph: number(graph) },
            CAPTURE_INVALIDATED => Capture::Invalidated,
            _ => Capture::None,
        })
    }

    fn keep_for_graph(&self, graph: usize, ended: Box<dyn FnOnce() + Send>) -> Result<()> {
        let data: *mut Ended = Box::into_raw(Box::new(ended));
        let mut object = null_mut();
        // SAFETY: see the head of this file; `data` belongs to the object once it is made, and is called once, when that goes.
        unsafe {
            let flags = OBJECT_NO_DESTRUCTOR_SYNC;
            let made = (self.table.user_object_create)(&raw mut object, data.cast(), call_ended, 1, flags);
            if made != 0 {
                drop(Box::from_raw(data));
                return Err(self.error("UserObjectCreate", made));
            }
            let kept = (self.table.graph_retain)(handle(graph), object, 1, GRAPH_MOVES_OBJECT);
            self.check("GraphRetainUserObject", kept)
        }
    }

    fn load_module(&self, program: &CStr) -> Result<Module> {
        let mut module = null_mut();
        // SAFETY: see the head of this file; a text ends with a zero.
        let code = unsafe { (self.table.module_load)(&raw mut module, program.as_ptr().cast()) };
        self.check("ModuleLoadData", code).map(|()| Module(number(module)))
    }

    fn find_function(&self, module: Module, name: &CStr) -> Result<Function> {
        let mut function = null_mut();
        // SAFETY: see the head of this file.
        let code =
            unsafe { (self.table.module_function)(&raw mut function, handle(module.0), name.as_ptr()) };
        self.check("ModuleGetFunction", code).map(|()| Function(number(function)))
    }

    fn launch(&self, function: Function, grid: Grid, parameter: &[u64], stream: Stream) -> Result<()> {
        let mut parameters = [parameter.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: see the head of this file; the driver reads the parameter within the call, and whoever launches a kernel gives it
        // a parameter of its size.
        let code = unsafe {
            (self.table.launch_kernel)(
                handle(function.0),
                grid.blocks,
                1,
                1,
                grid.threads,
                1,
                1,
                0,
                handle(stream.0),
                parameters.as_mut_ptr(),
                null_mut(),
            )
        };
        self.check("LaunchKernel", code)
    }

    fn call_host(&self, stream: Stream, function: fn()) -> Result<()> {
        let data = function as *mut c_void;
        // SAFETY: see the head of this file; functions stay where they are.
        let code = unsafe { (self.table.launch_host)(handle(stream.0), call_function, data) };
        self.check("LaunchHostFunc", code)
    }
}

type Ended = Box<dyn FnOnce() + Send>;

extern "C" fn call_ended(data: *mut c_void) {
    // SAFETY: `keep_for_graph` has made it, and the driver calls once.
    let ended = unsafe { Box::from_raw(data.cast::<Ended>()) };
    // Nothing may unwind into the driver.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(*ended));
}

extern "C" fn call_function(data: *mut c_void) {
    // SAFETY: `call_host` has made it of such a function.
    let function = unsafe { std::mem::transmute::<*mut c_void, fn()>(data) };
    let _ = std::panic::catch_unwind(function);
}
