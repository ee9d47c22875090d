//! Drivers of accelerators: what the library needs of one, and the table of functions that is opened at run time.
//!
//! CUDA's driver and that of the PPU have the same functions under another prefix (`cu`, `hg`), so that one table serves
//! both. The library is never linked with a driver. It asks for the one that the process has loaded already: where there is
//! none, there is no device memory either, and everything lies in host memory.

mod cuda;
#[cfg(test)]
pub(crate) mod fake;
pub mod network_plugin;
mod table;
pub mod verbs;

use crate::config;
use crate::error::{Error, Result};
use std::ffi::CStr;
use std::fmt::Debug;
use std::sync::OnceLock;

/// A driver's context: what belongs to one device of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// The driver's handle.
    pub handle: usize,
    /// The number of the device, as this process counts.
    pub ordinal: i32,
}

/// A queue of work on a device, as the driver or a user names it; 0 is the default stream of the current context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream(pub usize);

/// A mark in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event(pub usize);

/// Code that a context has loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Module(pub usize);

/// A kernel of a module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function(pub usize);

/// How many threads run a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Blocks of threads.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}

/// Host memory that both the processor and the device can reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pinned {
    /// Where the processor finds it.
    pub host: usize,
    /// Where the device finds it.
    pub device: usize,
}

/// What memory an address lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// None that the driver knows: ordinary memory of the host, or none at all.
    Unknown,
    /// Pinned memory of the host, which every device can reach.
    Pinned,
    /// Managed memory, which every device can reach.
    Managed,
    /// That of the device of this number.
    Device(i32),
}

/// Device memory as other processes find it.
pub type Exported = [u8; 64];

/// What a stream does with work that is put on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capture {
    /// It runs.
    None,
    /// It becomes part of a graph.
    Active {
        /// A number of this capture that no other one has.
        id: u64,
        /// The graph, as the driver names it.
        graph: usize,
    },
    /// Nothing: something illegal has been done, and the capture must be ended.
    Invalidated,
}

/// What a thread may call while streams are captured, as the driver numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureMode(pub i32);

impl CaptureMode {
    /// Everything, whoever captures.
    pub const RELAXED: Self = Self(2);
}

/// When a stream that waits for a word goes on. Words and values are compared as numbers of 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// The word is as given.
    Equal(u32),
    /// The word has come so far, counting round: their difference is not negative.
    Reached(u32),
}

/// What the library asks of a driver. Errors are of kind [`crate::ErrorKind::Device`], and name function and code.
pub trait Driver: Send + Sync + Debug {
    /// The calling thread's context: its current one, or the primary one of the first device, as programs of the runtime library have
    /// it that chose none. None if the process has not initialised the driver, or there is no device.
    fn current(&self) -> Result<Option<Context>>;

    /// The context that the runtime library uses for device `ordinal`.
    fn primary(&self, ordinal: i32) -> Result<Context>;

    /// How many devices there are; none if the process has not begun to use them.
    fn devices(&self) -> Result<i32>;

    /// Makes `context` the calling thread's, on top of the one it has.
    fn push(&self, context: Context) -> Result<()>;

    /// Takes the last [`Self::push`] back.
    fn pop(&self) -> Result<()>;

    /// Changes what the calling thread may call while streams are captured, and returns what that was.
    fn exchange_capture_mode(&self, mode: CaptureMode) -> Result<CaptureMode>;

    /// Zeroed host memory that every device can reach.
    fn allocate_pinned(&self, bytes: usize) -> Result<Pinned>;

    /// Memory of the current context's device.
    fn allocate(&self, bytes: usize) -> Result<usize>;

    /// Gives it back; waits for the device.
    fn free(&self, address: usize) -> Result<()>;

    /// How other processes find memory of [`Self::allocate`].
    fn export(&self, address: usize) -> Result<Exported>;

    /// Memory of another process, as the current context's device reaches it.
    fn open(&self, memory: &Exported) -> Result<usize>;

    /// Lets go of memory of [`Self::open`].
    fn close(&self, address: usize) -> Result<()>;

    /// True if the device of `own` can reach memory of `peer`, another context of this process; from now on it may.
    fn reach(&self, own: Context, peer: Context) -> Result<bool>;

    /// What memory an address lies in, whichever context is the thread's.
    fn locate(&self, address: usize) -> Result<Place>;

    /// Makes memory of the process known, so that copies from and to it run by themselves. It must stay from now on.
    fn register(&self, start: usize, bytes: usize) -> Result<()>;

