//! The C interface by hand: functions of the library under test, looked up by name.

// Each test file uses its part of this, and none of it from outside.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// Every call here is a call of the C interface with arguments that the test keeps alive.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::OnceLock;

pub type Comm = *mut c_void;
pub type Stream = *mut c_void;

pub const SUCCESS: c_int = 0;
pub const SYSTEM_ERROR: c_int = 2;
pub const INVALID_ARGUMENT: c_int = 4;
pub const INVALID_USAGE: c_int = 5;
pub const REMOTE_ERROR: c_int = 6;
pub const IN_PROGRESS: c_int = 7;
pub const TIMEOUT: c_int = 8;

pub const SUM: c_int = 0;
pub const PROD: c_int = 1;
pub const MAX: c_int = 2;
pub const MIN: c_int = 3;
pub const AVG: c_int = 4;

pub const INT8: c_int = 0;
pub const INT32: c_int = 2;
pub const FLOAT: c_int = 7;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// A message with a tag.
pub type Request = *mut c_void;

/// Memory that peers may write to.
pub type Window = *mut c_void;

/// `ncclWaitSignalDesc_t`
#[derive(Clone, Copy)]
#[repr(C)]
pub struct WaitSignal {
    pub count: c_int,
    pub peer: c_int,
    pub index: c_int,
    pub context: c_int,
}

macro_rules! functions {
    ($($name:ident($($arg:ty),*);)*) => {
        /// The functions; each returns a result code.
        #[allow(non_snake_case)]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
            pub reset_debug: unsafe extern "C" fn(),
            pub last_error: unsafe extern "C" fn(Comm) -> *const c_char,
        }

        /// A library, and its functions while it is loaded.
        pub fn load(path: &Path) -> (libloading::Library, Api) {
            let library = unsafe { libloading::Library::new(path) }.unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let api = Api {
                $($name: *unsafe { library.get(stringify!($name).as_bytes()) }.unwrap(),)*
                reset_debug: *unsafe { library.get(b"ncclResetDebugInit") }.unwrap(),
                last_error: *unsafe { library.get(b"ncclGetLastError") }.unwrap(),
            };
            (library, api)
        }
    };
}

type Ptr = *mut c_void;

functions! {
    ncclGetUniqueId(*mut UniqueId);
    ncclCommInitRank(*mut Comm, c_int, UniqueId, c_int);
    ncclCommInitRankConfig(*mut Comm, c_int, UniqueId, c_int, *mut c_void);
    ncclCommInitRankScalable(*mut Comm, c_int, c_int, c_int, *const UniqueId, *mut c_void);
    ncclCommInitAll(*mut Comm, c_int, *const c_int);
    ncclCommSplit(Comm, c_int, c_int, *mut Comm, *mut c_void);
    ncclCommShrink(Comm, *mut c_int, c_int, *mut Comm, *mut c_void, c_int);
    ncclCommGetUniqueId(Comm, *mut UniqueId);
    ncclCommGrow(Comm, c_int, *const UniqueId, c_int, *mut Comm, *mut c_void);
    ncclCommRevoke(Comm, c_int);
    ncclCommFinalize(Comm);
    ncclCommDestroy(Comm);
    ncclCommAbort(Comm);
    ncclCommCount(Comm, *mut c_int);
    ncclCommCuDevice(Comm, *mut c_int);
    ncclCommUserRank(Comm, *mut c_int);
    ncclCommMemStats(Comm, c_int, *mut u64);
    ncclCommSuspend(Comm, c_int);
    ncclCommResume(Comm);
    ncclCommGetAsyncError(Comm, *mut c_int);
    ncclSetEncryption(Ptr);
    ncclAllReduce(Ptr, Ptr, usize, c_int, c_int, Comm, Stream);
    ncclAllReduceConfig(Ptr, Ptr, usize, c_int, c_int, Comm, Stream, Ptr);
    ncclReduce(Ptr, Ptr, usize, c_int, c_int, c_int, Comm, Stream);
    ncclBroadcast(Ptr, Ptr, usize, c_int, c_int, Comm, Stream);
    ncclBcast(Ptr, usize, c_int, c_int, Comm, Stream);
    ncclAllGather(Ptr, Ptr, usize, c_int, Comm, Stream);
    ncclReduceScatter(Ptr, Ptr, usize, c_int, c_int, Comm, Stream);
    ncclAlltoAll(Ptr, Ptr, usize, c_int, Comm, Stream);
    ncclGather(Ptr, Ptr, usize, c_int, c_int, Comm, Stream);
    ncclScatter(Ptr, Ptr, usize, c_int, c_int, Comm, Stream);
    ncclSend(Ptr, usize, c_int, c_int, Comm, Stream);
    ncclRecv(Ptr, usize, c_int, c_int, Comm, Stream);
    ncclGroupStart();
    ncclGroupEnd();
    ncclRedOpCreatePreMulSum(*mut c_int, Ptr, c_int, c_int, Comm);
    ncclRedOpDestroy(c_int, Comm);
    ncclMemAlloc(*mut Ptr, usize);
    ncclMemFree(Ptr);
    ncclCommRegister(Comm, Ptr, usize, *mut Ptr);
    ncclCommDeregister(Comm, Ptr);
    ncclCommWindowRegister(Comm, Ptr, usize, *mut Window, c_int);
    ncclCommWindowDeregister(Comm, Window);
    ncclWinGetUserPtr(Comm, Window, *mut Ptr);
    ncclGetLsaDevicePointer(Window, usize, c_int, *mut Ptr);
    ncclGetPeerDevicePointer(Window, usize, c_int, *mut Ptr);
    ncclGetLsaMultimemDevicePointer(Window, usize, *mut Ptr);
    ncclPutSignal(*const c_void, usize, c_int, c_int, Window, usize, c_int, c_int, c_uint, Comm, Stream);
    ncclSignal(c_int, c_int, c_int, c_uint, Comm, Stream);
    ncclWaitSignal(c_int, *mut WaitSignal, Comm, Stream);
    acclCommInitRankHost(*mut Comm, c_int, UniqueId, c_int, *mut c_void, i64);
    acclExplain(Comm, *const c_char, usize, c_int, *mut c_char, usize, *mut f64);
    acclStreamCreate(*mut Stream);
    acclStreamSynchronize(Stream);
    acclStreamQuery(Stream);
    acclStreamDestroy(Stream);
    acclIsend(*const c_void, usize, c_int, c_int, Comm, i64, *mut Request);
    acclIrecv(*mut c_void, usize, c_int, c_int, Comm, i64, *mut Request);
    acclRequestTest(Request);
    acclRequestWait(Request, i64);
    acclRequestSource(Request, *mut c_int);
    acclRequestFree(Request);
}

