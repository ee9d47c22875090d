//! Profiler plugins, versions 4 to 6: they are told of each data call when it begins and when it returns. With a stream, or in a group, that is
//! when the call has been taken over, as in NCCL.
//!
//! One layout of an event serves all versions: a later one is an earlier one with more at its end, and version 4's kind is the first byte
//! of a number that is smaller than 256.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use accl_core::comm::{Communicator, Selection};
use accl_core::telemetry;
use accl_core::types::{Collective, DataType};
use libloading::os::unix::Library;
use parking_lot::Mutex;

use super::logger::{Logger, logger};

/// Kinds of events, as bits: what a plugin asks for, and what it is told of.
const COLLECTIVE: u64 = 1 << 1;
const MESSAGE: u64 = 1 << 2;
const COLLECTIVE_CALL: u64 = 1 << 9;
const MESSAGE_CALL: u64 = 1 << 10;

/// Names of functions and types are those of `nccl.h`.
type Handle = *mut c_void;
type Start = unsafe extern "C" fn(Handle, *mut Handle, *mut Event) -> c_int;
type Stop = unsafe extern "C" fn(Handle) -> c_int;
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
    record: Option<Stop>,
    finalize: Option<Stop>,
}

/// An event as a plugin reads it.
#[repr(C)]
struct Event {
    kind: u64,
    parent: Handle,
    rank: c_int,
    body: Body,
}

