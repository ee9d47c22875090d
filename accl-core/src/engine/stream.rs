//! Host streams, as those see them who put something there. Launches go through one inbox to the thread that serves all
//! streams of the process (`queues`).
//!
//! A launch is what one group puts on its streams. It begins when it is at the head of each of its streams and
//! of each of its seats; seats keep launches of one communicator in the order of their calls, whatever the
//! stream, so that communicators progress independently of each other. Most launches are a single call of one rank on
//! one stream: those which follow each other make a run, to which a call is added without any allocation.

use super::call::{Call, SelfCopy, Transfer};
use super::drive::Job;
use super::one_sided::OneSidedCall;
use super::queues::Queues;
use super::seat::Seat;
use crate::error::{Error, Result};
use crate::os::process;
use crate::sync::bell::Bell;
use crate::sync::prim::{AtomicBool, AtomicU64, Ordering};
use crate::sync::progress::Progress;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// A queue of launches, as a user sees it.
#[derive(Clone, Debug)]
pub struct HostStream(Arc<StreamState>);

/// A stream, as all threads see it.
#[derive(Debug, Default)]
pub(super) struct StreamState {
    /// Of launches, where each call of a run counts.
    pub(super) progress: Progress,
    /// The first failure since the last synchronize.
    error: Mutex<Option<Error>>,
}

impl StreamState {
    /// Keeps a failure, unless there is one already.
    pub(super) fn fail(&self, error: &Error) {
        self.error.lock().get_or_insert_with(|| error.clone());
    }
}

impl HostStream {
    /// An empty stream.
    pub fn create() -> Result<Self> {
        Engine::of_process()?;
        Ok(Self(Arc::default()))
    }

    /// True if both are the same stream.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until everything queued so far is done; the first failure since the last time is returned.
    pub fn synchronize(&self) -> Result<()> {
        self.0.progress.wait();
        self.0.error.lock().take().map_or(Ok(()), Err)
    }

    /// True if everything queued so far is done; a failure is returned once, as by [`HostStream::synchronize`].
    pub fn query(&self) -> Result<bool> {
        if !self.0.progress.is_idle() {
            return Ok(false);
        }
        self.0.error.lock().take().map_or(Ok(true), Err)
    }

    /// Waits until everything is done and gives the stream back.
    pub fn destroy(self) -> Result<()> {
        self.synchronize()
    }
}

/// What one rank does in a launch.
#[derive(Debug)]
pub struct Part {
    /// The rank.
    pub seat: Arc<Seat>,
    /// Its collective calls.
    pub calls: Vec<Call>,
    /// Its sends and receives.
    pub transfers: Vec<Transfer>,
    /// What it sends to itself.
    pub copies: Vec<SelfCopy>,
    /// Its one-sided calls.
    pub one_sided: Vec<OneSidedCall>,
}

impl Part {
    /// The same, borrowed.
    pub fn job(&self) -> Job<'_> {
        let (calls, transfers, copies) = (&self.calls, &self.transfers, &self.copies);
        Job { calls, transfers, copies, one_sided: &self.one_sided }
    }
}

/// Queues one launch on all of `streams` (at least one) and returns at once.
pub fn submit(streams: &[HostStream], parts: Vec<Part>) -> Result<()> {
    let engine = Engine::of_process()?;
    let streams: Vec<_> = streams.iter().map(|stream| stream.0.clone()).collect();
    let mut inbox = engine.inbox.0.lock();
    for stream in &streams {
        stream.progress.queue();
    }
    let queue = |part: Part| {
        let turn = part.seat.launches.queue();
        part.seat.recorder.launched(turn + 1);
        (turn, part)
    };
    let parts = parts.into_iter().map(queue).collect();
    inbox.launches.push(Launch::Group { streams, parts });
    engine.full.store(true, Ordering::Release);
    drop(inbox);
    engine.bell.ring();
    Ok(())
}

/// Queues a launch that is one call of one rank on one stream, and returns at once. Allocates nothing while few are
/// queued.
pub fn submit_call(stream: &HostStream, seat: &Arc<Seat>, call: &Call) -> Result<()> {
    let engine = Engine::of_process()?;
    let mut inbox = engine.inbox.0.lock();
    let before = [stream.0.progress.queue(), seat.launches.queue()];
    seat.recorder.launched(before[1] + 1);
    inbox.push_call(&stream.0, seat, before[1], call);
    // Release: pairs with `Engine::take`.
    engine.full.store(true, Ordering::Release);
    drop(inbox);
    // Where this launch has to wait for others, the thread sleeps because of those, and looks here before it sleeps
    // again. `is_armed` has the fence that makes the two loads behind it look at least as late as its last look.
    let first = || [stream.0.progress.done(), seat.launches.done()] == before;
    if engine.bell.is_armed() && first() {
        engine.bell.ring();
    }
    Ok(())
}

/// Starts the engine's thread, if that has not been done.
pub(super) fn start() -> Result<()> {
    Engine::of_process().map(|_| ())
}

