//! The library under test, opened at run time: its functions by name, its version, its error texts.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use crate::failure::{Exit, Failure, Outcome};

/// `ncclUniqueId`, passed by value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// A communicator's handle; only the library looks behind it.
pub(crate) type Comm = *mut c_void;
/// A stream's handle; null is the stream whose calls are complete when they return.
pub(crate) type Stream = *mut c_void;

/// The version that the bench's own declarations follow.
pub(crate) const HEADERS: i32 = 23007;

const UNDEFINED: c_int = c_int::MIN;

/// `ncclConfig_t` as of 2.32.3.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    head: [c_int; 4],
    net_name: *const c_char,
    share_and_class: [c_int; 2],
    comm_name: *const c_char,
    collnet: c_int,
    cta_policy: c_int,
    tail: [c_int; 13],
}

impl Config {
    /// All undefined but CTAPolicy.
    pub(crate) fn with_cta_policy(cta_policy: i32) -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 23203,
            head: [UNDEFINED; 4],
            net_name: std::ptr::null(),
            share_and_class: [UNDEFINED; 2],
            comm_name: std::ptr::null(),
            collnet: UNDEFINED,
            cta_policy,
            tail: [UNDEFINED; 13],
        }
    }
}

/// Declares the table of functions: each is looked up by its name, and may be missing.
macro_rules! functions {
    ($($field:ident = $name:literal ( $($kind:ty),* );)*) => {
        /// The functions that were found; accl asks for others than accl-bench.
        #[derive(Debug)]
        #[allow(dead_code, reason = "two programs share this")]
        pub(crate) struct Functions {
            $(pub(crate) $field: Function<unsafe extern "C" fn($($kind),*) -> c_int>,)*
        }

        impl Functions {
            fn look_up(library: &libloading::Library) -> Self {
                Self {
                    $($field: Function {
                        name: $name,
                        // SAFETY: The type is the one that nccl.h and accl.h publish for this name.
                        pointer: unsafe {
                            library.get::<unsafe extern "C" fn($($kind),*) -> c_int>($name.as_bytes())
                        }.ok().map(|symbol| *symbol),
                    },)*
                }
            }
        }
    };
}

/// A function that may be missing, and its name to say so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function<F> {
    name: &'static str,
    pub(crate) pointer: Option<F>,
}

impl<F: Copy> Function<F> {
    /// The function, or a failure that names it.
    pub(crate) fn need(&self) -> Outcome<F> {
        self.pointer.ok_or_else(|| {
            Failure::new(Exit::Library, format!("the library has no {}, which this run needs", self.name))
        })
    }
}

functions! {
    get_version = "ncclGetVersion" (*mut c_int);
    get_unique_id = "ncclGetUniqueId" (*mut UniqueId);
    comm_init_rank = "ncclCommInitRank" (*mut Comm, c_int, UniqueId, c_int);
    comm_init_rank_config = "ncclCommInitRankConfig" (*mut Comm, c_int, UniqueId, c_int, *mut Config);
    comm_split = "ncclCommSplit" (Comm, c_int, c_int, *mut Comm, *mut Config);
    comm_count = "ncclCommCount" (Comm, *mut c_int);
    comm_user_rank = "ncclCommUserRank" (Comm, *mut c_int);
    comm_destroy = "ncclCommDestroy" (Comm);
    comm_abort = "ncclCommAbort" (Comm);
    comm_get_async_error = "ncclCommGetAsyncError" (Comm, *mut c_int);
    comm_register = "ncclCommRegister" (Comm, *mut c_void, usize, *mut *mut c_void);
    comm_deregister = "ncclCommDeregister" (Comm, *mut c_void);
    window_register = "ncclCommWindowRegister" (Comm, *mut c_void, usize, *mut *mut c_void, c_int);
    window_deregister = "ncclCommWindowDeregister" (Comm, *mut c_void);
    mem_alloc = "ncclMemAlloc" (*mut *mut c_void, usize);
    red_op_create = "ncclRedOpCreatePreMulSum" (*mut c_int, *mut c_void, c_int, c_int, Comm);
    red_op_destroy = "ncclRedOpDestroy" (c_int, Comm);
    group_start = "ncclGroupStart" ();
    group_end = "ncclGroupEnd" ();
    all_reduce = "ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
    all_gather = "ncclAllGather" (*const c_void, *mut c_void, usize, c_int, Comm, Stream);
    broadcast = "ncclBroadcast" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
    reduce_scatter = "ncclReduceScatter" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
    reduce = "ncclReduce" (*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream);
    alltoall = "ncclAlltoAll" (*const c_void, *mut c_void, usize, c_int, Comm, Stream);
    gather = "ncclGather" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
    scatter = "ncclScatter" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
    send = "ncclSend" (*const c_void, usize, c_int, c_int, Comm, Stream);
    recv = "ncclRecv" (*mut c_void, usize, c_int, c_int, Comm, Stream);
    stream_create = "acclStreamCreate" (*mut Stream);
    stream_synchronize = "acclStreamSynchronize" (Stream);
    stream_destroy = "acclStreamDestroy" (Stream);
    explain = "acclExplain" (Comm, *const c_char, usize, c_int, *mut c_char, usize, *mut f64);
    describe = "acclDescribe" (Comm, *mut c_char, usize);
    tune = "acclTune" (*const c_char, *mut c_char, usize);
}