    /// Takes back what [`Self::register`] has done.
    fn unregister(&self, start: usize) -> Result<()>;

    /// The number of the device that `stream` is of; `own` is the current context.
    fn device_of(&self, stream: Stream, own: Context) -> Result<i32>;

    /// A stream that does not wait for the default stream.
    fn create_stream(&self) -> Result<Stream>;

    /// Gives it back; what is queued still runs.
    fn destroy_stream(&self, stream: Stream) -> Result<()>;

    /// An event without a time.
    fn create_event(&self) -> Result<Event>;

    /// Gives it back.
    fn destroy_event(&self, event: Event) -> Result<()>;

    /// Marks the end of what is queued on `stream` now.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;

    /// True if everything before the mark is done.
    fn has_passed(&self, event: Event) -> Result<bool>;

    /// What is queued on `stream` later waits for the mark.
    fn wait_event(&self, stream: Stream, event: Event) -> Result<()>;

    /// Queues a copy between any two kinds of memory.
    fn copy(&self, destination: usize, source: usize, bytes: usize, stream: Stream) -> Result<()>;

    /// Queues a store to a word (its address on the device); what was queued before is visible before it.
    fn write_word(&self, stream: Stream, word: usize, value: u32) -> Result<()>;

    /// What is queued later waits for a word (its address on the device).
    fn wait_word(&self, stream: Stream, word: usize, until: Until) -> Result<()>;

    /// Whether `stream` is being captured.
    fn capture(&self, stream: Stream) -> Result<Capture>;

    /// Has `ended` called when the graph and all that was made of it is gone, on any thread. It must not call the driver.
    fn keep_for_graph(&self, graph: usize, ended: Box<dyn FnOnce() + Send>) -> Result<()>;

    /// Loads a program, in PTX, into the current context; translating it may take a second, and may wait for the device.
    fn load_module(&self, program: &CStr) -> Result<Module>;

    /// The kernel of a name.
    fn find_function(&self, module: Module, name: &CStr) -> Result<Function>;

    /// Queues a kernel whose only parameter is a structure of these words. They are copied in the call.
    fn launch(&self, function: Function, grid: Grid, parameter: &[u64], stream: Stream) -> Result<()>;

    /// Queues a call of `function` on a thread of the driver. It must not call the driver, nor wait.
    fn call_host(&self, stream: Stream, function: fn()) -> Result<()>;
}

/// The driver that this process has loaded, or that the settings name; looked for anew until one is found.
pub fn of_process(wanted: &config::Driver) -> Result<Option<&'static dyn Driver>> {
    static DRIVER: OnceLock<cuda::Cuda> = OnceLock::new();
    if let Some(driver) = DRIVER.get() {
        return Ok(Some(driver));
    }
    match cuda::Cuda::find(wanted)? {
        Some(found) => Ok(Some(DRIVER.get_or_init(|| found))),
        None => Ok(None),
    }
}

/// Runs `body` with `context` as the calling thread's.
pub fn within<T>(driver: &dyn Driver, context: Context, body: impl FnOnce() -> Result<T>) -> Result<T> {
    driver.push(context)?;
    let outcome = body();
    let popped = driver.pop();
    outcome.and_then(|value| popped.map(|()| value))
}

/// A failed call of the driver.
#[track_caller]
fn refused(function: &str, code: i32, name: &str, description: &str) -> Error {
    Error::new(
        crate::ErrorKind::Device,
        format!("{function} of the device driver failed: {name} ({code}): {description}{}", advice(code)),
    )
}

/// What to do about a driver's code, where that is known.
fn advice(code: i32) -> &'static str {
    const OUT_OF_MEMORY: i32 = 2;
    const CONTEXT_IS_GONE: [i32; 2] = [201, 709];
    const UNCORRECTABLE: i32 = 214;
    const NO_DEVICE_ERRORS: [i32; 5] = [701, 704, 705, 712, 713];
    match code {
        OUT_OF_MEMORY => "; free memory of the device, or ask for less",
        code if CONTEXT_IS_GONE.contains(&code) => {
            "; the device's context was destroyed or reset: make communicators anew, and keep it"
        }
        code if NO_DEVICE_ERRORS.contains(&code) => "",
        UNCORRECTABLE | 700..=719 => {
            "; the device's context is lost, perhaps by an earlier kernel of the program: end the process"
        }
        900..=908 => "; see which calls were made while a stream was captured",
        _ => "",
    }
}