/// Has the engine's thread look at a rank's dock from now on.
pub(super) fn serve_dock(seat: &Arc<Seat>) -> Result<()> {
    let engine = Engine::of_process()?;
    engine.inbox.0.lock().launches.push(Launch::Dock(seat.clone()));
    // Release: pairs with `Engine::take`.
    engine.full.store(true, Ordering::Release);
    engine.bell.ring();
    Ok(())
}

/// Makes the engine's thread end what is queued for seats that have been aborted.
pub(super) fn wake_for_abort() {
    if let Some(engine) = ENGINE.get() {
        engine.aborts.fetch_add(1, Ordering::Release);
        engine.bell.ring();
    }
}

/// Makes the engine's thread look around, if there is one.
pub(super) fn wake() {
    if let Some(engine) = ENGINE.get() {
        engine.bell.ring();
    }
}

/// Calls of one rank that follow each other on one stream.
#[derive(Debug)]
pub(super) struct Run {
    /// The rank.
    pub(super) seat: Arc<Seat>,
    /// How many of the seat's launches come before the first call.
    pub(super) turn: u64,
    /// How many there are.
    pub(super) calls: usize,
}

/// What arrives.
#[derive(Debug)]
pub(super) enum Launch {
    /// Calls, which lie in the inbox in the same order.
    Run(Arc<StreamState>, Run),
    /// Everything else; each part with its turn.
    Group { streams: Vec<Arc<StreamState>>, parts: Vec<(u64, Part)> },
    /// A rank to whose dock streams of a device will come.
    Dock(Arc<Seat>),
}

/// Launches in the order in which they were queued.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) launches: Vec<Launch>,
    /// Those of all runs.
    pub(super) calls: Vec<Call>,
}

impl Inbox {
    /// Launches that fit in without an allocation.
    const ROOM: usize = 1024;

    /// An empty one.
    pub(super) fn new() -> Self {
        Self { launches: Vec::with_capacity(Self::ROOM), calls: Vec::with_capacity(Self::ROOM) }
    }

    /// One without any room.
    pub(super) fn empty() -> Self {
        Self { launches: Vec::new(), calls: Vec::new() }
    }

    fn push_call(&mut self, stream: &Arc<StreamState>, seat: &Arc<Seat>, turn: u64, call: &Call) {
        self.calls.push(*call);
        match self.launches.last_mut() {
            Some(Launch::Run(on, run)) if Arc::ptr_eq(on, stream) && Arc::ptr_eq(&run.seat, seat) => {
                run.calls += 1;
            }
            _ => {
                let run = Run { seat: seat.clone(), turn, calls: 1 };
                self.launches.push(Launch::Run(stream.clone(), run));
            }
        }
    }

    /// Gives back what only a long queue needed.
    pub(super) fn trim(&mut self) {
        self.launches.shrink_to(Self::ROOM);
        self.calls.shrink_to(Self::ROOM);
    }
}

/// The thread that serves all streams, as seen by others.
#[derive(Debug)]
pub(super) struct Engine {
    /// Apart from what the thread looks at all the time.
    inbox: Apart<Mutex<Inbox>>,
    /// True while there is something in the inbox.
    full: AtomicBool,
    pub(super) bell: Bell,
    /// How often a seat of this process was aborted.
    pub(super) aborts: AtomicU64,
    pid: u32,
    started: AtomicBool,
}

/// In cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Apart<T>(T);

static ENGINE: OnceLock<Engine> = OnceLock::new();

impl Engine {
    #[inline]
    fn of_process() -> Result<&'static Self> {
        match ENGINE.get() {
            Some(engine) if engine.started.load(Ordering::Acquire) && engine.pid == process::id() => {
                Ok(engine)
            }
            _ => Self::start(),
        }
    }

    #[cold]
    fn start() -> Result<&'static Self> {
        static STARTING: Mutex<()> = Mutex::new(());
        let engine = ENGINE.get_or_init(|| Self {
            inbox: Apart(Mutex::new(Inbox::new())),
            full: AtomicBool::new(false),
            bell: Bell::new(),
            aborts: AtomicU64::new(0),
            pid: process::id(),
            started: AtomicBool::new(false),
        });
        if engine.pid != process::id() {
            return Err(Error::usage(
                "host streams of a parent process cannot be used after a fork; call fork before any is made, or start another \
                 program in the child",
            ));
        }
        let _starting = STARTING.lock();
        if !engine.started.load(Ordering::Acquire) {
            std::thread::Builder::new()
                .name("accl-engine".to_string())
                .spawn(move || Queues::new().serve(engine))
                .map_err(|error| Error::thread("the thread for host streams", error))?;
            engine.started.store(true, Ordering::Release);
        }
        Ok(engine)
    }

    /// Exchanges an empty inbox for the full one; false if there is nothing in it.
    pub(super) fn take(&self, empty: &mut Inbox) -> bool {
        // Acquire: pairs with `submit_call`.
        if !self.full.load(Ordering::Acquire) {
            return false;
        }
        let mut inbox = self.inbox.0.lock();
        std::mem::swap(&mut *inbox, empty);
        self.full.store(false, Ordering::Relaxed);
        true
    }

    /// Gives back what only a long queue needed.
    pub(super) fn trim(&self) {
        self.inbox.0.lock().trim();
    }
}