type TextOfCode = unsafe extern "C" fn(c_int) -> *const c_char;
type LastError = unsafe extern "C" fn(Comm) -> *const c_char;

/// An opened library. It stays open until the process ends: threads of the library may still run its code.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) functions: Functions,
    pub(crate) version: i32,
    pub(crate) path: String,
    text_of_code: Option<TextOfCode>,
    last_error: Option<LastError>,
}

/// AlltoAll, Gather and Scatter came with this version; before it they are sends and receives in a group.
const NATIVE_ALLTOALL: i32 = 22800;

impl Library {
    /// Opens `named`, or else the first of the usual places that has the library.
    pub(crate) fn open(named: Option<&Path>) -> Outcome<Self> {
        let candidates = match named {
            // A path without a slash would be searched for by the loader; --lib names a file.
            Some(path) => vec![std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())],
            None => usual_places(),
        };
        let mut reasons = Vec::new();
        for path in candidates {
            // SAFETY: Opening runs the library's initializers. Running that library is what the user asked for.
            match unsafe { libloading::Library::new(&path) } {
                Ok(library) => return Self::opened(library, &path),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(Failure::new(Exit::Library, format!("cannot open the library: {}", reasons.join("; "))))
    }

    fn opened(library: libloading::Library, path: &Path) -> Outcome<Self> {
        let functions = Functions::look_up(&library);
        // SAFETY: The types of these two functions as published.
        let text_of_code =
            unsafe { library.get::<TextOfCode>(b"ncclGetErrorString") }.ok().map(|symbol| *symbol);
        // SAFETY: As above.
        let last_error = unsafe { library.get::<LastError>(b"ncclGetLastError") }.ok().map(|symbol| *symbol);
        let get_version = functions.get_version.need()?;
        let mut version = 0;
        // SAFETY: The function writes one integer.
        let code = unsafe { get_version(&mut version) };
        std::mem::forget(library);
        let path = file_of(get_version as *const c_void).unwrap_or_else(|| path.display().to_string());
        let opened = Self { functions, version, path, text_of_code, last_error };
        opened.check("ncclGetVersion", code)?;
        Ok(opened)
    }

    /// Turns a result code into an outcome that names the call, the code and the library's sentence.
    pub(crate) fn check(&self, call: &str, code: c_int) -> Outcome<()> {
        if code == 0 {
            return Ok(());
        }
        let say = |pointer: *const c_char| {
            // SAFETY: Both functions return null or a text with its end, valid until this thread asks again.
            (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
        };
        // SAFETY: Takes any integer.
        let name = self.text_of_code.and_then(|function| say(unsafe { function(code) })).unwrap_or_default();
        // SAFETY: The communicator may be null.
        let detail = self.last_error.and_then(|function| say(unsafe { function(std::ptr::null_mut()) }));
        let detail =
            detail.filter(|text| !text.is_empty()).map(|text| format!(": {text}")).unwrap_or_default();
        Err(Failure::new(Exit::Call, format!("{call} failed with code {code} ({name}){detail}")))
    }

    pub(crate) fn has_native_alltoall(&self) -> bool {
        self.version >= NATIVE_ALLTOALL
    }
}

/// Beside the program, in ../lib of an installation, and wherever the loader looks.
fn usual_places() -> Vec<PathBuf> {
    const NAME: &str = "libnccl.so.2";
    let mut places = Vec::new();
    if let Some(directory) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.extend([directory.join(NAME), directory.join("../lib").join(NAME)]);
        places.retain(|path| path.exists());
    }
    places.push(PathBuf::from(NAME));
    places
}

/// The file that a function was loaded from.
fn file_of(function: *const c_void) -> Option<String> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr reads no memory behind the address, and fills the struct on success.
    let found = unsafe { libc::dladdr(function, info.as_mut_ptr()) } != 0;
    // SAFETY: Zeroes are a valid Dl_info, and dladdr wrote nothing else but valid ones.
    let info = unsafe { info.assume_init() };
    if !found || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: The loader keeps the name, with its end, as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned();
    Some(std::fs::canonicalize(&name).map_or(name, |path| path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_published_layout() {
        assert_eq!(size_of::<Config>(), 120);
        assert_eq!(std::mem::offset_of!(Config, net_name), 32);
        assert_eq!(std::mem::offset_of!(Config, comm_name), 48);
        assert_eq!(std::mem::offset_of!(Config, cta_policy), 60);
    }

    #[test]
    fn a_missing_library_is_named() {
        let failure = Library::open(Some(Path::new("/nowhere/libnothing.so"))).unwrap_err();
        assert_eq!(failure.code, Exit::Library);
        assert!(failure.text.contains("/nowhere/libnothing.so"), "{failure}");
    }
}
