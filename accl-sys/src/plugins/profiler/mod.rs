//! Profiler plugins, versions 4 to 6: they are told of each data call when it begins and when it returns. With a stream, or in a group, that is
//! when the call has been taken over, as in NCCL.
//!
//! What a program does within a group, and each call outside of one, is the child of an event of its own, from version 5 on.

mod events;
mod group;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use accl_core::comm::Communicator;
use accl_core::telemetry;
use libloading::os::unix::Library;
use parking_lot::Mutex;

use super::logger::{Logger, logger};
pub(crate) use events::Call;
use events::Event;
pub(crate) use group::around_end;

/// Names of functions and types are those of `nccl.h`.
type Handle = *mut c_void;
type Start = unsafe extern "C" fn(Handle, *mut Handle, *mut Event) -> c_int;
type Stop = unsafe extern "C" fn(Handle) -> c_int;
/// An event, its new state, and more about that, which the states told here have nothing of.
type Record = unsafe extern "C" fn(Handle, c_int, *mut c_void) -> c_int;
type Init4 =
    unsafe extern "C" fn(*mut Handle, *mut c_int, *const c_char, u64, c_int, c_int, c_int, Logger) -> c_int;
type Init5 =
    unsafe extern "C" fn(*mut Handle, u64, *mut c_int, *const c_char, c_int, c_int, c_int, Logger) -> c_int;

/// What a plugin exports; `I` is the type of its first function.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table<I> {
    name: *const c_char,
    init: Option<I>,
    start: Option<Start>,
    stop: Option<Stop>,
    record: Option<Record>,
    finalize: Option<Stop>,
}

/// A plugin that is loaded, and what it knows of each communicator.
pub(super) struct Profiler {
    init: Init,
    functions: Functions,
    contexts: Mutex<BTreeMap<usize, Context>>,
    _library: Library,
}

struct Functions {
    start: Start,
    stop: Stop,
    /// Not asked for: whoever has none misses nothing but states.
    record: Option<Record>,
    finalize: Stop,
}

#[derive(Clone, Copy)]
enum Init {
    Version4(Init4),
    Later(Init5),
}

#[derive(Clone, Copy)]
struct Context {
    handle: Handle,
    /// Of what it wants to be told; nothing if it has refused the communicator.
    wanted: u64,
    /// How many collectives there were.
    sequence: u64,
}

// SAFETY: what a plugin gave is only handed back to it, whose functions any thread may call.
unsafe impl Send for Context {}

static PROFILER: OnceLock<Option<Profiler>> = OnceLock::new();

/// The plugin, which is looked for once in a process.
pub(super) fn profiler() -> Option<&'static Profiler> {
    let find = || super::find("profiler", "PROFILER_PLUGIN", "ncclProfiler_v6, _v5 or _v4", Profiler::of);
    PROFILER.get_or_init(find).as_ref()
}

/// Carries a call out between what the plugin is told of it.
pub(crate) fn around<T>(comm: &Communicator, call: &Call, body: impl FnOnce() -> T) -> T {
    let Some(profiler) = profiler() else { return body() };
    let Some(context) = profiler.context(comm, call.kind.is_some()) else { return body() };
    let rank = crate::management::number(comm.rank());
    let group = profiler.enter(context, comm, rank);
    let outer = profiler.start(context, &call.api_event(rank, group));
    let inner = profiler.start(context, &call.event(rank, outer, &context, comm));
    let result = body();
    profiler.stop(inner);
    profiler.stop(outer);
    profiler.leave();
    result
}

/// Tells the plugin that a communicator has ended.
pub(super) fn forget(comm: &Communicator) {
    let Some(profiler) = profiler() else { return };
    let context = profiler.contexts.lock().remove(&comm.key());
    if let Some(context) = context.filter(|context| context.wanted != 0) {
        profiler.end_of(comm);
        // SAFETY: the plugin's own context, which it hears of for the last time.
        unsafe { (profiler.functions.finalize)(context.handle) };
    }
}