#[repr(C)]
union Body {
    collective: CollectiveBody,
    collective_call: CollectiveCallBody,
    message: MessageBody,
    message_call: MessageCallBody,
    /// More than any version has.
    _room: [u64; 16],
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CollectiveBody {
    sequence: u64,
    function: *const c_char,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    root: c_int,
    data_type: *const c_char,
    channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
    group: Handle,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct CollectiveCallBody {
    function: *const c_char,
    count: usize,
    data_type: *const c_char,
    root: c_int,
    stream: Handle,
    is_captured: bool,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MessageBody {
    function: *const c_char,
    buffer: Handle,
    data_type: *const c_char,
    count: usize,
    peer: c_int,
    channels: u8,
    group: Handle,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct MessageCallBody {
    function: *const c_char,
    count: usize,
    data_type: *const c_char,
    stream: Handle,
    is_captured: bool,
}

/// A call, for those who are told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Its name without a prefix.
    pub(crate) name: &'static str,
    /// `None` for a send or a receive.
    pub(crate) kind: Option<Collective>,
    pub(crate) send: *const c_void,
    /// Also what is sent.
    pub(crate) recv: *mut c_void,
    pub(crate) count: usize,
    pub(crate) data_type: DataType,
    /// The root, or the peer.
    pub(crate) root: c_int,
    pub(crate) stream: *mut c_void,
    /// By what a collective goes, if that was chosen.
    pub(crate) selection: Selection,
}

/// A plugin that is loaded, and what it knows of each communicator.
pub(super) struct Profiler {
    functions: Functions,
    contexts: Mutex<BTreeMap<usize, Context>>,
    _library: Library,
}

struct Functions {
    init: Init,
    start: Start,
    stop: Stop,
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
    let open = || super::open("profiler", "PROFILER_PLUGIN").and_then(Profiler::of);
    PROFILER.get_or_init(open).as_ref()
}

/// Carries a call out between what the plugin is told of it.
pub(crate) fn around<T>(comm: &Communicator, call: &Call, body: impl FnOnce() -> T) -> T {
    let Some(profiler) = profiler() else { return body() };
    let Some(context) = profiler.context(comm, call.kind.is_some()) else { return body() };
    let rank = crate::management::number(comm.rank());
    let outer = profiler.start(context, &call.api_event(rank));
    let inner = profiler.start(context, &call.event(rank, outer, &context, comm));
    let result = body();
    profiler.stop(inner);
    profiler.stop(outer);
    result
}

/// Tells the plugin that a communicator has ended.
pub(super) fn forget(comm: &Communicator) {
    let Some(profiler) = profiler() else { return };
    let context = profiler.contexts.lock().remove(&comm.key());
    if let Some(context) = context.filter(|context| context.wanted != 0) {
        // SAFETY: the plugin's own context, which it hears of for the last time.
        unsafe { (profiler.functions.finalize)(context.handle) };
    }
}

impl Profiler {
    /// The newest version that the library has.
    fn of(library: Library) -> Option<Self> {
        // SAFETY: a symbol of this name is a table of this layout, in the library that is kept.
        let found = unsafe {
            find::<Init5>(&library, c"ncclProfiler_v6")
                .or_else(|| find::<Init5>(&library, c"ncclProfiler_v5"))
                .map(|table| (table.init.map(Init::Later), rest(&table)))
                .or_else(|| {
                    find::<Init4>(&library, c"ncclProfiler_v4")
                        .map(|table| (table.init.map(Init::Version4), rest(&table)))
                })
        };
        let Some((Some(init), Some((start, stop, finalize)))) = found else {
            telemetry::warn(
                "the profiler plugin has no complete ncclProfiler_v6, _v5 or _v4, and is not used; set NCCL_PROFILER_PLUGIN to one \
                 that has, or to none",
            );
            return None;
        };
        let functions = Functions { init, start, stop, finalize };
        Some(Self { functions, contexts: Mutex::default(), _library: library })
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
            match self.functions.init {
                Init::Version4(init) => {
                    init(handle, wants, name, identity.number, hosts, ranks, rank, logger())
                }
                Init::Later(init) => init(handle, identity.number, wants, name, hosts, ranks, rank, logger()),
            }
        };
        if code == 0 {
            // Version 4 knows no more than 8 kinds.
            let known = if matches!(self.functions.init, Init::Version4(_)) { 0xff } else { u64::MAX };
            context.wanted = u64::from(wanted.cast_unsigned()) & known;
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

impl Call {
    /// The event of the call as the program makes it.
    fn api_event(&self, rank: c_int) -> Event {
        let (function, data_type) = (self.function().as_ptr(), type_name(self.data_type).as_ptr());
        let (count, stream, is_captured) = (self.count, self.stream, false);
        let mut event = Event::none(rank);
        if self.kind.is_some() {
            event.kind = COLLECTIVE_CALL;
            event.body.collective_call =
                CollectiveCallBody { function, count, data_type, root: self.root, stream, is_captured };
        } else {
            event.kind = MESSAGE_CALL;
            event.body.message_call = MessageCallBody { function, count, data_type, stream, is_captured };
        }
        event
    }

    /// The event of what is done for it.
    fn event(&self, rank: c_int, parent: Handle, context: &Context, comm: &Communicator) -> Event {
        let (function, data_type) = (self.function().as_ptr(), type_name(self.data_type).as_ptr());
        let mut event = Event::none(rank);
        event.parent = parent;
        let Some(kind) = self.kind else {
            event.kind = MESSAGE;
            event.body.message = MessageBody {
                function,
                buffer: self.recv,
                data_type,
                count: self.count,
                peer: self.root,
                channels: 1,
                group: null_mut(),
            };
            return event;
        };
        let explained = comm.explain_with(kind, self.count, self.data_type, self.selection);
        let way = explained.map_or("", |explained| explained.way);
        event.kind = COLLECTIVE;
        event.body.collective = CollectiveBody {
            sequence: context.sequence - 1,
            function,
            send: self.send,
            recv: self.recv,
            count: self.count,
            root: self.root,
            data_type,
            channels: 1,
            warps: 0,
            algorithm: algorithm(way).as_ptr(),
            protocol: c"SIMPLE".as_ptr(),
            group: null_mut(),
        };
        event
    }

    fn function(&self) -> &'static CStr {
        match (self.kind, self.name) {
            (Some(Collective::AllReduce), _) => c"AllReduce",
            (Some(Collective::Reduce), _) => c"Reduce",
            (Some(Collective::Broadcast), _) => c"Broadcast",
            (Some(Collective::AllGather), _) => c"AllGather",
            (Some(Collective::ReduceScatter), _) => c"ReduceScatter",
            (Some(Collective::AllToAll), _) => c"AlltoAll",
            (Some(Collective::Gather), _) => c"Gather",
            (Some(Collective::Scatter), _) => c"Scatter",
            (_, "Send") => c"Send",
            _ => c"Recv",
        }
    }
}

impl Event {
    fn none(rank: c_int) -> Self {
        Self { kind: 0, parent: null_mut(), rank, body: Body { _room: [0; 16] } }
    }
}

/// NCCL's words for algorithms that it has; DIRECT for the others.
fn algorithm(way: &str) -> &'static CStr {
    match way {
        "ring" | "hosts-ring" => c"RING",
        "tree" | "hosts-tree" => c"TREE",
        _ => c"DIRECT",
    }
}

fn type_name(data_type: DataType) -> &'static CStr {
    match data_type {
        DataType::Int8 => c"ncclInt8",
        DataType::Uint8 => c"ncclUint8",
        DataType::Int32 => c"ncclInt32",
        DataType::Uint32 => c"ncclUint32",
        DataType::Int64 => c"ncclInt64",
        DataType::Uint64 => c"ncclUint64",
        DataType::Float16 => c"ncclFloat16",
        DataType::Float32 => c"ncclFloat32",
        DataType::Float64 => c"ncclFloat64",
        DataType::Bfloat16 => c"ncclBfloat16",
        DataType::Float8e4m3 => c"ncclFloat8e4m3",
        DataType::Float8e5m2 => c"ncclFloat8e5m2",
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

/// The functions that all versions have, if none is missing.
fn rest<I>(table: &Table<I>) -> Option<(Start, Stop, Stop)> {
    Some((table.start?, table.stop?, table.finalize?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn events_are_laid_out_as_plugins_read_them() {
        assert_eq!(
            (offset_of!(Event, parent), offset_of!(Event, rank), offset_of!(Event, body)),
            (8, 16, 24)
        );
        assert_eq!((offset_of!(CollectiveBody, root), offset_of!(CollectiveBody, data_type)), (40, 48));
        assert_eq!((offset_of!(CollectiveBody, channels), offset_of!(CollectiveBody, algorithm)), (56, 64));
        assert_eq!(size_of::<CollectiveBody>(), 88);
        assert_eq!((offset_of!(MessageBody, peer), offset_of!(MessageBody, group)), (32, 40));
        assert_eq!((offset_of!(CollectiveCallBody, root), offset_of!(CollectiveCallBody, stream)), (24, 32));
        assert_eq!((offset_of!(MessageCallBody, stream), size_of::<Table<Init5>>()), (24, 48));
    }
}
