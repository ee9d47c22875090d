//! Devices and contexts, and which of them is a thread's current one.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::error::{Code, Outcome};
use crate::handles::{Handles, Own, lock};
use crate::stream::{self, Point, Stream};
use crate::{abi, capture, config, memory};

/// A context: an owner of streams and memory on one device.
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) device: usize,
    pub(crate) is_primary: bool,
    pub(crate) flags: AtomicU32,
    legacy: OnceLock<Arc<Stream>>,
    pub(crate) streams: Mutex<Vec<Weak<Stream>>>,
    /// Held while work is queued, so that the legacy stream and the others agree on what came first.
    pub(crate) order: Mutex<()>,
    failure: AtomicI32,
    is_destroyed: AtomicBool,
    /// Devices whose memory this context may touch.
    pub(crate) peers: Mutex<HashSet<usize>>,
    this: Weak<Self>,
}

static CONTEXTS: Handles<Context> = Handles::new();

/// A device's primary context, and how often it is retained.
#[derive(Default)]
struct Primary {
    context: Option<Arc<Context>>,
    retained: u32,
    /// Does the runtime hold one of the references?
    has_runtime: bool,
    flags: u32,
}

thread_local! {
    static STACK: Own<Arc<Context>> = const { Own::new() };
    /// The runtime's device where no context is current.
    static DEVICE: Cell<usize> = const { Cell::new(0) };
}

/// The devices that the program sees (CUDA_VISIBLE_DEVICES), by their physical number.
pub(crate) fn visible() -> &'static [usize] {
    static VISIBLE: OnceLock<Vec<usize>> = OnceLock::new();
    VISIBLE.get_or_init(|| {
        let all = config::get().devices;
        match std::env::var("CUDA_VISIBLE_DEVICES") {
            Ok(list) => {
                let numbers = list.split(',').map_while(|item| item.trim().parse().ok());
                numbers.take_while(|&number| number < all).collect()
            }
            Err(_) => (0..all).collect(),
        }
    })
}

pub(crate) fn count() -> usize {
    visible().len()
}

pub(crate) fn check(device: i32) -> Outcome<usize> {
    usize::try_from(device).ok().filter(|&device| device < count()).ok_or(Code::INVALID_DEVICE)
}

/// Sixteen bytes that are a device's alone.
pub(crate) fn uuid(device: usize) -> [u8; 16] {
    let mut uuid = *b"ACCL-simulated\0\0";
    uuid[15] = visible().get(device).map_or(0, |&physical| physical as u8);
    uuid
}

/// Domain, bus and device number on PCI.
pub(crate) fn pci(device: usize) -> (i32, i32, i32) {
    (0, visible().get(device).map_or(0, |&physical| physical as i32) * 16 + 0x11, 0)
}

/// The PCI address as text.
pub(crate) fn pci_text(device: usize) -> String {
    let (domain, bus, number) = pci(device);
    format!("{domain:04X}:{bus:02X}:{number:02X}.0")
}

static INITIALIZED_BY: AtomicU32 = AtomicU32::new(0);

/// cuInit: devices can not be used by a child that was forked after it.
pub(crate) fn initialize() -> Outcome {
    let me = std::process::id();
    match INITIALIZED_BY.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != me => return Err(Code::NOT_INITIALIZED),
        Err(_) => {}
        Ok(_) => {
            abi::stay();
            memory::raise_file_limit();
        }
    }
    if count() == 0 { Err(Code::NO_DEVICE) } else { Ok(()) }
}

/// Was cuInit called, by this process?
pub(crate) fn initialized() -> Outcome {
    if INITIALIZED_BY.load(Ordering::Relaxed) == std::process::id() {
        Ok(())
    } else {
        Err(Code::NOT_INITIALIZED)
    }
}

fn primaries() -> &'static [Mutex<Primary>] {
    static PRIMARIES: OnceLock<Vec<Mutex<Primary>>> = OnceLock::new();
    PRIMARIES.get_or_init(|| (0..config::get().devices).map(|_| Mutex::default()).collect())
}

/// The primary context of a device, made if there is none.
pub(crate) fn primary(device: usize) -> Arc<Context> {
    let mut primary = lock(&primaries()[device]);
    let flags = primary.flags;
    Arc::clone(primary.context.get_or_insert_with(|| create(device, true, flags)))
}

/// The primary context as the runtime uses it: it keeps a reference, whatever users of the driver give back.
fn runtime_primary(device: usize) -> Arc<Context> {
    let context = primary(device);
    let mut primary = lock(&primaries()[device]);
    if !primary.has_runtime {
        primary.has_runtime = true;
        primary.retained += 1;
    }
    context
}

pub(crate) fn retain_primary(device: usize) -> Arc<Context> {
    let context = primary(device);
    lock(&primaries()[device]).retained += 1;
    context
}

pub(crate) fn release_primary(device: usize) -> Outcome {
    let last = {
        let mut primary = lock(&primaries()[device]);
        primary.retained = primary.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        primary.retained == 0
    };
    if last { reset_primary(device) } else { Ok(()) }
}

/// Flags, and whether the primary context exists.
pub(crate) fn primary_state(device: usize) -> (u32, bool) {
    let primary = lock(&primaries()[device]);
    (primary.flags, primary.context.is_some())
}

pub(crate) fn set_primary_flags(device: usize, flags: u32) {
    lock(&primaries()[device]).flags = flags;
}

pub(crate) fn reset_primary(device: usize) -> Outcome {
    let context = {
        let mut primary = lock(&primaries()[device]);
        if std::mem::take(&mut primary.has_runtime) {
            primary.retained = primary.retained.saturating_sub(1);
        }
        primary.context.take()
    };
    context.map_or(Ok(()), |context| context.destroy())
}