impl Profiler {
    /// The newest version that the library has, if that is complete.
    fn of(library: Library) -> Option<Self> {
        // SAFETY: a symbol of this name is a table of this layout, in the library that is kept.
        let found = unsafe {
            find::<Init5>(&library, c"ncclProfiler_v6")
                .or_else(|| find::<Init5>(&library, c"ncclProfiler_v5"))
                .map(|table| (table.init.map(Init::Later), functions(&table)))
                .or_else(|| {
                    find::<Init4>(&library, c"ncclProfiler_v4")
                        .map(|table| (table.init.map(Init::Version4), functions(&table)))
                })
        };
        let (Some(init), Some(functions)) = found? else { return None };
        Some(Self { init, functions, contexts: Mutex::default(), _library: library })
    }

    /// What the plugin has of a communicator, which it is told of now if it was not; none if it does not want any.
    fn context(&self, comm: &Communicator, is_collective: bool) -> Option<Context> {
        let mut contexts = self.contexts.lock();
        let context = contexts.entry(comm.key()).or_insert_with(|| self.begin(comm));
        context.sequence += u64::from(is_collective);
        Some(*context).filter(|context| context.wanted != 0)
    }

    fn begin(&self, comm: &Communicator) -> Context {
        let mut context = Context { handle: null_mut(), wanted: 0, sequence: 0 };
        let Ok(identity) = comm.identity() else { return context };
        let number = crate::management::number;
        let (ranks, rank, hosts) = (number(comm.ranks()), number(comm.rank()), number(identity.hosts));
        let name = comm.config().name.and_then(|name| CString::new(name).ok());
        let name = name.as_ref().map_or(null(), |name| name.as_ptr());
        let mut wanted: c_int = 0;
        let (handle, wants) = (&raw mut context.handle, &raw mut wanted);
        // SAFETY: the type is that of the version; all pointers live until it returns.
        let code = unsafe {
            match self.init {
                Init::Version4(init) => {
                    init(handle, wants, name, identity.number, hosts, ranks, rank, logger())
                }
                Init::Later(init) => init(handle, identity.number, wants, name, hosts, ranks, rank, logger()),
            }
        };
        if code == 0 {
            // Version 4 knows no more than 8 kinds.
            let known = if matches!(self.init, Init::Version4(_)) { 0xff } else { u64::MAX };
            context.wanted = events::with_parents(wanted.cast_unsigned().into()) & known;
        } else {
            telemetry::warn(&format!(
                "the profiler plugin has refused a communicator with code {code}; it is told nothing of it"
            ));
        }
        context
    }

    /// Begins an event, if that is wanted; NULL is none.
    fn start(&self, context: Context, event: &Event) -> Handle {
        if context.wanted & event.kind == 0 {
            return null_mut();
        }
        let mut handle = null_mut();
        // SAFETY: the plugin's own context, and an event that is laid out as its version has it. It may not keep the event.
        let code = unsafe {
            (self.functions.start)(context.handle, &raw mut handle, std::ptr::from_ref(event).cast_mut())
        };
        if code == 0 { handle } else { null_mut() }
    }

    fn stop(&self, event: Handle) {
        if !event.is_null() {
            // SAFETY: an event of the plugin, which hears of its end once.
            unsafe { (self.functions.stop)(event) };
        }
    }
}

/// # Safety
/// A symbol of this name is a table of this type.
unsafe fn find<I: Copy>(library: &Library, name: &CStr) -> Option<Table<I>> {
    // SAFETY: promised. The symbol's address is that of the table.
    let table = unsafe { library.get::<*const Table<I>>(name.to_bytes_with_nul()) }.ok()?;
    // SAFETY: promised, and the library is loaded.
    Some(unsafe { table.read() })
}

/// The functions that all versions have, if none is missing that is needed.
fn functions<I>(table: &Table<I>) -> Option<Functions> {
    Some(Functions {
        start: table.start?,
        stop: table.stop?,
        record: table.record,
        finalize: table.finalize?,
    })
}