/// The library under test, loaded once.
pub fn api() -> &'static Api {
    static API: OnceLock<Api> = OnceLock::new();
    API.get_or_init(|| {
        let path = std::env::var_os(super::cluster::LIBRARY).map(PathBuf::from);
        let (library, api) = load(&path.unwrap_or_else(|| super::libraries().join("libnccl.so")));
        std::mem::forget(library);
        api
    })
}

/// Memory of `ncclMemAlloc`.
pub struct Allocated {
    api: &'static Api,
    start: *mut u8,
    bytes: usize,
}

impl Drop for Allocated {
    fn drop(&mut self) {
        self.api.ok(unsafe { (self.api.ncclMemFree)(self.start.cast()) });
    }
}

impl std::ops::Deref for Allocated {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl std::ops::DerefMut for Allocated {
    fn deref_mut(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Api {
    /// `bytes` (at least 1) of the library's own memory.
    pub fn allocate(&'static self, bytes: usize) -> Allocated {
        let mut start = null_mut();
        self.ok(unsafe { (self.ncclMemAlloc)(&raw mut start, bytes) });
        Allocated { api: self, start: start.cast(), bytes }
    }

    /// What the library says of its last failure.
    pub fn error_text(&self) -> String {
        unsafe { CStr::from_ptr((self.last_error)(null_mut())) }.to_string_lossy().into_owned()
    }

    /// Panics with the library's own words unless `code` is success.
    #[track_caller]
    pub fn ok(&self, code: c_int) {
        assert!(code == SUCCESS, "code {code}: {}", self.error_text());
    }

    pub fn unique_id(&self) -> UniqueId {
        let mut id = UniqueId([0; 128]);
        self.ok(unsafe { (self.ncclGetUniqueId)(&raw mut id) });
        id
    }

    pub fn init(&self, ranks: usize, id: UniqueId, rank: usize) -> Comm {
        let mut comm = null_mut();
        self.ok(unsafe { (self.ncclCommInitRank)(&raw mut comm, ranks as c_int, id, rank as c_int) });
        assert!(!comm.is_null());
        comm
    }

    pub fn destroy(&self, comm: Comm) {
        self.ok(unsafe { (self.ncclCommDestroy)(comm) });
    }

    pub fn async_error(&self, comm: Comm) -> c_int {
        let mut state = -1;
        self.ok(unsafe { (self.ncclCommGetAsyncError)(comm, &raw mut state) });
        state
    }

    pub fn group(&self, body: impl FnOnce()) -> c_int {
        self.ok(unsafe { (self.ncclGroupStart)() });
        body();
        unsafe { (self.ncclGroupEnd)() }
    }

    pub fn all_reduce<T>(&self, send: &[T], recv: &mut [T], dtype: c_int, op: c_int, comm: Comm) -> c_int {
        self.all_reduce_on(send, recv, dtype, op, comm, null_mut())
    }

    pub fn all_reduce_on<T>(
        &self,
        send: &[T],
        recv: &mut [T],
        dtype: c_int,
        op: c_int,
        comm: Comm,
        stream: Stream,
    ) -> c_int {
        let (from, to) = (send.as_ptr().cast_mut().cast(), recv.as_mut_ptr().cast());
        unsafe { (self.ncclAllReduce)(from, to, send.len(), dtype, op, comm, stream) }
    }

    /// The sum of one number over all ranks.
    pub fn sum(&self, value: i32, comm: Comm) -> i32 {
        let mut sum = [0];
        self.ok(self.all_reduce(&[value], &mut sum, INT32, SUM, comm));
        sum[0]
    }

    pub fn send<T>(&self, data: &[T], peer: usize, comm: Comm) -> c_int {
        let bytes = size_of_val(data);
        unsafe {
            (self.ncclSend)(data.as_ptr().cast_mut().cast(), bytes, INT8, peer as c_int, comm, null_mut())
        }
    }

    pub fn recv<T>(&self, data: &mut [T], peer: usize, comm: Comm) -> c_int {
        let bytes = size_of_val(data);
        unsafe { (self.ncclRecv)(data.as_mut_ptr().cast(), bytes, INT8, peer as c_int, comm, null_mut()) }
    }

    pub fn stream(&self) -> Stream {
        let mut stream = null_mut();
        self.ok(unsafe { (self.acclStreamCreate)(&raw mut stream) });
        stream
    }
}