pub(crate) fn create(device: usize, is_primary: bool, flags: u32) -> Arc<Context> {
    let handle_of = |handle| {
        Arc::new_cyclic(|this: &Weak<Context>| Context {
            handle,
            device,
            is_primary,
            flags: AtomicU32::new(flags),
            legacy: OnceLock::new(),
            streams: Mutex::default(),
            order: Mutex::default(),
            failure: AtomicI32::new(0),
            is_destroyed: AtomicBool::new(false),
            peers: Mutex::default(),
            this: this.clone(),
        })
    };
    CONTEXTS.add_shared(handle_of)
}

pub(crate) fn find(handle: u64) -> Outcome<Arc<Context>> {
    CONTEXTS.get(handle).map_err(|_| Code::INVALID_CONTEXT)
}

impl Context {
    pub(crate) fn legacy(&self) -> Arc<Stream> {
        let make = || {
            let this = self.this.upgrade();
            this.map(|this| Arc::new(Stream::new(stream::LEGACY, &this, false, 0)))
        };
        match self.legacy.get() {
            Some(legacy) => Arc::clone(legacy),
            None => {
                // A context is in use while somebody asks for its stream, so that it can be upgraded.
                let made = make();
                match made {
                    Some(made) => Arc::clone(self.legacy.get_or_init(|| made)),
                    None => std::process::abort(),
                }
            }
        }
    }

    pub(crate) fn legacy_if_used(&self) -> Option<Arc<Stream>> {
        self.legacy.get().cloned()
    }

    pub(crate) fn all_streams(&self) -> Vec<Arc<Stream>> {
        lock(&self.streams).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn blocking_streams(&self) -> Vec<Arc<Stream>> {
        let mut streams = self.all_streams();
        streams.retain(|stream| !stream.nonblocking);
        streams
    }

    /// What broke this context.
    pub(crate) fn failure(&self) -> Option<Code> {
        Some(self.failure.load(Ordering::Acquire)).filter(|&code| code != 0).map(Code)
    }

    /// Breaks this context, for good.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.failure.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(crate) fn check(&self) -> Outcome {
        if self.is_destroyed.load(Ordering::Acquire) {
            return Err(Code::CONTEXT_DESTROYED);
        }
        self.failure().map_or(Ok(()), Err)
    }

    /// Waits for all streams, none of which may capture.
    pub(crate) fn synchronize(&self) -> Outcome {
        capture::forbid_in_context(self)?;
        self.drain()
    }

    /// Waits for what streams were given, as freeing memory does; captures go on.
    pub(crate) fn drain(&self) -> Outcome {
        let mut points: Vec<Point> = self.all_streams().iter().map(Stream::tail).collect();
        points.extend(self.legacy_if_used().map(|legacy| legacy.tail()));
        points.iter().for_each(Point::wait);
        self.check()
    }

    pub(crate) fn destroy(self: &Arc<Self>) -> Outcome {
        let _ = self.drain();
        self.is_destroyed.store(true, Ordering::Release);
        let _ = CONTEXTS.remove(self.handle);
        stream::destroy_all(self);
        memory::release_all(self.handle);
        STACK.with(|stack| stack.change(|stack| stack.retain(|other| !Arc::ptr_eq(other, self))));
        Ok(())
    }
}

/// The driver's current context.
pub(crate) fn current() -> Outcome<Arc<Context>> {
    initialized()?;
    let context = top().ok_or(Code::INVALID_CONTEXT)?;
    context.check()?;
    Ok(context)
}

/// The current context, whatever its state.
pub(crate) fn top() -> Option<Arc<Context>> {
    STACK.with(|stack| stack.change(|stack| stack.last().cloned()))
}

pub(crate) fn push(context: Arc<Context>) {
    STACK.with(|stack| stack.change(|stack| stack.push(context)));
}

pub(crate) fn pop() -> Outcome<Arc<Context>> {
    STACK.with(|stack| stack.change(Vec::pop)).ok_or(Code::INVALID_CONTEXT)
}

/// Replaces the current context; `None` pops it.
pub(crate) fn set_current(context: Option<Arc<Context>>) {
    STACK.with(|stack| {
        stack.change(|stack| {
            stack.pop();
            stack.extend(context);
        });
    });
}

/// The runtime's device.
pub(crate) fn runtime_device() -> usize {
    top().map_or_else(|| DEVICE.get(), |context| context.device)
}

pub(crate) fn set_runtime_device(device: usize) {
    DEVICE.set(device);
    set_current(Some(runtime_primary(device)));
}

/// The runtime's context: the current one, or the primary one of the runtime's device, which becomes current.
pub(crate) fn runtime_context() -> Outcome<Arc<Context>> {
    initialize()?;
    // A primary context that was reset, by any thread, is made anew.
    let usable = top().filter(|context| !context.is_primary || !context.is_destroyed.load(Ordering::Acquire));
    let context = usable.unwrap_or_else(|| {
        let context = runtime_primary(DEVICE.get());
        set_current(Some(Arc::clone(&context)));
        context
    });
    context.check()?;
    Ok(context)
}

/// Lets a context touch another device's memory.
pub(crate) fn enable_peer(context: &Context, peer: usize) -> Outcome {
    if !can_access(context.device, peer) {
        return Err(Code(217));
    }
    if lock(&context.peers).insert(peer) { Ok(()) } else { Err(Code::PEER_ALREADY_ENABLED) }
}

pub(crate) fn disable_peer(context: &Context, peer: usize) -> Outcome {
    if lock(&context.peers).remove(&peer) { Ok(()) } else { Err(Code::PEER_NOT_ENABLED) }
}

pub(crate) fn can_access(device: usize, peer: usize) -> bool {
    device != peer && config::get().peer
}
